"""A query: bounded rows of single records, one exact sum, noise, release.

Standardisation, moments, counts, scores and each sum of a private Newton fit are queries. A query's program takes a key, the
records and public values, computes the sum (`total`) and adds noise to it. What is proved is that program: `certify` finds in
it how far one record moves the sum, and so the event, which must be no more than the noise claims.

The program need not be given all records. The exact sum over the others may be among its public values, to which `total` adds
what the last ones contribute. For two neighbouring tables whose one difference is in the last records, that value is the same.
Since the sum is exact, it is the same sum whichever records come last, so the proof holds for every pair of neighbours.

A query is a value: queries that are equal, for arguments of the same shapes, are proved and compiled once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from dp_accounting.dp_event import DpEvent
from jaxtyping import PRNGKeyArray

from discreet.accounting import BoundedRangeDpEvent, Relation
from discreet.act import Act
from discreet.mechanisms import GAUSSIAN, exponential_mechanism, planned_gaussian
from discreet.verify import Certificate, Given, certify


class Noise(Hashable, Protocol):
    """What is released of a sum."""

    def event(self) -> DpEvent | None:
        """The event that is claimed; None: whoever makes the query checks the event that was found."""

    def __call__(self, key: PRNGKeyArray, total: Any) -> Any:
        """The release."""


class Gaussian(NamedTuple):
    """The sum with Gaussian noise.

    Attributes:
        stddev: Standard deviation of the noise on each number.
        noise_multiplier: The same over the bound on what one record contributes.
    """

    stddev: float
    noise_multiplier: float

    def event(self) -> DpEvent:
        """As in `Noise`."""
        return GAUSSIAN.event(self.noise_multiplier)

    def __call__(self, key: PRNGKeyArray, total: Any) -> Any:
        """As in `Noise`."""
        return planned_gaussian(key, total, *self)


class Choice(NamedTuple):
    """The number of a large one of these sums, by the exponential mechanism; one record moves each of them by at most 1.

    Attributes:
        epsilon: The privacy range.
    """

    epsilon: float

    def event(self) -> DpEvent:
        """As in `Noise`."""
        return BoundedRangeDpEvent(self.epsilon)

    def __call__(self, key: PRNGKeyArray, total: Any) -> Any:
        """As in `Noise`."""
        return exponential_mechanism(key, total, self.epsilon)


@dataclasses.dataclass(frozen=True)
class Query:
    """The release of one exact sum over records.

    Attributes:
        total: The sum, from the program's arguments after the key. Compared by value: a function of a module, or an object.
        noise: What is released of it.
        relation: The neighbouring relation.
        records: Positions of the records' arrays among the program's arguments, the key's being 0; then that of the mask.
    """

    total: Callable[..., Any]
    noise: Noise
    relation: Relation
    records: tuple[int, ...] = (2, 3)

    def release(self, key: PRNGKeyArray, *arguments: Any) -> Any:
        """The program."""
        return self.noise(key, self.total(*arguments))

    def certificate(self, key: PRNGKeyArray, *arguments: Any) -> Certificate:
        """Prove the program, in 64 bits.

        Args:
            key: A key of the same type as for the program.
            arguments: Those of the program, or their shapes, or `Given` ones.

        Raises:
            PrivacyError: It is more than the noise claims, or the program holds the records as a constant.
        """
        leaves, structure = jax.tree.flatten((key, *arguments))
        # Values of two classes may be equal, as named tuples are.
        classes = type(self.total), type(self.noise)
        found = _certified(self, classes, structure, tuple(map(_kind, leaves)))
        found.refuse_captured(key, *arguments)
        return found

    def answer(self, act: Act, *arguments: Any, named: bool = True) -> Any:
        """Prove, begin, run: the one release of an act.

        Args:
            act: The act. Its key is that of the noise.
            arguments: Those of the program.
            named: As in `Act.prove`.

        Raises:
            PrivacyError, ValueError, SpentError: As `certificate` and `Act.begin`. Nothing was spent.
        """
        program = self.certificate(act.key, *arguments)
        act.prove(program, named=named)
        act.begin()
        return jax.tree.map(np.asarray, program(act.key, *arguments))


def _kind(value: Any) -> Any:
    return value if isinstance(value, Given) else jax.ShapeDtypeStruct(np.shape(value), value.dtype)


@functools.lru_cache(maxsize=128)
def _certified(query: Query, classes: Any, structure: Any, kinds: tuple[Any, ...]) -> Certificate:
    del classes
    arguments = jax.tree.unflatten(structure, kinds)
    *records, mask = query.records
    with jax.enable_x64(True):
        return certify(
            query.release,
            *arguments,
            records=records,
            mask=mask,
            relation=query.relation,
            expect=query.noise.event(),
        )
