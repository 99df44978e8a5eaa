"""Which method fits a model, by which plan, and why: from public numbers alone. `fit` is `dp.fit`.

Estimators, formulas, dry runs and the command line ask here, too, so that the same inputs get the
same plan everywhere. A regression is fitted to noisy sums, a line by `moments` and others by
`newton`; in steps where settings of steps are given, or where no method of sums takes its records.
A NumPyro model is fitted by `DPNewton`, and in steps where that refuses it. What a method lacks is
refused by the names of Python's options; the command line adds its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from discreet._jax import as_one_curator, in_own_settings
from discreet._validate import RefusedError
from discreet.methods.inference import (
    DPSVIResult,
    NoPointError,
    UseWarning,
    defaults_for,
    take_apart,
)
from discreet.methods.moments import MomentsPlan, MomentsResult, fit_moments
from discreet.methods.newton import (
    DPNewton,
    DPNewtonResult,
    ModelPlan,
    NewtonPlan,
    NewtonResult,
    fit_newton,
    refuse_others,
)
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.ledger import Ledger, default_delta

PlanOfSums = MomentsPlan | NewtonPlan

LINE = "line"
MOMENTS = "moments"
NEWTON = "newton"
STEPS = "svi"
_SECONDS = "noisy moments take seconds"
LACKS = {
    MOMENTS: {
        "checkpoint": _SECONDS,
        "progress_bar": _SECONDS,
        "require_proof": "noisy moments are always proved",
    },
    NEWTON: {"require_proof": "private Newton always proves"},
    STEPS: dict.fromkeys(("weights", "sample_weight"), "a fit in steps counts each record once"),
}
"""The options that a method lacks, and why."""


class Chosen(NamedTuple):
    """A method, and why it is not the usual one of the model; empty if it is."""

    method: str
    why: str = ""

    def lacks(self, option: str) -> str:
        """Why the method lacks an option, by its name; empty if it has it."""
        reason = LACKS[self.method].get(option, "")
        return "; ".join(filter(None, [reason, self.why])) if reason else ""

    def refuse(self, options: Collection[str]) -> None:
        """Refuse the options that the method lacks, before anything is spent."""
        for name in options:
            if reason := self.lacks(name):
                raise RefusedError(f"{name} is not for this fit: {reason}. Leave it out.")


def choose(
    family: str, *, max_rows: int = 1, settings: Sequence[str] = (), shared: bool = False
) -> Chosen:
    """Choose the method of a regression.

    Args:
        family: "line", or a family of `NewtonPlan`.
        max_rows: Public; the most rows of a record.
        settings: Names of the settings of steps that are given.
        shared: True if several processes share the fit.
    """
    if settings:
        return Chosen(STEPS, f"{', '.join(settings)} ask for steps")
    if family != LINE:
        return Chosen(NEWTON)
    if max_rows > 1:
        return Chosen(STEPS, "a line of persons with several rows is fitted in steps")
    return Chosen(STEPS, "several processes fit a line in steps") if shared else Chosen(MOMENTS)


def plan_of(family: str, *, num_classes: int = 2, max_rows: int = 1, **terms: Any) -> PlanOfSums:
    """Calibrate the plan of a regression that is fitted to noisy sums.

    Args:
        family: As in `choose`.
        num_classes: Public number of classes; 2 in the other families.
        max_rows: As in `choose`.
        terms: The other arguments of `NewtonPlan.calibrate`, which are also those of `MomentsPlan`.

    Raises:
        ValueError: An argument is out of range.
    """
    if family == LINE:
        return MomentsPlan.calibrate(**terms)
    return NewtonPlan.calibrate(family=family, num_classes=num_classes, max_rows=max_rows, **terms)


def fit_sums(
    key: PRNGKeyArray, x: Any, y: Any, plan: PlanOfSums, **how: Any
) -> MomentsResult | NewtonResult:
    """Fit a regression by its plan; arguments as in `fit_newton`, of which a line needs fewer."""
    if isinstance(plan, NewtonPlan):
        return fit_newton(key, x, y, plan, **how)
    taken = ("mask", "weights", "person", "ledger")
    given = {name: how[name] for name in taken if how.get(name) is not None}
    return fit_moments(key, x, y, plan, **given)


@in_own_settings
def fit(
    model: Any,
    *args: Any,
    epsilon: float,
    delta: float | None = None,
    num_records: int | None = None,
    rng_key: PRNGKeyArray | None = None,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    init: Mapping[str, Any] | None = None,
    placeholder: Sequence[Any] | None = None,
    static: Mapping[str, Any] | None = None,
    ledger: Ledger | None = None,
    checkpoint: Path | str | None = None,
    person: str | None = None,
    max_rows: int = 1,
    progress_bar: bool = True,
    mesh: Mesh | None = None,
    weights: Any = None,
    **kwargs: Any,
) -> DPNewtonResult | DPSVIResult:
    """Fit a NumPyro model to records with (epsilon, delta)-differential privacy, by the method that suits it.

    That is `DPNewton` for models with up to 512 global latents, whose intervals have all noise in
    them. Others, with latents of each record, `param` sites or more latents, are fitted by `DPSVI`
    in the steps of `models.defaults_for`, with a warning that says why.

    Args:
        model: The model.
        args: Its arguments: arrays, or columns of a data frame, hold records along their leading
            axis.
        epsilon: What the fit may cost.
        delta: The chance that it costs more; None: a tenth of 1 / num_records, and at most 1e-5 and
            (without mesh) a tenth of the ledger's.
        num_records: Public number of records; None: that of the arrays, which is then public.
        rng_key: `discreet.random.key()`, for this fit alone; None: a new one.
        relation: The neighbouring relation.
        init: Where `DPNewton` starts: public values of some latents. None: the prior's mean.
        placeholder: An artificial record as arrays with a leading axis of one, where zeros, ones
            and halves are none of it.
        static: Public keyword arguments of the model.
        ledger: The table's budget, debited before the first release.
        checkpoint: Folder from which the same call continues, to the same bits, if the process
            dies. Keep it secret.
        person: Name of the column that identifies persons, if a record is all that one person has.
        max_rows: With `person`, the largest number of rows of a person in a record.
        progress_bar: Show progress after two seconds.
        mesh: Devices along one axis, of all processes; see docs/scale.md.
        weights: Survey weights, as in `DPNewton.run`; not for fits in steps.
        kwargs: As args.

    Returns:
        The result; `print(result)` shows estimates, intervals (not of a fit in steps) and the
        verdict.

    Raises:
        ValueError, TypeError: Wrong input, before anything is spent.
        SpentError: The ledger does not hold it.

    >>> import numpy as np, numpyro, numpyro.distributions as dist, discreet as dp
    >>> def model(y):
    ...     rate = numpyro.sample("rate", dist.Gamma(2, 1))
    ...     with numpyro.plate("people", len(y)):
    ...         numpyro.sample("y", dist.Poisson(rate), obs=y)
    >>> result = dp.fit(model, np.random.default_rng(0).poisson(1.5, 10_000), epsilon=1.0)
    >>> bool(abs(result.estimate["rate"] - 1.5) < 0.1)
    True
    """
    refuse_others(model)
    static = dict(static or {})
    made_up = {} if placeholder is None else {"placeholder": placeholder}
    key = random.key() if rng_key is None else rng_key
    size = num_records
    if size is None:
        with as_one_curator(mesh is not None):  # nothing is released here
            size = take_apart(args, kwargs, programs=(model,)).size
    if delta is None:
        # Of several processes the first one alone may have the ledger.
        delta = default_delta(size, ledger if mesh is None else None)
    terms = {"epsilon": epsilon, "delta": delta, "num_records": size, "relation": relation}
    paid_by = {"ledger": ledger, "person": person, "max_rows": max_rows}
    paid_by |= {"checkpoint": checkpoint, "progress_bar": progress_bar, "mesh": mesh}
    try:
        newton = DPNewton(
            model, plan=ModelPlan.calibrate(**terms), init=init, placeholder=placeholder, **static
        )
        return newton.run(key, *args, **paid_by, weights=weights, **kwargs)
    except NoPointError as error:
        if init:
            raise
        if weights is not None:
            Chosen(STEPS, str(error).rstrip(".")).refuse(["weights"])
        warnings.warn(
            f"Fitted in steps, by DPSVI, so without intervals: {error}", UseWarning, stacklevel=2
        )
    settings = defaults_for(model)
    return settings.dpsvi(settings.plan(**terms), **made_up, **static).run(
        key, *args, **paid_by, **kwargs
    )
