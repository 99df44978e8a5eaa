"""Observed sites and factors that hold no data are a part of the prior; those that hold data are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.handlers as handlers
import pytest
from numpyro.infer.util import log_density

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 300
rng = np.random.default_rng(3)
X = jnp.asarray(rng.normal(size=N), jnp.float32)
Y = jnp.asarray(rng.normal(size=N), jnp.float32)
SLICE = np.asarray(Y[:100])
KEY = jax.random.key(3)


def model(x, y, N=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, 1), obs=y)
    return w


def penalty(x, y):
    w = model(x, y)
    numpyro.factor("penalty", -0.5 * jnp.square(w - 3.0))


def observed_latent(x, y):
    w = model(x, y)
    numpyro.sample("again", dist.Normal(3, 1), obs=w)


def test_a_penalty_is_data_free(stranger):
    """It stands once in the loss, in the part that is not noised, and in no record's."""
    for program, constant in ((penalty, 0.0), (observed_latent, 0.5 * np.log(2 * np.pi))):
        expected, free = stranger(model, X, Y).losses()
        its = stranger(program, X, Y)
        losses, its_free = its.losses()
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        (w,) = its.objective.link(its.dpsvi.optim.get_params(its.start().optim_state), KEY)[0][
            "latent"
        ]["w"]
        np.testing.assert_allclose(its_free - free, 0.5 * (w - 3.0) ** 2 + constant, rtol=1e-4)
    assert its.certify()


def test_a_condition_on_a_constant_is_data_free(stranger):
    program = stranger(handlers.condition(scale_and_slope, {"s": 0.5}), X, Y)
    program.start()
    assert program.objective.structure.factors == ("s",)
    assert program.objective.structure.global_latents == ("w",)


def scale_and_slope(x, y):
    s = numpyro.sample("s", dist.LogNormal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, s))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, 1), obs=y)


# --- attacks: data that would leave without clipping and noise --------------------------------


def reads_the_records(x, y):
    w = model(x, y)
    numpyro.factor("f", -w * jnp.sum(y) - w**2)


def sorts_the_records(x, y):
    w = model(x, y)
    numpyro.sample("f", dist.Normal(w * x, 1).to_event(1), obs=jnp.sort(y))


def observes_a_sum(x, y):
    w = model(x, y)
    numpyro.sample("f", dist.Normal(w, 1), obs=y.mean())


def reads_a_slice_of_the_table(x, y):
    w = model(x, y)
    numpyro.factor("f", jnp.sum(dist.Normal(w, 1).log_prob(SLICE)))


def observes_a_slice_of_the_table(x, y):
    w = model(x, y)
    numpyro.sample("f", dist.Normal(w, 1).expand([100]).to_event(1), obs=SLICE)


def observes_a_slice_in_a_plate(x, y):
    w = model(x, y)
    with numpyro.plate("some", 100):
        numpyro.sample("f", dist.Normal(w, 1), obs=SLICE)


def observes_row_by_row(x, y):
    w = model(x, y)
    for i, value in enumerate(SLICE):
        numpyro.sample(f"f{i}", dist.Normal(w, 1), obs=value)


def reads_the_number_of_rows(x, y):
    w = model(x, y)
    numpyro.factor("f", -x.shape[0] * w**2)


def reads_a_local_latent(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(w + z, 1), obs=y)
    numpyro.factor("f", -(jnp.sum(z) ** 2))


def reads_a_choice(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(w + z, 1), obs=y)
    numpyro.factor("f", -jnp.sum(z) * w**2)


def gaussian_process(x, y):
    length = numpyro.sample("length", dist.LogNormal(0, 1))
    kernel = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 0.1 * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), kernel), obs=y)


def every_record_meets_every_other(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x[:, None], 1), obs=y)


def without_a_plate_too(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(w * x, 1), obs=y[:, None])


def of_a_sum(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    numpyro.factor("f", -0.5 * jnp.sum((y - w * x) ** 2))


def of_an_event(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(w * x, 1).to_event(1), obs=y)


def of_an_event_beside_a_plate(x, y):
    w = model(x, y)
    numpyro.sample("f", dist.Normal(w, 1).expand([len(x)]).to_event(1), obs=x)


@pytest.mark.parametrize("program", [of_a_sum, of_an_event, of_an_event_beside_a_plate])
def test_a_sum_over_the_records_is_one_term_of_each(stranger, program):
    """No data are left in the data-free term, and a record's loss is that of the model on its row alone."""
    fit = stranger(program, X, Y)
    losses, free = fit.losses()
    assert fit.objective.structure.factors == ()
    other, same = stranger(program, X + 1.0, Y - 1.0).losses()
    assert free == same
    state = fit.start()
    u, _ = fit.objective.link(fit.dpsvi.optim.get_params(state.optim_state), jax.random.key(3))
    w = {"w": u["latent"]["w"][0]}
    expected = [
        -log_density(program, (x[None], y[None]), {}, w)[0] for x, y in zip(X, Y, strict=True)
    ]
    prior = -dist.Normal(0, 1).log_prob(w["w"])
    np.testing.assert_allclose(losses, np.array(expected) - prior, rtol=1e-4, atol=1e-5)
    assert not np.allclose(losses, other)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            reads_the_records,
            ("'f'", "reads the records", "no sum over them", "one term for each record"),
        ),
        (sorts_the_records, ("'f'", "no sum over them")),
        (observes_a_sum, ("'f'", "reads the records")),
        (reads_a_slice_of_the_table, ("'f'", "(100,)", "keyword argument")),
        (observes_a_slice_of_the_table, ("'f'", "(100,)", "keyword argument")),
        (observes_a_slice_in_a_plate, ("'f'", "(100,)", "keyword argument")),
        (observes_row_by_row, ("100 observed sites", "list of records")),
        (reads_the_number_of_rows, ("depends on the number of rows", "N=...")),
        (reads_a_local_latent, ("'f'", "'z'", "Move it into the plate")),
        (reads_a_choice, ("'f'", "'z'", "Move it into the plate")),
        (gaussian_process, ("'y'", "Gaussian process", "in principle")),
        (every_record_meets_every_other, ("'y'", "(2, 1)", "(2,)", "Squeeze it")),
        (without_a_plate_too, ("'y'", "(2, 1)", "(2,)", "Squeeze it")),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_term_with_data_is_not_data_free(stranger, program, words):
    message = stranger(program, X, Y).refusal()
    for word in words:
        assert word in message


def public_array(x, y, anchors=None):
    w = model(x, y)
    numpyro.factor("f", -jnp.sum((w - anchors) ** 2))


def test_an_array_that_was_declared_public_may_stand_in_a_factor(stranger):
    anchors = np.arange(5.0, dtype=np.float32)
    program = stranger(public_array, X, Y, anchors=anchors)
    program.start()
    assert program.objective.structure.factors == ("f",)
