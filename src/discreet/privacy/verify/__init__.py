"""Proofs: bound what a JAX program reveals about one record by abstract interpretation of its jaxpr, before it runs.

docs/prover.md explains the lattice, the claims of each abstract value, join and widening, and why
each rule is sound. For the idea, read `_bounds`, `_domain`, `_rows`, `_interpreter` and `_control`;
the rules are a list to look things up in. In reading order; each file imports only from those
before it:

    _errors                   refusals, with the first cause and its line
    _bounds                   sizes, batches, groups and terms, of which bounds are made
    recognize._facts          what values carry for the recognition
    _domain                   abstract values: the lattice
    _keyring                  keys by name: secret, used, derived
    _symbols                  public parameters that a proof leaves open
    _record                   draws, releases, loops and branches of one walk
    _arithmetic               public numbers as XLA computes them
    recognize._schedules      noise or bounds that change with the iteration
    _events                   from the record to the event
    _claims                   whether a declared event covers the proved one
    _public                   the rule of public operands
    _registry                 the tables of rules
    _precision                what number types keep of a result's claims
    _interpreter              the walk
    _refusals                 what no proof covers
    _rows                     rows and sums: how operands meet
    recognize._clipping       clipping by a norm that the program computes
    _moved                    what moving elements keeps
    recognize._comparisons    tests for NaN and infinity; one-hot encodings
    recognize._slices         rows taken by number
    recognize._histograms     rows added at an index of their own
    recognize._folds          records that `vmap` merged with another axis
    recognize._counters       integers that count iterations
    _control                  calls, branches, while loops: join and widening
    _scan                     `lax.scan`
    _devices                  `shard_map`
    _rules_elementwise        the rules, by kind of primitive
    _rules_shape
    _rules_linear
    _rules_keys
    _rules_noise
    _rules_markers
    _programs                 tracing, fingerprints, compilation
    _certify                  `certify` and its certificate
"""

from discreet.privacy.verify import (
    _control,
    _rules_elementwise,
    _rules_keys,
    _rules_linear,
    _rules_markers,
    _rules_noise,
    _rules_shape,
    _scan,
)
from discreet.privacy.verify._certify import Certificate as Certificate, certify as certify
from discreet.privacy.verify._claims import check_expected as check_expected
from discreet.privacy.verify._errors import PrivacyError as PrivacyError, from_here as from_here
from discreet.privacy.verify._programs import Runner as Runner, runner_of as runner_of
from discreet.privacy.verify._symbols import Given as Given, symbol as symbol

RULES_ARE_IN = (
    _control,
    _scan,
    _rules_elementwise,
    _rules_shape,
    _rules_linear,
    _rules_keys,
    _rules_noise,
    _rules_markers,
)
"""The modules whose functions register themselves, by `rule`, in the tables of `_registry`."""
