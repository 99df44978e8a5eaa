"""`dp.fit`: the method that suits a model, with settings from public numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from discreet._jax import as_one_curator, in_own_settings
from discreet.methods.inference import (
    DPSVIResult,
    NoPointError,
    UseWarning,
    defaults_for,
    take_apart,
)
from discreet.methods.newton._model_plan import ModelPlan
from discreet.methods.newton._own import DPNewton, DPNewtonResult, refuse_others
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.ledger import Ledger


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
        delta: The chance that it costs more; None: a tenth of 1 / num_records, and 1e-5 at most.
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
            raise ValueError(
                f"Fits in steps have no weights: leave them out, or change the model. {error}"
            ) from None
        warnings.warn(
            f"Fitted in steps, by DPSVI, so without intervals: {error}", UseWarning, stacklevel=2
        )
    settings = defaults_for(model)
    return settings.dpsvi(settings.plan(**terms), **made_up, **static).run(
        key, *args, **paid_by, **kwargs
    )
