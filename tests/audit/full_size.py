"""The audit at full size: `make audit`. Writes docs/audit/*.json and *.svg; the site makes the tables of docs/audit.md of them.

    python -m tests.audit.full_size [--runs 100000] [--out docs]

Exit code 1 if a true claim is contradicted or a planted fault is not caught.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from dp_accounting import dp_event
from numpyro.infer import init_to_feasible
from numpyro.infer.autoguide import AutoNormal
from tests.audit.planted import FAULTS, FURTHER_FAULTS, plan

import discreet as dp
from discreet.methods.audit import (
    Verdict,
    audit_fit,
    audit_mechanism,
    audit_one_run,
    canary_fit,
    worst_case,
)
from discreet.methods.plots import new_figure, tidy
from discreet.privacy.accounting import profile

ADD, REPLACE = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
DELTA = 1e-5
Audits = dict[str, Callable[[], Verdict]]


def worst_cases(runs: int) -> Audits:
    cases = {
        "DPSVI, full batch, 1 step, σ = 1": (plan(dp.FullBatch(), 1.0), "DPSVI"),
        "DPSVI, full batch, 8 steps, σ = √8": (plan(dp.FullBatch(), math.sqrt(8), 8), "DPSVI"),
        "DPSVI, full batch, one replaced, 4 steps, σ = 4": (
            plan(dp.FullBatch(), 4.0, 4, REPLACE),
            "DPSVI",
        ),
        "DPSVI, Poisson q = 0.3, 8 steps, σ = 1.5": (
            plan(dp.PoissonSampling(0.3), 1.5, 8, num_records=1000),
            "DPSVI",
        ),
        "DPSVI, Poisson q = 0.02, 16 steps, σ = 0.7": (
            plan(dp.PoissonSampling(0.02), 0.7, 16, num_records=1000),
            "DPSVI",
        ),
        "DPSVI, Poisson q = 0.3, one replaced, 4 steps, σ = 2": (
            plan(dp.PoissonSampling(0.3), 2.0, 4, REPLACE),
            "DPSVI",
        ),
        "DPSVI, batches of 3 of 8, 4 steps, σ = 3": (
            plan(dp.FixedSizeSampling(3), 3.0, 4, REPLACE),
            "DPSVI",
        ),
        "DPSVI, C follows a quantile, full batch, 4 steps, σ = 2": (
            dataclasses.replace(
                plan(dp.FullBatch(), 2.0, 4), clipping_norm=dp.AdaptiveClipping(initial=1.0)
            ),
            "DPSVI",
        ),
        "DPSGLD, full batch, 4 steps, σ = 2": (plan(dp.FullBatch(), 2.0, 4), "DPSGLD"),
        "DPSGLD, Poisson q = 0.3, 8 steps, σ = 1.5": (
            plan(dp.PoissonSampling(0.3), 1.5, 8, num_records=1000),
            "DPSGLD",
        ),
        "DPSGLD, batches of 3 of 8, 4 steps, σ = 3": (
            plan(dp.FixedSizeSampling(3), 3.0, 4, REPLACE),
            "DPSGLD",
        ),
    }
    found: Audits = {
        name: lambda case=case: worst_case(*case).audit(delta=DELTA, runs=runs, progress_bar=False)
        for name, case in cases.items()
    }
    found["DPSVI with a private loss (share 0.3), full batch, 4 steps, σ = 2"] = lambda: worst_case(
        plan(dp.FullBatch(), 2.0, 4), loss_share=0.3
    ).audit(delta=DELTA, runs=runs, progress_bar=False)
    return found


def mechanisms(runs: int) -> Audits:
    gaussian = profile(dp_event.GaussianDpEvent(1.0), ADD)

    def sums(mechanism):
        return [lambda key, x=x: mechanism(key, jnp.float32(x), 1.0) for x in (1.0, 0.0)]

    def sampled(draw, stddev):
        """The marked primitives in a program of one's own; `draw` gives a batch and its mask."""

        def program(key):
            first, second = jax.random.split(key)
            batch, mask = draw(first)
            return dp.gaussian_mechanism(
                second, dp.sum_records(dp.clip_records(batch, 1.0), mask), stddev
            )

        return program

    def poisson(x):
        return sampled(lambda key: dp.poisson_subsample(key, jnp.asarray(x), 0.3), 1.0)

    def fixed(x):
        full = jnp.ones(3, bool)
        return sampled(
            lambda key: (dp.subsample_without_replacement(key, jnp.asarray(x), 3), full), 3.0
        )

    options = {"runs": runs, "progress_bar": False}
    lonely, crowd = (
        np.array([[5.0], [0.0]], np.float32),
        np.array([[5.0], *[[-5.0]] * 7], np.float32),
    )
    return {
        "gaussian_mechanism, σ = 1": lambda: audit_mechanism(
            *sums(dp.gaussian_mechanism), claim=gaussian, delta=DELTA, **options
        ),
        "laplace_mechanism, scale 1 (δ = 0)": lambda: audit_mechanism(
            *sums(dp.laplace_mechanism), claim=1.0, delta=0.0, **options
        ),
        "poisson_subsample, clip, sum and noise, q = 0.3, σ = 1": lambda: audit_mechanism(
            poisson(lonely),
            poisson(lonely[1:]),
            claim=plan(dp.PoissonSampling(0.3), 1.0),
            delta=DELTA,
            **options,
        ),
        "subsample_without_replacement, likewise, 3 of 8, σ = 3": lambda: audit_mechanism(
            fixed(crowd),
            fixed(-np.abs(crowd)),
            claim=plan(dp.FixedSizeSampling(3), 3.0, 1, REPLACE),
            delta=DELTA,
            **options,
        ),
    }


def coin(y):
    rate = numpyro.sample("rate", dist.Beta(1, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(rate), obs=y)


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def one_draw(runs: int) -> Verdict:
    options = {"num_draws": 1000, "num_warmup": 200, "num_samples": 10, "num_records": 6}
    ops = dp.OnePosteriorSample(coin, log_likelihood_bound=(-2.0, 0.0), epsilon=2.0, **options)
    there, gone = np.ones(6, np.float32), np.array([0, 1, 1, 1, 1, 1], np.float32)
    return audit_fit(ops, (there,), (gone,), runs=runs, progress_bar=False)


def regression(runs: int) -> Verdict:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 0.1, (30, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.float32)
    there = (
        np.concatenate([np.array([[9, -9]], np.float32), x]),
        np.concatenate([np.zeros(1, np.float32), y]),
    )
    claim = plan(dp.PoissonSampling(0.3), 1.5, 8, num_records=30)
    # So slow that the canary does not come to be explained.
    fit = dp.DPSVI(
        logistic,
        AutoNormal(logistic, init_loc_fn=init_to_feasible),
        numpyro.optim.SGD(1e-3),
        plan=claim,
    )
    return audit_fit(fit, there, (x, y), delta=DELTA, runs=runs, progress_bar=False)


def by_one_run() -> Verdict:
    claim = plan(dp.FullBatch(), 0.5)
    return audit_one_run(canary_fit(claim, 1000), 1000, claim=claim, delta=DELTA)


def others(runs: int) -> Audits:
    return {
        "DPSVI, logistic regression of 30 records, q = 0.3, 8 steps, σ = 1.5": lambda: regression(
            runs // 2
        ),
        "OnePosteriorSample, one draw (δ = 0)": lambda: one_draw(max(1000, runs // 25)),
        "DPSVI, full batch, 1 step, σ = 0.5, by one run of 1,000 canaries": by_one_run,
    }


def fixed_as_poisson(runs: int) -> Verdict:
    """Batches of fixed size, held against the formula for Poisson batches of the same rate (d3p's; DESIGN.md's first trap)."""
    fixed = plan(dp.FixedSizeSampling(1), 1.0, 1000, REPLACE, num_records=100)
    step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
    claim = profile(dp_event.SelfComposedDpEvent(step, 1000), ADD)
    verdict = worst_case(fixed).audit(delta=DELTA, runs=runs, progress_bar=False)
    return dataclasses.replace(
        verdict,
        claimed_epsilon=claim.epsilon(DELTA),
        allowed_power=float(claim.true_positive_rate(verdict.false_alarm)),
    )


def planted(scale: float) -> Iterator[tuple[Verdict, str]]:
    for fault in (*FAULTS, *FURTHER_FAULTS):
        with pytest.MonkeyPatch.context() as patch:
            fault.plant(patch)
            verdict = dataclasses.replace(fault, runs=max(20, round(fault.runs * scale))).audit()
            yield dataclasses.replace(verdict, target=fault.name), fault.because
    verdict = fixed_as_poisson(max(20, round(2000 * scale)))
    why = "1 of 100 records a batch, 1,000 steps, the others pull the other way"
    yield dataclasses.replace(verdict, target="Poisson's ε for batches of fixed size"), why


def plot_verdicts(verdicts: list[Verdict], path: Path) -> None:
    """A picture: a bar for each lower bound, and a line for its claim."""
    figure = new_figure(8.0, 1.1 + 0.33 * len(verdicts))
    axes = figure.subplots()
    farthest = max(
        x for v in verdicts for x in (v.epsilon_lower, v.claimed_epsilon, 0.1) if math.isfinite(x)
    )
    for row, verdict in enumerate(verdicts):
        shade = "0.5" if verdict.contradicted else "0.8"
        reached = min(verdict.epsilon_lower, farthest)
        axes.barh(row, reached, height=0.6, color=shade)
        if math.isfinite(verdict.claimed_epsilon):
            axes.plot(
                [verdict.claimed_epsilon] * 2, [row - 0.42, row + 0.42], color="black", linewidth=2
            )
        if verdict.contradicted:
            axes.text(max(reached, 0.0), row, "  contradicted", va="center", fontsize="small")
    axes.set_yticks(
        range(len(verdicts)), [verdict.target for verdict in verdicts], fontsize="small"
    )
    axes.set_ylim(len(verdicts) - 0.4, -0.6)
    accused = any(verdict.contradicted for verdict in verdicts)
    axes.set_xlim(0, (1.25 if accused else 1.05) * farthest)
    axes.set_xlabel("ε")
    figure.suptitle("Bar: measured lower bound. Line: claimed upper bound.", fontsize="small")
    tidy(axes)
    figure.savefig(path, dpi=100)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=400_000, help="fits of each table (%(default)s)"
    )
    parser.add_argument(
        "--faults", type=float, default=1.0, help="scale of the planted faults' numbers of fits"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs"), help="folder of audit/ (%(default)s)"
    )
    arguments = parser.parse_args()
    verdicts = []
    for name, audit in (
        mechanisms(arguments.runs) | worst_cases(arguments.runs) | others(arguments.runs // 4)
    ).items():
        started, used = time.perf_counter(), time.process_time()
        verdicts.append(dataclasses.replace(audit(), target=name))
        seconds = time.perf_counter() - started, time.process_time() - used
        print(
            f"{name}: {verdicts[-1].epsilon_lower:.3f} of {verdicts[-1].claimed_epsilon:.3f}",
            end="",
        )
        print(f", {seconds[0]:.0f} s, {seconds[1]:.0f} s of CPU", flush=True)
    faults = []
    for verdict, because in planted(arguments.faults):
        faults.append((verdict, because))
        print(
            f"{verdict.target}: {verdict.epsilon_lower:.3f}, claimed {verdict.claimed_epsilon:.3f}",
            flush=True,
        )
    folder = arguments.out / "audit"
    folder.mkdir(parents=True, exist_ok=True)
    plot_verdicts(verdicts, folder / "claims.svg")
    plot_verdicts([verdict for verdict, _ in faults], folder / "faults.svg")
    content = {
        "runs": arguments.runs,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "claims": [x.to_dict() for x in verdicts],
        "faults": [x.to_dict() | {"because": because} for x, because in faults],
    }
    (folder / "results.json").write_text(
        json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    accused = [x.target for x in verdicts if x.contradicted]
    missed = [x.target for x, _ in faults if x.epsilon_lower <= x.claimed_epsilon]
    print(
        f"True claims contradicted: {accused or 'none'}. Planted faults missed: {missed or 'none'}."
    )
    return 1 if accused or missed else 0


if __name__ == "__main__":
    sys.exit(main())
