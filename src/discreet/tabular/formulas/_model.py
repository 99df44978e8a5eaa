"""The NumPyro model of a design, and its draws in the units of the formula's columns.

Effects of groups are centred as in `models.hierarchical`: a level's effects are drawn around the
population's, which no record touches, so that a record's likelihood depends on the effects of its
own levels alone. Effects of one level are independent of each other.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.linalg import qr

from discreet.methods.newton import MOST_LATENTS, label, one_thread
from discreet.privacy import random
from discreet.tabular.formulas._design import NUM_ROWS, Design, Rows
from discreet.tabular.models import NUM_BANDS, Family

Named = dict[str, Float[np.ndarray, " draw"]]
ROWS_PER_LATENT = 16
_ANY_SHARE: dict[str, Any] = {"zero": 0.5}
FLAT = 1e-9
"""Artificial rows; and the curvature, over a coordinate's own, below which a direction has none in these."""


def records_of(design: Design, rows: Rows) -> dict[str, np.ndarray]:
    """The arrays that the model takes: columns in the coordinates that are fitted, and the scaled target."""
    found: dict[str, np.ndarray] = {"present": rows.present}
    if len(design.kept):  # or all vary between levels
        found["x"] = features(design, rows)
    if rows.y is not None:
        found["y"] = (
            design.scaled_target(rows.y) if design.target.bounds else rows.y.astype(np.int32)
        )
    for name, values in zip(design.family.beside, rows.beside, strict=False):
        found[name] = values
    if rows.offset is not None:
        # From the middle, as columns are: otherwise the intercept could be far from its prior,
        # where a fit starts.
        width = design.unit[1] if design.family.units == "linear" else 1.0
        found["offset"] = (rows.offset - design.middle_offset) / width
    for place, (group, varying) in enumerate(zip(rows.groups, rows.varying, strict=True)):
        found[f"group_{place}"] = group
        found[f"varying_{place}"] = (varying - design.middles[place]) / design.halves[place]
    return {name: x if x.dtype.kind in "ib" else x.astype(np.float32) for name, x in found.items()}


def features(design: Design, rows: Rows) -> Float[np.ndarray, "row column"]:
    """The columns in the coordinates that are fitted."""
    return design.fitted_columns(rows.x)


def placeholder(design: Design) -> dict[str, np.ndarray]:
    """An artificial record, with an axis of one."""
    rows = Rows(
        x=np.zeros((1, len(design.names))),
        y=np.full(1, _usual_target(design)),
        beside=(np.ones(1),) * len(design.family.beside),
        offset=np.full(1, design.middle_offset) if design.has_offset else None,
        groups=(np.zeros(1, np.int32),) * len(design.groupings),
        varying=tuple(middle[None] for middle in design.middles),
        present=np.ones(1, bool),
    )
    found = records_of(design, rows)
    return {name: np.zeros_like(x) if name == "x" else x for name, x in found.items()}


def _usual_target(design: Design) -> float:
    column = design.target
    if column.bounds is None:
        return 0.0
    low, high = column.limits
    return (
        (low + high) / 2
        if design.family.units or design.family.name == "beta"
        else min(max(low, 1.0), high)
    )


def counts_zeros(design: Design) -> bool:
    """Whether the share of zeros is counted, and the model is that of the other records.

    Zeros have gradients in one direction. As latents of one fit, with those of the others clipped
    where the noise hides them, shares above 0.7 missed by up to thousands of standard deviations.
    """
    return design.family.hurdle and not design.schema.drops  # rows that are dropped look alike


def model_of(design: Design, *, whole: bool = False) -> Callable[[Mapping[str, Array]], None]:
    """The model, a function of the arrays by name; if it is not `whole`, without what is counted."""
    family: Family = design.family
    apart = counts_zeros(design) and not whole
    size = len(design.kept)
    groupings = design.groupings
    intercepted = family.name != "cumulative"
    whose = {
        place: number
        for number, grouping in enumerate(groupings)
        for place in grouping.absorbed
        if place is not None
    }

    def model(records: Mapping[str, Array]) -> None:
        predictor: Any = 0.0
        population: dict[int, Any] = {}
        if intercepted:
            population[-1] = numpyro.sample("intercept", family.normal(family.intercept_scale, ()))
            if -1 not in whose:
                predictor = population[-1]
        for place in sorted(whose):
            if place >= 0:
                population[place] = numpyro.sample(
                    f"slope_{place}", family.normal(family.weight_scale, ())
                )
        if size:
            weights: Any = numpyro.sample("weights", family.normal(family.weight_scale, (size,)))
            predictor = predictor + records["x"] @ weights
        for number, grouping in enumerate(groupings):
            predictor = predictor + _of_levels(family, number, grouping, population, records)
        if "offset" in records:
            predictor = predictor + records["offset"]
        predictor = jnp.broadcast_to(
            predictor, (len(records["present"]), *jnp.shape(predictor)[1:])
        )
        beside = [records[name] for name in family.beside]
        if not apart:
            family.observe(predictor, records.get("y"), records["present"], *beside)
            return
        present = records["present"] & (records["y"] > 0)
        with numpyro.handlers.block(hide=["zero"]), numpyro.handlers.substitute(data=_ANY_SHARE):
            family.observe(predictor, records["y"], present)

    model.__name__ = f"{family.name} regression"
    return model


def flat_of(design: Design) -> list[dict[str, np.ndarray]]:
    """Directions of the model's latents in which no record's likelihood changes, by their parts.

    Of (1 | g) + (1 | h) it is the effects of all levels of g against those of h; of
    (1 | g) + (1 | g:h) for each level of g its effect against those of its own levels. They are
    found from artificial rows.
    """
    groupings = design.groupings
    if not groupings:
        return []
    size = len(design.kept) + sum(len(x.levels) * len(x.terms) for x in groupings)
    if size > MOST_LATENTS:
        return []  # the fit refuses it, before anything as large as these rows is made
    number = max(NUM_ROWS, ROWS_PER_LATENT * size)
    even = design.even_rows(number)
    # Where numbers are spread evenly, a level may lack those that a column tells of, as ages above
    # 85, and what it tells would be called flat. So each has those that tell of all columns, too.
    told = [_spanning(x) for x in even.varying if x.shape[1] > 1]
    with one_thread():
        gram: Any = 0.0
        for rows in (even, *(design.even_rows(number, 1, places) for places in told)):
            columns = _columns_of(design, rows)
            whole = np.concatenate([x.reshape(len(x), -1) for x in columns.values()], axis=1)
            gram = gram + whole.T @ whole
        shapes = {name: x.shape[1:] for name, x in columns.items()}
        lengths = np.sqrt(np.diag(gram))
        # Of what no artificial row has, as a missing cell, directions have no part.
        there = lengths > 0
        if not there[-sum(len(x.levels) * len(x.terms) for x in groupings) :].all():
            # Along a direction without that level its records would say something.
            return []
        lengths = lengths[there]
        values, vectors = np.linalg.eigh(gram[np.ix_(there, there)] / np.outer(lengths, lengths))
    found = []
    for vector in vectors[:, values < FLAT].T:
        direction = np.zeros(len(there))
        direction[there] = vector / lengths
        parts = {}
        for name, shape in shapes.items():
            count = math.prod(shape)
            parts[name] = direction[:count].reshape(shape)
            direction = direction[count:]
        if "first" in parts:
            parts["first"] = parts["first"][0]
        if "intercept" in parts:
            parts["intercept"] = parts["intercept"][0]
        if design.family.num_classes is None:
            found.append(parts)
        else:
            ones = np.eye(design.family.num_classes - 1)
            found += [{name: part[..., None] * one for name, part in parts.items()} for one in ones]
    return found


def _columns_of(design: Design, rows: Rows) -> dict[str, Float[np.ndarray, "row ..."]]:
    """What the predictor has of each latent in each row."""
    size = len(rows.x)
    found = {}
    if len(design.kept):
        found["weights"] = features(design, rows)
    if design.family.name == "cumulative":
        found["first"] = np.full((size, 1), -1.0)
    elif not any(-1 in grouping.absorbed for grouping in design.groupings):
        found["intercept"] = np.ones((size, 1))
    for number, grouping in enumerate(design.groupings):
        varying = (rows.varying[number] - design.middles[number]) / design.halves[number]
        own = np.zeros((size, len(grouping.levels), len(grouping.terms)))
        own[np.arange(size), rows.groups[number]] = varying
        found[f"effects_{number}"] = own
    return found


def _spanning(x: Float[np.ndarray, "row column"]) -> Int[np.ndarray, " place"]:
    """Places of as few rows as have all directions of the rows."""
    parts: Any = qr((x / np.abs(x).max(axis=0)).T, mode="economic", pivoting=True)
    _, upper, places = parts
    sizes = np.abs(np.diag(upper))
    return places[: len(sizes)][sizes > FLAT * sizes[0]]


def prior_of(
    design: Design, spreads: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Draws of the model's coefficients, effects and thresholds before the fit, by a fixed seed: public.

    With `spreads`, draws of these after the fit, effects vary as much as these say.
    """
    rng = np.random.default_rng(0)
    family = design.family
    classes = () if family.num_classes is None else (family.num_classes,)

    def normal(scale: float, *shape: int) -> np.ndarray:
        drawn = scale * rng.standard_normal((_NUM_PRIOR_DRAWS, *shape, *classes))
        return drawn - drawn.mean(axis=-1, keepdims=True) if classes else drawn

    found = {"weights": normal(family.weight_scale, len(design.kept))}
    if family.name == "cumulative":
        size = len(design.target.categories)
        found["first"] = rng.normal(2.0 - size, 3.0, _NUM_PRIOR_DRAWS)
        found["gaps"] = rng.gamma(2.0, size=(_NUM_PRIOR_DRAWS, size - 2))
    else:
        found["intercept"] = normal(family.intercept_scale)
    if family.name == "piecewise":
        found["later"] = rng.standard_normal((_NUM_PRIOR_DRAWS, NUM_BANDS - 1))
    for number, grouping in enumerate(design.groupings):
        terms = len(grouping.terms)
        spread = np.abs(rng.standard_normal((_NUM_PRIOR_DRAWS, terms)))
        if spreads is not None:
            spread = rng.choice(spreads[f"spread_{number}"], _NUM_PRIOR_DRAWS)
        effects: Any = (
            normal(1.0, len(grouping.levels), terms) * _along(spread, bool(classes))[:, None]
        )
        for term, place in enumerate(grouping.absorbed):
            if place is None:
                continue
            if place >= 0:
                found[f"slope_{place}"] = normal(family.weight_scale)
            effects[:, :, term] += found["intercept" if place == -1 else f"slope_{place}"][:, None]
        found |= {f"spread_{number}": spread, f"effects_{number}": effects}
    return found


_NUM_PRIOR_DRAWS = 4_000


def _of_levels(
    family: Family,
    number: int,
    grouping: Any,
    population: Mapping[int, Any],
    records: Mapping[str, Array],
) -> Array:
    """What the levels of a grouping add to the predictor."""
    terms = len(grouping.terms)
    spread: Any = numpyro.sample(
        f"spread_{number}", dist.HalfNormal(1.0).expand([terms]).to_event(1)
    )
    zero = jnp.zeros(() if family.num_classes is None else (family.num_classes,))
    middles = jnp.stack(
        [zero if place is None else population[place] for place in grouping.absorbed]
    )
    effects: Any = numpyro.sample(
        f"effects_{number}", family.around(middles, spread, (len(grouping.levels), terms))
    )
    ones = jax.nn.one_hot(records[f"group_{number}"], len(grouping.levels))
    own = jnp.tensordot(ones, effects, 1)
    varying = records[f"varying_{number}"]
    return jnp.sum(own * (varying if family.num_classes is None else varying[..., None]), axis=1)


def in_units(design: Design, draws: Mapping[str, np.ndarray]) -> Named:
    """Draws of the model's latents by the formula's names, in the units of its columns and of the target."""
    draws = {name: np.asarray(value, np.float64) for name, value in draws.items()}
    family = design.family
    classes = family.num_classes
    num_draws = len(next(iter(draws.values())))
    nothing = np.zeros((num_draws,) if classes is None else (num_draws, classes))
    middle, width = design.unit
    scale = width if family.units == "linear" else 1.0
    coefficients: dict[str, Any] = dict.fromkeys(design.names, nothing)
    shift: Any = nothing - design.middle_offset / scale
    if len(design.kept):
        weights = draws["weights"]
        for place, name in enumerate(np.array(design.names, object)[design.kept]):
            coefficients[name] = np.tensordot(weights, design.to[place], (1, 0))
        shift = shift - np.tensordot(weights, design.centre, (1, 0))
    start = draws.get("intercept", nothing)
    later: Named = {}
    for number, grouping in enumerate(design.groupings):
        per_unit = 1 / design.halves[number]
        middles = design.middles[number] * per_unit
        effects: Any = draws[f"effects_{number}"] * _along(per_unit, classes is not None)
        moved: Any = draws[f"effects_{number}"] * _along(middles, classes is not None)
        spread = draws[f"spread_{number}"]
        for term, place in enumerate(grouping.absorbed):
            if place is None:
                continue
            mean = start if place == -1 else draws[f"slope_{place}"]
            effects[:, :, term] -= mean[:, None] * per_unit[term]
            moved[:, :, term] -= mean[:, None] * middles[term]
            if place >= 0:
                coefficients[design.names[place]] = mean * per_unit[term]
                shift = shift - mean * middles[term]
        if grouping.terms[0] == "1":
            effects[:, :, 0] -= moved.sum(axis=2)
        deviations: Any = spread * per_unit
        if grouping.terms[0] == "1":
            # At 0 of what varies, not at its middle.
            first: Any = np.square(spread[:, 0]) + np.square(spread * middles).sum(axis=1)
            deviations = np.column_stack([np.sqrt(first), deviations[:, 1:]])
        for term, name in enumerate(grouping.spreads):
            later[name] = deviations[:, term] * scale
            for level in range(len(grouping.levels)):
                later |= _by_class(
                    design, grouping.effect(term, level), effects[:, level, term] * scale
                )
    found: Named = {}
    if "first" in draws:
        cuts = (
            draws["first"][:, None] + np.cumsum(np.pad(draws["gaps"], ((0, 0), (1, 0))), axis=1)
            if "gaps" in draws
            else draws["first"][:, None]
        )
        for name, cut in zip(_thresholds(design), cuts.T, strict=True):
            found[name] = cut - shift
    else:
        constant = {"linear": middle, "log": np.log(width), "hazard": -np.log(width)}.get(
            family.units, 0.0
        )
        found |= _by_class(design, "Intercept", (start + shift) * scale + constant)
    for name, values in coefficients.items():
        found |= _by_class(design, name, values * scale)
    if "later" in draws:
        found |= dict(zip(_bands(design), draws["later"].T, strict=True))
    others = set(draws) - {"intercept", "weights", "first", "gaps", "later"}
    for name in sorted(others):
        if draws[name].ndim == 1 and not name.startswith(("slope_", "spread_", "effects_")):
            found[name] = draws[name] * (scale if name in family.in_units else 1.0)
    return found | later


def _along(values: np.ndarray, classes: bool) -> np.ndarray:
    """With an axis for classes, where there are some."""
    return values[..., None] if classes else values


def _by_class(design: Design, name: str, values: np.ndarray) -> Named:
    if design.family.num_classes is None:
        return {name: values}
    return {
        f"{category}: {name}": values[:, place]
        for place, category in enumerate(design.target.categories)
    }


def _thresholds(design: Design) -> list[str]:
    categories = design.target.categories
    return [f"threshold[{low}|{high}]" for low, high in itertools.pairwise(categories)]


def _bands(design: Design) -> list[str]:
    edges = np.linspace(0, design.target.limits[1], NUM_BANDS + 1)[1:]
    return [f"log hazard[{low:g} to {high:g}]" for low, high in itertools.pairwise(edges)]


def name_of(design: Design, site: str, place: Sequence[int]) -> str:
    """The formula's name of an element of a site of the model; of weights and effects that of their column and level."""
    kind, _, number = site.partition("_")
    if kind == "weights":
        return design.names[design.kept[place[0]]]
    if kind == "slope":
        return design.names[int(number)]
    if kind == "spread":
        return design.groupings[int(number)].spreads[place[0]]
    if kind == "later":
        return _bands(design)[place[0]]
    if kind == "effects":
        return design.groupings[int(number)].effect(place[1], place[0])
    return label(site, place)


def mean_of(
    design: Design, rows: Rows, draws: Mapping[str, np.ndarray]
) -> Float[np.ndarray, "draw row *class"]:
    """The mean of the target, of categories their probabilities, for each row and draw."""
    assert design.family.mean is not None
    return design.family.mean(_predictor_of(design, rows, draws), _latents_of(design, draws))


def outcomes_of(
    design: Design, rows: Rows, draws: Mapping[str, np.ndarray], key: PRNGKeyArray
) -> Float[np.ndarray, "draw row"]:
    """A new target of each row for each draw, in its unit, or its position; NaN of numbers of successes and of times."""
    if design.family.beside:
        return np.full((len(next(iter(draws.values()))), len(rows.x)), np.nan)
    middle, width = design.unit
    drawn = _of_targets(design, rows, draws, _sampled, None, key)
    return drawn * width + middle


def log_density_of_rows(
    design: Design, rows: Rows, draws: Mapping[str, np.ndarray]
) -> Float[np.ndarray, "draw row"]:
    """The log density of each row's target, in its unit, for each draw; 0 of rows that the schema drops."""
    assert rows.y is not None
    family = design.family
    y = design.scaled_target(rows.y) if design.target.bounds else rows.y.astype(np.int32)
    found = _of_targets(design, rows, draws, _log_prob, y, jax.random.key(0))
    # A density is of the target's unit; of times, that of an event's alone.
    happened = rows.beside[0] if family.units and family.beside else 1.0
    return np.where(rows.present, found - happened * np.log(design.unit[1]), 0.0)


def _of_targets(
    design: Design,
    rows: Rows,
    draws: Mapping[str, np.ndarray],
    read: Callable[[Any, Any, Any], Any],
    y: np.ndarray | None,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "draw row"]:
    """What is read of the targets' distribution, in the coordinates that are fitted, for each draw."""
    family = design.family
    middle, width = design.unit
    predictor = np.asarray(_predictor_of(design, rows, draws))
    latents = _latents_of(design, draws)
    if family.units == "linear":
        predictor = (predictor - middle) / width
    elif family.units:
        predictor = predictor + np.log(width) * (1 if family.units == "hazard" else -1)
    for name in family.in_units:
        latents[name] = latents[name] / width
    if "threshold" in latents:
        cuts = latents.pop("threshold")
        latents |= {"first": cuts[:, 0], "gaps": np.diff(cuts, axis=1)}
    predictor = np.broadcast_to(predictor, (len(predictor), len(rows.x), *predictor.shape[2:]))
    over = predictor, latents, jax.random.split(random.as_threefry(key), len(predictor))
    return np.asarray(_by_draws(family.target, read)(over, rows.beside, y), np.float64)


@functools.lru_cache(maxsize=8)
def _by_draws(target_of: Callable[..., Any], read: Callable[..., Any]) -> Callable[..., Array]:
    """`read` for each draw, compiled once for all parts of a table that have one size."""

    def one(predictor: Array, latents: Mapping[str, Array], key: Any, beside: Any, y: Any) -> Array:
        with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.substitute(data=dict(latents)):
            target = target_of(predictor, *beside)
        return read(target, key, y)

    return jax.jit(lambda over, *rows: jax.lax.map(lambda x: one(*x, *rows), over))


def _sampled(target: Any, key: Any, y: None) -> Array:
    del y
    return target.sample(key)


def _log_prob(target: Any, key: Any, y: Array) -> Array:
    del key
    return target.log_prob(y)


def _latents_of(design: Design, draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draws of the family's other latents, by its names."""
    latents = {name: value for name, value in draws.items() if value.ndim == 1}
    if design.family.name == "cumulative":
        latents["threshold"] = np.stack([draws[name] for name in _thresholds(design)], axis=1)
    if design.family.name == "piecewise":
        latents["later"] = np.stack([draws[name] for name in _bands(design)], axis=1)
    return latents


def _predictor_of(design: Design, rows: Rows, draws: Mapping[str, np.ndarray]) -> Any:
    """The linear predictor, (draw, row) or (draw, row, class), in the target's unit."""
    family = design.family

    def of(name: str) -> np.ndarray:
        if family.num_classes is None:
            return draws[name][:, None]
        return np.stack(
            [draws[f"{category}: {name}"] for category in design.target.categories], axis=1
        )[:, None]

    def column(values: np.ndarray) -> np.ndarray:
        return values if family.num_classes is None else values[:, None]

    nothing = np.zeros((len(next(iter(draws.values()))), 1))
    predictor: Any = nothing if family.name == "cumulative" else of("Intercept")
    for place, name in enumerate(design.names):
        predictor = predictor + of(name) * column(rows.x[:, place])
    for grouping, group, varying in zip(design.groupings, rows.groups, rows.varying, strict=True):
        for term in range(len(grouping.terms)):
            effects = np.concatenate(
                [of(grouping.effect(term, level)) for level in range(len(grouping.levels))], axis=1
            )
            predictor = predictor + effects[:, group] * column(varying[:, term])
    if rows.offset is not None:
        predictor = predictor + column(rows.offset)
    return predictor
