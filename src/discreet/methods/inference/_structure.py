"""Find the structure of a model and a guide by tracing them with two and with three records.

Nothing here reads data: the traces are abstract, on shapes alone. Values whose shape changes with
the number of rows belong to records; all others are global. Programs that cannot be split into
records, or would publish records' parameters, are refused here with the site and the remedy.

Discrete latents of one record that the guide does not sample are summed out: their joint support is
enumerated for one record.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PRNGKeyArray
from numpyro.distributions import ExpandedDistribution, Independent, MaskedDistribution
from numpyro.infer import autoguide
from numpyro.primitives import Messenger

from discreet._jax import captured_arrays, place_of, used_inputs
from discreet._validate import RefusedError, left_out
from discreet.methods.inference._autoguides import (
    SITE_BY_SITE,
    auto_guides,
    check_kind_of_guide,
    set_up_auto_guides,
)
from discreet.methods.inference._plates import log_density, value_of_improper
from discreet.methods.inference._point_guide import PointGuide
from discreet.methods.inference._programs import Programs
from discreet.methods.inference._records import Message, PlateSizes, Program, Values
from discreet.methods.inference._tables_outside import make_arguments

# The largest number of enumerated combinations of one record's discrete latents.
_MOST_COMBINATIONS = 4096
# The least length at which an array is recognised as a table.
_FEWEST_TELLING_ROWS = 16
# What a user's program raises where it does not run
FAILURES = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
_NEEDS_A_NUMBER = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """The relevant facts about one site of a trace, without values."""

    name: str
    kind: str
    plates: tuple[str, ...]
    shape: Any = None
    dtype: Any = None
    batch: tuple[int, ...] = ()  # batch shape of a site's distribution
    observed: bool = False
    # factor of an observed site's log density beside those of its plates; None: not a fixed number
    scale: float | None = 1.0
    density: tuple[int, ...] = ()  # shape of an observed site's log density
    # batch shape of an observed site's distribution, without what its plates add
    own: tuple[int, ...] = ()
    discrete: bool = False
    reparametrized: bool = False
    auxiliary: bool = False
    # the values that one element of a discrete latent can have; None: no fixed finite set
    support: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Summed:
    """A discrete latent of one record that is summed out."""

    name: str
    shape: tuple[int, ...]  # the shape of its value for one record
    dtype: Any
    axis: int  # the axis that numbers the records
    support: np.ndarray  # the values of one element, along the leading axis

    @property
    def elements(self) -> int:
        """Number of elements, each of which has a value of its own."""
        return math.prod(self.shape[: len(self.shape) - (self.support.ndim - 1)])

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.support) ** self.elements

    def values(self) -> np.ndarray:
        """All values, along the leading axis."""
        digits = list(itertools.product(range(len(self.support)), repeat=self.elements))
        return self.support[np.array(digits, dtype=int)].reshape(-1, *self.shape).astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class Structure:
    """The parts of a model and guide pair."""

    record_plates: frozenset[str]  # names of the plates whose size follows the number of records
    global_latents: tuple[str, ...]  # model latents that all records share, in the model's order
    # model latents of each record: inside the record plates, or with a batch axis that follows the
    # records
    local_latents: tuple[str, ...]
    # observed sites of the records: inside a record plate, with an axis that follows the records,
    # or a sum over them
    observed: tuple[str, ...]
    # guide sample sites that all records share, auxiliary ones included
    guide_globals: tuple[str, ...]
    guide_locals: tuple[str, ...]  # guide sample sites of each record
    model_params: tuple[str, ...]  # the model's `param` sites
    # the guide's `param` sites with a value for each record, and the axis that numbers the records
    local_params: tuple[tuple[str, int], ...] = ()
    factors: tuple[str, ...] = ()  # observed sites and factors that hold no data
    # discrete local latents that are summed out; not among `local_latents`
    summed: tuple[Summed, ...] = ()

    def combinations(self) -> dict[str, np.ndarray]:
        """All combinations of one record's summed latents, along the leading axis of each array."""
        if not self.summed:
            return {}
        sizes = [site.size for site in self.summed]
        indices = np.indices(sizes).reshape(len(sizes), -1)
        return {
            site.name: site.values()[index]
            for site, index in zip(self.summed, indices, strict=True)
        }


Sites = Mapping[str, Site]


class Traced(NamedTuple):
    """Sites, plate sizes and the shapes of values of one abstract trace."""

    sites: Sites
    sizes: PlateSizes
    values: Values


def changing_plates(two: Traced, three: Traced) -> frozenset[str]:
    """The plates whose size follows the number of records."""
    return frozenset(name for name, size in two.sizes.items() if three.sizes.get(name) != size)


def sites_of_records(two: Traced, three: Traced, record_plates: frozenset[str]) -> set[str]:
    """The sites of which each record has its own: inside a record plate, or with a batch axis that follows the records.

    A distribution is independent along its batch axes, with or without a plate. Its event axes are
    one joint density, so a latent whose event axis follows the records, such as a random walk over
    them, is no latent of each.
    """
    found = {name for name, site in two.sites.items() if record_plates.intersection(site.plates)}
    for name, site in two.sites.items():
        other = three.sites[name].batch if name in three.sites else ()
        changed = [x for x in zip(site.batch, other, strict=False) if x[0] != x[1]]
        if len(site.batch) == len(other) and changed == [(2, 3)]:
            found.add(name)
    return found


def _trace_abstractly(
    programs: Programs, program: Program, rows: int, key: PRNGKeyArray, hint: int | None = None
) -> Traced:
    """Sites and plate sizes of a program for `rows` records, without computing anything."""
    sites: dict[str, Site] = {}
    sizes: PlateSizes = {}

    def run(leaves: list[Any]) -> Values:
        trace = programs.trace(program, leaves, key, hint=hint, sizes=sizes)
        sites.update({name: _summary(site, sizes) for name, site in trace.items()})
        given = [
            n
            for n, s in sites.items()
            if s.kind in ("param", "mutable", "sample") and not s.observed
        ]
        return {name: trace[name]["value"] for name in given}

    values = jax.eval_shape(run, programs.records.shapes(rows))
    return Traced(sites, sizes, values)


def _summary(site: Message, sizes: PlateSizes) -> Site:
    kind = site["type"]
    plates = site.get("cond_indep_stack", ())
    about: dict[str, Any] = {
        "name": site["name"],
        "kind": kind,
        "plates": tuple(frame.name for frame in plates),
    }
    if kind in ("sample", "param"):
        about["shape"] = jax.tree.map(jnp.shape, site["value"])
    if kind != "sample":
        return Site(**about)
    fn = site["fn"]
    about |= {"dtype": jnp.result_type(site["value"]), "batch": tuple(fn.batch_shape)}
    if not site["is_observed"]:
        # A distribution that is only ever observed need not say what its support is.
        discrete = bool(fn.support is not None and fn.support.is_discrete)
        return Site(
            **about,
            discrete=discrete,
            reparametrized=bool(fn.has_rsample),
            auxiliary=bool(site["infer"].get("is_auxiliary", False)),
            support=_support(fn) if discrete else None,
        )
    scale = site["scale"]
    fixed = not isinstance(scale, Tracer) and np.ndim(scale) == 0
    for frame in plates if fixed else ():
        declared = sizes.get(frame.name, (frame.size, None))[0]
        scale = scale * (frame.size / declared) if declared else scale
    density = _density(site)
    while isinstance(fn, ExpandedDistribution | MaskedDistribution):
        fn = fn.base_dist
    return Site(
        **about,
        observed=True,
        scale=float(scale) if fixed else None,
        density=density,
        own=fn.batch_shape,
    )


def _density(site: Message) -> tuple[int, ...]:
    """Shape of an observed site's log density."""
    fn = site["fn"]
    value = site["value"]
    shape = jnp.shape(value)
    batch = shape[: len(shape) - fn.event_dim] if fn.event_dim else shape
    try:
        return np.broadcast_shapes(fn.batch_shape, batch)
    except ValueError:
        if shape and not isinstance(value, Tracer):
            raise ValueError(
                f"The observed site {site['name']!r} observes an array of shape {shape} that was not passed as records: it "
                "comes from the model's closure or from handlers.condition. Records must come as arguments of run, or they "
                "enter every record's loss as a whole, without clipping: write obs=y with y an argument of the model."
            ) from None
        raise ValueError(
            f"The observed site {site['name']!r} has a value of shape {shape} and a distribution of batch shape "
            f"{fn.batch_shape} where two artificial records are given; they do not broadcast. Does one of them come from the "
            "model's closure? Records must come as arguments of run."
        ) from None


def without_wrappers(fn: Any) -> Any:
    """A distribution without what plates, masks and `to_event` put around it."""
    while isinstance(fn, ExpandedDistribution | MaskedDistribution | Independent):
        fn = fn.base_dist
    return fn


def _support(fn: Any) -> np.ndarray | None:
    """The values of one element of a discrete distribution, if they are a fixed finite set."""
    fn = without_wrappers(fn)
    if not fn.has_enumerate_support:
        return None
    try:
        with jax.ensure_compile_time_eval():
            values = np.asarray(fn.enumerate_support(expand=False))
    except (NotImplementedError, TypeError, ValueError):
        # It depends on values that a trace on shapes does not have.
        return None
    return values.reshape(len(values), *fn.event_shape)


def start_of_search(site: Message) -> Any:
    """A value for an improper latent, and for a discrete one that which `find_structure` hides from an AutoGuide; or None."""
    if site["type"] != "sample" or site["value"] is not None or not site["fn"].support.is_discrete:
        return value_of_improper(site)
    support = _support(site["fn"])
    return None if support is None else jnp.broadcast_to(support[0], site["fn"].shape())


class _Model(NamedTuple):
    """What is found in a model before its guide is traced."""

    traced: Traced  # with two records
    hint: int | None  # as in `_trace_model`
    record_plates: frozenset[str]
    inside: set[str]  # the sites of which each record has its own
    latents: list[str]  # those of the model's latents that are not discrete
    discrete: list[str]
    observed: list[str]
    factors: list[str]
    summed: tuple[Summed, ...]


def _look_at_model(programs: Programs, key: PRNGKeyArray) -> _Model:
    """Trace the model for two and three records, and refuse what cannot be private."""
    num_records = programs.num_records
    with _explained("model", programs):
        two, three, hint = _trace_model(programs, key)
    record_plates = changing_plates(two, three)
    _check_plate_sizes(record_plates, two.sizes, three.sizes, num_records)
    if two.sizes and not record_plates:
        # Half of one record is none.
        with _explained("model", programs):
            _trace_abstractly(programs, programs.model, 1, key, hint)
    inside = sites_of_records(two, three, record_plates)
    drawn = [
        n
        for n, s in two.sites.items()
        if n in inside or (s.kind == "sample" and s.shape != three.sites[n].shape)
    ]
    if drawn and not any(s.observed for s in two.sites.values()):
        raise ValueError(
            f"No site of the records is observed: {drawn[0]!r} is drawn, since its obs= is None or left out. "
            f"{left_out(programs.model, *programs.arguments(programs.records.leaves))}Pass the observations, too, as y in "
            'dp.fit(model, x, y, ...), and give them to their site: numpyro.sample("y", ..., obs=y).'
        )
    _check_model(two.sites, three.sites, inside, bool(programs.keeps_local))
    _check_mutable("model", two.sites, programs, key, hint)
    unobserved = [s for s in two.sites.values() if s.kind == "sample" and not s.observed]
    discrete = [s.name for s in unobserved if s.discrete]
    observed, factors = _sort_observed(two.sites, three.sites, inside, num_records)
    if len(factors) > _FEWEST_TELLING_ROWS:
        raise ValueError(
            f"The model has {len(factors)} observed sites or factors that do not follow the number of records ({factors[0]!r} is "
            "one), which looks like a list of records; such terms are taken for public. Pass records to run as arrays, and "
            "observe them in a plate."
        )
    whole = [n for n in factors if not _is_data_free(n, programs, key, two, hint, inside)]
    if not observed + whole:
        raise ValueError(
            "No plate of the model follows the number of records, and no observed site has an axis that does, so the model "
            "does not say what one record contributes. Put the observations into a plate, for example "
            'with numpyro.plate("data", xs.shape[0]).'
        )
    one = _trace_abstractly(programs, programs.model, 1, key, hint) if discrete else two
    return _Model(
        traced=two,
        hint=hint,
        record_plates=record_plates,
        inside=inside,
        latents=[s.name for s in unobserved if not s.discrete],
        discrete=discrete,
        observed=observed + whole,
        factors=[n for n in factors if n not in whole],
        summed=_sum_out(one, two, three, discrete),
    )


def refuse_improper(programs: Programs, placeholder: Sequence[Any]) -> None:
    """A likelihood that is bounded, or hidden by noise, leaves an improper prior improper: there would be no posterior."""
    improper: list[str] = []

    def watch(site: Message) -> Any:
        value = value_of_improper(site)
        if value is not None:
            improper.append(site["name"])
        return value

    def look(rows: Any) -> None:
        programs.trace(programs.model, rows, jax.random.key(0), rule=watch)

    jax.eval_shape(look, placeholder)
    if improper:
        raise RefusedError(
            f"The prior of {improper[0]!r} is improper. Clipping or noise may leave nothing of the likelihood in some "
            "direction, and the posterior would not be a distribution. Give it a proper prior, however wide."
        )


def find_structure(programs: Programs, placeholder: list[Any], key: PRNGKeyArray) -> Structure:
    """Trace model and guide for two and three records, and refuse what cannot be private."""
    model = _look_at_model(programs, key)
    inside = model.inside
    latents = model.latents
    guide = programs.guide
    guides = list(auto_guides(guide))
    local = [n for n in latents if n in inside]
    if local and isinstance(guide, PointGuide):
        # First, too: what has latents of records is fitted in steps instead.
        refuse_improper(programs, placeholder)
    check_kind_of_guide(guide, guides, local)
    keeps_local = bool(programs.keeps_local)
    if programs.keeps_local is None and not inside.isdisjoint(latents):
        # An AutoGuide, or a list with one, that has parameters for each record's latents keeps them
        # by itself.
        is_auto = isinstance(guide, autoguide.AutoGuide)
        keeps_local = is_auto and any(type(part) in SITE_BY_SITE for part in guides)
    hidden = {site.name: site.support[0].astype(site.dtype) for site in model.summed}
    set_up = functools.partial(
        set_up_auto_guides,
        programs=programs,
        key=key,
        record_plates=model.record_plates,
        inside=inside,
        hidden=hidden,
        keeps_local=keeps_local,
    )
    traced: list[Traced] = []

    def trace_guide() -> None:
        for rows in (2, 3):
            if keeps_local:
                # Its parameters have the shapes of the rows on which it is set up.
                set_up([jnp.repeat(x[:1], rows, axis=0) for x in placeholder])
            with _explained("guide", programs):
                traced.append(_trace_abstractly(programs, guide, rows, key, model.hint))

    if not keeps_local:
        set_up(placeholder)
    # On shapes alone: a search for initial values that only their number is wanted of, is not to be
    # compiled.
    jax.eval_shape(trace_guide)
    if keeps_local:
        set_up(placeholder)
    two, three = traced
    _check_mutable("guide", two.sites, programs, key, model.hint)
    if stray := changing_plates(two, three) - model.record_plates:
        raise ValueError(
            f"The guide's plate {sorted(stray)[0]!r} follows the number of records, but the model has no "
            "record plate of that name. Use the model's name for it."
        )
    local_params = _local_params(two.sites, three.sites, keeps_local)
    guide_inside = sites_of_records(two, three, model.record_plates)
    _check_guide(two.sites, latents, model.discrete, inside, guide_inside)
    guide_sites = [n for n, s in two.sites.items() if s.kind == "sample" and not s.observed]
    return Structure(
        record_plates=model.record_plates,
        global_latents=tuple(n for n in latents if n not in inside),
        local_latents=tuple(n for n in latents if n in inside),
        observed=tuple(model.observed),
        guide_globals=tuple(n for n in guide_sites if n not in guide_inside),
        guide_locals=tuple(n for n in guide_sites if n in guide_inside),
        model_params=tuple(n for n, s in model.traced.sites.items() if s.kind == "param"),
        local_params=local_params,
        factors=tuple(model.factors),
        summed=model.summed,
    )


def explain_model(programs: Programs, key: PRNGKeyArray) -> None:
    """Explain the failure of a model, if tracing it on shapes reveals the cause."""
    with _explained("model", programs):
        _trace_model(programs, key)


@contextmanager
def _explained(what: str, programs: Programs) -> Iterator[None]:
    """Translate JAX's errors from tracing a program on shapes."""
    try:
        yield
    except _NEEDS_A_NUMBER as error:
        raise ValueError(
            f"The {what} computes a size, an index or a condition from the records{place_of(error)}. The number of groups or of "
            "missing values, for example, would be taken from the data and become public. Give it as a public number, by "
            "name: DPSVI(..., num_groups=6), or as an argument that is a Python number; or leave the model as it is and say "
            "discreet.inference.with_levels(model, group=6) for np.unique(group) and np.max(group). In place of if and of "
            "np.nonzero(...) use jnp.where, in place of numpy's functions jax.numpy's."
        ) from None
    except FAILURES as error:
        place = place_of(error)
        program = getattr(programs, what)
        long = {
            n for n in (programs.records.size, programs.num_records) if n > _FEWEST_TELLING_ROWS
        }
        remedy = make_arguments([program], lambda shape: not long.isdisjoint(shape))
        if str(error).startswith("The observed site"):
            raise ValueError(f"{error}{remedy}") from None
        if not place:
            raise
        if "size of plate should be positive" in str(error):
            raise ValueError(
                f"A plate of the {what} has no rows where few records are given{place}: its size is a 0 that was passed, or the "
                f"{what} cuts its arguments, as by y[1:], y[::2] or len(y) - 1. {_CUT}"
            ) from error
        if re.search(
            r"string indexing|Tracer('? object)? has no attribute|non-tuple sequence.*\[\[[\"']",
            f"{error}{place}",
        ):
            raise ValueError(
                f"The {what} takes a column or a method of a data frame from an argument{place}, but arguments are arrays "
                'inside of it. Pass each column as an argument of its own, as df["x"] or df["x"].to_numpy(), and use that.'
            ) from error
        if str(error).startswith("Base distribution needs to have"):
            raise ValueError(
                f"{str(error).rstrip('.')}{place}. A transform of vectors needs a base that is one: "
                "dist.Normal(0, 1).expand([n]).to_event(1) for n elements, and no plate for them."
            ) from error
        shapes = re.findall(r"\(\d[\d, ]*\)", str(error))
        sizes = {int(n) for shape in shapes for n in re.findall(r"\d+", shape)}
        tables = sorted(long & sizes)
        cause = (
            f"it uses an array of length {tables[0]}, as long as the table, that was not passed as records. Records must come "
            "as arguments of run, not through the closure, a keyword argument of DPSVI or handlers.condition"
            if tables
            else f"{str(error).rstrip('.')}. {left_out(program, *programs.arguments(programs.records.leaves))}"
            "Each record is evaluated alone, so it must run with any number of rows; a time "
            "series whose steps are the rows does not"
        )
        raise ValueError(
            f"The {what} does not run on a few artificial records{place}: {cause}. Where it makes an array as long as the table "
            f"or a batch itself, it must take that length from an argument, as x.shape[0].{remedy if tables else ''}"
        ) from error


def _trace_model(programs: Programs, key: PRNGKeyArray) -> tuple[Traced, Traced, int | None]:
    """Trace with two and with three records; if that fails, take plates of size N for record plates (the hint)."""

    def both(hint: int | None) -> tuple[Traced, Traced, int | None]:
        two, three = (
            _trace_abstractly(programs, programs.model, rows, key, hint) for rows in (2, 3)
        )
        return two, three, hint

    try:
        found = both(None)
        if changing_plates(*found[:2]):
            return found
    except _NEEDS_A_NUMBER:
        raise
    except FAILURES:
        # A plate of N, with two rows inside, does not broadcast.
        found = None
    try:
        return both(programs.num_records)
    except FAILURES:
        return both(None) if found is None else found


_CUT = (
    "Each record is evaluated alone, so a model must keep all rows that it is given. Leave rows out before the fit, as by "
    "passing x[::2] and y[::2]; in a series (y[1:] after y[:-1]) the steps are no records, but a whole series can be one, with "
    "its steps along the second axis."
)


def _check_plate_sizes(
    record_plates: frozenset[str], sizes: PlateSizes, of_three: PlateSizes, num_records: int
) -> None:
    for name in sorted(record_plates):
        size = sizes[name][0]
        (other, _) = of_three[name]
        if size != other and (size, other) != (2, 3):
            raise ValueError(
                f"The plate {name!r} has size {size} for two records and {other} for three: the model cuts or repeats its "
                f"arguments, as by y[1:], y[::2] or len(y) - 1. {_CUT}"
            )
        # Two is the number of placeholder rows: then the size follows the array.
        if size not in (2, num_records):
            raise ValueError(
                f"The record plate {name!r} has size {size}, but the plan has num_records={num_records}. "
                "Both describe the same table: make them agree."
            )


def _check_model(two: Sites, three: Sites, inside: set[str], keeps_local: bool) -> None:
    for name, site in two.items():
        if site.kind == "param" and site.shape != three[name].shape:
            raise _per_record_parameters(name)
        if site.kind != "sample" or site.observed:
            continue
        if name not in inside and site.shape != three[name].shape:
            raise ValueError(
                f"The latent site {name!r} has a value for each record but one joint distribution of them all: to_event, or a "
                "random walk or a Gaussian process over the records, which couples them in principle. Move it into the plate"
                + (
                    "."
                    if keeps_local
                    else ', and sum or integrate it out, write an encoder, or use local="private".'
                )
            )
        if site.discrete and name not in inside:
            raise ValueError(
                f"The global latent site {name!r} is discrete, so its value has no gradient. Sum it out, for example with "
                "numpyro.distributions.MixtureSameFamily. (Discrete latents of one record, inside the record plate, are "
                "summed out here.)"
            )


def _check_mutable(
    what: str, sites: Sites, programs: Programs, key: PRNGKeyArray, hint: int | None
) -> None:
    """Refuse state that a run of the model or the guide changes; statistics that stay as they are, are public constants."""
    program = programs.model if what == "model" else programs.guide
    for name in [n for n, s in sites.items() if s.kind == "mutable"]:

        def states(leaves: list[Any], name: str = name) -> tuple[list[Any], list[Any]]:
            start: list[Any] = []

            class Watch(Messenger):
                def postprocess_message(self, msg: dict[str, Any]) -> None:
                    if msg["type"] == "mutable" and msg["name"] == name and not start:
                        start.extend(jax.tree.leaves(msg["value"]))

            trace = programs.trace(Watch(program), leaves, key, hint=hint)
            return [_bits(x) for x in start], [
                _bits(x) for x in jax.tree.leaves(trace[name]["value"])
            ]

        (reads,) = used_inputs(states, programs.records.shapes(2))
        if any(jax.tree.leaves(reads)):
            raise ValueError(
                f"The {what}'s mutable site {name!r} carries state from record to record (as batch "
                "normalisation does), which no clipping bounds. Use a layer without state, such as "
                "layer or group normalisation, or fixed statistics (use_running_average=True, module.eval())."
            )
        # It reads no record, so artificial ones show what becomes of it.
        start, end = jax.jit(states)(programs.records.filled(0, 2))
        if len(start) != len(end) or not all(
            np.array_equal(a, b) for a, b in zip(start, end, strict=True)
        ):
            raise ValueError(
                f"The {what}'s mutable site {name!r} changes with each run, as the counter of random numbers of dropout or "
                "the statistics of batch normalisation do. Each record is evaluated alone, so all would start from the same "
                "state, and nothing would be learnt. Use fixed statistics and no dropout (use_running_average=True, "
                "deterministic=True, module.eval()), layer or group normalisation, or draw with numpyro.prng_key()."
            )


def _bits(x: Any) -> Any:
    return (
        jax.random.key_data(x)
        if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)
        else jnp.asarray(x)
    )


def _sort_observed(
    two: Sites, three: Sites, inside: set[str], num_records: int
) -> tuple[list[str], list[str]]:
    """The observed sites of the records, and those that do not follow the number of records.

    Refused are sites in which each record meets every other, and those with a minibatch's
    `handlers.scale`, which would weight the likelihood twice.
    """
    records: list[str] = []
    rest: list[str] = []
    for name, site in two.items():
        if not site.observed:
            continue
        other = three[name]
        changed = [a for a, b in zip(site.density, other.density, strict=False) if a != b]
        if len(site.density) != len(other.density) or len(changed) > 1:
            raise ValueError(
                f"The observed site {name!r} has a log density of shape {site.density} where two records are given, so each "
                f"record meets every other: its distribution has batch shape {site.own} and its value shape {site.shape}, "
                f"which broadcast. Squeeze it: y[:, 0] instead of y for the array with the extra axis, so that both have "
                "shape (records,)."
            )
        if not changed and name not in inside:
            rest.append(name)
            continue
        records.append(name)
        if site.scale is None or other.scale is None:
            continue
        follows = not math.isclose(site.scale, other.scale)
        batch = num_records / site.scale if site.scale > 1.0 else math.inf
        if follows or (
            math.isfinite(batch)
            and batch >= 1.0
            and math.isclose(batch, round(batch), rel_tol=1e-6)
        ):
            how = (
                "a number that follows the rows given"
                if follows
                else f"{site.scale:g}, as for batches of {batch:.0f}"
            )
            raise ValueError(
                f"The observed site {name!r} is scaled by {how} (handlers.scale) with {num_records} records. The plan draws "
                "the batches here and each record counts once, so this would weight the likelihood twice: omit the scale. "
                "To weight it on purpose, use numpyro.factor(name, weight * distribution.log_prob(value)) inside the plate."
            )
    return records, rest


def _is_data_free(
    name: str,
    programs: Programs,
    key: PRNGKeyArray,
    two: Traced,
    hint: int | None,
    inside: set[str],
) -> bool:
    """True if an observed site that does not depend on the number of records contains no data.

    If so, it goes into the data-free term, without clipping and noise. If it reads the records, it
    is one term for all of them, which `refuse_couplings` takes only where it is a sum over them.
    Refused is what reads a record's latents, or an array that nobody declared public.
    """

    def density(values: Values, leaves: list[Any]) -> Any:
        return log_density(programs.trace(programs.model, leaves, key, values, hint=hint)[name])

    leaves = programs.records.shapes(2)
    uses, reads = used_inputs(density, two.values, leaves)
    if local := [n for n, used in uses.items() if n in inside and any(jax.tree.leaves(used))]:
        raise ValueError(
            f"The observed site (or factor) {name!r} lies outside the record plate but reads {local[0]!r}, of which each "
            "record has its own. Move it into the plate."
        )
    if any(jax.tree.leaves(reads)):
        return False
    public = [np.asarray(x) for x in jax.tree.leaves(programs.static) if hasattr(x, "shape")]
    for x in captured_arrays(density, two.values, leaves):
        if x.size > 1 and not any(p.shape == x.shape and np.array_equal(p, x) for p in public):
            raise ValueError(
                f"The observed site (or factor) {name!r} does not follow the number of records, and uses an array of shape "
                f"{x.shape} that was neither passed as records nor declared public. If it holds records, pass them to run; "
                "if it is public, pass it to DPSVI as a keyword argument."
            )
    return True


def _sum_out(
    one: Traced, two: Traced, three: Traced, discrete: Sequence[str]
) -> tuple[Summed, ...]:
    """The discrete latents of one record with their supports."""
    found: list[Summed] = []
    for name in discrete:
        site = one.sites[name]
        shapes = [traced.sites[name].shape for traced in (one, two, three)]
        axes = [i for i, sizes in enumerate(zip(*shapes, strict=True)) if sizes == (1, 2, 3)]
        if len(axes) != 1 or math.prod(shapes[1]) != 2 * math.prod(shapes[0]):
            raise ValueError(
                f"The discrete latent {name!r} has shapes {shapes} for one, two and three records: no single axis numbers "
                "the records, so it cannot be summed out for each of them alone."
            )
        if site.support is None:
            raise ValueError(
                f"The discrete latent {name!r} of each record has no fixed finite support, so it cannot be summed out. "
                "Give it one (Categorical, Bernoulli), or integrate it out by a distribution such as "
                "MixtureSameFamily, NegativeBinomial or ZeroInflatedPoisson."
            )
        found.append(Summed(name, shapes[0], site.dtype, axes[0], site.support))
    combinations = math.prod(site.size for site in found)
    if combinations > _MOST_COMBINATIONS:
        raise ValueError(
            f"The discrete latents of one record ({', '.join(repr(site.name) for site in found)}) have {combinations} "
            f"combinations, and at most {_MOST_COMBINATIONS} are summed out. Sum out by hand what is independent, with "
            "jax.nn.logsumexp and numpyro.factor inside the record plate."
        )
    return tuple(found)


def _per_record_parameters(name: str) -> ValueError:
    return ValueError(
        f"The param site {name!r} changes its shape with the number of records: each record would have "
        "parameters of its own, and publishing them publishes the record. Compute them from the record "
        'with shared weights (an amortised guide); or make the guide\'s a private memory with DPSVI(..., local="private").'
    )


def _local_params(two: Sites, three: Sites, keeps_local: bool) -> tuple[tuple[str, int], ...]:
    """The guide's `param` sites with a value for each record, each with the axis that numbers the records."""
    found: list[tuple[str, int]] = []
    for name, site in two.items():
        if site.kind != "param" or site.shape == three[name].shape:
            continue
        if not keeps_local:
            raise _per_record_parameters(name)
        shapes = site.shape, three[name].shape
        arrays = all(isinstance(shape, tuple) for shape in shapes) and len(shapes[0]) == len(
            shapes[1]
        )
        axes = (
            [i for i, pair in enumerate(zip(*shapes, strict=True)) if pair[0] != pair[1]]
            if arrays
            else []
        )
        if len(axes) != 1 or (shapes[0][axes[0]], shapes[1][axes[0]]) != (2, 3):
            raise ValueError(
                f"The param site {name!r} changes its shape with the number of records in another way than one axis of "
                f"that length: {shapes[0]} for two records, {shapes[1]} for three. Give each record an array of its own "
                "along one axis."
            )
        found.append((name, axes[0]))
    return tuple(found)


def _check_guide(
    two: Sites, latents: list[str], discrete: list[str], inside: set[str], guide_inside: set[str]
) -> None:
    sampled = {n for n, s in two.items() if s.kind == "sample"}
    if missing := [n for n in latents if n not in sampled]:
        raise ValueError(
            f"The guide has no sample site for the model's latent {missing[0]!r}. Add one of that name, "
            "or use an AutoGuide."
        )
    for name, site in two.items():
        if site.kind != "sample":
            continue
        if site.observed:
            raise ValueError(
                f"The guide observes the site {name!r}; observations belong in the model."
            )
        if name in discrete:
            raise ValueError(
                f"The guide samples the discrete latent {name!r}, whose value has no gradient. Leave it out of the guide: it "
                "is summed out of each record's loss."
            )
        if name not in latents and not site.auxiliary:
            raise ValueError(
                f"The guide samples {name!r}, which is not a latent of the model. Rename it, or declare it with "
                'infer={"is_auxiliary": True}.'
            )
        if not site.reparametrized:
            raise ValueError(
                f"The guide's site {name!r} has no reparametrised sampler, so gradients cannot pass through "
                "its draw. Use a distribution that has one (Normal, LogNormal, ...), or a transform of one."
            )
        if name in latents and (name in guide_inside) != (name in inside):
            raise ValueError(
                f"The latent {name!r} is one of each record in one of model and guide (inside the record plate, say) and "
                "one of all records in the other. Make it the same in both."
            )
