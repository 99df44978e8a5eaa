"""The assumptions, checks and refusals of d3p's `DPSVI`."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers, param, plate, sample
from numpyro.distributions import Delta, Normal
from numpyro.infer import SVI, Trace_ELBO
from numpyro.optim import SGD

import discreet.interfaces.compat.d3p as d3p
from discreet import inference
from discreet.interfaces.compat.d3p.dputil import Calibration, NoiseScale
from discreet.interfaces.compat.d3p.minibatch import (
    poisson_batchify_data,
    split_batchify_data,
    subsample_batchify_data,
)
from discreet.interfaces.compat.d3p.svi import DPSVI, complete_guide, declared_num_records
from discreet.privacy.accounting import Relation
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import FixedSizeSampling

KEY = d3p.random.PRNGKey(8)


def model(xs, N):
    mu = sample("mu", Normal(0.0, 1.0))
    with plate("data", N, xs.shape[0]):
        sample("xs", Normal(mu, 1.0), obs=xs)


def guide(xs, N):
    del xs, N
    sample("mu", Delta(param("loc", 0.0)))


def make(dp_scale=2.0, clipping_threshold=1.0, **kwargs):
    return DPSVI(
        model, guide, SGD(1.0), Trace_ELBO(), clipping_threshold, dp_scale, **{"N": 200, **kwargs}
    )


def table(n=200):
    # Every record's gradient at 0 is -5, and so clipped to -1.
    return (np.full(n, 5.0, np.float32),)


@pytest.mark.essential
def test_the_release_is_d3ps_sum_of_clipped_gradients_with_noise_dp_scale_times_the_threshold():
    """gradient = N / B (sum of clipped gradients + dp_scale C xi); the loss's share of the release adds one per cent."""
    xs = table()
    init, get_batch = subsample_batchify_data(xs, 20)
    state = init(KEY)[1]
    dpsvi = make(dp_scale=2.0, clipping_threshold=0.5)
    start = dpsvi.init(KEY, *get_batch(0, state))

    def moved(key):
        after, _ = dpsvi.update(start._replace(rng_key=key), *get_batch(0, state))
        return dpsvi.get_params(after)["loc"] - dpsvi.get_params(start)["loc"]

    moves = np.asarray(jax.vmap(moved)(jax.random.split(KEY, 4000)))
    stddev = 2.0 * 0.5 * 200 / 20 / np.sqrt(0.98)
    # Mean: 20 records, each clipped to 0.5, times N / B; five standard errors.
    assert abs(moves.mean() - 20 * 0.5 * 10) < 5 * stddev / np.sqrt(4000)
    # Standard deviation at five standard errors (5.6 %): half, double, or noise on the mean are far
    # away.
    assert moves.std() == pytest.approx(stddev, rel=0.056)


def test_a_compiled_update_of_one_state_has_other_noise_for_another_batch():
    """With one noise, of standard deviation 1e5, the results would differ by at most 400."""
    init, get_batch = subsample_batchify_data(table(), 20)
    state = init(d3p.random.PRNGKey())[1]
    dpsvi = make(dp_scale=1e4)
    start = dpsvi.init(d3p.random.PRNGKey(), *get_batch(0, state))
    epoch = jax.jit(lambda s, xs: dpsvi.update(s, xs)[0])
    moved = [
        float(dpsvi.get_params(epoch(start, np.full(20, x, np.float32)))["loc"])
        for x in (1.0, 0.0, -1.0)
    ]
    assert np.ptp(moved) > 1000
    with pytest.raises(TypeError, match="all rows have one key"):
        jax.vmap(lambda xs: dpsvi.update(start._replace(rng_key=KEY), xs))(
            np.ones((2, 20), np.float32)
        )


@pytest.mark.parametrize("poisson", [False, True])
def test_a_batchifier_state_for_all_epochs_repeats_no_batch_in_a_compiled_loop(
    poisson, monkeypatch
):
    xs = (np.arange(1, 201, dtype=np.float32),)
    init, get_batch = (
        poisson_batchify_data(xs, 0.1, 60) if poisson else subsample_batchify_data(xs, 20)
    )
    _, state = init(KEY)
    whole = (
        (lambda i, state: get_batch(i, state))
        if poisson
        else (lambda i, state: (get_batch(i, state), True))
    )
    dpsvi = make()
    start = dpsvi.init(KEY, *whole(0, state)[0])

    def shown(fit, state, xs, mask):
        return state._replace(step=state.step + 1), (xs.sum(), jnp.all((xs > 0) == mask))

    monkeypatch.setattr(inference, "update_in_loop", shown)

    @jax.jit
    def epoch(svi_state, state):
        def step(svi_state, i):
            batch, mask = whole(i, state)
            return dpsvi.update(svi_state, *batch, mask=mask)

        return jax.lax.scan(step, svi_state, jnp.arange(4))

    after, (first, together) = epoch(start, state)
    _, (second, _) = epoch(after, state)
    assert together.all(), "the mask is that of the batch"
    # Sums of 20 of 200 numbers: two are equal in about one of 2,000 pairs, and the seed is fixed.
    assert len({*map(float, first), *map(float, second)}) == 8


def test_the_threshold_for_scaled_contributions_is_divided_by_the_number_of_records():
    init, get_batch = subsample_batchify_data(table(), 20)
    batch = get_batch(0, init(KEY)[1])
    dpsvi = make(clipping_threshold=100.0, clip_unscaled_observations=False)
    dpsvi.init(KEY, *batch)
    assert dpsvi._bound().fit.plan.clipping_norm == 0.5


def test_batches_of_other_rows_than_init_saw_and_of_several_laws():
    xs = table()
    init, get_batch = split_batchify_data(xs, 20)
    passes, state = init(KEY)
    # Noise for disjoint batches is calibrated as for full batches, a pass a step: two passes are 20
    # updates.
    price = get_batch.law.plan(clipping_norm=1.0, noise_multiplier=2.0, num_steps=20).epsilon(1e-5)
    dpsvi = make(dp_scale=NoiseScale(2.0, Calibration(price, 1e-5, 1.0, 2, Relation.REPLACE_ONE)))
    svi_state = dpsvi.init(KEY, *xs)  # the whole table, as NumPyro's programs do
    update = jax.jit(dpsvi.update)  # so that binding happens while JAX traces
    for i in range(passes + 1):
        svi_state, loss = update(svi_state, *get_batch(i, state))
    assert np.isfinite(loss)
    statement = dpsvi.statement(svi_state)
    assert statement.steps_completed == statement.horizon == 2, (
        "eleven updates are one pass and a bit: two passes"
    )
    assert statement.epsilon == pytest.approx(price)
    disjoint, changed = statement.notes
    assert "disjoint" in disjoint
    assert "by a jit" in changed, (
        "update saw the arguments of a jit and not what get_batch returned"
    )

    jax.eval_shape(dpsvi.update, svi_state, *xs)
    with pytest.raises(ValueError, match="several laws"):
        dpsvi.statement(svi_state)


@pytest.mark.essential
def test_more_updates_than_declared_are_priced_and_named():
    init, get_batch = subsample_batchify_data(table(), 20)
    batch = get_batch(0, init(KEY)[1])
    calibrated = NoiseScale(20.0, Calibration(5.0, 1e-5, 0.1, 7, Relation.REPLACE_ONE))
    dpsvi = make(dp_scale=calibrated)
    svi_state = dpsvi.init(KEY, *batch)
    at = lambda step: dpsvi.statement(svi_state._replace(step=jnp.int32(step)))  # noqa: E731
    assert at(3).horizon == 7, "stopping early saves nothing"
    assert at(3).epsilon == at(7).epsilon, "stopping early saves nothing"
    assert not at(3).notes, "stopping early saves nothing"
    assert at(7).delta == 1e-5
    assert at(9).epsilon > at(7).epsilon
    assert at(9).horizon == 9
    assert "had been declared" in at(9).notes[0]


def test_batches_of_the_callers_own_are_taken_on_trust():
    dpsvi = make()
    svi_state = dpsvi.init(KEY, np.zeros(25, np.float32))
    statement = dpsvi.statement(svi_state._replace(step=jnp.int32(3)))
    assert any("on trust" in note for note in statement.notes)
    with pytest.raises(ValueError, match="sampling rate of its records is unknown"):
        dpsvi.update(svi_state, np.zeros(25, np.float32), mask=np.ones(25, bool))


def test_debug_suites_and_seeds_are_named():
    init, get_batch = subsample_batchify_data(table(), 20)
    batch = get_batch(0, init(d3p.random.PRNGKey())[1])
    for suite in (d3p.random, d3p.random.debug):
        dpsvi = make(rng_suite=suite)
        for key in (d3p.random.PRNGKey(), KEY):
            svi_state = dpsvi.init(key, *batch)._replace(step=jnp.int32(1))
            private = suite is d3p.random and key is not KEY
            assert dpsvi.statement(svi_state).reproducible != private


def test_batches_from_a_seed_are_no_secret():
    """Whoever knows which records made a batch has nothing of the amplification taken from them."""
    init, get_batch = subsample_batchify_data(table(), 20)
    batch = get_batch(0, init(KEY)[1])
    dpsvi = make()
    svi_state, _ = dpsvi.update(dpsvi.init(d3p.random.PRNGKey(), *batch), *batch)
    assert dpsvi.statement(svi_state).reproducible


def test_secret_noise_and_a_batch_are_used_once():
    init, get_batch = subsample_batchify_data(table(), 20)
    state = init(d3p.random.PRNGKey())[1]
    batch = get_batch(0, state)
    key = d3p.random.PRNGKey()
    dpsvi = make(num_iter=2)
    svi_state = dpsvi.init(key, *batch)
    later, _ = dpsvi.update(svi_state, *batch)
    with pytest.raises(ValueError, match="this noise before"):
        dpsvi.update(svi_state, *get_batch(1, state))
    with pytest.raises(ValueError, match="this noise before"):
        make().init(key, *batch)
    # The same batch, drawn again or kept, has other noise and no amplification.
    for again in (batch, get_batch(0, state)):
        with pytest.raises(ValueError, match=r"Batch number 0 .* was in an update before"):
            dpsvi.update(later, *again)
    with pytest.raises(ValueError, match="A compiled loop would use batch number 0"):
        jax.lax.fori_loop(0, 1, lambda i, s: dpsvi.update(s, *get_batch(0, state))[0], later)
    # What was refused has used nothing: neither batch 1 above nor the step.
    last, _ = dpsvi.update(later, *get_batch(1, state))
    with pytest.raises(ValueError, match="num_iter = 2"):
        dpsvi.update(last, *get_batch(2, state))


def test_disjoint_batches_come_again_in_the_next_pass_only():
    init, get_batch = split_batchify_data(table(), 100)
    state = init(d3p.random.PRNGKey())[1]
    dpsvi = make()
    svi_state = dpsvi.init(d3p.random.PRNGKey(), *get_batch(0, state))
    svi_state, _ = dpsvi.update(svi_state, *get_batch(0, state))
    with pytest.raises(ValueError, match="was in an update before"):
        dpsvi.update(svi_state, *get_batch(0, state))
    for i in (1, 0, 1):
        svi_state, _ = dpsvi.update(svi_state, *get_batch(i, state))
    assert dpsvi.statement(svi_state).steps_completed == 2


# --- finding out ---------------------------------------------------------------------------


def test_the_number_of_records_is_read_from_the_plate():
    xs = np.zeros(9)
    assert declared_num_records(model, (xs,), {"N": 50}) == 50

    def without(xs):
        with plate("data", xs.shape[0]):
            sample("xs", Normal(0.0, 1.0), obs=xs)

    def two(xs, N):
        model(xs, N)
        with plate("again", 2 * N, xs.shape[0]):
            sample("ys", Normal(0.0, 1.0), obs=xs)

    assert declared_num_records(without, (xs,), {}) is None
    with pytest.raises(ValueError, match="different numbers of records"):
        declared_num_records(two, (xs,), {"N": 50})


def test_the_table_must_be_the_plates():
    _, get_batch = subsample_batchify_data(table(100), 21)
    with pytest.raises(ValueError, match="table of 100"):
        make().init(KEY, np.zeros(21, np.float32))
    with pytest.raises(ValueError, match="table of 100"):
        make(batches=get_batch).init(KEY, np.zeros(21, np.float32))
    with pytest.raises(ValueError, match="300 rows"):
        make().init(KEY, np.zeros(300, np.float32))


def test_the_batchifier_is_the_one_that_handed_out_the_arrays():
    """Train and test batches of equal shape, and one left over from an earlier cell of a notebook."""
    xs = table()
    train_init, train = subsample_batchify_data(xs, 20)
    test_init, test = split_batchify_data((xs[0] + 1,), 20)
    _, left_over = subsample_batchify_data((xs[0] + 2,), 20)
    state, other = train_init(d3p.random.PRNGKey())[1], test_init(KEY)[1]
    dpsvi = make(num_iter=3)
    svi_state = dpsvi.init(d3p.random.PRNGKey(), *train(0, state))
    svi_state = jax.jit(
        lambda s: jax.lax.fori_loop(0, 3, lambda i, s: dpsvi.update(s, *train(i, state))[0], s)
    )(svi_state)
    statement = dpsvi.statement(svi_state)
    assert statement.epsilon == pytest.approx(
        train.law.plan(clipping_norm=1.0, noise_multiplier=2.0, num_steps=3).epsilon(
            statement.delta
        )
    )
    assert not statement.notes
    assert not statement.reproducible, "only the other batchifier was started from a seed"

    apart = make(num_iter=3)
    after, _ = apart.update(apart.init(KEY, *test(0, other)), *test(0, other))
    assert "disjoint" in apart.statement(after).notes[0]
    with pytest.raises(ValueError, match="batches= names"):
        make(batches=left_over).init(KEY, *test(0, other))


@pytest.mark.parametrize("others", ["none", "alive", "at init"])
def test_batches_made_by_hand_keep_their_caveat(others):
    """A batchifier that has nothing to do with them, alive or even used for `init`, does not take it away."""
    (xs,) = table()
    batchifier = subsample_batchify_data((xs + 1,), 50) if others != "none" else None
    dpsvi, start = make(num_iter=4), (xs[:50],)
    if batchifier is not None and others == "at init":
        init, get_batch = batchifier
        start = get_batch(0, init(KEY)[1])
    svi_state = dpsvi.init(KEY, *start)
    for i in range(4):
        svi_state, _ = dpsvi.update(svi_state, xs[50 * i : 50 * (i + 1)])
    assert [note for note in dpsvi.statement(svi_state).notes if "on trust" in note]


def test_a_batchifier_from_a_seed_is_named_when_it_is_gone():
    init, get_batch = subsample_batchify_data(table(), 20)
    batch = get_batch(0, init(KEY)[1])
    dpsvi = make()
    svi_state, _ = dpsvi.update(dpsvi.init(d3p.random.PRNGKey(), *batch), *batch)
    del init, get_batch
    assert dpsvi.statement(svi_state).reproducible


def test_several_batchifiers_need_a_word():
    _, one = subsample_batchify_data(table(), 22)
    _, other = split_batchify_data(table(), 22)
    with pytest.raises(ValueError, match="batches=get_batch"):
        make().init(KEY, np.zeros(22, np.float32))
    dpsvi = make(batches=other)
    dpsvi.init(KEY, np.zeros(22, np.float32))
    assert dpsvi._bound().law == other.law != one.law


def test_without_a_plate_size_the_batchifier_must_be_there():
    def without(xs):
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("data", xs.shape[0]):
            sample("xs", Normal(mu, 1.0), obs=xs)

    dpsvi = DPSVI(without, lambda xs: guide(xs, 0), SGD(1.0), Trace_ELBO(), 1.0, 1.0)
    with pytest.raises(ValueError, match="number of records is not known"):
        dpsvi.init(KEY, np.zeros(23, np.float32))
    _, get_batch = poisson_batchify_data(table(), 0.1, 0.99)
    dpsvi.init(KEY, np.zeros(get_batch.law.rows, np.float32))
    assert dpsvi._bound().fit.plan.num_records == 200


def test_latents_that_the_guide_lacks_cost_the_elbo_nothing():
    def nested(xs):
        a = sample("a", Normal(0.0, 2.0))
        with plate("groups", 3):
            b = sample("b", Normal(a, 1.0))
        with plate("data", 10, xs.shape[0]):
            sample("xs", Normal(jnp.sum(b), 1.0), obs=xs)

    def short(xs):
        del xs
        sample("a", Normal(param("a_loc", 1.5), 0.1))

    completed = complete_guide(nested, short, (np.zeros(4),), {})
    with handlers.seed(rng_seed=0):
        trace = handlers.trace(completed).get_trace(np.zeros(4))
    samples = [name for name, site in trace.items() if site["type"] == "sample"]
    assert samples == ["a", "b"]
    assert trace["b"]["value"].shape == (3,)
    assert np.allclose(trace["b"]["fn"].mean, trace["a"]["value"])
    whole = complete_guide(nested, completed, (np.zeros(4),), {})
    assert whole is completed, "nothing is missing"


# --- refusing ------------------------------------------------------------------------------


def test_bad_arguments():
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="clipping_threshold"):
            make(clipping_threshold=bad)
        with pytest.raises(ValueError, match="dp_scale"):
            make(dp_scale=bad)
    with pytest.raises(ValueError, match="rng_suite"):
        make(rng_suite=types.ModuleType("other"))
    with pytest.raises(TypeError, match="batches"):
        make(batches=lambda i, state: None)
    with pytest.raises(ValueError, match="iterations"):
        make(num_iter=0)


def test_bad_calls():
    dpsvi = make()
    with pytest.raises(ValueError, match="init"):
        dpsvi.get_epsilon(1e-5, 0.1, num_iter=10)
    with pytest.raises(ValueError, match="init"):
        dpsvi.get_params(None)
    with pytest.raises(ValueError, match="init"):
        dpsvi.update(None, np.zeros(3))
    with pytest.raises(ValueError, match="different lengths"):
        dpsvi.init(KEY, np.zeros(3), np.zeros(4))
    with pytest.raises(ValueError, match="No argument is an array"):
        dpsvi.init(KEY)
    with pytest.raises(TypeError, match="typed JAX key"):
        dpsvi.init(np.zeros(7), np.zeros(3))


def test_keyword_arguments_are_public_and_records_are_positional():
    """d3p takes `gs` with every call; records by name would be used whole, without clipping."""

    def with_weights(xs, N, gs=None):
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("data", N, xs.shape[0]):
            sample("xs", Normal(mu * jnp.sum(gs), 1.0), obs=xs)

    gs = np.array([0.5, 1.0, 1.5], np.float32)
    init, get_batch = subsample_batchify_data(table(), 20)
    state = init(KEY)[1]
    short = lambda xs, N, gs=None: guide(xs, N)  # noqa: E731
    passed = DPSVI(with_weights, short, SGD(0.1), Trace_ELBO(), 1.0, 2.0, N=200, num_iter=4)
    fixed = DPSVI(with_weights, short, SGD(0.1), Trace_ELBO(), 1.0, 2.0, N=200, gs=gs, num_iter=4)
    one, other = (
        passed.init(KEY, *get_batch(0, state), gs=gs),
        fixed.init(KEY, *get_batch(0, state)),
    )
    step = lambda i, s: passed.update(s, *get_batch(i, state), gs=gs)[0]  # noqa: E731
    one = jax.jit(lambda s: jax.lax.fori_loop(0, 3, step, s))(one)
    for i in range(3):
        other, _ = fixed.update(other, *get_batch(i, state))
    assert np.allclose(passed.get_params(one)["loc"], fixed.get_params(other)["loc"], rtol=1e-5)
    assert passed.statement(one).epsilon == fixed.statement(other).epsilon
    assert any("gs" in fact for fact in passed.statement(one).public)
    # Other public values, another program; the same statement.
    one, _ = passed.update(one, *get_batch(3, state), gs=2 * gs)
    assert passed.statement(one).steps_completed == 4

    batch = get_batch(0, state)
    for records in (batch[0], np.zeros(20, np.float32)):
        with pytest.raises(ValueError, match="Pass records by position"):
            passed.update(one, *batch, gs=records)
    with pytest.raises(ValueError, match="public constants"):
        jax.jit(lambda s, gs: passed.update(s, *batch, gs=gs))(one, gs)
    with pytest.raises(ValueError, match="No argument is an array"):
        passed.update(one, xs=batch[0])


def test_it_is_numpyros_svi_and_nothing_exact_is_inherited():
    xs = table()
    dpsvi = make()
    assert isinstance(dpsvi, SVI)
    result = dpsvi.run(d3p.random.PRNGKey(), 3, *xs, progress_bar=False)
    statement = dpsvi.statement(result.state)
    assert result.losses.shape == (3,)
    facts = {"clipping_norm": 1.0, "noise_multiplier": 2.0, "num_steps": 3, "num_records": 200}
    whole = PrivacyPlan(sampling=FixedSizeSampling(200), relation=Relation.REPLACE_ONE, **facts)
    assert statement.epsilon == whole.epsilon(statement.delta)
    assert [note for note in statement.notes if "on trust" in note]
    more = dpsvi.run(d3p.random.PRNGKey(), 2, *xs, progress_bar=False, init_state=result.state)
    assert dpsvi.statement(more.state).steps_completed == 5, (
        "what led to init_state is in the price"
    )
    with pytest.raises(ValueError, match="this noise before"):
        dpsvi.run(d3p.random.PRNGKey(), 2, *xs, progress_bar=False, init_state=result.state)
    with pytest.raises(ValueError, match="stable_update rejects a step"):
        dpsvi.run(d3p.random.PRNGKey(), 3, *xs, progress_bar=False, stable_update=True)
    with pytest.raises(ValueError, match="stable_update rejects a step"):
        dpsvi.stable_update(result.state, *xs)
    with pytest.raises(ValueError, match="forward_mode"):
        dpsvi.update(result.state, *xs, forward_mode_differentiation=True)
    public = {
        name for name, member in vars(SVI).items() if callable(member) and not name.startswith("_")
    }
    assert public == {"init", "get_params", "update", "stable_update", "run", "evaluate"}, (
        "a new one may be exact"
    )


def test_the_data_do_not_reach_init():
    """A guide that starts at the batch's mean, as one of d3p's examples does: here it starts at an artificial record's."""

    def clever(xs, N):
        del N
        sample("mu", Delta(param("loc", jnp.mean(xs))))

    init, get_batch = subsample_batchify_data(table(), 20)
    (batch,) = get_batch(0, init(KEY)[1])
    dpsvi = DPSVI(model, clever, SGD(1.0), Trace_ELBO(), 1.0, 1.0, N=200)
    assert dpsvi.get_params(dpsvi.init(KEY, batch))["loc"] == 0.0
