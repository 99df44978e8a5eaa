"""d3p's four examples and the program of its README, written anew: the same calls in the same order, at small size.

Only the lines that import d3p are other ones, but for one word in the auto-encoder: it evaluates on
images that it has made binary, which no batchifier handed out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.optim as optimizers
import pytest
from jax import jit, lax
from jax.example_libraries import stax
from numpyro.handlers import scale
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.primitives import param, plate, sample

import discreet.interfaces.compat.d3p as d3p
import discreet.interfaces.compat.d3p.random as rng_suite
from discreet.interfaces.compat.d3p import GaussianMixture
from discreet.interfaces.compat.d3p.dputil import (
    D3PAccountingWarning,
    approximate_sigma,
    approximate_sigma_remove_relation,
)
from discreet.interfaces.compat.d3p.minibatch import (
    poisson_batchify_data,
    split_batchify_data,
    subsample_batchify_data,
)
from discreet.interfaces.compat.d3p.modelling import (
    sample_multi_posterior_predictive,
    sample_multi_prior_predictive,
    sample_prior_predictive,
)
from discreet.interfaces.compat.d3p.svi import DPSVI
from discreet.interfaces.compat.d3p.util import (  # pyright: ignore[reportMissingImports]  # another name of modelling
    example_count,
    is_int_scalar,
    normalize,
)

TEST_DATA = pytest.mark.filterwarnings("ignore:evaluate computed exact losses of test records")


def sum_over_batches(one, start, num_batches):
    """A loop over an epoch, as all four examples have it."""
    return lax.fori_loop(0, num_batches, one, start)


@TEST_DATA
def test_simple_gaussian_posterior():
    """Train and test batchifiers of one shape and one table size, and losses on the test records."""
    N, d, size, epochs = 200, 2, 20, 3

    def model(obs=None, num_obs_total=None, d=None):
        batch_size = num_obs_total
        if obs is not None:
            batch_size, d = jnp.shape(obs)
        mu = sample("mu", dist.Normal(jnp.zeros((d,)), 1.0))
        with plate("batch", num_obs_total, batch_size):
            return sample(
                "obs", dist.Normal(mu, 0.1).to_event(1), obs=obs, sample_shape=(batch_size,)
            )

    def guide(obs=None, num_obs_total=None, d=None):
        loc, log_std = param("mu_loc", jnp.zeros(d)), param("mu_std_log", jnp.zeros(d))
        return sample("mu", dist.Normal(loc, jnp.exp(log_std)))

    drawn = sample_prior_predictive(
        jax.random.PRNGKey(1), model, (None, 2 * N, d), {"mu": jnp.ones(d)}
    )
    train_init, train_fetch = subsample_batchify_data((drawn["obs"][:N],), batch_size=size)
    test_init, test_fetch = split_batchify_data((drawn["obs"][N:],), batch_size=size)
    svi = DPSVI(
        model,
        guide,
        optimizers.Adam(0.1),
        Trace_ELBO(),
        dp_scale=1.0,
        clipping_threshold=1.0,
        d=d,
        num_obs_total=N,
    )
    assert isinstance(svi, SVI)
    rng, init_rng, batch_rng = d3p.random.split(d3p.random.PRNGKey(0), 3)
    _, state = train_init(rng_key=batch_rng)
    svi_state = svi.init(init_rng, *train_fetch(0, state))
    epsilon = svi.get_epsilon(1e-4, size / N, num_epochs=epochs)

    @jit
    def epoch_train(svi_state, state, num_batch):
        def body(i, carry):
            svi_state, loss = svi.update(carry[0], *train_fetch(i, state))
            return svi_state, carry[1] + loss / (N * num_batch)

        return sum_over_batches(body, (svi_state, 0.0), num_batch)

    @jit
    def eval_test(svi_state, state, num_batch):
        body = lambda i, loss: (  # noqa: E731
            loss + svi.evaluate(svi_state, *test_fetch(i, state)) / (N * num_batch)
        )
        return sum_over_batches(body, 0.0, num_batch)

    losses = []
    for _ in range(epochs):
        rng, train_rng, test_rng = d3p.random.split(rng, 3)
        num_batches, state = train_init(rng_key=train_rng)
        svi_state, _ = epoch_train(svi_state, state, num_batches)
        num_test, state = test_init(rng_key=test_rng)
        losses.append(eval_test(svi_state, state, num_test))
    assert losses[-1] < losses[0]
    statement = svi.statement(svi_state, delta=1e-4)
    assert statement.epsilon == pytest.approx(epsilon)
    assert not [note for note in statement.notes if "on trust" in note]
    assert [note for note in statement.notes if "test records" in note]


@TEST_DATA
def test_logistic_regression():
    N, d, q, epochs = 200, 3, 0.1, 2

    def model(batch_X, batch_y=None, num_obs_total=None):
        batch_size, d = jnp.shape(batch_X)
        num_obs_total = batch_size if num_obs_total is None else num_obs_total
        assert batch_y is None or example_count(batch_y) == batch_size
        w = sample("w", dist.Normal(jnp.zeros((d,)), jnp.ones((d,))))
        intercept = sample("intercept", dist.Normal(0, 1))
        with plate("batch", num_obs_total, batch_size):
            return sample("obs", dist.Bernoulli(logits=batch_X.dot(w) + intercept), obs=batch_y)

    def guide(batch_X, batch_y=None, num_obs_total=None):
        d = jnp.shape(batch_X)[1]
        sample(
            "w",
            dist.Normal(param("w_loc", jnp.zeros(d)), jnp.exp(param("w_std_log", jnp.zeros(d)))),
        )
        sample(
            "intercept",
            dist.Normal(param("intercept_loc", 0.0), jnp.exp(param("intercept_std_log", 0.0))),
        )

    rng, X_rng, y_rng = jax.random.split(jax.random.PRNGKey(123), 3)
    X = jax.random.normal(X_rng, (2 * N, d))
    drawn = sample_prior_predictive(y_rng, model, (X,))
    y = drawn["obs"]
    train_init, train_fetch = poisson_batchify_data(
        (X[:N], y[:N]), q, max_batch_size=0.99, rng_suite=rng_suite
    )
    test_init, test_fetch = split_batchify_data((X[N:], y[N:]), batch_size=20, rng_suite=rng_suite)
    dpsvi_rng, init_rng, fetch_rng = rng_suite.split(rng_suite.PRNGKey(0), 3)
    per_epoch, state = train_init(rng_key=fetch_rng)
    batch, _ = train_fetch(0, state)
    dp_scale, _, _ = approximate_sigma_remove_relation(
        5.0, delta=1 / N**2, q=q, num_iter=per_epoch * epochs
    )
    svi = DPSVI(
        model,
        guide,
        optimizers.Adam(1e-2),
        Trace_ELBO(),
        dp_scale=dp_scale,
        clipping_threshold=1.0,
        num_obs_total=N,
        rng_suite=rng_suite,
    )
    svi_state = svi.init(init_rng, *batch)

    @jit
    def epoch_train(svi_state, state, num_batch):
        def body(i, carry):
            (batch_X, batch_y), mask = train_fetch(i, state)
            svi_state, loss = svi.update(carry[0], batch_X, batch_y, mask=mask)
            return svi_state, carry[1] + loss / (N * num_batch)

        return sum_over_batches(body, (svi_state, 0.0), num_batch)

    @jit
    def eval_test(svi_state, state, num_batch, rng):
        params = svi.get_params(svi_state)

        def body(i, carry):
            batch_X, batch_y = test_fetch(i, state)
            loss = svi.evaluate(svi_state, batch_X, batch_y)
            drawn = sample_multi_posterior_predictive(
                jax.random.fold_in(rng, i), 1, model, (batch_X,), guide, (batch_X,), params
            )
            return carry[0] + loss / (N * num_batch), carry[1] + jnp.average(
                drawn["obs"] == batch_y
            ) / num_batch

        return sum_over_batches(body, (0.0, 0.0), num_batch)

    for _ in range(epochs):
        dpsvi_rng, train_rng, test_rng, acc_rng = rng_suite.split(dpsvi_rng, 4)
        num_batches, state = train_init(rng_key=train_rng)
        svi_state, _ = epoch_train(svi_state, state, num_batches)
        num_test, state = test_init(rng_key=test_rng)
        loss, acc = eval_test(svi_state, state, num_test, rng_suite.convert_to_jax_rng_key(acc_rng))
    assert np.isfinite(loss)
    assert 0 < acc < 1
    w_true = normalize(drawn["w"])
    fixed = sample_multi_prior_predictive(
        rng, 3, model, (X,), {"w": w_true, "intercept": drawn["intercept"]}
    )
    assert fixed["obs"].shape == (3, 2 * N)
    statement = svi.statement(svi_state)
    assert 4.9 < statement.epsilon <= 5.0
    assert statement.steps_completed == per_epoch * epochs


@pytest.mark.exhaustive
@TEST_DATA
def test_gaussian_mixture_model():
    N, k, d, q = 200, 3, 2, 0.1

    def model(k, obs=None, num_obs_total=None, d=None):
        batch_size = num_obs_total
        if obs is not None:
            batch_size, d = jnp.shape(obs)
        pis = sample("pis", dist.Dirichlet(jnp.ones(k)))
        mus = sample("mus", dist.Normal(jnp.zeros((k, d)), 10.0))
        sigs = sample("sigs", dist.InverseGamma(1.0, 1.0), sample_shape=jnp.shape(mus))
        with plate("batch", num_obs_total, batch_size):
            return sample(
                "obs", GaussianMixture(mus, sigs, pis), obs=obs, sample_shape=(batch_size,)
            )

    def guide(k, obs=None, num_obs_total=None, d=None):
        if obs is not None:
            _, d = jnp.shape(obs)
        pis = sample("pis", dist.Dirichlet(jnp.exp(param("alpha_log", jnp.zeros(k)))))
        mus = sample("mus", dist.Normal(param("mus_loc", jnp.zeros((k, d))), 1.0))
        return pis, mus, sample("sigs", dist.InverseGamma(1.0, 1.0), sample_shape=jnp.shape(mus))

    true = {
        "pis": jnp.array([0.25, 0.25, 0.5]),
        "mus": jnp.array([[-9.0, -9], [9, 9], [-2, -2]]),
        "sigs": jnp.ones((3, 1)),
    }
    drawn = sample_prior_predictive(
        jax.random.PRNGKey(4), model, (3, None, 2 * N, d), substitutes=true, with_intermediates=True
    )
    X, (z,) = drawn["obs"]
    assert z.shape == (2 * N,)
    train_init, train_fetch = poisson_batchify_data((X[:N],), q=q, max_batch_size=0.99)
    test_init, test_fetch = split_batchify_data((X[N:],), batch_size=20)
    rng, init_rng, fetch_rng = rng_suite.split(rng_suite.PRNGKey(0), 3)
    per_epoch, state = train_init(fetch_rng)

    def fix_params(model_fn, k):
        return lambda obs, **kwargs: model_fn(k, obs, **kwargs)

    dp_scale, _, _ = approximate_sigma_remove_relation(10.0, 1 / N**2, q, num_iter=per_epoch)
    svi = DPSVI(
        fix_params(model, k),
        fix_params(guide, k),
        optimizers.Adam(1e-2),
        Trace_ELBO(),
        dp_scale=dp_scale,
        clipping_threshold=20.0,
        num_obs_total=N,
    )
    batch, _ = train_fetch(0, state)
    svi_state = svi.init(init_rng, *batch)

    @jit
    def epoch_train(svi_state, state, num_batch):
        def body(i, carry):
            batch, mask = train_fetch(i, state)
            svi_state, loss = svi.update(carry[0], *batch, mask=mask)
            return svi_state, carry[1] + loss / (N * num_batch)

        return sum_over_batches(body, (svi_state, 0.0), num_batch)

    @jit
    def eval_test(svi_state, state, num_batch):
        body = lambda i, loss: (  # noqa: E731
            loss + svi.evaluate(svi_state, *test_fetch(i, state)) / (N * num_batch)
        )
        return sum_over_batches(body, 0.0, num_batch)

    rng, train_rng, test_rng = rng_suite.split(rng, 3)
    num_batches, state = train_init(rng_key=train_rng)
    svi_state, _ = epoch_train(svi_state, state, num_batches)
    num_test, state = test_init(rng_key=test_rng)
    assert np.isfinite(eval_test(svi_state, state, num_test))
    params = svi.get_params(svi_state)
    assert params["mus_loc"].shape == (k, d)
    assert dist.Dirichlet(jnp.exp(params["alpha_log"])).mean.shape == (k,)
    assert svi.statement(svi_state).epsilon <= 10.0


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:approximate_sigma returns")
def test_variational_auto_encoder():
    """Batches are changed on the way: the statement says so, and evaluate asks for the one word."""
    N, z_dim, hidden, size = 100, 2, 4, 10
    encoder = lambda hidden, z_dim: stax.serial(  # noqa: E731
        stax.Dense(hidden),
        stax.Softplus,
        stax.FanOut(2),
        stax.parallel(stax.Dense(z_dim), stax.serial(stax.Dense(z_dim), stax.Exp)),
    )
    decoder = lambda hidden, out: stax.serial(  # noqa: E731
        stax.Dense(hidden), stax.Softplus, stax.Dense(out), stax.Sigmoid
    )

    def flat(batch):
        return jnp.reshape(batch, (jnp.shape(batch)[0], -1))

    def model(batch_or_size, z_dim, hidden_dim, out_dim=None, num_obs_total=None):
        batch, batch_size = None, batch_or_size
        if not is_int_scalar(batch_or_size):
            batch = flat(batch_or_size)
            batch_size, out_dim = jnp.shape(batch)
        num_obs_total = batch_size if num_obs_total is None else num_obs_total
        decode = numpyro.module("decoder", decoder(hidden_dim, out_dim), (batch_size, z_dim))
        with plate("batch", num_obs_total, batch_size):
            z = sample("z", dist.Normal(jnp.zeros((z_dim,)), jnp.ones((z_dim,))).to_event(1))
            return sample("obs", dist.Bernoulli(decode(z)).to_event(1), obs=batch)

    def guide(batch, z_dim, hidden_dim, out_dim=None, num_obs_total=None):
        batch = flat(batch)
        num_obs_total = batch.shape[0] if num_obs_total is None else num_obs_total
        encode = numpyro.module("encoder", encoder(hidden_dim, z_dim), jnp.shape(batch))
        with plate("batch", num_obs_total, batch.shape[0]):
            return sample("z", dist.Normal(*encode(batch)).to_event(1))

    def binarize(rng, batch):
        return jax.random.bernoulli(rng, batch).astype(batch.dtype)

    def binarize_fetch(fetch):
        @jit
        def fetched(i, state, rng):
            batch = fetch(i, state)
            return binarize(rng, batch[0]), batch[1]

        return fetched

    images = np.random.default_rng(0).random((N + 40, 3, 3)).astype(np.float32)
    labels = np.arange(N + 40)
    train_init, train_plain = subsample_batchify_data((images[:N], labels[:N]), size)
    test_init, test_plain = split_batchify_data((images[N:], labels[N:]), size)
    train_fetch, test_fetch = binarize_fetch(train_plain), binarize_fetch(test_plain)
    dp_scale, _, _ = approximate_sigma(
        target_eps=5.0, delta=1 / N, q=size / N, num_iter=N // size, force_smaller=True
    )

    def make(**words):
        return DPSVI(
            scale(model, scale=1 / N),
            scale(guide, scale=1 / N),
            optimizers.Adam(1e-3),
            Trace_ELBO(),
            dp_scale=dp_scale,
            clipping_threshold=10.0,
            num_obs_total=N,
            z_dim=z_dim,
            hidden_dim=hidden,
            **words,
        )

    unsafe = jax.random.PRNGKey(0)
    rng, init_rng, batch_rng, train_rng, test_rng = rng_suite.split(rng_suite.PRNGKey(), 5)
    _, state = train_init(rng_key=batch_rng)
    svi = make(public_evaluation=True)
    svi_state = svi.init(init_rng, train_fetch(0, state, unsafe)[0])

    @jit
    def epoch_train(svi_state, state, num_batches, rng):
        def body(i, carry):
            batch = train_fetch(i, state, jax.random.fold_in(rng, i))[0]
            svi_state, loss = svi.update(carry[0], batch)
            return svi_state, carry[1] + loss / num_batches

        return sum_over_batches(body, (svi_state, 0.0), num_batches)

    @jit
    def eval_test(svi_state, state, num_batches, rng):
        def body(i, loss):
            batch = test_fetch(i, state, jax.random.fold_in(rng, i))[0]
            return loss + svi.evaluate(svi_state, batch) / num_batches

        return sum_over_batches(body, 0.0, num_batches)

    num_batches, state = train_init(rng_key=train_rng)
    svi_state, _ = epoch_train(svi_state, state, num_batches, unsafe)
    num_test, test_state = test_init(rng_key=test_rng)
    assert np.isfinite(eval_test(svi_state, test_state, num_test, unsafe))
    image = binarize(unsafe, test_plain(0, test_state)[0][0])[None]
    drawn = sample_multi_posterior_predictive(
        rng,
        3,
        model,
        (1, z_dim, hidden, np.prod(image.shape[1:])),
        guide,
        (image, z_dim, hidden),
        svi.get_params(svi_state),
    )
    assert drawn["obs"].shape == (3, 1, 9)
    on_trust, public = svi.statement(svi_state).notes
    assert "on trust" in on_trust
    assert "public_evaluation" in public

    other = make()
    svi_state = other.init(rng_suite.PRNGKey(), train_fetch(0, state, unsafe)[0])
    with pytest.raises(ValueError, match=r"public_evaluation=True"):
        other.evaluate(svi_state, test_fetch(0, test_state, unsafe)[0])


def test_the_readmes_program(logistic, table):
    """As printed, `init` gets the mask with the batch, which stops in d3p with an AttributeError."""
    data, labels, _ = table
    guide = AutoDiagonalNormal(logistic.model)

    def infer(data, labels, q, num_iter, epsilon, delta, seed):
        rng_key = d3p.random.PRNGKey(seed)
        batchifier_init, get_batch = poisson_batchify_data(
            (data, labels), q, max_batch_size=2 * int(q * len(data))
        )
        _, batchifier_state = batchifier_init(rng_key)
        dp_scale, _, _ = approximate_sigma_remove_relation(epsilon, delta, q, num_iter)
        dpsvi = DPSVI(
            logistic.model, guide, optimizers.Adam(1e-3), Trace_ELBO(), 10.0, dp_scale, N=len(data)
        )
        svi_state = dpsvi.init(rng_key, *get_batch(0, batchifier_state))

        def step_function(i, svi_state):
            (data_batch, label_batch), mask = get_batch(i, batchifier_state)
            svi_state, _ = dpsvi.update(svi_state, data_batch, label_batch, mask=mask)
            return svi_state

        svi_state = jax.lax.fori_loop(0, num_iter, step_function, svi_state)
        return dpsvi.get_params(svi_state), dpsvi.statement(svi_state)

    params, statement = infer(data, labels, 0.05, 20, 1.0, 1e-5, 3)
    assert params["auto_loc"].shape == (3,)
    assert 0.99 < statement.epsilon <= 1.0
    assert not statement.notes


def test_test_records_are_another_tables_rows(logistic, table):
    data, labels, _ = table
    key = d3p.random.PRNGKey(0)
    train_init, train = subsample_batchify_data((data[:400], labels[:400]), 20)
    test_init, test = split_batchify_data((data[400:], labels[400:]), 20)
    overlap_init, overlap = split_batchify_data((data[399:], labels[399:]), 20)
    other_init, other = split_batchify_data((data[400:],), 20)
    state, test_state = train_init(key)[1], test_init(key)[1]
    dpsvi = DPSVI(
        logistic.model, logistic.guide, optimizers.Adam(0.1), Trace_ELBO(), 1.0, 2.0, N=400
    )
    with pytest.raises(ValueError, match="Call init"):
        dpsvi.evaluate(None, *test(0, test_state))
    start = dpsvi.init(key, *train(0, state))
    one = other(0, other_init(key)[1])[0]
    for records in (
        train(1, state),
        overlap(0, overlap_init(key)[1]),  # one row of the 401 is one that is fitted
        (one, labels[:20]),  # not of one batchifier
        tuple(jnp.asarray(x) for x in (data[400:420], labels[400:420])),
    ):
        with pytest.raises(ValueError, match="not known to be test data"):
            dpsvi.evaluate(start, *records)
    with pytest.warns(D3PAccountingWarning, match="ε does not cover them"):
        loss = dpsvi.evaluate(start, *test(0, test_state))
    assert loss == dpsvi.evaluate(start, *test(0, test_state), non_private=True)
    # From here on these records cannot be fitted: what the loss showed of them would not be paid
    # for.
    for records in (test(0, test_state), (data[:20], labels[:20])):
        with pytest.raises(ValueError, match="may contain the same records"):
            dpsvi.update(start, *records)
    after, _ = dpsvi.update(start, *train(0, state))
    assert "test records" in dpsvi.statement(after).notes[-1]
