"""Ways in which a claim could come apart from what ran; each was possible once."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoNormal

import discreet as dp
from discreet.methods.inference import _loop

pytestmark = pytest.mark.usefixtures("quick_compilation")

NUM_RECORDS = 200


def model(x, y=None, shift=0.0):
    w = numpyro.sample("w", dist.Normal(shift, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_RECORDS, 2)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.float32)


def make(plan_changes=None, guide=None, program=model, **options):
    facts = {
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
        "num_steps": 3,
        "num_records": NUM_RECORDS,
    }
    facts = {"sampling": dp.PoissonSampling(0.2), **facts, **(plan_changes or {})}
    plan = dp.PrivacyPlan(**facts)
    return dp.DPSVI(program, guide or AutoNormal(program), optax.adam(1e-2), plan=plan, **options)


def run(dpsvi, *args, key=None, **kwargs):
    return dpsvi.run(dp.random.key() if key is None else key, *args, progress_bar=False, **kwargs)


@pytest.mark.parametrize(
    "option", ["plan", "loss_share", "perturb", "optim", "guide", "static_kwargs"]
)
def test_options_are_fixed(option):
    """Otherwise a cached step would run with the old noise, and the statement speak of the new."""
    with pytest.raises(AttributeError, match=option):
        setattr(make(), option, None)


def test_a_traced_update_beyond_the_plan_sees_no_record(table):
    dpsvi = make({"num_steps": 2})
    update = jax.jit(dpsvi.update)
    state = dpsvi.init(dp.random.key(1), *table)
    for _ in range(2):
        state, loss = update(state, *[part[:40] for part in table])
        assert np.isfinite(loss)
    one, loss = update(state, *[part[:40] for part in table])
    other, _ = update(state, *[part[40:80] for part in table])
    assert np.isnan(loss)
    for a, b in zip(
        jax.tree.leaves(one.optim_state), jax.tree.leaves(other.optim_state), strict=True
    ):
        np.testing.assert_array_equal(a, b)


class TestNoiseIsDrawnOnce:
    def test_a_key_that_made_a_fit_makes_no_update(self, table):
        dpsvi, key = make({"sampling": dp.FullBatch()}), dp.random.key()
        run(dpsvi, *table, key=key)
        with pytest.raises(ValueError, match="this noise before"):
            dpsvi.update(dpsvi.init(key, *table), *table)

    @pytest.mark.parametrize("way", ["jit", "jit of the records", "vmap", "scan"])
    def test_a_secret_state_is_not_updated_under_a_trace(self, table, way, refused):
        """There the state could be taken for two tables."""
        dpsvi = make({"sampling": dp.FullBatch()})
        state = dpsvi.init(dp.random.key(), *table)
        both = [np.stack([x, x]) for x in table]
        ways = {
            "jit": lambda: jax.jit(dpsvi.update)(state, *table),
            "jit of the records": lambda: jax.jit(lambda *x: dpsvi.update(state, *x))(*table),
            "vmap": lambda: jax.vmap(lambda *x: dpsvi.update(state, *x))(*both),
            "scan": lambda: jax.lax.scan(lambda s, _: dpsvi.update(s, *table), state, length=2),
        }
        with refused(ValueError, "Call the method outside"):
            ways[way]()

    def test_a_seeded_state_is_not_mapped_over_tables(self, table):
        dpsvi = make({"sampling": dp.FullBatch()})
        state = dpsvi.init(dp.random.key(2), *table)
        with pytest.raises(TypeError, match="all rows have one key"):
            jax.eval_shape(
                jax.vmap(lambda *x: dpsvi.update(state, *x)), *[np.stack([x, x]) for x in table]
            )

    def test_a_state_is_updated_once(self, table):
        dpsvi = make({"sampling": dp.FullBatch()})
        state = dpsvi.init(dp.random.key(), *table)
        after, _ = dpsvi.update(state, *table)
        with pytest.raises(ValueError, match="this noise before"):
            dpsvi.update(state, *table)
        dpsvi.update(after, *table)

    def test_a_key_that_made_an_update_makes_no_fit(self, table):
        dpsvi, key = make({"sampling": dp.FullBatch()}), dp.random.key()
        dpsvi.update(dpsvi.init(key, *table), *table)
        with pytest.raises(ValueError, match="this noise before"):
            run(dpsvi, *table, key=key)

    def test_a_run_that_released_nothing_leaves_the_key(self, table, monkeypatch):
        dpsvi, key = make(), dp.random.key()

        class Broken:
            def __call__(self, *args):
                pytest.fail("ran without having been compiled")

            def lower(self, *args):
                raise RuntimeError("no compiler")

        with monkeypatch.context() as patch:
            patch.setattr(_loop, "_chunk", Broken())
            with pytest.raises(RuntimeError, match="no compiler"):
                run(dpsvi, *table, key=key)
        run(dpsvi, *table, key=key)


def test_static_arguments_belong_to_the_fit(table):
    """A second fit with another number must not run the first one's program."""
    dpsvi = make({"num_steps": 200})
    low, high = (run(dpsvi, *table, shift, key=dp.random.key(1)) for shift in (-50.0, 50.0))
    assert np.all(low.params["w_auto_loc"] < high.params["w_auto_loc"])
    state = dpsvi.init(dp.random.key(1), *table, 50.0)
    with pytest.raises(ValueError, match="differ from those of init"):
        dpsvi.update(state, *[part[:40] for part in table], 49.0)
    with pytest.raises(ValueError, match="differ from those of init"):
        dpsvi.update(state, y=table[1][:40], x=table[0][:40])


def test_a_result_keeps_its_own_model(table):
    dpsvi = make(guide=AutoNormal(model))
    first = run(dpsvi, *table)
    run(dpsvi, table[0][:, :1], table[1])
    assert first.posterior(dp.random.key(), 4)["w"].shape == (4, 2)


@pytest.mark.parametrize("how", ["function", "lambda", "list"])
def test_a_wrapped_autoguide_forgets_what_it_saw(table, how):
    """Its initial values would tell about the table of an earlier call."""
    auto = AutoDiagonalNormal(model)
    with numpyro.handlers.seed(rng_seed=0):
        auto(1e3 * table[0], table[1])
    earlier = auto.prototype_trace
    parts = [auto]
    guide = {
        "function": lambda: lambda *args: calls(auto, *args),
        "lambda": lambda: lambda x, y: auto(x, y),
        "list": lambda: lambda x, y: parts[0](x, y),
    }[how]()
    dpsvi = make(guide=guide)
    state = dpsvi.init(dp.random.key(1), *table)
    assert auto.prototype_trace is not earlier
    fresh = make(guide=AutoDiagonalNormal(model)).init(dp.random.key(1), *table)
    for a, b in zip(
        jax.tree.leaves(state.optim_state), jax.tree.leaves(fresh.optim_state), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def calls(guide, *args):
    return guide(*args)


class TestTablesBesideTheRecords:
    def test_behind_an_inner_jit(self, table):
        x = jnp.asarray(table[0])
        mean = jax.jit(lambda: x[:, 0].mean())

        def hiding(y):
            w = numpyro.sample("w", dist.Normal(0, 2))
            with numpyro.plate("data", y.shape[0]):
                numpyro.sample("y", dist.Bernoulli(logits=w * mean() + 0 * y), obs=y)

        with pytest.raises(ValueError, match="not passed as records"):
            run(make(program=hiding), table[1])

    def test_transposed(self, table):
        x = jnp.asarray(table[0].T)

        def hiding(y):
            w = numpyro.sample("w", dist.Normal(0, 2))
            with numpyro.plate("data", y.shape[0]):
                numpyro.sample("y", dist.Bernoulli(logits=w * x[0].mean() + 0 * y), obs=y)

        with pytest.raises(ValueError, match="not passed as records"):
            run(make(program=hiding), table[1])

    def test_as_a_list(self, table):
        with pytest.raises(ValueError, match=r"numpy\.asarray"):
            run(make(), table[0], table[1].tolist())

    def test_as_placeholder(self, table):
        with pytest.raises(ValueError, match="one artificial record"):
            run(make(placeholder=table), *table)

    def test_in_a_loop_of_ones_own(self, table):
        x = jnp.asarray(table[0])

        def hiding(y):
            w = numpyro.sample("w", dist.Normal(0, 2).expand([2]).to_event(1))
            with numpyro.plate("data", y.shape[0]) as index:
                numpyro.sample("y", dist.Bernoulli(logits=x[index] @ w), obs=y)

        with pytest.raises(ValueError, match="not passed as records"):
            make(program=hiding).init(dp.random.key(), table[1][:40])


class TestModelsThatNumPyroTakes:
    def test_flat_hyperprior(self, table):
        def flat(x, y):
            mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
            w = numpyro.sample("w", dist.Normal(mu, 1).expand([x.shape[1]]).to_event(1))
            with numpyro.plate("data", x.shape[0]):
                numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

        assert set(run(make(program=flat), *table).posterior(dp.random.key(), 2)) == {"mu", "w"}

    def test_plate_of_n(self, table):
        def with_n(x, y, N):
            w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
            with numpyro.plate("data", N):
                numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

        ours = run(make(program=with_n, N=NUM_RECORDS), *table, key=dp.random.key(2))
        plain = run(make(), *table, key=dp.random.key(2))
        np.testing.assert_allclose(ours.trace.iterates, plain.trace.iterates, rtol=1e-5)

    @pytest.mark.parametrize("perturb", ["latents", "parameters"])
    @pytest.mark.parametrize(
        "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.exhaustive)]
    )
    def test_low_precision_parameters(self, table, perturb, dtype):
        def coarse(x, y):
            b = numpyro.param("b", jnp.zeros(2, dtype))
            w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
            with numpyro.plate("data", x.shape[0]):
                numpyro.sample("y", dist.Bernoulli(logits=x @ (w + b.astype(jnp.float32))), obs=y)

        guide = AutoNormal(coarse, init_loc_fn=init_to_value(values={"w": jnp.zeros(2)}))
        fit = run(make(program=coarse, guide=guide, perturb=perturb), *table)
        assert fit.params["b"].dtype == dtype

    def test_integer_parameters_are_refused(self, table):
        def counting(x, y):
            numpyro.param("k", jnp.array(3))
            model(x, y)

        with pytest.raises(ValueError, match="'k'"):
            run(make(program=counting), *table)

    def test_numpy_scalars_are_numbers(self, table):
        assert run(make(), *table, np.float64(1.0)).steps_completed == 3

    @pytest.mark.exhaustive
    def test_debugging_without_jit(self, table):
        plan = {"num_steps": 1, "sampling": dp.FullBatch()}
        with jax.disable_jit():
            assert run(make(plan), *[part[:4] for part in table]).steps_completed == 1


def test_the_number_of_steps_is_not_an_argument(table):
    with pytest.raises(ValueError, match="omit it"):
        run(make(), 2000, *table)


def test_a_whole_table_is_no_poisson_batch(table):
    dpsvi = make({"sampling": dp.PoissonSampling(0.01)})
    with pytest.raises(ValueError, match="more than"):
        dpsvi.update(dpsvi.init(dp.random.key(), *table), *table)


def test_a_number_beyond_float32_is_no_warning(table):
    """A warning would tell that some record holds one."""
    x = table[0].astype(np.float64)
    x[3, 0] = 1e300
    assert np.all(np.isfinite(run(make(), x, table[1]).losses))


def test_kept_iterates_do_not_depend_on_the_clock(table, monkeypatch):
    """For models too large to keep every step, the interval alone decides."""
    recorder = _loop.TraceRecorder
    monkeypatch.setattr(
        _loop, "TraceRecorder", lambda dim, steps: recorder(dim, steps, max_bytes=30 * 4 * dim)
    )
    traces = []
    for seconds in (1e-4, 0.01):
        monkeypatch.setattr(_loop, "_SECONDS_A_CHUNK", seconds)
        traces.append(run(make({"num_steps": 300}), *table, key=dp.random.key(5)).trace)
    np.testing.assert_array_equal(traces[0].steps, traces[1].steps)
    np.testing.assert_array_equal(traces[0].iterates, traces[1].iterates)
    assert len(traces[0].steps) == 30


def test_a_secret_key_starts_one_fit(table):
    """Updates that a caller compiles are not observed, so two starts from one key could repeat noise unnoticed."""
    dpsvi, key = make(), dp.random.key()
    dpsvi.init(key, *table)
    with pytest.raises(ValueError, match="this noise before"):
        dpsvi.init(key, *table)
    with pytest.raises(ValueError, match="this noise before"):
        run(dpsvi, *table, key=key)
