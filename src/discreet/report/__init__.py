"""The privacy statement: what was spent, on what terms, and what it does not cover."""

from discreet.report._make import make_statement, plan_facts
from discreet.report._statement import ProfilePoint, Statement

__all__ = ["ProfilePoint", "Statement", "make_statement", "plan_facts"]
