"""Whole programs, written as for d3p, with other import lines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import sigmoid
from jax.scipy.special import logsumexp
from numpyro import param, plate, sample
from numpyro.distributions import (
    Bernoulli,
    Dirichlet,
    Distribution,
    InverseGamma,
    LogNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)
from numpyro.distributions.transforms import StickBreakingTransform
from numpyro.infer import Trace_ELBO
from numpyro.optim import Adam

import discreet.interfaces.compat.d3p as d3p
from discreet.interfaces.compat.d3p import GaussianMixture
from discreet.interfaces.compat.d3p.dputil import (
    D3PAccountingWarning,
    approximate_sigma,
    approximate_sigma_remove_relation,
)
from discreet.interfaces.compat.d3p.minibatch import poisson_batchify_data, subsample_batchify_data
from discreet.interfaces.compat.d3p.modelling import sample_multi_posterior_predictive
from discreet.interfaces.compat.d3p.svi import DPSVI
from discreet.privacy.accounting import Relation

pytestmark = pytest.mark.filterwarnings(
    "ignore::discreet.interfaces.compat.d3p.D3PAccountingWarning"
)


def test_listing_3_a_python_loop_over_fixed_size_batches(logistic, table):
    data, labels, w = table
    batch_size, num_iter, epsilon, delta = 100, 200, 60.0, 1e-4
    rng_key = d3p.random.PRNGKey(0)

    # As printed in the paper: one key for both, and init gets the batch that the first update gets.
    batchifier_init, get_batch = subsample_batchify_data((data, labels), batch_size)
    _, batchifier_state = batchifier_init(rng_key)
    q = batch_size / len(data)
    dp_scale, _, _ = approximate_sigma(epsilon, delta, q, num_iter)
    dpsvi = DPSVI(
        logistic.model, logistic.guide, Adam(0.1), Trace_ELBO(), 1.0, dp_scale, N=len(data)
    )
    svi_state = dpsvi.init(rng_key, *get_batch(0, batchifier_state))
    losses = []
    for i in range(num_iter):
        data_batch, label_batch = get_batch(i, batchifier_state)
        svi_state, loss = dpsvi.update(svi_state, data_batch, label_batch)
        losses.append(loss)
    params = dpsvi.get_params(svi_state)

    assert np.allclose(params["w_loc"], w, atol=0.7)
    hits = (data @ np.asarray(params["w_loc"]) > 0) == labels
    assert np.mean(hits) > np.mean((data @ w > 0) == labels) - 0.03
    assert np.mean(losses[-50:]) < np.mean(losses[:10])

    statement = dpsvi.statement(svi_state)
    assert statement.relation == Relation.REPLACE_ONE.name
    assert statement.delta == delta
    assert 0.99 * epsilon < statement.epsilon <= epsilon
    assert statement.steps_completed == statement.horizon == num_iter
    assert statement.reproducible, "the key came from a seed"
    assert not statement.notes
    assert dpsvi.get_epsilon(delta, q, num_iter=num_iter) == statement.epsilon
    assert dpsvi.get_delta(statement.epsilon, q, num_epochs=num_iter * q) == pytest.approx(
        delta, rel=0.01
    )
    with pytest.raises(ValueError, match=r"at rate 0\.125"):
        dpsvi.get_epsilon(delta, 0.01, num_iter=num_iter)

    # evaluate is for public records, and is then NumPyro's number.
    with pytest.raises(ValueError, match="non_private"):
        dpsvi.evaluate(svi_state, data, labels)
    exact = dpsvi.evaluate(svi_state, data, labels, non_private=True)
    per_record = np.logaddexp(0, -(2 * labels - 1) * (data @ np.asarray(params["w_loc"])))
    assert exact == pytest.approx(per_record.sum(), rel=0.1)
    assert np.mean(losses[-50:]) == pytest.approx(float(exact), rel=0.2), (
        "the private losses estimate the exact one"
    )


def test_poisson_batches_in_a_compiled_loop_with_epochs(logistic, table):
    data, labels, w = table
    q, epochs, epsilon, delta = 0.1, 20, 20.0, 1e-4
    rng = jax.random.PRNGKey(7)  # a legacy key, as d3p's debug suite has them
    rng, svi_rng, batch_rng = d3p.random.split(rng, 3)

    init_batching, get_batch = poisson_batchify_data((data, labels), q, 0.99)
    num_batches, batchify_state = init_batching(batch_rng)
    dp_scale, spent, _ = approximate_sigma_remove_relation(epsilon, delta, q, np.ceil(epochs / q))
    assert spent <= epsilon
    svi = DPSVI(logistic.model, logistic.guide, Adam(0.1), Trace_ELBO(), 1.0, dp_scale, N=len(data))
    batch, _ = get_batch(0, batchify_state)
    svi_state = svi.init(svi_rng, *batch)

    @jax.jit
    def train_epoch(svi_state, batchify_state):
        def step(i, carry):
            batch, mask = get_batch(i, batchify_state)
            svi_state, loss = svi.update(carry[0], *batch, mask=mask)
            return svi_state, carry[1] + loss / num_batches

        return jax.lax.fori_loop(0, num_batches, step, (svi_state, 0.0))

    for epoch in range(epochs):
        _, batchify_state = init_batching(d3p.random.fold_in(rng, epoch))
        svi_state, loss = train_epoch(svi_state, batchify_state)
    assert np.isfinite(loss)
    assert np.allclose(svi.get_params(svi_state)["w_loc"], w, atol=0.7)

    statement = svi.statement(svi_state)
    assert statement.relation == Relation.ADD_OR_REMOVE_ONE.name
    assert 0.99 * epsilon < statement.epsilon <= epsilon
    assert statement.steps_completed == epochs * num_batches == 200

    # The mask is not optional: without it padding would count as records.
    with pytest.raises(ValueError, match="mask"):
        svi.update(svi_state, *batch)


def hierarchical_model(xs, ys, ls, gs, N):
    batch_size, D = xs.shape
    L, K = gs.shape
    M = sample("M", Normal(0, 4), sample_shape=(D, K))
    with plate("group", L, L):
        etas = gs @ M.T
        ws = sample("ws", Normal(etas, 1).to_event(1))
    with plate("batch", N, batch_size):
        thetas = sigmoid(jnp.einsum("nd,nd->n", xs, ws[ls]))
        sample("ys", Bernoulli(thetas), obs=ys)


def hierarchical_guide(xs, ys, ls, gs, N):
    _, D = xs.shape
    _, K = gs.shape
    loc = param("M_loc", jnp.zeros((D, K)))
    scale = jnp.exp(param("M_scale_log", jnp.full((D, K), -1.0)))
    sample("M", Normal(loc, scale))


def test_listing_4_groups_with_public_characteristics(table):
    """The guide leaves out `ws`, as the paper's does: they follow from M and the public gs."""
    rng = np.random.default_rng(1)
    gs = rng.normal(size=(5, 2)).astype(np.float32)
    M = np.array([[2.0, -1.0], [0.0, 2.0]])
    ls = rng.integers(0, 5, 1000).astype(np.int32)
    xs = rng.normal(size=(1000, 2)).astype(np.float32)
    ys = (rng.random(1000) < sigmoid(np.sum(xs * (gs @ M.T)[ls], axis=1))).astype(np.int32)

    key = d3p.random.PRNGKey()
    init, get_batch = subsample_batchify_data((xs, ys, ls), q=0.1)
    _, state = init(key)
    dpsvi = DPSVI(
        hierarchical_model, hierarchical_guide, Adam(0.05), Trace_ELBO(), 1.0, 0.5, gs=gs, N=1000
    )
    svi_state = dpsvi.init(key, *get_batch(0, state))
    step = lambda i, svi_state: dpsvi.update(svi_state, *get_batch(i, state))[0]  # noqa: E731
    svi_state = jax.jit(lambda s: jax.lax.fori_loop(0, 300, step, s))(svi_state)

    found = np.asarray(dpsvi.get_params(svi_state)["M_loc"])
    assert np.corrcoef(found.ravel(), M.ravel())[0, 1] > 0.9
    statement = dpsvi.statement(svi_state, delta=1e-4)
    assert not statement.reproducible
    assert any("gs" in fact for fact in statement.public)
    # No number of updates was declared: the statement says what it takes for granted.
    assert "No number of updates was declared" in statement.notes[0]
    assert statement.steps_completed == 300


class GaussianMixtureModel(Distribution):
    """Listing 5: a distribution of the user's own, without a support."""

    def __init__(self, mixture_probabilities, mixture_locs, mixture_scales):
        self._pis = mixture_probabilities
        self._locs = mixture_locs
        self._scales = mixture_scales
        super().__init__((), self._locs.shape[1:])

    def log_prob(self, value):
        per_component = jax.vmap(lambda loc, scale: Normal(loc, scale).log_prob(value), out_axes=-1)
        log_probs = per_component(self._locs, self._scales).sum(axis=-2)
        return logsumexp(log_probs + jnp.log(self._pis), axis=-1)


def mixture_model(mixture):
    """Listing 6, for two components in two dimensions."""

    def model(xs, N, k=2, d=2):
        pis = sample("pis", Dirichlet(jnp.ones(k)))
        with plate("component_priors", k, k):
            mus = sample(
                "locs", MultivariateNormal(jnp.zeros((d,)), 25 * jnp.eye(d)), sample_shape=(k,)
            )
            sigmas = sample("sigmas", InverseGamma(1, 1), sample_shape=(k,))
        batch_size = xs.shape[0]
        with plate("batch", N, batch_size):
            sample("xs", mixture(pis, mus, sigmas), obs=xs, sample_shape=(batch_size,))

    return model


def mixture_guide(xs, N, k=2, d=2):
    weights = Normal(param("weights", jnp.zeros(k - 1)), 0.1).to_event(1)
    sample("pis", TransformedDistribution(weights, StickBreakingTransform()))
    with plate("component_priors", k, k):
        locs = param("locs_loc", jnp.array([[-1.0, 0.0], [1.0, 0.0]]))
        sample(
            "locs",
            Normal(locs, jnp.exp(param("locs_scale_log", jnp.full((k, d), -1.0)))).to_event(1),
        )
        sample("sigmas", LogNormal(param("sigmas_loc", jnp.zeros(k)), 0.1))


def test_listings_5_and_6_a_mixture_on_poisson_batches():
    rng = np.random.default_rng(2)
    truth = np.array([[-3.0, 1.0], [3.0, -1.0]])
    component = (rng.random(600) < 0.7).astype(int)
    xs = (truth[component] + rng.normal(size=(600, 2))).astype(np.float32)

    key = d3p.random.PRNGKey(3)
    init, get_batch = poisson_batchify_data((xs,), 0.1, 100)
    _, state = init(key)
    model = mixture_model(GaussianMixtureModel)
    dpsvi = DPSVI(
        model,
        mixture_guide,
        Adam(0.05),
        Trace_ELBO(),
        2.0,
        0.7,
        N=600,
        perturb="latents",
        num_iter=250,
    )
    svi_state = dpsvi.init(key, *get_batch(0, state)[0])

    def step(i, svi_state):
        batch, mask = get_batch(i, state)
        return dpsvi.update(svi_state, *batch, mask=mask)[0]

    svi_state = jax.jit(lambda s: jax.lax.fori_loop(0, 250, step, s))(svi_state)
    params = dpsvi.get_params(svi_state)
    assert np.allclose(params["locs_loc"], truth, atol=0.6)

    # The library's own distribution draws too.
    library = mixture_model(lambda pis, mus, sigmas: GaussianMixture(mus, sigmas, pis))
    made_up = jnp.zeros((4, 2))
    drawn = sample_multi_posterior_predictive(
        key,
        50,
        library,
        (made_up,),
        mixture_guide,
        (made_up,),
        params,
        N=600,
        with_intermediates=False,
    )
    assert drawn["pis"].shape == (50, 2)
    assert np.mean(drawn["pis"][:, 1]) == pytest.approx(0.7, abs=0.1)
    assert drawn["locs"].shape == (50, 2, 2)
    assert dpsvi.statement(svi_state).horizon == 250

    with pytest.raises(ValueError, match="declared"):
        dpsvi.update(svi_state, *get_batch(0, state)[0], mask=get_batch(0, state)[1])


def test_noise_for_other_batches_is_noticed(logistic, table):
    """A common d3p program: noise for Poisson batches, batches of fixed size."""
    data, labels, _ = table
    key = d3p.random.PRNGKey(0)
    init, get_batch = subsample_batchify_data((data, labels), 80)
    _, state = init(key)
    dp_scale, _, _ = approximate_sigma_remove_relation(1.0, 1e-5, 0.1, 100)
    dpsvi = DPSVI(logistic.model, logistic.guide, Adam(0.1), Trace_ELBO(), 1.0, dp_scale, N=800)
    with pytest.warns(D3PAccountingWarning, match="cost epsilon = 2"):
        svi_state = dpsvi.init(key, *get_batch(0, state))
    # Nothing released, nothing to state; what 100 updates would cost is known all the same.
    with pytest.raises(ValueError, match="from no update"):
        dpsvi.statement(svi_state)
    assert dpsvi.get_epsilon(1e-5, 0.1, num_iter=100) > 2.0
