"""UAI 2017, Section 4.2, Figures 4 and 5, and d3p (PoPETs 2022), Figure 7: a Gaussian mixture with its latents summed out.

    python examples/paper/gaussian_mixture.py [--quick] [--out docs/papers]

Five spherical components, 2,000 points to learn from and 100 to be predicted; DPVI beside DP-SGLD
and the non-private fit.

Figure 5 is for epsilon near 1 by PLD. The paper's Figure 5, with log densities of -5.84 (DPVI) and
-7.56 (DP-SGLD), is for sigma = 2.74: epsilon is 1 by advanced composition, and 0.053 by PLD. In the
authors' code (_dpvi_2017.py names it) the variances' prior is Inv-Gamma(10, 0.1); here it is the
paper's, Inv-Gamma(1, 1). DP-SGLD's densities there (dp_sgld/gmix.py) have the constant of five
dimensions in place of two, which makes them 1.7 nats smaller at the truth.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import _dpvi_2017
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _experiment import STYLES, Rows, experiment, new_figure
from numpyro.infer import SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal
from scipy.special import logsumexp

import discreet as dp

CENTRES = np.array([[0, 0], [2, 2], [2, -2], [-2, 2], [-2, -2]], np.float32)
VARIANCE = 0.5
DPVI, SGLD, NON_PRIVATE, TRUTH = "DPVI", "DP-SGLD", "not private", "truth"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public choices."""

    records: int = 2000
    test_records: int = 100
    sigmas: tuple[float, ...] = (0.27, 0.34, 0.48, 1.05, 2.0)  # the published ones
    rate: float = 0.003
    num_steps: int = 1000
    norm: float = 1.0
    learning_rate: float = 0.02
    non_private_steps: int = 2000
    non_private_rate: float = 0.02
    langevin_multipliers: tuple[float, ...] = (0.5, 2.0, 10.0, 50.0)  # noise over C
    langevin_rate: float = 0.03
    langevin_steps: int = 150
    langevin_draws: int = 100
    langevin_step_size: float = 5e-4
    draws: int = 500
    runs: int = 5
    data_seed: int = 123
    start_seed: int = 5
    seed: int = 2


QUICK = Settings(
    sigmas=(0.48,),
    langevin_multipliers=(),
    runs=2,
    draws=200,
    non_private_steps=300,
    non_private_rate=0.05,
)


def model(x):
    """The mixture: which component a point is from is summed out."""
    k = len(CENTRES)
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(k)))
    centres = numpyro.sample("centres", dist.Normal(0.0, 1.0).expand([k, 2]).to_event(2))
    variances = numpyro.sample("variances", dist.InverseGamma(1.0, 1.0).expand([k]).to_event(1))
    component = dist.Normal(centres, jnp.sqrt(variances)[:, None]).to_event(1)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(weights), component), obs=x)


def start(seed: int) -> Any:
    """Initial values that know nothing of the data: equal weights, variances of 1, centres drawn from the prior."""
    k = len(CENTRES)
    centres = np.random.default_rng(seed).standard_normal((k, 2)).astype(np.float32)
    return init_to_value(
        values={"weights": np.full(k, 1 / k), "centres": centres, "variances": np.ones(k)}
    )


def points(number: int, generator: np.random.Generator) -> np.ndarray:
    """Draws from the true mixture."""
    chosen = CENTRES[generator.integers(len(CENTRES), size=number)]
    return (chosen + np.sqrt(VARIANCE) * generator.standard_normal((number, 2))).astype(np.float32)


def predictive(draws: Any, x: np.ndarray) -> float:
    """Log predictive density of a point, mean over the points, by Monte Carlo over the posterior's draws."""
    weights, centres, variances = (
        np.asarray(draws[name], float) for name in ("weights", "centres", "variances")
    )
    distances = np.square(x[None, :, None] - centres[:, None]).sum(-1)  # draw, point, component
    densities = np.log(weights / (2 * np.pi * variances))[:, None] - distances / (
        2 * variances[:, None]
    )
    of_points = logsumexp(densities, axis=(0, 2)) - np.log(len(weights))
    return float(np.mean(of_points))


def run(settings: Settings) -> Rows:
    """All fits; a private one's row has the components of its first run."""
    generator = np.random.default_rng(settings.data_seed)
    x, x_test = points(settings.records, generator), points(settings.test_records, generator)
    true = {
        "weights": np.full((1, 5), 0.2),
        "centres": CENTRES[None],
        "variances": np.full((1, 5), VARIANCE),
    }
    rows = [
        _row(TRUTH, {}, [true], x_test),
        _row(NON_PRIVATE, {}, _non_private(x, settings), x_test),
    ]
    for sigma in settings.sigmas:
        facts, draws = _dpvi(x, sigma, settings)
        rows.append({**_row(DPVI, facts, draws, x_test), "components": _components(draws[0])})
    for multiplier in settings.langevin_multipliers:
        facts, draws = _langevin(x, multiplier, settings)
        rows.append({**_row(SGLD, facts, draws, x_test), "components": _components(draws[0])})
    return rows


def _row(method: str, facts: dict[str, Any], runs: list[Any], x_test: np.ndarray) -> dict[str, Any]:
    values = np.array([predictive(draws, x_test) for draws in runs])
    unknown = {"sigma": None, _dpvi_2017.PLD: None, _dpvi_2017.MOMENTS: None, "epsilon_2015": None}
    spread = (
        _dpvi_2017.summary(values) if len(values) > 1 else {"mean": float(values[0]), "stderr": 0.0}
    )
    return {"method": method, **unknown, **facts, **spread}


def _components(draws: Any) -> dict[str, Any]:
    """The result of one run: means over its draws."""
    return {
        name: np.asarray(value, float).mean(0).round(3).tolist() for name, value in draws.items()
    }


def _dpvi(x: np.ndarray, sigma: float, settings: Settings) -> tuple[dict[str, Any], list[Any]]:
    plan = _dpvi_2017.plan_of(
        sigma,
        rate=settings.rate,
        num_steps=settings.num_steps,
        clipping_norm=settings.norm,
        num_records=len(x),
    )
    guide = AutoNormal(model, init_loc_fn=start(settings.start_seed), init_scale=0.1)
    dpsvi = dp.DPSVI(
        model, guide, numpyro.optim.Adam(settings.learning_rate), plan=plan, loss_share=0.0
    )
    results = [
        dpsvi.run(dp.random.key(s), x, progress_bar=False)
        for s in _dpvi_2017.seeds(settings.seed, settings.runs)
    ]
    costs = _dpvi_2017.epsilons(plan)
    facts = {
        "sigma": sigma,
        _dpvi_2017.PLD: costs[_dpvi_2017.PLD],
        _dpvi_2017.MOMENTS: costs[_dpvi_2017.MOMENTS],
    }
    return facts, [result.posterior(dp.random.key(0), settings.draws) for result in results]


def _langevin(
    x: np.ndarray, multiplier: float, settings: Settings
) -> tuple[dict[str, Any], list[Any]]:
    plan = _dpvi_2017.plan_of(
        multiplier / 2,
        rate=settings.langevin_rate,
        num_steps=settings.langevin_steps,
        clipping_norm=settings.norm,
        num_records=len(x),
    )
    chain = dp.DPSGLD(
        model,
        plan=plan,
        step_size=(settings.langevin_step_size, 1.0, 0.0),
        burn_in=1 - settings.langevin_draws / settings.langevin_steps,
        init_loc_fn=start(settings.start_seed),
    )
    runs = _dpvi_2017.seeds(settings.seed, settings.runs)
    draws = [chain.run(dp.random.key(seed), x, progress_bar=False).draws for seed in runs]
    facts = {"sigma": multiplier / 2, _dpvi_2017.PLD: float(plan.epsilon(_dpvi_2017.DELTA))}
    return {**facts, "epsilon_2015": float(chain.epsilon_2015(_dpvi_2017.DELTA).epsilon)}, draws


def _non_private(x: np.ndarray, settings: Settings) -> list[Any]:
    """NumPyro's SVI, on all points in every step."""
    guide = AutoNormal(model, init_loc_fn=start(settings.start_seed), init_scale=0.1)
    svi = SVI(model, guide, numpyro.optim.Adam(settings.non_private_rate), Trace_ELBO())

    @jax.jit
    @jax.vmap
    def fit(key):
        return svi.run(key, settings.non_private_steps, x, progress_bar=False).params

    keys = jax.random.split(jax.random.key(settings.seed), settings.runs)
    svi.init(keys[0], x)  # the guide is set up outside of the transformations
    params = fit(keys)
    each = [jax.tree.map(lambda value, i=i: value[i], params) for i in range(settings.runs)]
    return [guide.sample_posterior(keys[0], p, sample_shape=(settings.draws,)) for p in each]


def draw(rows: Rows) -> Any:
    """Predictive log-likelihood against epsilon, and the components that each method found."""
    figure, (left, middle, right) = new_figure(3)
    for style, (method, key, label) in zip(
        STYLES,
        [
            (DPVI, _dpvi_2017.PLD, "DPVI, PLD"),
            (DPVI, _dpvi_2017.MOMENTS, "DPVI, moments (2017)"),
            (SGLD, _dpvi_2017.PLD, "DP-SGLD, PLD"),
            (SGLD, "epsilon_2015", "DP-SGLD, constants of 2015"),
        ],
        strict=False,
    ):
        _dpvi_2017.curve(left, [row for row in rows if row["method"] == method], key, label, style)
    for method, dashes in ((NON_PRIVATE, (0, (4, 2))), (TRUTH, (0, (1, 3)))):
        (row,) = (row for row in rows if row["method"] == method)
        left.axhline(row["mean"], color="#000000", linewidth=0.7, linestyle=dashes, label=method)
    left.set(
        xscale="log",
        xlabel="ε at δ = 0.001",
        ylabel="log predictive density of a test point",
        title="Fig. 4",
    )
    left.legend(fontsize="x-small")
    for axes, method in ((middle, DPVI), (right, SGLD)):
        fits = [row for row in rows if row["method"] == method]
        if not fits:  # a quick run has no chains
            continue
        # The fit whose epsilon is nearest 1: Figure 5 has epsilon = 1.
        row = min(fits, key=lambda row: abs(np.log(row[_dpvi_2017.PLD])))
        _circles(axes, row["components"])
        axes.set(
            title=f"Fig. 5: {method}, ε = {row[_dpvi_2017.PLD]:.2g}",
            aspect="equal",
            xlim=(-5, 5),
            ylim=(-5, 5),
        )
    return figure


def _circles(axes: Any, learnt: dict[str, Any]) -> None:
    """Two standard deviations about each centre: the truth solid, what was learnt dashed, wider for a larger weight."""
    for centre in CENTRES:
        axes.add_patch(_circle(centre, VARIANCE, color="#999999", linewidth=1.0))
    for weight, centre, variance in zip(
        learnt["weights"], learnt["centres"], learnt["variances"], strict=True
    ):
        axes.add_patch(
            _circle(centre, variance, color="#000000", linewidth=0.4 + 6 * weight, linestyle="--")
        )
        axes.plot(*centre, "+", color="#000000", markersize=7)


def _circle(centre: Any, variance: float, **options: Any) -> Any:
    from matplotlib.patches import Circle

    return Circle(tuple(centre), 2 * float(np.sqrt(variance)), fill=False, **options)


def check(rows: Rows, quick: bool) -> None:
    """DPVI is near its non-private self at small epsilon, and far above DP-SGLD."""
    true, exact = (row["mean"] for row in rows if row["method"] in (TRUTH, NON_PRIVATE))
    dpvi = [row for row in rows if row["method"] == DPVI]
    sgld = [row for row in rows if row["method"] == SGLD]
    assert exact > true - 0.2, (exact, true)
    # A fit that found no components, one broad one over all five, is 0.4 nats below the truth.
    assert dpvi[0]["mean"] > exact - 0.3, (dpvi[0], exact)
    if sgld:
        # Each by the accountant of its time, over the paper's range of epsilon.
        _dpvi_2017.assert_above_langevin(dpvi, sgld, _dpvi_2017.MOMENTS, most=10.0)
    if not quick:
        small = [row for row in dpvi if row[_dpvi_2017.PLD] < 0.6]
        assert max(row["mean"] for row in small) > exact - 0.3, small


if __name__ == "__main__":
    experiment(__file__, __doc__, full=Settings(), quick=QUICK, run=run, draw=draw, check=check)
