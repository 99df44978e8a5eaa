"""Drawing batches, and the size of a batch: d3p (PoPETs 2022), Table 3 and Figure 3.

    python examples/paper/samplers.py            # five minutes on two idle cores
    python examples/paper/samplers.py --quick

Table 3: a private epoch on MNIST-shaped pixels whose batches are drawn by the Feistel network, by
`jax.random.choice` as in the paper, by NumPy, and as `dp.FixedSizeSampling` and
`dp.PoissonSampling` draw them (with ChaCha20 keys); and the draws alone. Figure 3: time of a step
against the batch size, private and NumPyro's SVI. All programs of a part take turns; medians over
rounds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from _experiment import STYLES, Rows, experiment, new_figure

import discreet as dp
from benchmarks._fits import NonPrivateFit, PrivateFit, Problem, auto_encoder
from benchmarks._harness import Program, alternate
from benchmarks._networks import dense
from discreet.interfaces.compat.d3p.feistel import feistel_permutation

FEISTEL, CHOICE, SHUFFLE = "Feistel, threefry", "jax.random.choice", "NumPy permutation"
FIXED, POISSON, FULL, PLAIN = "FixedSizeSampling", "PoissonSampling", "FullBatch", "NumPyro"
# Table 3, MNIST, seconds an epoch on a V100.
PAPER = {FEISTEL: 0.56, CHOICE: 0.66}

Draw = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes: `sweep` holds the batch sizes of Figure 3, `sweep_steps` a round's steps at batches of 64 and fewer."""

    num_records: int = 60_000
    batch_size: int = 128
    noise_multiplier: float = 1.5
    draws: int = 1_000
    few_draws: int = 60
    draw_rounds: int = 9
    epoch_samplers: tuple[str, ...] = (FEISTEL, CHOICE, FIXED, POISSON)
    epoch_steps: int = 100
    epoch_rounds: int = 9
    hidden: int = 400
    sweep: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    sweep_steps: int = 60
    sweep_rounds: int = 5


QUICK = Settings(
    num_records=10_000,
    draws=200,
    few_draws=4,
    draw_rounds=3,
    epoch_samplers=(CHOICE,),
    epoch_steps=5,
    epoch_rounds=2,
    hidden=20,
    sweep=(256,),
    sweep_steps=10,
    sweep_rounds=2,
)


def draws_of(settings: Settings) -> dict[str, Draw]:
    """Functions from a key to the row numbers of a batch, for JAX to compile."""
    size, records = settings.batch_size, settings.num_records

    def sampler(sampling: Any) -> Draw:
        tables = jax.tree.map(jnp.asarray, sampling.prepare(records))

        def draw(key: jax.Array) -> jax.Array:
            batch = sampling.draw(key, tables, num_records=records)
            return jnp.where(batch.mask, batch.indices, 0)

        return draw

    return {
        FEISTEL: lambda key: feistel_permutation(key, jnp.arange(size, dtype=jnp.int32), records),
        CHOICE: lambda key: jax.random.choice(key, records, (size,), replace=False).astype(
            jnp.int32
        ),
        FIXED: sampler(dp.FixedSizeSampling(size)),
        POISSON: sampler(dp.PoissonSampling(size / records)),
        FULL: sampler(dp.FullBatch()),
    }


def key_of(name: str) -> jax.Array:
    """Our samplers draw from secret keys, the paper's two from JAX's own generator."""
    return jax.random.key(0) if name in (FEISTEL, CHOICE) else dp.random.key()


def check_draws(settings: Settings) -> None:
    """Each batch holds different records of the table, and two keys give two batches."""
    for name, draw in draws_of(settings).items():
        key = key_of(name)
        first, second = (np.asarray(jax.jit(draw)(jax.random.fold_in(key, i))) for i in range(2))
        if name == POISSON:
            first, second = first[first > 0], second[second > 0]
        assert len(np.unique(first)) == len(first), name
        assert first.min() >= 0, name
        assert first.max() < settings.num_records, name
        assert name == FULL or set(first) != set(second), name


def drawing(settings: Settings) -> Rows:
    """Seconds that an epoch's draws take, each sampler alone."""
    programs = []
    for name, draw in draws_of(settings).items():
        steps = settings.draws if name in (FEISTEL, FIXED, POISSON) else settings.few_draws
        programs.append(_looped(name, draw, key_of(name), steps))
    rng, few = np.random.default_rng(0), settings.few_draws
    shuffle = Program(
        SHUFFLE, lambda: [rng.permutation(settings.num_records) for _ in range(few)], few
    )
    timings = alternate([*programs, shuffle], settings.draw_rounds)
    epoch = settings.num_records / settings.batch_size
    # Of the full batch one draw is an epoch; NumPy shuffles anew for each batch, as independent
    # batches need.
    return [
        _row(
            "draws of an epoch",
            timing.name,
            settings.batch_size if timing.name != FULL else settings.num_records,
        )
        | {"seconds": timing.median * (1 if timing.name == FULL else epoch)}
        for timing in timings
    ]


def _looped(name: str, draw: Draw, key: jax.Array, steps: int) -> Program:
    shape = jax.eval_shape(draw, key)

    @jax.jit
    def loop(key: jax.Array) -> jax.Array:
        start = jnp.zeros(shape.shape, jnp.int32)
        return jax.lax.fori_loop(
            0, steps, lambda i, total: total + draw(jax.random.fold_in(key, i)), start
        )

    return Program(name, lambda: jax.block_until_ready(loop(key)), steps)


def epochs(settings: Settings) -> Rows:
    """Seconds of a private epoch: the same private step on the batches of each sampler."""
    problem, fixed = _problem(settings), dp.FixedSizeSampling(settings.batch_size)
    plan = dp.PrivacyPlan(
        sampling=fixed,
        clipping_norm=problem.clipping_norm,
        noise_multiplier=settings.noise_multiplier,
        num_steps=10**6,
        num_records=settings.num_records,
        relation=dp.Relation.REPLACE_ONE,
    )
    optim = numpyro.optim.Adam(problem.learning_rate)
    dpsvi = dp.DPSVI(problem.model, problem.guide, optim, plan=plan, **problem.static)
    state = dpsvi.init(dp.random.key(), *problem.data)
    draws, programs = draws_of(settings), []
    for name in settings.epoch_samplers:
        if name == POISSON:
            poisson = PrivateFit(
                problem, problem.poisson(settings.batch_size), settings.epoch_steps
            )
            programs.append(poisson.program(POISSON, "as DPSVI.run runs it"))
        else:
            programs.append(_epoch(name, dpsvi, state, draws[name], problem, settings.epoch_steps))
    timings = alternate(programs, settings.epoch_rounds)
    epoch = settings.num_records / settings.batch_size
    return [
        _row("private epoch", timing.name, settings.batch_size)
        | {"seconds": timing.median * epoch, "paper_seconds": PAPER.get(timing.name)}
        for timing in timings
    ]


def _epoch(
    name: str, dpsvi: dp.DPSVI, state: Any, draw: Draw, problem: Problem, steps: int
) -> Program:
    (images,) = problem.data

    @jax.jit
    def loop(state: Any, key: jax.Array, images: jax.Array) -> Any:
        def body(i: jax.Array, state: Any) -> Any:
            rows = draw(jax.random.fold_in(key, i))
            mask = jnp.ones(len(rows), bool)
            return dp.inference.update_in_loop(dpsvi, state, images[rows], mask=mask)[0]

        return jax.lax.fori_loop(0, steps, body, state)

    key = key_of(name)
    # Timed, never released: each round starts from the same state.
    return Program(name, lambda: jax.block_until_ready(loop(state, key, images).optim_state), steps)


def sweep(settings: Settings) -> Rows:
    """Seconds of a step against the batch size."""
    problem, rows = _problem(settings), []
    for size in settings.sweep:
        steps = math.ceil(settings.sweep_steps * min(1.0, 64 / size))
        programs = [
            PrivateFit(problem, problem.poisson(size), steps).program(POISSON),
            NonPrivateFit(problem, size, steps).program(PLAIN),
        ]
        for timing in alternate(programs, settings.sweep_rounds):
            rows.append(_row("step", timing.name, size) | {"seconds": timing.median})
        # What was compiled for one size is of no use to the next.
        jax.clear_caches()
    return rows


def _problem(settings: Settings) -> Problem:
    return auto_encoder(dense(settings.hidden), settings.num_records)


def _row(what: str, side: str, batch_size: int) -> dict[str, Any]:
    return {
        "what": what,
        "side": side,
        "batch_size": batch_size,
        "seconds": None,
        "paper_seconds": None,
    }


def run(settings: Settings) -> Rows:
    """Draws, epochs, sweep."""
    check_draws(settings)
    return [*drawing(settings), *epochs(settings), *sweep(settings)]


def draw(rows: Rows) -> Any:
    """Draws and epochs as bars, and Figure 3."""
    figure, axes = new_figure(3)
    for panel, what in zip(axes, ("draws of an epoch", "private epoch"), strict=False):
        bars = [row for row in rows if row["what"] == what]
        panel.barh([row["side"] for row in bars], [row["seconds"] for row in bars], color="#666666")
        panel.set(
            xscale="log" if what.startswith("draws") else "linear", xlabel="seconds", title=what
        )
        panel.invert_yaxis()
    for side, style in zip((POISSON, PLAIN), STYLES, strict=False):
        line = [row for row in rows if row["what"] == "step" and row["side"] == side]
        name = "private, Poisson batches" if side == POISSON else "NumPyro, not private"
        milliseconds = [1e3 * row["seconds"] for row in line]
        axes[2].plot([row["batch_size"] for row in line], milliseconds, label=name, **style)
    axes[2].set(
        xscale="log", yscale="log", xlabel="batch size", ylabel="milliseconds", title="a step"
    )
    axes[2].legend(fontsize=7)
    return figure


def check(rows: Rows, quick: bool) -> None:
    """The Feistel network is cheaper than a permutation of the table; time grows at most linearly with the batch."""
    alone = {row["side"]: row["seconds"] for row in rows if row["what"] == "draws of an epoch"}
    assert max(alone[FEISTEL], alone[FIXED], alone[POISSON]) < alone[CHOICE] / 2, alone
    steps = {
        row["batch_size"]: row["seconds"]
        for row in rows
        if row["what"] == "step" and row["side"] == POISSON
    }
    assert min(steps.values()) > 0, steps
    if quick:
        return
    whole = {row["side"]: row["seconds"] for row in rows if row["what"] == "private epoch"}
    assert whole[FEISTEL] < whole[CHOICE], whole
    sizes = [size for size in steps if size >= 256]
    slope, _ = np.polyfit(np.log(sizes), np.log([steps[size] for size in sizes]), 1)
    assert 0.7 < slope < 1.3, (slope, steps)


if __name__ == "__main__":
    experiment(__file__, __doc__, full=Settings(), quick=QUICK, run=run, draw=draw, check=check)
