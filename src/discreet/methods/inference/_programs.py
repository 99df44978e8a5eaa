"""Model and guide with their arguments, and how they are run.

`Programs.trace` runs a program on placeholder or traced rows, with whole plates, and with the scale
of each site as if no plate were subsampled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpyro.handlers as handlers
from jaxtyping import PRNGKeyArray

from discreet._numpyro import artificial_records, trace_of
from discreet.methods.inference._plates import WholePlates, value_of_improper
from discreet.methods.inference._records import Message, PlateSizes, Program, Records, Values


@dataclasses.dataclass(frozen=True, eq=False)
class Programs:
    """A model and a guide, and the arguments that they are called with; of the records only shapes and dtypes are used."""

    model: Program
    guide: Program
    records: Records
    static: Values  # Public keyword arguments
    num_records: int  # How many records a table has, as far as that is public
    # Whether the guide may have `param` sites with a value for each record; None: an AutoNormal or
    # AutoDelta may
    keeps_local: bool | None = False
    # Values of the mutable sites, which no run changes
    state: Values = dataclasses.field(default_factory=dict)
    # Names of the plates of the records; None: they are being found
    record_plates: frozenset[str] | None = None

    def trace(
        self,
        program: Program,
        rows: Sequence[Any],
        key: PRNGKeyArray,
        values: Values | None = None,
        *,
        rule: Callable[[Message], Any] = value_of_improper,
        hint: int | None = None,
        sizes: PlateSizes | None = None,
    ) -> dict[str, Any]:
        """The sites of one run of a program, perhaps with handlers around it, on rows.

        The scales of sites are without the factor size / rows that NumPyro takes from record
        plates. While these are being found, a plate of the size `hint` is taken for one, and
        `sizes` is filled. `rule` gives values of sites that are not among `values`, or None.
        """
        sizes = {} if sizes is None else sizes
        whole = WholePlates(
            program, self.record_plates, rows[0].shape[0], num_records=hint, sizes=sizes
        )
        run = handlers.substitute(handlers.seed(whole, key), substitute_fn=rule)
        args, kwargs = self.arguments(rows)
        values = {**self.state, **(values or {})}
        run = handlers.substitute(run, data=values) if values else run
        # Records are artificial here, or traced, of which NumPyro does not warn.
        with artificial_records():
            sites = trace_of(run, *args, **kwargs)
        for site in (site for site in sites.values() if site["type"] == "sample"):
            site["scale"] = 1.0 if site["scale"] is None else site["scale"]
            for frame in site["cond_indep_stack"]:
                if frame.name in (self.record_plates or ()):
                    site["scale"] = site["scale"] * (frame.size / sizes[frame.name][0])
        return sites

    def arguments(self, rows: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the programs are called with."""
        args, kwargs = self.records.rebuild(rows)
        return args, dict(**kwargs, **self.static)
