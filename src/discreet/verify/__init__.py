"""Proofs: what a JAX program may reveal about one record, found in its jaxpr before it runs, by abstract interpretation.

docs/prover.md has the lattice, what each abstract value claims, join and widening, and why each rule is sound.
"""

from discreet.verify import (
    _control,  # noqa: F401  the rules enter themselves in the list of rules
    _rules_elementwise,  # noqa: F401
    _rules_linear,  # noqa: F401
    _rules_markers,  # noqa: F401
    _rules_shape,  # noqa: F401
)
from discreet.verify._certify import Certificate, certify
from discreet.verify._errors import PrivacyError, from_here
from discreet.verify._events import Given, symbol
from discreet.verify._page import html_page

__all__ = ["Certificate", "Given", "PrivacyError", "certify", "from_here", "html_page", "symbol"]
