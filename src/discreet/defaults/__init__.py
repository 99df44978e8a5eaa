"""Sensible public settings for the models that come with the library: a plan, an optimizer and a guide."""

from discreet.defaults._defaults import Defaults, default_plan, defaults_for

__all__ = ["Defaults", "default_plan", "defaults_for"]
