"""The point guide: with it, the data-free term is the negative log prior density in unconstrained space."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer import init_to_value
from numpyro.infer.util import potential_energy

from discreet import random
from discreet.methods.inference import DPSVI
from discreet.methods.inference._point_guide import PointGuide, parameter_of

XS = jnp.linspace(-1.0, 2.0, 12)


def regression(xs: Any) -> None:
    tau = numpyro.sample("tau", dist.HalfNormal(2.0))
    with numpyro.plate("features", 3):
        w = numpyro.sample("w", dist.Normal(0.5, tau))
    with numpyro.plate("data", xs.shape[0]):
        numpyro.sample("x", dist.Normal(w.sum(), 1.0 + tau), obs=xs)


def mixture(xs: Any) -> None:
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    top = numpyro.sample("top", dist.Gamma(2.0, 1.0))
    loc = numpyro.sample("loc", dist.Uniform(0.0, top).expand([3]).to_event(1))
    with numpyro.plate("data", xs.shape[0]):
        mixed = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(loc, 1.0))
        numpyro.sample("x", mixed, obs=xs)


def correlated(xs: Any) -> None:
    factor = numpyro.sample("factor", dist.LKJCholesky(3, 2.0))
    scale = numpyro.sample("scale", dist.ImproperUniform(dist.constraints.positive, (), ()))
    level = numpyro.sample("level", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", xs.shape[0]):
        numpyro.sample("x", dist.Normal(scale * factor[2, 0] + level, 1.0), obs=xs)


def walk(xs: Any) -> None:
    _, places = scan(
        lambda at, _: (numpyro.sample("steps", dist.LogNormal(at, 1.0)),) * 2, 0.0, None, length=4
    )
    with numpyro.plate("data", xs.shape[0]):
        numpyro.sample("x", dist.Normal(places.sum(), 1.0), obs=xs)


def set_up(model: Any, plan: Any, guide: Any = None) -> tuple[DPSVI, dict[str, Any], Any]:
    dpsvi = DPSVI(model, PointGuide(model) if guide is None else guide, optax.sgd(0.1), plan=plan)
    state = dpsvi.init(random.key(3), XS)
    assert dpsvi._current is not None
    return dpsvi, dpsvi.optim.get_params(state.optim_state), dpsvi._current.objective


@pytest.mark.parametrize(
    "model",
    [
        mixture,
        *(pytest.param(m, marks=pytest.mark.exhaustive) for m in (regression, correlated, walk)),
    ],
)
def test_the_data_free_term_and_the_losses_are_numpyro_s_potential_energy(
    model: Any, exact_plan: Any, quick_compilation: Any
) -> None:
    del quick_compilation
    _, psi, objective = set_up(model, exact_plan(len(XS)))
    places = jax.random.key(1)
    names = objective.structure.global_latents
    u = {
        n: 0.3 * jax.random.normal(jax.random.fold_in(places, i), psi[parameter_of(n)].shape)
        for i, n in enumerate(names)
    }
    psi = {parameter_of(n): u[n] for n in names}

    @jax.jit
    @jax.value_and_grad
    def ours(psi: Any) -> Any:
        at, free = objective.link(psi, jax.random.key(0))
        assert set(at["latent"]) <= set(names)
        return free + jnp.sum(
            jax.vmap(lambda x: objective.record_loss(at, [x], jax.random.key(0)))(XS)
        )

    @jax.jit
    @jax.value_and_grad
    def theirs(psi: Any) -> Any:
        return potential_energy(model, (XS,), {}, {n: psi[parameter_of(n)] for n in names})

    value, gradient = ours(psi)
    expected, expected_gradient = theirs(psi)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for name, x in expected_gradient.items():
        np.testing.assert_allclose(gradient[name], x, rtol=1e-4, atol=1e-4, err_msg=name)
    for name, x in jax.jit(objective.link)(psi, jax.random.key(0))[0]["latent"].items():
        np.testing.assert_allclose(x[0], u[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_it_starts_at_the_origin_or_where_the_user_says_and_never_at_the_data(
    exact_plan: Any,
) -> None:
    _, psi, _ = set_up(regression, exact_plan(len(XS)))
    assert {n: x.shape for n, x in psi.items()} == {
        "tau_unconstrained": (),
        "w_unconstrained": (3,),
    }
    assert all(bool(jnp.all(x == 0)) for x in psi.values())
    there = init_to_value(values={"tau": 2.0, "w": jnp.array([1.0, 2.0, 3.0])})
    dpsvi, psi, objective = set_up(regression, exact_plan(len(XS)), PointGuide(regression, there))
    np.testing.assert_allclose(psi["tau_unconstrained"], np.log(2.0), rtol=1e-6)
    draws = dpsvi.posterior(random.key(0), objective.constrain(psi), 2)
    np.testing.assert_allclose(draws["tau"], [2.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(draws["w"], [[1.0, 2.0, 3.0]] * 2)


def test_latents_of_records_are_refused(exact_plan: Any) -> None:
    def model(xs: Any) -> None:
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", xs.shape[0]):
            z = numpyro.sample("z", dist.Normal(m, 1.0))
            numpyro.sample("x", dist.Normal(z, 1.0), obs=xs)

    with pytest.raises(
        ValueError, match=r"'z' is inside the record plate.*Sum or integrate it out"
    ):
        set_up(model, exact_plan(len(XS)))
