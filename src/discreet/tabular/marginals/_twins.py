"""Synthetic twins from noisy counts: a mixture of products whose expected counts are fitted to the released ones.

The model is that of `models.MixtureOfProducts`. With component weights pi and level probabilities P
(component, level), the expected share of a pair of levels is (P' diag(pi) P), of a triple sum_k
pi_k P_k,a P_k,b P_k,c, so the likelihood of the noisy counts is a Gaussian around a few matrix
products: n times these shares, with the noise's known standard deviations. Neither the number of
parameters nor of steps costs privacy, so there are more components than in a private fit of the
records, and a maximum a posteriori fit by Adam takes seconds, whatever the number of records.

Sums of numbers and of squares (`_plan`) are linear in the shares, too, if numbers are uniform in
their slices, as those of twins are. They are fitted more precisely than their noise asks, since
twins should have the means and spreads that were released; and less, by as much as they and the
counts show, beyond their noise, that numbers are not uniform in slices.

Several draws are a bootstrap. Each is a refit to the noisy counts plus noise of the law that they
have around the truth: the sampling noise of a table of rows drawn from the first fit, and the
privacy noise again. So draws scatter around the fit as the fit does around the truth, and
`synthetic.combine` takes twins from them. Rows of a person may be all alike, so that with up to R
of each the sampling noise of counts has up to R times the variance, which is added.

What the schema calls impossible is known without a count: the noise on such cells is not fitted,
and the model's expected number of such records is 0, ten times as precisely as a count. So hardly a
row is drawn again, which would move all that goes with it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from numpyro.infer.util import log_density

from discreet._numpyro import one_model
from discreet._validate import integer
from discreet.privacy.released import Released
from discreet.privacy.report import Statement
from discreet.tabular.marginals._estimates import LeastSquares, sums_of
from discreet.tabular.marginals._plan import MOST_COLUMNS, MarginalsPlan
from discreet.tabular.marginals._result import Marginals
from discreet.tabular.models import Levels, MixtureOfProducts
from discreet.tabular.tables import Kind, Schema

COMPONENTS = 64
STEPS = 2000
RATE = 0.03
DECAY = 0.95
"""Decay of Adam's two moments. With its usual 0.999 for squares, the first gradients, which are
1,000 times as large as the last, hold the steps down for thousands of steps: after 4,000, group
means were still drawn together by 7 %."""
REFIT_STEPS = 600
PIECE_ROWS = 1 << 16
SPREAD = 2.0
WIDE_SPREAD = 1.0
"""Prior standard deviation of the components' logits: narrower for many columns, which have more of the noise."""
IMPOSSIBLE = 0.1
"""Standard deviation, in that of the least noise, of the number of records with values that are impossible together."""
PRECISE = 0.2
"""Standard deviation at which sums are fitted, in that of their noise: else noise in empty cells,
which is fitted where it is above 0, outweighs them."""
SURE = 2.0
"""Standard deviations of the noise from which on sums say that numbers are not uniform in slices."""
UNCOUNTED = 3.0
"""Standard deviation, in that of the noise, of counts around those of independent columns, of pairs that were not counted."""
WIDEST = 60
MOST_LEVELS = 1000
NAMED = 30
NO_SPREAD = (
    "Unless each twin is drawn from a refit of its own (num_draws, --draws), the twins' differences show neither the noise nor "
    "the uncertainty of the fit: intervals combined from several twins are too narrow."
)
"""Start of the note that names them."""
NOBODYS = (
    "Persons may have several rows, and the counts are of rows: rows of these twins are nobody's, and do not show how alike the "
    "rows of one person are."
)
WHAT = "twin model fitted to noisy counts"
VERSION = 2


class CountMatrices(NamedTuple):
    """Noisy counts of all pairs of levels, among all records and among those with one more level, of three-way tables.

    Attributes:
        within: Position of that level among all levels, which is their number for all records.
        counts: Counts of each pair of levels, on the diagonal of each level; 0 if not counted.
        stddev: Standard deviation of the noise on each; 1 if not counted.
        measured: True for counted pairs, except impossible ones.
        numbers: Mean of z and of 1 - z^2 in each level, for each column that was summed; 0 for the
            levels of others.
        summed: For each sum, its row in `numbers`.
        among: For each sum, the positions of the two levels that its records have; the number of
            levels for any level.
        sums: The noisy sums.
        sum_stddev: Standard deviation of the noise on each, and of what is unknown within slices.
    """

    within: Int[np.ndarray, " matrix"]
    counts: Float[np.ndarray, "matrix level level"]
    stddev: Float[np.ndarray, "matrix level level"]
    measured: Bool[np.ndarray, "matrix level level"]
    numbers: Float[np.ndarray, "number level"]
    summed: Int[np.ndarray, " sum"]
    among: Int[np.ndarray, "2 sum"]
    sums: Float[np.ndarray, " sum"]
    sum_stddev: Float[np.ndarray, " sum"]

    @classmethod
    def of(cls, released: Marginals) -> CountMatrices:
        """Arrange the counts of a release."""
        plan = released.plan
        sizes = released.plan.levels.sizes
        firsts = np.cumsum((0, *sizes[:-1]))
        total = sum(sizes)
        found: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        threes = [column for columns in plan.columns if len(columns) == 3 for column in columns]
        for table, columns in zip(plan.tables, plan.columns, strict=True):
            if not columns:  # the number of records, which `Marginals.num_records` has
                continue
            counts = released.table(*table)[None]
            within = [total]
            if len(columns) == 3:
                # Cut by the column that most of the three-way tables share: the target, or one of
                # few levels.
                cut = max(range(3), key=lambda i: (threes.count(columns[i]), -sizes[columns[i]]))
                counts = np.moveaxis(counts[0], cut, 0)
                within = [int(firsts[columns[cut]]) + level for level in range(sizes[columns[cut]])]
                columns = tuple(np.delete(columns, cut))
            rows, others = (
                np.arange(firsts[x], firsts[x] + sizes[x]) for x in (columns[0], columns[-1])
            )
            place = (rows, rows) if len(columns) == 1 else np.ix_(rows, others)
            for level, block in zip(within, counts, strict=True):
                empty = np.zeros((total, total), np.float32), np.ones((total, total), np.float32)
                into, stddev, measured = found.setdefault(
                    level, (*empty, np.zeros((total, total), bool))
                )
                into[place], stddev[place], measured[place] = block, plan.stddev(table), True
        if total in found:
            _suppose_independence(*found[total], plan.levels, UNCOUNTED * plan.noise)
        for level, (counts, stddev, measured) in found.items():
            never = _impossible(plan.levels, level)
            counts[never], stddev[never], measured[never] = 0, 1, False
        numbers = numbers_in_levels(plan)
        within = np.array(list(found))
        (counts, stddev, measured) = map(np.stack, zip(*found.values(), strict=True))
        return cls(
            within,
            counts,
            stddev,
            measured,
            numbers,
            *_sums(released, _within_slices(released, numbers)),
        )


def _sums(released: Marginals, unknown: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of each sum, as in `CountMatrices`: its row among the numbers, its levels, its value and standard deviation.

    What is unknown within slices of a category is that of the whole, by the category's share of the
    records.
    """
    plan = released.plan
    estimates = sums_of(released)
    anything = np.array([sum(plan.levels.sizes)])
    found = []
    for place, column in enumerate(plan.summed):
        for own in [own for own in estimates if own[0] == column.name]:
            values = estimates[own].values.reshape(2, -1)
            one, other = (
                *(np.r_[plan.levels.places[name]] for name in own[1:]),
                *[anything] * (3 - len(own)),
            )
            levels = np.stack([np.repeat(one, len(other)), np.tile(other, len(one))])
            counted = any({*own[1:]} == {*table} for table in plan.tables)
            counts = (
                np.maximum(released.table(*own[1:]).ravel(), 1.0)
                if counted
                else np.ones(levels.shape[1])
            )
            apart = unknown[2 * place : 2 * place + 2, None] * counts / counts.sum()
            stddevs = np.hypot(np.sqrt(estimates[own].variance), apart)
            for row in range(2):
                summed = np.full(levels.shape[1], 2 * place + row)
                found.append(np.vstack([summed, levels, values[row], stddevs[row]]))
    summed, *among, values, stddevs = np.concatenate([np.zeros((5, 0)), *found], axis=1)
    return (
        summed.astype(int),
        np.array(among, int),
        values.astype(np.float32),
        stddevs.astype(np.float32),
    )


def _within_slices(released: Marginals, numbers: np.ndarray) -> Float[np.ndarray, " number"]:
    """How far sums of all records are from those of numbers uniform in slices: what neither noise explains, counts' or sums'."""
    plan = released.plan
    found = np.zeros(len(numbers))
    if all(len(table) > 2 for table in plan.tables):
        return found
    columns = LeastSquares(released).columns
    for place, column in enumerate(plan.summed):
        if column.name not in columns or columns[column.name].exact:
            continue
        own = columns[column.name]
        assert own.sums is not None
        means = numbers[2 * place : 2 * place + 2, plan.levels.places[column.name]]
        apart = own.sums.values - means @ own.counts
        variance = own.covariance(means, means) + own.sums.variance
        found[2 * place : 2 * place + 2] = np.sqrt(np.maximum(0, apart**2 - SURE**2 * variance))
    return found


def numbers_in_levels(plan: MarginalsPlan) -> Float[np.ndarray, "number level"]:
    """The mean of z and of 1 - z^2 in each level where numbers are uniform in slices.

    Each column that is summed has two rows, which are 0 in the levels of other columns.
    """
    levels = plan.levels
    found = np.zeros((len(plan.summed), 2, sum(levels.sizes)), np.float32)
    for means, column in zip(found, plan.summed, strict=True):
        edges = levels.edges(column)
        whole = column.kind is not Kind.REAL
        low, high = column.limits
        first, last = ((2 * x - low - high) / (high - low) for x in (edges[:-1], edges[1:] - whole))
        middle = (first + last) / 2
        width = last - first
        step = 2 * whole / (high - low)
        start = levels.places[column.name].start
        own = slice(start, start + len(middle))
        means[:, own] = middle, 1 - middle**2 - width * (width + 2 * step) / 12
    return found.reshape(-1, found.shape[-1])


def _impossible(levels: Levels, within: int) -> Bool[np.ndarray, "level level"]:
    """The mask of pairs of levels that no record has, or none with the level `within`, if that is a level."""
    total = sum(levels.sizes)
    never = np.zeros((total, total), bool)
    for one, other in levels.impossible:
        never |= np.outer(one, other) | np.outer(other, one)
    if within < total:
        never |= never[within] | never[within][:, None]
    return never


def _suppose_independence(
    counts: np.ndarray, stddev: np.ndarray, measured: np.ndarray, levels: Levels, spread: float
) -> None:
    """Give pairs that were not counted the counts of independent columns, far less precisely than others.

    Otherwise components that fit the counted pairs leave any dependence between others. Columns with
    values that are impossible together depend on each other.
    """
    places = list(levels.places.values())
    never = _impossible(levels, len(counts))
    alone = [np.maximum(np.diagonal(counts)[place], 0.0) for place in places]
    total = max(1.0, float(np.mean([x.sum() for x in alone])))
    for (i, one), (j, other) in itertools.combinations(enumerate(places), 2):
        if not (
            measured[one, other].any() or measured[other, one].any() or never[one, other].any()
        ):
            share = alone[j] / max(1.0, alone[j].sum())
            counts[one, other] = np.outer(alone[i] * total / max(1.0, alone[i].sum()), share)
            stddev[one, other], measured[one, other] = spread, True


def counts_model(model: MixtureOfProducts) -> Callable[[float, CountMatrices], None]:
    """The NumPyro model of noisy counts: latents as in `MixtureOfProducts`, with wider priors.

    Args:
        model: The mixture.

    Returns:
        A model of the estimated number of records and the counts.
    """
    total = sum(model.levels.sizes)
    shapes = {
        "component": ((model.components,), 3.0),
        "base": ((total,), 3.0),
        "deviations": (
            (model.components, total),
            WIDE_SPREAD if len(model.levels.sizes) > MOST_COLUMNS else SPREAD,
        ),
    }

    def program(records: float, matrices: CountMatrices) -> None:
        latents: Any = {
            name: numpyro.sample(name, dist.Normal(0.0, scale).expand(shape).to_event(len(shape)))
            for name, (shape, scale) in shapes.items()
        }
        expected = records * _shares(latents, model.levels.sizes, matrices.within)
        precise = IMPOSSIBLE * jnp.where(matrices.measured, matrices.stddev, jnp.inf).min()
        for place, share in enumerate(_shares_of_impossible(latents, model.levels)):
            numpyro.sample(f"impossible_{place}", dist.Normal(records * share, precise), obs=0.0)
        counts = dist.Normal(expected, matrices.stddev).mask(matrices.measured).to_event(3)
        numpyro.sample("counts", counts, obs=matrices.counts)
        if matrices.sums.size:
            sums = dist.Normal(
                records * _shares_of_sums(latents, model.levels.sizes, matrices),
                matrices.sum_stddev,
            )
            numpyro.sample("sums", sums.to_event(1), obs=matrices.sums)

    return program


def _shares(
    latents: Any, sizes: tuple[int, ...], within: Any
) -> Float[Array, "matrix level level"]:
    """Expected shares of the records, arranged as in `CountMatrices`."""
    weights, levels = _components(latents, sizes)
    shares = weights[:, None] * _with_all(levels)[:, within]
    pairs = jnp.einsum("km,ki,kj->mij", shares, levels, levels)
    return jnp.where(jnp.eye(levels.shape[1], dtype=bool), (shares.T @ levels)[:, None], pairs)


def _shares_of_sums(
    latents: Any, sizes: tuple[int, ...], matrices: CountMatrices
) -> Float[Array, " sum"]:
    """Expected sums, divided by the number of records."""
    weights, levels = _components(latents, sizes)
    one, other = matrices.among
    with_all = _with_all(levels)
    return weights @ (
        with_all[:, one] * with_all[:, other] * (levels @ matrices.numbers.T)[:, matrices.summed]
    )


def _with_all(levels: Float[Array, "component level"]) -> Float[Array, "component level+1"]:
    """Probabilities of the levels, and of any level."""
    return jnp.pad(levels, ((0, 0), (0, 1)), constant_values=1.0)


def _shares_of_impossible(latents: Any, levels: Levels) -> list[Float[Array, ""]]:
    """Expected shares of the records with both values of each impossible pair."""
    weights, probabilities = _components(latents, levels.sizes)
    return [
        weights @ ((probabilities @ one) * (probabilities @ other))
        for one, other in levels.impossible
    ]


def _components(
    latents: Any, sizes: tuple[int, ...]
) -> tuple[Float[Array, " component"], Float[Array, "component level"]]:
    """Shares of the components, and probabilities of the levels in each."""
    column_of = np.repeat(np.eye(len(sizes), dtype=np.float32), sizes, axis=0)
    logits = latents["base"] + latents["deviations"]
    odds = jnp.exp(logits - jax.lax.stop_gradient(logits.max(axis=1, keepdims=True)))
    # Sums over each column's levels as one product: blocks of unlike sizes would compile for
    # seconds.
    levels = odds / (jnp.maximum(odds @ column_of, 1e-30) @ column_of.T)
    return jax.nn.softmax(latents["component"]), levels


def _start(model: MixtureOfProducts, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Public numbers that the components start from: alike, they would stay alike."""
    total = sum(model.levels.sizes)
    return {
        "component": np.zeros(model.components, np.float32),
        "base": np.zeros(total, np.float32),
        "deviations": 0.5 * rng.standard_normal((model.components, total), np.float32),
    }


@dataclasses.dataclass(frozen=True)
class MarginalsResult(Released, what=WHAT, version=VERSION):
    """A mixture of products fitted to noisy counts, for `synthetic.synthesize`; everything in it is covered by `statement`.

    Attributes:
        latents: The fitted value of each latent, one or several draws along the leading axis.
        num_records: The number of records, estimated from the counts: how many rows a twin has.
        statement: The privacy statement of the counts.
        not_counted: Which pairs of columns were left out of the counts, and what that means, in
            words; empty if none.
    """

    latents: dict[str, np.ndarray]
    num_records: int
    statement: Statement
    not_counted: str = ""

    @property
    def num_draws(self) -> int:
        """The number of refits; 1: the fit alone."""
        return len(self.latents["component"])

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, np.ndarray]:
        """The first `num_samples` draws; the fit, so many times, if it is alone.

        Raises:
            ValueError: There are several, but fewer.
        """
        del key
        if 1 < self.num_draws < num_samples:
            raise ValueError(
                f"the fit has {self.num_draws} draws, and {num_samples} were asked for: ask for fewer twins, or fit the counts "
                "with a larger num_draws (--draws)"
            )
        return {
            name: np.resize(value, (num_samples, *value.shape[1:]))
            for name, value in self.latents.items()
        }

    def __repr__(self) -> str:
        """Short, without arrays."""
        return f"MarginalsResult(about {self.num_records:,} records, {self.statement.brief})"


def counts_suffice(schema: Schema, slices: int = 32) -> bool:
    """Choose between fitting twins to counts (True) and to records, by public facts and our measurements.

    It takes one row a person, since rows of twins from counts are nobody's, and so few columns and
    levels that noise on all their pairs leaves the dependence to be seen.
    """
    if schema.max_rows > 1 or len(schema.columns) > WIDEST:
        return False
    return sum(Levels(schema.without_person(), slices).sizes) <= MOST_LEVELS


def fit_twins(
    released: Marginals,
    *,
    components: int = COMPONENTS,
    num_steps: int = STEPS,
    num_draws: int = 1,
    seed: int = 0,
) -> tuple[MixtureOfProducts, MarginalsResult]:
    """Fit a mixture of products to noisy counts; post-processing, which sees no record.

    Args:
        released: Noisy counts. The more pairs of columns were counted, the more of their dependence
            the twins have.
        components: Number of components: more cost time only.
        num_steps: Steps of Adam.
        num_draws: 1 for the fit alone, whose twins are the closest; 20 or more for as many refits
            with fresh noise, which `synthetic.combine` needs, one for each twin.
        seed: Seed of the components' public initial values, and of the fresh noise.

    Returns:
        The model and its fit, for `synthetic.synthesize`.

    Example::

        plan = MarginalsPlan.calibrate(schema, epsilon=1.0, delta=1e-6)
        model, result = fit_twins(private_marginals(dp.random.key(), table, plan))
        twins = dp.synthetic.synthesize(dp.random.key(), result, model)

    Reference:
        Räisä, Jälkö, Kaski and Honkela, "Noise-aware statistical inference with differentially
        private synthetic data", AISTATS 2023, for why twins need such draws; theirs are of another
        model's posterior.
    """
    integer("num_draws", num_draws, hint="20 are enough for intervals.")
    schema = released.plan.schema.without_person()
    rng = np.random.default_rng(seed)
    model = MixtureOfProducts(schema, components=components, slices=released.plan.slices)
    start = _start(model, rng)
    program = counts_model(model)
    matrices = CountMatrices.of(released)

    def fit(start: Any, matrices: CountMatrices, **schedule: Any) -> Any:
        precise = matrices._replace(sum_stddev=np.float32(PRECISE) * matrices.sum_stddev)
        return _maximise(program, start, records=released.num_records, matrices=precise, **schedule)

    found = [fit(start, matrices, num_steps=num_steps)]
    if num_draws > 1:
        rows = round(released.num_records)
        alike = math.sqrt(released.plan.max_rows)
        known = matrices, model, found[0], rows, alike, released.plan.laplace
        again = (_renoised(*known, rng) for _ in range(num_draws))
        found = [fit(found[0], x, num_steps=REFIT_STEPS) for x in again]
    latents = {
        name: np.stack([np.asarray(draw[name], np.float32) for draw in found]) for name in start
    }
    statement = released.statement
    notes = (
        NO_SPREAD,
        *not_counted(released.plan),
        *([NOBODYS] if released.plan.max_rows > 1 else []),
    )
    statement = statement.with_notes(*(note for note in notes if note not in statement.notes))
    return model, MarginalsResult(
        latents, round(released.num_records), statement, " ".join(not_counted(released.plan))
    )


def not_counted(plan: MarginalsPlan) -> list[str]:
    """Name the pairs of columns that are in no table in a note, if there are any."""
    known = {frozenset(pair) for table in plan.tables for pair in itertools.combinations(table, 2)}
    pairs = itertools.combinations([column.name for column in plan.schema.columns], 2)
    left = [" × ".join(pair) for pair in pairs if frozenset(pair) not in known]
    if not left:
        return []
    more = f" and {len(left) - NAMED} others" if len(left) > NAMED else ""
    return [
        f"Pairs of columns were left out of the counts: {', '.join(left[:NAMED])}{more}. "
        "The fit takes the two columns to be independent but for what other counts say, so combined intervals of what relates "
        "them may miss the truth far more often than stated."
    ]


@functools.partial(jax.jit, static_argnames=("program", "num_steps"))
def _maximise(program: Any, latents: Any, *, records: Any, matrices: Any, num_steps: int) -> Any:
    """The latents of largest posterior density, by Adam from these ones on."""

    # Half a cosine: large steps first, because the parameters go far; small ones last, which
    # settle.
    def rate(step: Any) -> Any:
        return RATE * (0.51 + 0.49 * jnp.cos(jnp.pi * jnp.minimum(step / num_steps, 1.0)))

    optim = numpyro.optim.Adam(rate, b1=DECAY, b2=DECAY)

    def loss(values: Any) -> Any:
        with one_model:
            return -log_density(program, (records, matrices), {}, values)[0], None

    def step(state: Any, _: None) -> Any:
        return optim.eval_and_update(loss, state)[1], None

    return optim.get_params(jax.lax.scan(step, optim.init(latents), None, length=num_steps)[0])


def _renoised(
    matrices: CountMatrices,
    model: MixtureOfProducts,
    latents: Any,
    rows: int,
    alike: float,
    laplace: bool,
    rng: np.random.Generator,
) -> CountMatrices:
    """The counts with noise added that has the law of theirs: that of a table of `rows` rows, and the privacy noise.

    The first is `alike` times as large, since rows may not be independent.
    """
    levels = model.levels
    total = sum(model.levels.sizes)
    firsts = np.cumsum((0, *levels.sizes[:-1]))
    moved = -rows * np.asarray(_shares(latents, levels.sizes, matrices.within), np.float64)
    sums = -rows * np.asarray(_shares_of_sums(latents, levels.sizes, matrices), np.float64)
    groups, group = np.unique(matrices.among, axis=1, return_inverse=True)
    for first in range(0, rows, PIECE_ROWS):
        drawn = model.encode(model.draw(latents, min(PIECE_ROWS, rows - first), rng))
        places = drawn + firsts
        has = np.zeros((len(drawn), total + 1), np.float32)
        np.put_along_axis(has, places, 1.0, axis=1)
        has[:, total] = 1
        inside = (matrices.numbers @ has[:, :-1].T) @ (has[:, groups[0]] * has[:, groups[1]])
        sums += inside[matrices.summed, group.ravel()]
        for place, level in enumerate(matrices.within):
            chosen = drawn if level == total else drawn[(places == level).any(axis=1)]
            if len(chosen):
                moved[place] += len(chosen) * levels.pair_shares(chosen)

    def noise(stddev: np.ndarray) -> np.ndarray:
        drawn = rng.laplace if laplace else rng.normal
        return stddev * drawn(0.0, math.sqrt(0.5) if laplace else 1.0, stddev.shape)

    moved = alike * moved + noise(matrices.stddev)
    sums = matrices.sums + alike * sums + noise(matrices.sum_stddev)
    counts = np.where(matrices.measured, matrices.counts + moved, 0)
    return matrices._replace(counts=counts.astype(np.float32), sums=sums.astype(np.float32))
