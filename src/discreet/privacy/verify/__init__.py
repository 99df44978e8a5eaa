"""Proofs: bound what a JAX program reveals about one record by abstract interpretation of its jaxpr, before it runs.

docs/prover.md explains the lattice, the claims of each abstract value, join and widening, and why each rule is sound.

Each file imports only from those before it: `_errors.py`, `_domain.py` (values, bounds, keys), `_events.py` (ledger, symbols),
`_interpreter.py` (the walk), `_control.py` (join, loops), `_devices.py` (shard_map), `_rules_*.py`, `_certify.py` (entry).
"""

from discreet.privacy.verify import _control, _rules_elementwise, _rules_linear, _rules_markers, _rules_shape
from discreet.privacy.verify._certify import (
    Certificate as Certificate,
    Runner as Runner,
    certify as certify,
    runner_of as runner_of,
)
from discreet.privacy.verify._errors import PrivacyError as PrivacyError, from_here as from_here
from discreet.privacy.verify._events import Given as Given, check_expected as check_expected, symbol as symbol

RULES_ARE_IN = (_control, _rules_elementwise, _rules_shape, _rules_linear, _rules_markers)
"""The modules whose functions register themselves, by `rule`, in the tables of the interpreter."""
