"""`dp.regress`: a formula, a table and a budget to a posterior."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.special import ndtr, ndtri

from discreet._jax import in_own_settings
from discreet._validate import ENDS, RefusedError, positive
from discreet.methods import choose
from discreet.methods.inference import NoPointError
from discreet.methods.moments import MomentsPlan
from discreet.methods.newton import DPNewton, DPNewtonResult, ModelPlan, NewtonPlan, fit_newton
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.ledger import Ledger, default_delta
from discreet.privacy.released import keeping
from discreet.privacy.report import COEFFICIENTS, PREDICTION, listed
from discreet.storage import kept_secret
from discreet.tabular.formulas._design import Design, Rows
from discreet.tabular.formulas._model import (
    counts_zeros,
    features,
    flat_of,
    in_units,
    model_of,
    name_of,
    placeholder,
    prior_of,
    records_of,
)
from discreet.tabular.formulas._result import NUM_DRAWS, Regression
from discreet.tabular.tables import Schema

_WIDTH = 1.6448536269514722
FEWEST = 8.0
"""Records that tell of a latent, over those whose gradients the noise may hide: with fewer the verdict names it."""
_NEARER = (
    "Bounds far wider than the cells, and terms that say nearly the same, do that, too: narrow bounds by what is public, leave "
    "terms out, or take a larger epsilon"
)
_EVENLY = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS


def regress(
    formula: str,
    table: Any,
    schema: Schema,
    *,
    family: str = "gaussian",
    epsilon: float,
    delta: float | None = None,
    num_records: int | None = None,
    constants: Mapping[str, Any] | None = None,
    out_of_bounds: str = "refuse",
    rng_key: PRNGKeyArray | None = None,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    ledger: Ledger | None = None,
    checkpoint: Path | str | None = None,
    progress_bar: bool = True,
) -> Regression:
    """Fit a regression by a formula, as brms and Bambi do, with (epsilon, delta)-differential privacy.

    Guarantee: that of `fit_newton`, `fit_moments` or `DPNewton`, whichever makes the fit. A
    record's numbers follow from its cells, the formula and the schema alone: levels, knots and
    contrasts come from bounds and categories, and a function that looks at the cells, as
    `scale(x)`, is refused.

    Args:
        formula: As in Bambi: "ill ~ age * region + bs(bmi, df=4) + offset(log(days)) + (1 + age |
            clinic)". The left side is a column, prop(successes, trials) for binomial, or Surv(time,
            event) for weibull and piecewise.
        table: A table of pyarrow, pandas, polars or duckdb, or a dict of columns.
        schema: Its public description, from which the formula's columns are used. Its persons may
            have several rows, and its rows survey weights, with bernoulli and poisson without
            groups, and categorical and negbinomial without groups and offsets; weights with
            gaussian without these, too.
        family: gaussian, student, bernoulli, binomial, categorical, cumulative, poisson,
            negbinomial, zero_inflated_poisson, zero_inflated_negbinomial, hurdle_poisson,
            hurdle_negbinomial, gamma, beta, weibull or piecewise (a hazard that is constant within
            six bands of time).
        epsilon: What the fit may cost.
        delta: The chance that it costs more; None: a tenth of 1 / num_records, and at most 1e-5 and
            a tenth of the ledger's.
        num_records: Public number of records, that is of rows, or of persons; None: that of the
            table, which is then public.
        constants: Public values of names in the formula that are no columns, as of knots.
        out_of_bounds: "refuse", or "clip": a number outside its bounds moves to the nearer one.
        rng_key: `discreet.random.key()`, for this fit alone; None: a new one.
        relation: The neighbouring relation.
        ledger: The table's budget, debited before the first release.
        checkpoint: Folder from which the same call continues, to the same bits, if the process
            dies; not of gaussian without groups, which takes a second. Keep it secret.
        progress_bar: Show progress after two seconds.

    Returns:
        The result: `print(result)` shows coefficients, intervals and the verdict.

    Raises:
        ValueError, TypeError: Wrong input, before anything is spent.
        MissingPackageError: formulae is not installed.
        SpentError: The ledger does not hold it.

    >>> import numpy as np, discreet as dp
    >>> rng = np.random.default_rng(0)
    >>> age = rng.uniform(20, 60, 20_000)
    >>> ill = np.where(rng.random(20_000) < 1 / (1 + np.exp(4 - 0.1 * age)), "yes", "no")
    >>> schema = dp.tables.schema_from_bounds("age=20:60,ill=no|yes")
    >>> result = dp.regress("ill ~ age", {"age": age, "ill": ill}, schema, family="bernoulli", epsilon=1.0)
    >>> bool(abs(result.estimate["age"] - 0.1) < 0.02)
    True
    """
    positive("epsilon", epsilon, hint="1 is a common choice.")
    design = Design(formula, schema, family, constants)
    refuse_rows(design)
    rows = design.rows(table, out_of_bounds=out_of_bounds)
    person_key = None
    if checkpoint is not None and design.schema.max_rows > 1:
        person_key = kept_secret(Path(checkpoint) / "persons.key")
    persons = design.persons(table, person_key)
    is_known = num_records is None
    size = len(rows.x if persons is None else persons) if num_records is None else num_records
    if delta is None:
        delta = default_delta(size, ledger)
    plan = plan_of(design, epsilon=epsilon, delta=delta, num_records=size, relation=relation)
    paid_by = {"ledger": ledger, "checkpoint": checkpoint, "progress_bar": progress_bar}
    return _fitted(design, rows, persons, plan, is_known, rng_key, paid_by)


Plan = NewtonPlan | MomentsPlan | ModelPlan


def plan_of(design: Design, **terms: Any) -> Plan:
    """The plan of a design's fit; `terms` are epsilon, delta, num_records and relation."""
    refuse_rows(design)
    family = design.family
    if not in_closed_form(design):
        plan = ModelPlan.calibrate(**terms)
        least = 0.0 if counts_zeros(design) else family.least_seen * plan.noise_multiplier
        if plan.num_records < least:
            raise RefusedError(
                f"{plan.num_records:,} records at ε = {plan.epsilon():.3g} are too few for the family {family.name}: with so "
                f"much noise its intervals were found false. It needs about {least:,.0f} at this ε."
            )
        return plan
    return choose.plan_of(
        family.closed,
        num_features=len(design.kept) + design.has_offset,
        num_classes=family.num_classes or 2,
        max_rows=design.schema.max_rows,
        weighted=design.schema.weight is not None,
        drops=design.schema.drops_records,
        **terms,
    )


def in_closed_form(design: Design) -> bool:
    """True for what `fit_newton` and `fit_moments` take."""
    # The dispersion of counts is read off their histogram, as if means were log-normal: with unequal
    # exposures they are not.
    offset = design.has_offset and design.family.name not in ("bernoulli", "poisson")
    return bool(design.family.closed) and not design.groupings and not offset


def refuse_rows(design: Design) -> None:
    """Refuse persons with several rows, and survey weights, where no method has them."""
    schema = design.schema
    closed = in_closed_form(design)
    chosen = choose.choose(design.family.closed, max_rows=schema.max_rows)
    if schema.max_rows > 1 and (not closed or chosen.method == choose.STEPS):
        raise RefusedError(
            f"the schema's person may have {schema.max_rows} rows, which bernoulli and poisson take without groups, and "
            "categorical and negbinomial without groups and offsets: choose one of these, set max_rows = 1, which uses one row "
            "of each person, or fit a model of your own."
        )
    if schema.weight is not None and not closed:
        raise RefusedError(
            f"Survey weights, here {schema.weight!r}, are for bernoulli and poisson without groups, and for categorical, "
            "negbinomial and gaussian without groups and offsets: choose one of these, or take weight out of the schema, with "
            "which each row counts once."
        )


def fitted(
    design: Design,
    table: Any,
    plan: Plan,
    *,
    is_known: bool,
    out_of_bounds: str,
    rng_key: PRNGKeyArray | None,
    person_key: bytes | None,
    **paid_by: Any,
) -> Regression:
    """Spend a plan on a table; arguments as in `regress`, and as in `Design.persons`.

    `is_known` is True if the plan's number of records is the table's own, which is then public.
    """
    rows = design.rows(table, out_of_bounds=out_of_bounds)
    persons = design.persons(table, person_key)
    return _fitted(design, rows, persons, plan, is_known, rng_key, paid_by)


@in_own_settings
def _fitted(
    design: Design,
    rows: Rows,
    persons: np.ndarray | None,
    plan: Plan,
    is_known: bool,
    rng_key: PRNGKeyArray | None,
    paid_by: dict[str, Any],
) -> Regression:
    key = random.key() if rng_key is None else random.check_key(rng_key)
    if design.schema.person is not None:
        paid_by["person"] = design.schema.person
    if isinstance(plan, ModelPlan):
        is_known = is_known or plan.relation is Relation.REPLACE_ONE
        found = _as_model(key, design, rows, plan, is_known, paid_by)
    else:
        by = _in_closed_form if isinstance(plan, NewtonPlan) else _by_moments
        found = by(key, design, _Arrays(design, rows, persons), plan, paid_by)
    draws, predictive, learned, result = found
    return Regression(
        formula=design.formula.text,
        family=design.family.name,
        schema=design.schema,
        constants=dict(design.formula.constants),
        draws=draws,
        predictive=predictive,
        learned=learned,
        plan=plan,
        statement=_stated(design, plan, result.statement),
    )


Fitted = tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, float], Any]


def _draw_key(key: PRNGKeyArray, checkpoint: Path | str | None = None) -> PRNGKeyArray:
    """The key of draws from the posterior: a fit that continues draws the same ones."""
    if checkpoint is not None and not random.is_reproducible(key):
        words = np.frombuffer(kept_secret(Path(checkpoint) / "draws.key"), "<u4")
        return random.key_from_words(words, reproducible=False)
    return random.subkey(key, random.Purpose.POSTERIOR)


class _Arrays:
    """What `fit_newton` and `fit_moments` take of a table: of persons with several rows, an axis of these."""

    def __init__(self, design: Design, rows: Rows, persons: np.ndarray | None) -> None:
        assert rows.y is not None
        self.x = features(design, rows)
        if rows.offset is not None:
            column = (rows.offset - design.middle_offset) / design.half_offset
            self.x = np.column_stack([self.x, column])
        self.y = design.scaled_target(rows.y) if design.family.closed == choose.LINE else rows.y
        self.how: dict[str, Any] = {
            "mask": rows.present if design.schema.drops else None,
            "weights": rows.weights,
        }
        if persons is None:
            return
        there = persons >= 0
        self.x = np.where(there[..., None], self.x[persons], 0)
        self.y = np.where(there, self.y[persons], 0)
        self.how["mask"] = there & rows.present[persons]
        if rows.weights is not None:
            self.how["weights"] = np.where(there, rows.weights[persons], 0)


def _in_closed_form(
    key: PRNGKeyArray, design: Design, rows: _Arrays, plan: Any, paid_by: dict[str, Any]
) -> Fitted:
    """By `fit_newton`."""
    draw_key = _draw_key(key, paid_by.get("checkpoint"))
    names = [design.names[place] for place in design.kept]
    own: dict[str, Any] = {"levels": design.levels, "names": names}
    if design.has_offset:
        # A column whose weight is known.
        own["levels"] = np.append(design.levels, False)
        own["names"] = [*names, "the offset"]
        own["known"] = np.append(np.full(len(names), np.nan), design.half_offset)
    result = fit_newton(key, rows.x, rows.y, plan, **own, **rows.how, **paid_by)
    with keeping(result):
        draws = dict(result.posterior(draw_key, NUM_DRAWS))
        predictive = dict(result.to_predict)
        for found in (draws, predictive):
            found["weights"] = found["weights"][:, : len(names)]
        if design.family.name == "negbinomial":
            # Its 90 % interval is what is known of it.
            low, high = np.log(result.dispersion_range)
            deviates = np.random.default_rng(
                np.asarray(jax.random.key_data(draw_key))
            ).standard_normal(NUM_DRAWS)
            draws["concentration"] = np.exp((low + high) / 2 + (high - low) / 2 / _WIDTH * deviates)
            predictive["concentration"] = np.array([result.dispersion])
        variances = np.diag(result.covariance) / np.maximum(1 - result.learned, 1e-12)
        variances = variances.reshape(design.family.num_classes or 1, -1)[:, : len(names) + 1]
        prior = _of_normals(design, variances)
        prior["concentration"] = np.exp2(10 * _EVENLY - 4.25)  # the range of `dispersion_range`
        return *_named(design, draws, predictive, prior), result


def _by_moments(
    key: PRNGKeyArray, design: Design, rows: _Arrays, plan: Any, paid_by: dict[str, Any]
) -> Fitted:
    """By `fit_moments`."""
    if paid_by.get("checkpoint") is not None:
        choose.Chosen(choose.MOMENTS, "gaussian without groups has no checkpoint").refuse(
            ["checkpoint"]
        )
    result = choose.fit_sums(key, rows.x, rows.y, plan, **rows.how, **paid_by)
    with keeping(result):
        draws = dict(result.posterior(_draw_key(key), NUM_DRAWS))
        prior = _of_normals(design, np.ones((1, len(design.kept) + 1)))
        prior["sigma"] = _EVENLY  # flat up to the bound
        predictive = dict(result.to_predict)
        predictive["sigma"] = np.full(1, draws["sigma"].mean())
        return *_named(design, draws, predictive, prior), result


def _as_model(
    key: PRNGKeyArray,
    design: Design,
    rows: Rows,
    plan: ModelPlan,
    is_known: bool,
    paid_by: dict[str, Any],
) -> Fitted:
    """By `DPNewton`."""
    start = {name: np.float32(value) for name, value in design.family.start}
    newton = DPNewton(
        model_of(design),
        plan=plan,
        init=start,
        placeholder=(placeholder(design),),
        names=functools.partial(name_of, design),
        nearer=_NEARER,
        levels=[f"effects_{number}" for number in range(len(design.groupings))],
        flat=flat_of(design),
    )
    try:
        result = newton.run(key, records_of(design, rows), **paid_by)
    except NoPointError as error:
        raise RefusedError(
            f"The formula {design.formula.text!r} is too large for a fit with intervals: {error}"
        ) from None
    with keeping(result):
        draws = dict(result.draws)
        prior = prior_of(design, draws)
        if counts_zeros(design):
            prior["zero"] = _EVENLY
            others = None if is_known else result.audible
            size = len(next(iter(draws.values())))
            draws["zero"] = _share_of_zeros(plan, result.silent, others, size)
        # Of an effect: of what levels differ by, which a level without records shows nothing of.
        found, predictive, learned = _named(design, draws, draws, prior)
        # Of latents that are positive, that of their logarithm, as the verdict has it.
        learned |= {
            name: float(share)
            for name, share in result.learned.items()
            if name in found and np.ndim(share) == 0
        }
        for number, grouping in enumerate(design.groupings):
            shares = result.learned[f"spread_{number}"]
            learned |= {
                name: float(share) for name, share in zip(grouping.spreads, shares, strict=True)
            }
        return found, predictive, learned, _doubted(design, plan, result)


def _share_of_zeros(plan: ModelPlan, zeros: float, others: float | None, size: int) -> np.ndarray:
    """Draws of a share that is as likely everywhere before.

    Args:
        plan: The fit's plan.
        zeros: Noisy number of zeros, over the plan's number of records.
        others: That of the other records; None: the plan's number of records is the table's.
        size: Number of draws.
    """
    rng = np.random.default_rng(0)

    def drawn(share: float, noise: float, most: float, number: int) -> np.ndarray:
        low, high = ndtr((np.array([0.0, most]) - share) / noise)
        return np.clip(share + noise * ndtri(rng.uniform(low, high, number)), 0, most)

    if others is None:
        found = drawn(zeros, plan.share_noise, 1.0, size)
        rest = 1 - found
    else:
        found = drawn(zeros, plan.share_noise, 2.0, 50 * size)
        rest = drawn(others, plan.rest_noise, 2.0, 50 * size)
        total = found + rest
        # A public number that is near the table's: within a factor of two.
        weights = ((total > 0.5) & (total < 2)) / np.maximum(total, 0.5) + 1e-12
        picked = rng.choice(len(total), size, p=weights / weights.sum())
        found = found[picked]
        rest = rest[picked]
    return rng.beta(plan.num_records * found + 1, plan.num_records * rest + 1)


def _doubted(design: Design, plan: ModelPlan, result: DPNewtonResult) -> DPNewtonResult:
    """The result, whose verdict has `_doubts`."""
    use = result.statement.use
    if use == COEFFICIENTS and design.family.hurdle and not counts_zeros(design):
        use = PREDICTION
        doubts = [
            "rows that the schema drops look like zeros, so the share of zeros is fitted with the rest, and its intervals and "
            'those of a concentration may miss: give missing cells a value instead of missing = "drop"'
        ]
    else:
        doubts = _doubts(design, plan, result.draws)
    if not doubts or result.statement.use != COEFFICIENTS:
        return result
    reason = "; ".join([result.statement.use_reason, *doubts])
    return dataclasses.replace(result, statement=result.statement.with_use(use, reason))


def _doubts(design: Design, plan: ModelPlan, draws: Mapping[str, np.ndarray]) -> list[str]:
    """Which intervals may miss although the fit is good for its coefficients."""
    found = []
    told_by = design.family.told_by
    counts_by_site = {} if told_by is None else told_by(draws, plan.num_records)
    few = [
        name_of(design, site, place)
        for site, counts in counts_by_site.items()
        for place in np.ndindex(np.shape(counts))
        if np.asarray(counts)[place] < FEWEST * plan.hidden
    ]
    if few:
        # The noise may hide that most of these records were clipped.
        found.append(
            f"few records tell of {listed(few)}: the noise may hide that they were clipped, and then these intervals miss. A "
            "larger epsilon or more records help"
        )
    crossed = [grouping.name for grouping in design.groupings if grouping.terms[0] == "1"]
    if len(crossed) > 1:
        # Records tell of the sums of these effects alone.
        found.append(
            f"of the intercept and the effects of {listed(crossed)} only the prior says what is whose: what records tell are "
            "their sums, and differences within one of them"
        )
    return found


def _named(
    design: Design,
    draws: dict[str, np.ndarray],
    predictive: dict[str, np.ndarray],
    prior: dict[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, float]]:
    """Draws by the formula's names, and the share of the prior's variance that is gone of each; all from draws as fitted."""
    found = in_units(design, draws)
    before = in_units(design, prior)
    # By intervals: some priors have no variance to speak of.
    widths = {
        name: [np.ptp(np.quantile(of[name], ENDS)) for of in (found, before)]
        for name in found
        if name in before
    }
    learned = {
        name: float(np.clip(1 - (now / then) ** 2, 0, 1)) for name, (now, then) in widths.items()
    }
    return found, in_units(design, predictive), {name: learned.get(name, 1.0) for name in found}


def _of_normals(design: Design, variances: np.ndarray) -> dict[str, np.ndarray]:
    """Draws of intercept and weights before the fit; `variances` are (class, 1 + column)."""
    deviates = np.random.default_rng(0).standard_normal((NUM_DRAWS, *variances.shape)) * np.sqrt(
        variances
    )
    if design.family.num_classes is None:
        deviates = deviates[:, 0]
        return {"intercept": deviates[:, 0], "weights": deviates[:, 1:]}
    deviates = np.swapaxes(deviates, 1, 2)
    return {"intercept": deviates[:, 0], "weights": deviates[:, 1:]}


def _stated(design: Design, plan: Plan, statement: Any) -> Any:
    """The statement with the formula, the schema and the prior."""
    family = design.family
    facts = [
        f"Columns and their bounds or categories: {'; '.join(design.schema.describe())}.",
        f"The formula {design.formula.text!r}, whose columns follow from these. In the result {family.coefficient}.",
    ]
    if isinstance(plan, ModelPlan):
        groups = ", spreads of groups half-normal with scale 1" if design.groupings else ""
        offset = ", offsets less their mean within the bounds" if design.has_offset else ""
        facts.append(
            f"Priors of the model as fitted, with columns made orthogonal and brought to [-1, 1] by their bounds{offset}: a "
            f"weight Normal(0, {family.weight_scale:g}²), the intercept Normal(0, {family.intercept_scale:g}²){groups}"
            f"{f', {family.others}' if family.others else ''}."
        )
    if design.schema.bought is not None:
        facts.append(design.schema.bought.in_words())
    statement = statement.with_public(*facts)
    if design.schema.weight is not None:
        statement = statement.with_notes(design.schema.weight_words(weighs=True))
    num_records = statement.plan["num_records"]
    about = f"A {family.name} regression, {design.formula.text}, of {num_records:,} {statement.unit.noun}s"
    return dataclasses.replace(statement, about=f"{about}; its coefficients were released.")
