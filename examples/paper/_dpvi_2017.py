"""The common part of the experiments of UAI 2017: logistic regression, its original optimizer, and the epsilons of then and now.

Jälkö, Dikmen and Honkela, Differentially private variational inference for non-conjugate models,
UAI 2017. What the paper does not say is from the authors' published code and results,
github.com/DPBayes/DPVI-code, commit 17ce9c0.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from _experiment import STYLES, Rows
from numpyro.infer import SVI, Trace_ELBO
from scipy.special import expit

import discreet as dp
from discreet.methods.newton import NewtonPlan, fit_newton

DPVI, ALIGNED, SGLD, NON_PRIVATE = (
    "DPVI, the paper's rule",
    "DPVI, discreet's rule",
    "DP-SGLD",
    "not private",
)
NEWTON = "private Newton"
REPLACE_ONE = dp.Relation.REPLACE_ONE
RULES = {DPVI: "parameters", ALIGNED: "latents"}
DELTA = 1e-3
PLD, MOMENTS, ADVANCED = "epsilon_pld", "epsilon_moments_2017", "epsilon_advanced_2017"
_ROWS = {
    "privacy loss distributions (PLD)": PLD,
    "moments accountant, as in UAI 2017": MOMENTS,
    "advanced composition, as in UAI 2017": ADVANCED,
}


def logistic(x, y=None):
    """Bayesian logistic regression with a standard normal prior and no intercept of its own."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def mean_field(x, y=None):
    """A normal with diagonal covariance, in mean and logarithm of the scale, from mean 0 and scale 1."""
    loc = numpyro.param("loc", jnp.zeros(x.shape[1]))
    log_scale = jnp.asarray(numpyro.param("log_scale", jnp.zeros(x.shape[1])))
    numpyro.sample("w", dist.Normal(loc, jnp.exp(log_scale)).to_event(1))


def windowed_adagrad(
    rate: float, window: int = 10, floor: float = 0.1
) -> optax.GradientTransformation:
    """AdaGrad that sums the squares of the last few gradients only, as the paper's experiments ran it."""

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jax.tree.map(
            lambda x: jnp.zeros((window, *x.shape), x.dtype), params
        )

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        count, squares = state
        squares = jax.tree.map(lambda kept, g: kept.at[count % window].set(g**2), squares, updates)
        step = jax.tree.map(
            lambda kept, g: -rate * g / jnp.sqrt(kept.sum(0) + floor), squares, updates
        )
        return step, (count + 1, squares)

    return optax.GradientTransformation(init, update)


def plan_of(
    sigma: float, *, rate: float, num_steps: int, clipping_norm: float, num_records: int
) -> dp.PrivacyPlan:
    """Algorithm 1 as a plan: noise of standard deviation 2 C sigma, neighbours that differ in the values of one record."""
    return dp.PrivacyPlan(
        sampling=dp.PoissonSampling(rate),
        clipping_norm=clipping_norm,
        noise_multiplier=2.0 * sigma,
        num_steps=num_steps,
        num_records=num_records,
        relation=REPLACE_ONE,
        target_delta=DELTA,
    )


def epsilons(plan: dp.PrivacyPlan, delta: float = DELTA) -> dict[str, float]:
    """The cost of the plan, by our and by the paper's two accountants."""
    rows = dp.accounting.compare_accountants(plan, delta).rows
    return {_ROWS[row.name]: float(row.epsilon) for row in rows if row.name in _ROWS}


def seeds(seed: int, runs: int) -> list[int]:
    """Seeds of the runs: the tables are public, so that whoever repeats an experiment should get its figures."""
    return [1000 * seed + run for run in range(runs)]


def private_accuracies(
    data: Any, plan: dp.PrivacyPlan, runs: list[int], *, rule: str, rate: float = 0.1
) -> np.ndarray:
    """Test accuracy of a private fit for each seed."""
    x, y, x_test, y_test = data
    dpsvi = dp.DPSVI(
        logistic, mean_field, windowed_adagrad(rate), plan=plan, perturb=rule, loss_share=0.0
    )
    fitted = [dpsvi.run(dp.random.key(seed), x, y, progress_bar=False).params for seed in runs]
    return np.array([accuracy(probit(params, x_test), y_test) for params in fitted])


def langevin_accuracies(data: Any, chain: dp.DPSGLD, runs: list[int]) -> np.ndarray:
    """Test accuracy of a private Langevin chain for each seed, predictions averaged over its draws."""
    x, y, x_test, y_test = data
    draws = [chain.run(dp.random.key(seed), x, y, progress_bar=False).draws["w"] for seed in runs]
    return np.array([accuracy(expit(x_test @ w.T).mean(axis=1), y_test) for w in draws])


def newton_accuracies(
    data: Any, epsilon: float, runs: list[int], *, relation: dp.Relation, delta: float = DELTA
) -> tuple[np.ndarray, float]:
    """Test accuracy of private Newton for each seed, predictions averaged over its draws; and epsilon.

    Features lie in [-1, 1], without an intercept: private Newton has one, and priors of its own.
    """
    x, y, x_test, y_test = data
    plan = NewtonPlan.calibrate(
        epsilon=epsilon,
        delta=delta,
        family="binary",
        num_features=x.shape[1],
        num_records=len(x),
        relation=relation,
    )
    rows = np.concatenate([np.ones((len(x_test), 1)), x_test], axis=1)
    reached = []
    for seed in runs:
        with warnings.catch_warnings():
            # Where the noise hides the model, a fit says so: here that is what the figure shows.
            warnings.simplefilter("ignore", dp.inference.UseWarning)
            result = fit_newton(dp.random.key(seed), x, y, plan)
        reached.append(accuracy(expit(rows @ result.predictive.T).mean(axis=1), y_test))
    return np.array(reached), float(plan.epsilon(delta))


def non_private_accuracy(data: Any, *, num_steps: int, rate: float, seed: int = 0) -> float:
    """Test accuracy of the same posterior fitted by NumPyro's SVI on all records in every step."""
    x, y, x_test, y_test = data
    svi = SVI(logistic, mean_field, numpyro.optim.Adam(rate), Trace_ELBO(num_particles=4))
    result = svi.run(jax.random.key(seed), num_steps, x, y, progress_bar=False)
    return accuracy(probit(result.params, x_test), y_test)


def probit(params: Any, x: np.ndarray) -> np.ndarray:
    """P(y = 1) by the probit approximation: the mean logit, shrunk for its variance."""
    means, variances = dp.predict.linear_predictor(
        x, loc=params["loc"], scale=np.exp(params["log_scale"])
    )
    return dp.predict.probit_probabilities(means, variances)


def accuracy(probabilities: np.ndarray, y: np.ndarray) -> float:
    """Share of labels that the likelier class hits."""
    return float(np.mean((probabilities >= 0.5) == (y > 0.5)))


def summary(values: np.ndarray) -> dict[str, float]:
    """Mean over the runs, and its standard error."""
    return {
        "mean": float(np.mean(values)),
        "stderr": float(np.std(values, ddof=1) / np.sqrt(len(values))),
    }


def langevin_row(
    data: Any, plan: dp.PrivacyPlan, step_size: float, runs: list[int], **facts: Any
) -> dict[str, Any]:
    """A row of DP-SGLD on the plan: the last half of the chain, epsilon of now and by the constants of 2015."""
    chain = dp.DPSGLD(logistic, plan=plan, step_size=(step_size, 1.0, 0.0))
    values = langevin_accuracies(data, chain, runs)
    return {
        **facts,
        "q": plan.rate,
        "paper_norm": None,
        "sigma": plan.noise_multiplier / 2,
        PLD: float(plan.epsilon(DELTA)),
        MOMENTS: None,
        ADVANCED: None,
        "epsilon_2015": float(chain.epsilon_2015(DELTA).epsilon),
        **summary(values),
    }


def interpolated(rows: Rows, key: str, epsilon: float) -> float:
    """The rows' mean at an epsilon, straight between them in its logarithm; minus infinity below the least of them."""
    known = sorted((row[key], row["mean"]) for row in rows)
    logarithms = np.log([x for x, _ in known])
    return float(np.interp(np.log(epsilon), logarithms, [y for _, y in known], left=-np.inf))


def assert_above_langevin(
    dpvi: Rows, sgld: Rows, key: str, *, most: float = np.inf, tolerance: float = 0.0
) -> None:
    """DPVI, its epsilon by `key`, is above each chain at the epsilon of 2015, wherever both have one up to `most`."""
    least = min(row[key] for row in dpvi)
    for row in sgld:
        if least <= row["epsilon_2015"] <= most:
            found = interpolated(dpvi, key, row["epsilon_2015"])
            assert found > row["mean"] - tolerance, (key, found, row)


def figure_1(axes: Any, rows: Rows) -> None:
    """Each method by its own accountants, as in the paper's Figure 1."""
    curves = [
        (DPVI, PLD, "DPVI, PLD"),
        (DPVI, MOMENTS, "DPVI, moments (2017)"),
        (DPVI, ADVANCED, "DPVI, advanced composition (2017)"),
        (ALIGNED, PLD, "DPVI, discreet's rule, PLD"),
        (SGLD, PLD, "DP-SGLD, PLD"),
        (SGLD, "epsilon_2015", "DP-SGLD, constants of 2015"),
        (NEWTON, PLD, NEWTON),
    ]
    for style, (method, key, label) in zip(STYLES, curves, strict=True):
        curve(axes, [row for row in rows if row["method"] == method], key, label, style)


def curve(axes: Any, rows: Rows, key: str, label: str, style: dict[str, Any]) -> None:
    """Means with their standard errors against an epsilon."""
    # 0 has no place on a logarithmic axis
    known = sorted((row for row in rows if row[key]), key=lambda row: row[key])
    axes.errorbar(
        [row[key] for row in known],
        [row["mean"] for row in known],
        yerr=[row["stderr"] for row in known],
        label=label,
        capsize=2,
        **style,
    )
