"""Hierarchical logistic regression on small tables: d3p (PoPETs 2022), section 5.3, Figures 4 to 6.

    python examples/paper/hierarchical.py            # twenty minutes on two cores
    python examples/paper/hierarchical.py --quick

Simulated from the model of Listing 4: five features, three groups that three public numbers
describe. Truth and group features stay; each seed draws its own training and held-out records,
equally many, and its own key. Where the paper is silent: batches of 32 (expected), C = 1 and Adam
1e-3 as in Listing 3, AUC of the posterior predictive mean over 200 draws. The non-private runs are
NumPyro's SVI, of which the last half of the iterates is averaged (discreet averages the tail of its
trace). The guide "listing 4" is q(M) p(w | M); "mean field" has Gaussians of their own for the
group weights. Private Newton (`dp.fit`) has no guide, iterations, batches or clipping norm to
choose.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _experiment import STYLES, Rows, experiment, new_figure
from numpyro.infer import SVI, Predictive, Trace_ELBO
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import discreet as dp

D, L, K = 5, 3, 3  # features, groups, features of a group
LISTING, MEAN_FIELD, NEWTON = "listing 4", "mean field", "private Newton"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes of the whole; `num_records` and `num_steps` are those of Figure 4, `sizes` and `steps` of Figures 5 and 6."""

    epsilons: tuple[float | None, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, None)
    num_records: int = 500
    sizes: tuple[int, ...] = (100, 200, 1000)
    num_steps: int = 100_000
    steps: tuple[int, ...] = (1_000, 3_000, 10_000, 30_000)
    batch_size: int = 32
    clipping_norm: float = 1.0
    learning_rate: float = 1e-3
    num_draws: int = 200
    seeds: tuple[int, ...] = tuple(range(10))
    truth_seed: int = 0
    with_mean_field: bool = True


QUICK = Settings(
    epsilons=(1.0, 8.0, None),
    sizes=(),
    num_steps=2_000,
    steps=(),
    learning_rate=1e-2,
    seeds=(0, 1),
    with_mean_field=False,
)


def model(xs, ys, ls, gs, N):
    """Listing 4: weights of each group around a linear map of its public features."""
    m: Any = numpyro.sample("M", dist.Normal(0, 4).expand([D, K]).to_event(2))
    with numpyro.plate("group", L):
        ws: Any = numpyro.sample("ws", dist.Normal(gs @ m.T, 1).to_event(1))
    with numpyro.plate("batch", N, xs.shape[0]):
        numpyro.sample("ys", dist.Bernoulli(logits=jnp.sum(xs * ws[ls], axis=-1)), obs=ys)


def guide_of(name: str):
    """The guide of that name."""

    def guide(xs, ys, ls, gs, N):
        m: Any = numpyro.sample("M", _gaussian("M", (D, K)).to_event(2))
        weights = dist.Normal(gs @ m.T, 1) if name == LISTING else _gaussian("w", (L, D))
        with numpyro.plate("group", L):
            numpyro.sample("ws", weights.to_event(1))

    return guide


def _gaussian(name: str, shape: tuple[int, int]) -> dist.Distribution:
    loc: Any = numpyro.param(f"{name}_loc", jnp.zeros(shape))
    log_scale: Any = numpyro.param(f"{name}_scale_log", jnp.zeros(shape))
    return dist.Normal(loc, jnp.exp(log_scale))


def simulated(settings: Settings, num_records: int) -> tuple[np.ndarray, list[Any]]:
    """Group features, and (training, held-out) records for each seed."""
    truth = np.random.default_rng(settings.truth_seed)
    gs = truth.normal(size=(L, K)).astype(np.float32)
    ws = gs @ truth.normal(size=(D, K)).T + truth.normal(size=(L, D))

    def records(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        xs, ls = rng.normal(size=(num_records, D)), rng.integers(0, L, num_records)
        ys = rng.random(num_records) < 1 / (1 + np.exp(-np.sum(xs * ws[ls], axis=1)))
        return xs.astype(np.float32), ys.astype(np.float32), ls.astype(np.int32)

    generators = [
        np.random.default_rng((settings.truth_seed, num_records, seed)) for seed in settings.seeds
    ]
    return gs, [(records(rng), records(rng)) for rng in generators]


def auc(weights: Any, held_out: tuple[np.ndarray, ...]) -> float:
    """Area under the ROC curve of the predictive mean, from draws of the groups' weights."""
    xs, ys, ls = held_out
    logits = np.einsum("nd,snd->sn", xs, np.asarray(weights)[:, ls])
    return float(roc_auc_score(ys, np.mean(1 / (1 + np.exp(-logits)), axis=0)))


def baseline(tables: list[Any]) -> list[float]:
    """Scikit-learn's logistic regression, which knows of no groups."""
    reached = []
    for (xs, ys, _), (xs_test, ys_test, _) in tables:
        fitted = LogisticRegression().fit(xs, ys)
        reached.append(float(roc_auc_score(ys_test, fitted.predict_proba(xs_test)[:, 1])))
    return reached


def private(
    settings: Settings,
    epsilon: float,
    num_steps: int,
    guide: str,
    gs: np.ndarray,
    tables: list[Any],
) -> Any:
    """AUC of each seed, processor seconds of each run, noise multiplier; every run of the same compiled program."""
    num_records = len(tables[0][0][0])
    plan = dp.PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=1 / num_records,
        num_records=num_records,
        num_steps=num_steps,
        sampling=dp.PoissonSampling(min(1.0, settings.batch_size / num_records)),
        clipping_norm=settings.clipping_norm,
    )
    optim = numpyro.optim.Adam(settings.learning_rate)
    dpsvi = dp.DPSVI(model, guide_of(guide), optim, plan=plan, gs=gs, N=num_records)
    reached, seconds = [], []
    for seed, (training, held_out) in zip(settings.seeds, tables, strict=True):
        started = time.process_time()
        result = dpsvi.run(dp.random.key(seed), *training, progress_bar=False)
        seconds.append(time.process_time() - started)
        reached.append(
            auc(result.posterior(dp.random.key(1_000 + seed), settings.num_draws)["ws"], held_out)
        )
    return reached, seconds, plan.noise_multiplier


def non_private(
    settings: Settings, num_steps: int, guide: str, gs: np.ndarray, tables: list[Any]
) -> list[float]:
    """AUC of each seed by NumPyro's SVI, all seeds in one compiled loop."""
    num_records, program = len(tables[0][0][0]), guide_of(guide)
    static = {"gs": gs, "N": num_records}
    svi = SVI(model, program, numpyro.optim.Adam(settings.learning_rate), Trace_ELBO(), **static)

    def fit(key: jax.Array, data: tuple[jax.Array, ...]) -> Any:
        state = svi.init(key, *data)

        def body(i: jax.Array, carry: Any) -> Any:
            state, mean = carry
            rows = jax.random.randint(
                jax.random.fold_in(key, i), (settings.batch_size,), 0, num_records
            )
            state, _ = svi.update(state, *(x[rows] for x in data))
            share = jnp.where(i < num_steps // 2, 1.0, 1.0 / (i - num_steps // 2 + 1))
            return state, jax.tree.map(
                lambda a, b: a + share * (b - a), mean, svi.get_params(state)
            )

        return jax.lax.fori_loop(0, num_steps, body, (state, svi.get_params(state)))[1]

    keys = jax.vmap(jax.random.key)(jnp.asarray(settings.seeds))
    stacked = tuple(
        jnp.stack(columns) for columns in zip(*(training for training, _ in tables), strict=True)
    )
    fitted = jax.jit(jax.vmap(fit))(keys, stacked)
    draw = jax.jit(
        jax.vmap(
            lambda key, params, data: Predictive(
                program, params=params, num_samples=settings.num_draws
            )(key, *data, **static)
        )
    )
    weights = draw(keys, fitted, stacked)["ws"]
    return [auc(each, held_out) for each, (_, held_out) in zip(weights, tables, strict=True)]


def newton(settings: Settings, epsilon: float, gs: np.ndarray, tables: list[Any]) -> Any:
    """AUC of each seed, and processor seconds of each run, by private Newton."""
    num_records = len(tables[0][0][0])
    static = {"gs": gs, "N": num_records}
    terms: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": 1 / num_records,
        "static": static,
        "progress_bar": False,
    }
    reached, seconds = [], []
    for seed, (training, held_out) in zip(settings.seeds, tables, strict=True):
        started = time.process_time()
        with warnings.catch_warnings():
            # Where the noise hides the model, a fit says so: here that is what the figure shows.
            warnings.simplefilter("ignore", dp.inference.UseWarning)
            result = dp.fit(model, *training, rng_key=dp.random.key(seed), **terms)
        assert isinstance(result, dp.newton.DPNewtonResult), result
        seconds.append(time.process_time() - started)
        reached.append(auc(result.draws["ws"], held_out))
    return reached, seconds


def cases_of(settings: Settings) -> list[tuple[int, int | None, str, float | None]]:
    """Records, iterations, guide and epsilon. Figures 4 to 6 share their middle: `num_records` and `num_steps`."""
    cases: list[tuple[int, int | None, str]] = [(settings.num_records, settings.num_steps, LISTING)]
    cases += [(size, settings.num_steps, LISTING) for size in settings.sizes]
    cases += [(settings.num_records, steps, LISTING) for steps in settings.steps]
    cases += [(settings.num_records, settings.num_steps, MEAN_FIELD)] * settings.with_mean_field
    cases += [(size, None, NEWTON) for size in (settings.num_records, *settings.sizes)]
    return [
        (*case, epsilon)
        for case in cases
        for epsilon in settings.epsilons
        if epsilon is not None or case[2] != NEWTON
    ]


def row_of(
    settings: Settings, num_records: int, num_steps: int | None, guide: str, epsilon: float | None
) -> dict[str, Any]:
    """One setting, all seeds."""
    gs, tables = simulated(settings, num_records)
    simple, seconds, noise_multiplier = baseline(tables), [], None
    if num_steps is None:
        assert epsilon is not None
        reached, seconds = newton(settings, epsilon, gs, tables)
    elif epsilon is None:
        reached = non_private(settings, num_steps, guide, gs, tables)
    else:
        reached, seconds, noise_multiplier = private(
            settings, epsilon, num_steps, guide, gs, tables
        )
    return {
        "guide": guide,
        "num_records": num_records,
        "num_steps": num_steps,
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "auc": statistics.mean(reached),
        "stdev": statistics.stdev(reached),
        "baseline": statistics.mean(simple),
        # The first run is compiled and proved as well. Of the processor, not by the clock: other
        # programs may run.
        "first_seconds": seconds[0] if seconds else None,
        "seconds": statistics.median(seconds[1:]) if seconds else None,
        "aucs": reached,
        "baselines": simple,
    }


def run(settings: Settings) -> Rows:
    """A row for each case."""
    rows = []
    for case in cases_of(settings):
        rows.append(row_of(settings, *case))
        print(
            "N = {}, T = {}, {}, epsilon = {}:".format(*case),
            f"AUC {rows[-1]['auc']:.3f}",
            flush=True,
        )
    return rows


def draw(rows: Rows) -> Any:
    """Figures 4, 5 and 6 side by side."""
    figure, (left, middle, right) = new_figure(3)
    num_records, num_steps = rows[0]["num_records"], rows[0]["num_steps"]
    listing = [row for row in rows if row["guide"] == LISTING]
    boxes = [
        row for row in listing if (row["num_records"], row["num_steps"]) == (num_records, num_steps)
    ]
    labels = [_label(row["epsilon"]) for row in boxes]
    left.boxplot(
        [row["aucs"] for row in boxes], tick_labels=labels, medianprops={"color": "#000000"}
    )
    without_steps = {
        row["epsilon"]: row
        for row in rows
        if row["guide"] == NEWTON and row["num_records"] == num_records
    }
    places = [place for place, row in enumerate(boxes, 1) if row["epsilon"] in without_steps]
    means = [
        without_steps[row["epsilon"]]["auc"] for row in boxes if row["epsilon"] in without_steps
    ]
    left.plot(places, means, "*", color="#000000", markersize=9, label=f"{NEWTON}, mean")
    left.set(
        xlabel="ε",
        ylabel="AUC on held-out records",
        title=f"N = {num_records:,}, {num_steps:,} iterations",
    )
    for axes, name, fixed in (
        (middle, "num_records", "num_steps"),
        (right, "num_steps", "num_records"),
    ):
        for epsilon, style in zip([row["epsilon"] for row in boxes], STYLES, strict=False):
            line = [
                row for row in listing if row["epsilon"] == epsilon and row[fixed] == rows[0][fixed]
            ]
            line.sort(key=lambda row: row[name])
            means, spread = (np.array([row[key] for row in line]) for key in ("auc", "stdev"))
            places = [row[name] for row in line]
            axes.plot(places, means, label=f"ε = {_label(epsilon)}", **style)
            axes.fill_between(
                places,
                means - spread,
                means + spread,
                color=style["color"],
                alpha=0.08,
                linewidth=0,
            )
        axes.set(xscale="log", xlabel="records" if name == "num_records" else "iterations")
    largest = max(row["epsilon"] for row in boxes if row["epsilon"] is not None)
    line = [row for row in rows if row["guide"] == NEWTON and row["epsilon"] == largest]
    line.sort(key=lambda row: row["num_records"])
    middle.plot(
        [row["num_records"] for row in line],
        [row["auc"] for row in line],
        label=f"{NEWTON}, ε = {largest:g}",
        **STYLES[-1],
    )
    middle.legend(handles=middle.get_lines()[-1:], fontsize=7)
    middle.set_title(f"{num_steps:,} iterations, mean ± stdev")
    right.set_title(f"N = {num_records:,}, mean ± stdev")
    for axes in (left, right):
        axes.axhline(
            rows[0]["baseline"],
            color="#777777",
            linestyle=(0, (1, 1)),
            label="no groups, not private",
        )
    right.legend(fontsize=7)
    left.legend(fontsize=7)
    return figure


def _label(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:g}"


def check(rows: Rows, quick: bool) -> None:
    """Check the paper's findings; for a quick run, that both fits learn and privacy costs."""
    at = {(row["guide"], row["num_records"], row["num_steps"], row["epsilon"]): row for row in rows}
    num_records, num_steps = rows[0]["num_records"], rows[0]["num_steps"]
    level = {
        epsilon: row["auc"]
        for (guide, *where, epsilon), row in at.items()
        if (guide, *where) == (LISTING, num_records, num_steps)
    }
    assert level[None] > rows[0]["baseline"] + 0.03, level
    assert level[8.0] > rows[0]["baseline"], level
    assert level[1.0] <= level[8.0] + 0.01, level
    by_newton = at[NEWTON, num_records, None, 8.0]
    assert by_newton["auc"] > rows[0]["baseline"], by_newton
    if quick:
        return
    assert by_newton["auc"] > level[8.0] - 0.03, (by_newton, level)
    assert min(level[4.0], level[8.0]) > level[None] - 0.02, level
    assert level[2.0] > rows[0]["baseline"], level
    for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
        path = [row for row in rows if row["guide"] == LISTING and row["epsilon"] == epsilon]
        longer = {row["num_steps"]: row for row in path if row["num_records"] == num_records}
        best = max(longer.values(), key=lambda row: row["auc"])
        error = (
            2
            * (best["stdev"] ** 2 + longer[num_steps]["stdev"] ** 2) ** 0.5
            / len(best["aucs"]) ** 0.5
        )
        assert longer[num_steps]["auc"] > best["auc"] - error, (epsilon, best["num_steps"])
        larger = {row["num_records"]: row["auc"] for row in path if row["num_steps"] == num_steps}
        assert larger[min(larger)] < larger[max(larger)], (epsilon, larger)


if __name__ == "__main__":
    experiment(__file__, __doc__, full=Settings(), quick=QUICK, run=run, draw=draw, check=check)
