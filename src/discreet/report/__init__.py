"""The privacy statement: what was spent, on what terms, and what it does not cover."""

from discreet.report._make import default_delta, make_statement, plan_facts
from discreet.report._statement import ProfilePoint, Statement

__all__ = ["ProfilePoint", "Statement", "default_delta", "make_statement", "plan_facts"]
