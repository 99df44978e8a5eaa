"""One posterior sample: the mechanism is private as defined (on a grid), and the draws follow it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import beta, kstest

from discreet import random
from discreet.methods.inference import OnePosteriorSample, OPSResult
from discreet.methods.inference._chains import Chains, diagnose
from discreet.methods.inference._records import take_apart
from discreet.methods.inference._tempering import TemperedPosterior, exact_sum, project_records
from discreet.privacy.accounting import Relation, profile

pytestmark = pytest.mark.usefixtures("quick_compilation")

GRID = np.linspace(-6.0, 6.0, 4001)
X = np.linspace(-1.0, 1.0, 8, dtype=np.float32)


def spiky(x: Any) -> None:
    """A record's log-likelihood is +-50 x: one sign where theta > 2.5, which the prior hardly allows, the other elsewhere."""
    theta = numpyro.sample("theta", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("likelihood", 50.0 * x * jnp.where(theta > 2.5, 1.0, -1.0))


def coin(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Beta(2, 2))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(rate), obs=y)


def location(x: Any) -> None:
    theta = numpyro.sample("theta", dist.Normal(0, 2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.Normal(theta, 1.0), obs=x)


def posterior_of(ops: OnePosteriorSample, *args: Any) -> TemperedPosterior:
    objective, _ = ops._objective(random.key(3), take_apart(args, {}))
    return TemperedPosterior(objective, ops.plan.tempering)


def on_grid(ops: OnePosteriorSample, *tables: np.ndarray) -> list[np.ndarray]:
    """For each table the log density at the grid's points, normalised by summation in double precision."""
    posterior = posterior_of(ops, tables[0])
    density = jax.jit(
        jax.vmap(lambda z, rows: posterior.log_density({"theta_unconstrained": z}, rows), (0, None))
    )
    found = []
    for table in tables:
        rows = [jnp.asarray(table)]
        if ops.radius is not None:
            rows = project_records(rows, ops.radius)
        values = np.asarray(density(jnp.asarray(GRID, jnp.float32), rows), np.float64)
        found.append(values - np.logaddexp.reduce(values))
    return found


def largest_ratio(ops: OnePosteriorSample, first: np.ndarray, second: np.ndarray) -> float:
    one, other = on_grid(ops, first, second)
    return float(np.abs(one - other).max())


# --- the mechanism, on a grid ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("relation", "first", "second"),
    [
        (Relation.REPLACE_ONE, [1.0], [-1.0]),
        (Relation.REPLACE_ONE, [0.3, -0.1, 1.0], [0.3, -0.1, math.nan]),
        (Relation.ADD_OR_REMOVE_ONE, [-1.0, 1.0], [-1.0]),
    ],
)
def test_neighbours_densities_differ_by_epsilon_at_most(
    relation: Relation, first: list[float], second: list[float]
) -> None:
    ops = OnePosteriorSample(spiky, log_likelihood_bound=2.0, epsilon=0.5, relation=relation)
    pair = np.array(first, np.float32), np.array(second, np.float32)
    ratio = largest_ratio(ops, *pair)
    assert ratio <= ops.epsilon + 1e-5
    assert ops.epsilon <= 0.5
    if relation is Relation.ADD_OR_REMOVE_ONE or len(first) == 1:
        # The worst case is all but attained, so a power twice as large, epsilon / 2B, is not
        # private.
        assert ratio > 0.9 * 0.5
    if len(first) == 1:
        wrong = OnePosteriorSample(spiky, log_likelihood_bound=2.0, epsilon=1.0)
        assert largest_ratio(wrong, *pair) > 1.8 * 0.5


@pytest.mark.parametrize(
    "bound", [{"log_likelihood_bound": (999.5, 1000.5)}, {"lipschitz": 1.0, "radius": 0.5}]
)
def test_log_likelihoods_far_from_zero_are_not_lost_in_rounding(bound: dict[str, Any]) -> None:
    """Summed as they are, 20,000 of about 1000 leave ratios of 1.36 and more."""

    def far(x: Any) -> None:
        theta = numpyro.sample("theta", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.factor("likelihood", 1000.0 + x * jnp.sin(theta))

    ops = OnePosteriorSample(far, epsilon=1.0, **bound)
    first = np.random.default_rng(0).uniform(-0.5, 0.5, 20_000).astype(np.float32)
    first[0] = 0.5
    assert largest_ratio(ops, first, np.concatenate([[np.float32(-0.5)], first[1:]])) <= ops.epsilon


@pytest.mark.parametrize("relation", list(Relation.__members__.values())[:2])
def test_one_record_moves_the_sum_by_its_own_term_whatever_the_others_are(
    relation: Relation,
) -> None:
    """Repeated rounding: in float32 the terms after the first are half a unit each, and are lost or doubled with it."""
    ops = OnePosteriorSample(spiky, log_likelihood_bound=1.0, epsilon=1.0, relation=relation)
    terms = np.concatenate([np.full(2090, 0.98), np.full(100_000, -0.51 * 2.0**-13)]).astype(
        np.float32
    )
    other = (
        np.append(terms[1:], np.float32(-1.0)) if relation is Relation.REPLACE_ONE else terms[1:]
    )
    grid = ops.plan.tempering.grid
    assert (grid.most - grid.least) * grid.spacing <= 2.0
    added = [float(exact_sum(jnp.asarray(x), grid)) for x in (terms, other, other[::-1])]
    assert added[1] == added[2]
    assert abs(added[0] - added[1]) <= (2.0 if relation is Relation.REPLACE_ONE else 1.0)
    assert added[0] == pytest.approx(
        float(np.sum(terms, dtype=np.float64)), abs=len(terms) * grid.spacing
    )
    one_by_one = [float(np.cumsum(x, dtype=np.float32)[-1]) for x in (terms, terms[1:])]
    assert abs(one_by_one[0] - one_by_one[1]) > 4.0


def test_the_density_of_many_records_moves_no_further() -> None:
    """Whole densities at 300 points: 100,000 records, of which one is another. Rounded to float32 they move by 0.3 % more."""
    ops = OnePosteriorSample(spiky, log_likelihood_bound=2.0, epsilon=0.9)
    table = np.random.default_rng(7).uniform(0.0, 0.06, 100_000).astype(np.float32)
    table[0] = 1.0
    posterior = posterior_of(ops, table)
    density = jax.jit(
        jax.vmap(lambda z, x: posterior.log_density({"theta_unconstrained": z}, [x]), (0, None))
    )
    points = jnp.linspace(-3.0, 2.4, 300)
    found, other = (
        np.asarray(density(points, x)) for x in (table, np.append(table[1:], np.float32(-1.0)))
    )
    moved = np.abs(found - other)
    assert np.all(moved > 0.449)
    assert np.all(moved <= ops.epsilon / 2)
    assert (
        np.abs(found.astype(np.float32) - other.astype(np.float32)).max() > 1.0003 * ops.epsilon / 2
    )


def test_the_slope_of_the_density_is_that_of_the_terms_within_the_bounds() -> None:
    ops = OnePosteriorSample(location, log_likelihood_bound=(-3.0, 0.0), epsilon=1.0)
    x = np.random.default_rng(7).normal(size=1_000).astype(np.float32)
    posterior = posterior_of(ops, x)
    slope = jax.jit(
        jax.grad(lambda z: posterior.log_density({"theta_unconstrained": z}, [jnp.asarray(x)]))
    )
    whole = np.float64(x)
    inside = -0.5 * (whole - 0.4) ** 2 - 0.5 * math.log(2 * math.pi) > -3.0
    assert float(slope(jnp.float32(0.4))) == pytest.approx(
        ops.plan.tempering.power * float(np.sum((whole - 0.4)[inside])) - 0.4 / 4, rel=1e-4
    )


def test_a_record_more_changes_no_other_record_s_term() -> None:
    """A product of 32 or of 33 rows with a vector adds up some rows in another order, and here rounding is all that is left."""

    def steep(x: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.factor("f", 1e5 * (x @ w))

    rng = np.random.default_rng(1)
    w, rows = rng.normal(size=100).astype(np.float32), rng.normal(size=(6, 100))
    for at in rng.integers(0, 100, (4, 6)):
        rows[np.arange(6), at] -= (rows @ w.astype(np.float64)) / w[at]
        rows = rows.astype(np.float32).astype(np.float64)
    ops = OnePosteriorSample(
        steep, log_likelihood_bound=1.0, epsilon=1.0, relation=Relation.ADD_OR_REMOVE_ONE
    )
    posterior = posterior_of(ops, rows.astype(np.float32))
    u, _ = posterior.objective.link({"w_unconstrained": jnp.asarray(w)}, jax.random.key(0))
    total = jax.jit(lambda table: posterior.bounded(u, [table])[0])
    for row in rows.astype(np.float32):
        whole, less = (float(total(np.repeat(row[None], size, 0))) / size for size in (32, 31))
        assert whole != 0
        assert whole == pytest.approx(less, rel=1e-9)


def test_a_prior_that_is_too_far_away_is_cut_off() -> None:
    posterior = posterior_of(OnePosteriorSample(location, log_likelihood_bound=3.0, epsilon=1.0), X)
    both = jax.value_and_grad(
        lambda z: posterior.log_density({"theta_unconstrained": z}, [jnp.asarray(X)])
    )
    for place, seen in ((2e4, False), (2.5e4, True)):
        value, slope = both(jnp.float32(place))
        assert math.isinf(float(value)) == seen
        assert math.isfinite(slope)


def test_lipschitz_version_holds_for_a_true_and_for_a_false_claim() -> None:
    def line(x: Any) -> None:
        theta = numpyro.sample("theta", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.factor("likelihood", 3.0 * jnp.sum(x, axis=-1) * jnp.tanh(20 * (theta - 2.5)))

    pair = (
        np.array([[30.0, 0.0], [0.1, 0.2]], np.float32),
        np.array([[-30.0, 1e30], [0.1, 0.2]], np.float32),
    )
    false = OnePosteriorSample(line, lipschitz=0.5, radius=0.5, epsilon=0.7)
    assert false.plan.tempering.power == pytest.approx(0.7 / (4 * 0.5 * 0.5), rel=1e-6)
    assert largest_ratio(false, *pair) <= 0.7 + 1e-5
    # Records within the ball and a true claim: nothing is clipped.
    inside = np.array([[0.3, 0.2], [-0.4, 0.1]], np.float32)
    ops = OnePosteriorSample(line, lipschitz=3.0 * math.sqrt(2), radius=0.5, epsilon=0.7)
    one, other, density = on_grid(ops, *pair, inside)
    assert np.abs(one - other).max() <= 0.7 + 1e-5
    exact = -0.5 * GRID**2 + ops.plan.tempering.power * 3.0 * inside.sum() * np.tanh(
        20 * (GRID - 2.5)
    )
    np.testing.assert_allclose(
        np.exp(density), np.exp(exact - np.logaddexp.reduce(exact)), atol=2e-6
    )


def test_projection() -> None:
    x, y, label = (
        jnp.array([[3.0, 0.0], [0.3, 0.4], [jnp.inf, 1.0]]),
        jnp.array([4.0, 0.0, 0.0]),
        jnp.array([7, 8, 9]),
    )
    x2, y2, label2 = project_records([x, y, label], 2.5)
    np.testing.assert_allclose(x2[:2], [[1.5, 0.0], [0.3, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(y2[:2], [2.0, 0.0], rtol=1e-6)
    assert label2.tolist() == [7, 8, 9]


def test_without_clipping_and_with_power_one_it_is_the_posterior() -> None:
    wide = OnePosteriorSample(location, log_likelihood_bound=50.0, epsilon=500.0)
    assert 1 - 1e-6 < wide.plan.tempering.power < 1
    assert wide.epsilon == pytest.approx(200.0, rel=1e-6)
    precision = 1 / 4 + len(X)
    expected = -0.5 * precision * (GRID - X.sum() / precision) ** 2
    np.testing.assert_allclose(
        np.exp(on_grid(wide, X)[0]), np.exp(expected - np.logaddexp.reduce(expected)), atol=1e-6
    )


def test_a_broken_record_is_a_constant_and_spoils_no_gradient() -> None:
    ops = OnePosteriorSample(location, log_likelihood_bound=2.0, epsilon=1.0)
    posterior = posterior_of(ops, X)  # the objective takes any number of rows

    def density(z: Any, rows: Any) -> Any:
        return posterior.log_density({"theta_unconstrained": z}, [jnp.asarray(rows)])

    both = jax.jit(jax.vmap(jax.value_and_grad(density), (0, None)))
    z = jnp.linspace(-3.0, 3.0, 601)
    clean_values, clean_slopes = map(np.asarray, both(z, X))
    for value in (math.nan, math.inf):
        values, slopes = both(z, np.append(X, np.float32(value)))
        np.testing.assert_allclose(
            values, clean_values + ops.plan.tempering.power * -2.0, rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(slopes, clean_slopes, rtol=1e-5, atol=1e-6)
    # And they are the slopes of the values, but at the kinks where a record's clipping begins.
    numeric = (clean_values[2:] - clean_values[:-2]) / np.asarray(z[2:] - z[:-2])
    assert float(np.mean(np.abs(numeric - clean_slopes[1:-1]) < 5e-3)) > 0.9


# --- the draws ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> tuple[OnePosteriorSample, OPSResult]:
    """100 draws, each from a chain of its own, for a coin whose tempered posterior is a Beta, and one broken record."""
    y = np.array([1.0] * 45 + [0.0] * 15 + [math.nan], np.float32)
    ops = OnePosteriorSample(
        coin,
        log_likelihood_bound=(-20.0, 0.0),
        epsilon=8.0,
        num_draws=100,
        num_warmup=50,
        num_samples=10,
    )
    return ops, ops.run(random.key(5), y, progress_bar=False)


@pytest.mark.essential
def test_draws_follow_the_tempered_posterior(run: Any) -> None:
    """False alarm: 1e-3. Clipping at 20 nats moves nothing that matters, so the law is Beta(2 + 45 p, 2 + 15 p)."""
    ops, result = run
    assert ops.plan.tempering.power == pytest.approx(0.2, rel=1e-6)
    draws = result.draws["rate"]
    assert draws.shape == (100,)
    assert kstest(draws, beta(2 + 45 * 0.2, 2 + 15 * 0.2).cdf).pvalue > 1e-3
    # Without tempering it would be narrower, by far.
    assert kstest(draws, beta(2 + 45, 2 + 15).cdf).pvalue < 1e-6


def test_statement_and_price(run: Any) -> None:
    ops, result = run
    statement = result.statement
    assert statement.delta == 0.0
    assert 100 * 8.0 * (1 - 1e-6) < statement.epsilon <= 100 * 8.0
    assert statement.epsilon >= ops.epsilon
    text = " ".join(str(statement).split())
    for words in (
        "δ = 0 ε = 800",
        "100 draws of the model's latents, and nothing else",
        "clipped to [-20, 0] nats; one that is NaN counted as -20",
        "ε holds for exact draws",
        "δ = (1 + e^ε) × the number of draws × TV",
        "granularity of floating-point numbers",
        "reproducible: not private",
    ):
        assert words in text, words
    assert not statement.is_private


def test_result_shows_nothing_raw(run: Any) -> None:
    _, result = run
    diagnostics = result.non_private_diagnostics
    assert diagnostics.split_r_hat["rate_unconstrained"] < 1.3
    assert diagnostics.effective_sample_size["rate_unconstrained"] > 100
    assert diagnostics.distance < 1.0
    assert "NOT PRIVATE" in str(diagnostics)
    assert "R-hat" not in repr(result)


def test_posterior_hands_out_released_draws_once(run: Any) -> None:
    _, result = run
    some = np.asarray(result.posterior(random.key(1), 100)["rate"])
    np.testing.assert_array_equal(np.sort(some), np.sort(result.draws["rate"]))
    with pytest.raises(ValueError, match="costs as much epsilon as the first"):
        result.posterior(random.key(1), 101)


def test_delta_granting(run: Any) -> None:
    _, result = run
    figures = dataclasses.replace(result.statement.figures, epsilon=1.0)
    statement = dataclasses.replace(result.statement, figures=figures)
    one = OPSResult({"w": np.zeros((2, 1))}, result.plan, statement)
    assert one.delta_granting(1e-6) == pytest.approx((1 + math.e) * 2e-6)
    assert one.delta_granting(0.9) == 1.0
    with pytest.raises(ValueError, match="from 0 to 1"):
        one.delta_granting(-0.1)


def test_composition_is_that_of_pure_mechanisms() -> None:
    def priced(num_draws: int) -> float:
        ops = OnePosteriorSample(coin, log_likelihood_bound=4.0, epsilon=0.3, num_draws=num_draws)
        return profile(ops.plan.event(), Relation.REPLACE_ONE).epsilon(0.0)

    assert 0.3 * (1 - 1e-6) < priced(1) <= 0.3
    assert priced(4) == pytest.approx(4 * priced(1), rel=1e-9)
    # Where power 1 is already within epsilon, the price is 4B.
    assert OnePosteriorSample(coin, log_likelihood_bound=0.5, epsilon=9.0).epsilon == pytest.approx(
        2.0, rel=1e-6
    )


# --- diagnostics -------------------------------------------------------------------------------


def test_diagnostics_tell_good_chains_from_bad() -> None:
    """False alarm of the good chains: 5 % by construction; the seed is fixed."""
    good = np.random.default_rng(1).normal(size=(4, 1000, 3)).astype(np.float32)
    quiet = np.zeros((4, 1000), bool)
    fine = diagnose(Chains({"w": good}, quiet))
    assert fine.distance < fine.distance_by_chance < 0.15
    assert fine.divergences == 0
    apart = good.copy()
    apart[2] += 1.0
    bad = diagnose(Chains({"w": apart}, quiet))
    assert bad.distance > 0.3
    assert float(np.max(bad.split_r_hat["w"])) > 1.1
    drifting = good + np.linspace(0.0, 2.0, 1000, dtype=np.float32)[None, :, None]
    assert diagnose(Chains({"w": drifting}, quiet)).distance > 0.3
    stuck = diagnose(Chains({"w": np.zeros((4, 1000))}, quiet))
    assert stuck.split_r_hat["w"] == np.inf
    assert stuck.effective_sample_size["w"] == 1.0
