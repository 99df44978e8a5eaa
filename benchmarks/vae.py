"""d3p's Table 2 auto-encoder on MNIST-shaped pixels, 688,884 parameters: private against NumPyro, and the peers.

python -m benchmarks.vae
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax

import discreet as dp
from benchmarks import _loops
from benchmarks._command import main
from benchmarks._fits import NonPrivateFit, PrivateFit, Problem, auto_encoder, reference_engine
from benchmarks._floor import floor_of_network
from benchmarks._harness import Outcome, Program, Scale, alternate
from benchmarks._jax_privacy import best_microbatch
from benchmarks._networks import Architecture, dense
from benchmarks._opacus import TorchFit
from benchmarks._peers import gather, load
from benchmarks._results import number
from benchmarks.machine import KEYSTREAM, keystream, triad
from discreet.privacy.gradients import SPARE
from discreet.privacy.gradients._bookkeeping import BookKeepingEngine, in_few_chunks
from discreet.privacy.gradients._sums import whole_lanes

RECORDS, HIDDEN, LATENT = 60_000, 400, 50
TRIAD = "least: a pass over three arrays of the parameters' size"
_BITS = 40  # of a value of the noise, at least: what one look-up needs
_WITHIN = 1.25


def measure(scale: Scale) -> list[Outcome]:
    """Batches of 128 with all peers, then of 1,024."""
    architecture = dense(HIDDEN, LATENT)
    problem = auto_encoder(architecture, scale.size(RECORDS, 8))
    small = _measure(architecture, problem, scale.size(128, 8), scale, "vae-128")
    if scale.tiny:
        return [small]
    return [small, _measure(architecture, problem, 1024, scale, "vae-1024")]


def _measure(
    architecture: Architecture,
    problem: Problem,
    batch_size: int,
    scale: Scale,
    name: str,
) -> Outcome:
    title = (
        f"VAE 784-400-50-400-784, {architecture.num_parameters:,} parameters, batch {batch_size:,}"
    )
    outcome = Outcome(name, title)
    few = 128 / batch_size if not scale.tiny else 1.0
    sampling = problem.poisson(batch_size)
    # Rounds of two seconds: what a fit does once, some 30 ms here, is little beside its steps.
    private = PrivateFit(problem, sampling, scale.steps(math.ceil(400 * few)))
    fixed = PrivateFit(problem, dp.FixedSizeSampling(batch_size), private.steps)
    plain = NonPrivateFit(problem, batch_size, scale.steps(math.ceil(500 * few)))
    contenders: dict[str, Callable[[], Program]] = {
        "NumPyro, not private": plain.program,
        "discreet, Poisson": lambda: private.program(
            "discreet, Poisson", "as DPSVI.run runs it; ChaCha20"
        ),
        "discreet, fixed size": lambda: fixed.program("discreet, fixed size"),
        "Opacus, ghost": lambda: _opacus(
            problem, batch_size, scale.steps(math.ceil(30 * few)), "ghost"
        ),
        "PyTorch, not private": lambda: _opacus(
            problem, batch_size, scale.steps(math.ceil(50 * few)), "non-private"
        ),
    }
    if name == "vae-128":
        contenders |= _slow_peers(architecture, problem, batch_size, scale, outcome)
    engine = private.step.engine
    assert isinstance(engine, BookKeepingEngine)
    chunk = whole_lanes(in_few_chunks(engine.rows))
    # Not more than records: the tests have few.
    rows = min(
        problem.num_records,
        chunk * math.ceil(sampling.typical_size(problem.num_records) / (chunk - SPARE)),
    )
    padded = f"part: NumPyro on {rows:,} rows, as a private step usually has"
    programs = [
        *gather(outcome, contenders),
        *parts_of(problem, sampling, private, scale),
        NonPrivateFit(problem, rows, plain.steps).program(padded),
        *least_of(architecture.num_parameters, scale),
    ]
    outcome.timings = alternate(programs, scale.rounds)
    outcome.facts |= {
        "num_parameters": architecture.num_parameters,
        "batch_size": batch_size,
        "rows_compiled_for": sampling.capacity(problem.num_records),
        "losses_finite": bool(
            abs(private.losses).max() < math.inf and abs(plain.losses).max() < math.inf
        ),
        "floor": floor_of_network(architecture, batch_size),
    }
    ours, theirs = "discreet, Poisson", "NumPyro, not private"
    floor = _floor(outcome, batch_size, theirs)
    shares = {
        "padding": outcome.together([padded], theirs) - 1,
        "noise": outcome.together([_loops.NOISE], theirs),
        "batch": outcome.together([_loops.BATCH], theirs),
    }
    reason = "of NumPyro's step: " + ", ".join(
        f"{what} {number(max(share, 0.0))}" for what, share in shares.items()
    )
    # Within a quarter of the least that there is.
    limit = None if floor is None else ("<=", _WITHIN * floor)
    outcome.compare("private / NumPyro, not private", ours, theirs, limit, reason, floor)
    outcome.compare("the same with batches of one size", "discreet, fixed size", theirs)
    outcome.compare("Poisson / batches of one size", ours, "discreet, fixed size", ("<=", 1.15))
    for name_of_peer, figure, limit in (
        ("Opacus, ghost", "Opacus, ghost / ours", 2.6),
        ("jax_privacy", "jax_privacy, best microbatch / ours", 10),
    ):
        reason = _at_the_floor(outcome, name_of_peer, theirs, floor)
        outcome.compare(figure, name_of_peer, ours, _at_least(name, limit), reason)
    outcome.compare("reference engine / ours", "reference engine", ours, _at_least(name, 40))
    outcome.compare("Opacus, hooks / ours", "Opacus, hooks", ours)
    outcome.compare("Opacus, ghost / PyTorch, not private", "Opacus, ghost", "PyTorch, not private")
    return outcome


def least_of(dim: int, scale: Scale) -> list[Program]:
    """What no step with integer noise can do without, at this machine's limits: words, and passes over the parameters."""
    words = keystream(_BITS * dim // 32, scale.steps(100))
    return [triad(TRIAD, dim, scale.steps(200)), *([] if words is None else [words])]


def _floor(outcome: Outcome, batch_size: int, theirs: str) -> float | None:
    """The least ratio to NumPyro's step; None without the cipher.

    Rows come in multiples of 16, half of which are filled up on average, and `SPARE`; they cost
    what NumPyro's cost. Then the noise's words, and ten passes over the parameters (three each of
    the triad's) of sum, noise and Adam, of which NumPyro has Adam's seven.
    """
    if KEYSTREAM not in {timing.name for timing in outcome.timings}:
        return None
    rows = (batch_size + 7.5 + SPARE) / batch_size
    words = outcome.together([KEYSTREAM], theirs)
    return rows + words + (10 - 7) / 3 * outcome.together([TRIAD], theirs)


def _at_the_floor(outcome: Outcome, peer: str, theirs: str, floor: float | None) -> str:
    """What the ratio to a peer would be with a step of ours at its floor."""
    if floor is None or peer not in {timing.name for timing in outcome.timings}:
        return ""
    return (
        f"with our step at its floor it would be {number(outcome.together([peer], theirs) / floor)}"
    )


def _at_least(name: str, limit: float) -> tuple[str, float] | None:
    return (">=", limit) if name == "vae-128" else None


def _opacus(problem: Problem, batch_size: int, steps: int, way: str) -> Program:
    names = {
        "ghost": "Opacus, ghost",
        "hooks": "Opacus, hooks",
        "non-private": "PyTorch, not private",
    }
    if way != "non-private":
        load("opacus")
    return TorchFit(problem, HIDDEN, LATENT, batch_size, steps, way).program(names[way])


def _slow_peers(
    architecture: Architecture, problem: Problem, batch_size: int, scale: Scale, outcome: Outcome
) -> dict[str, Callable[[], Program]]:
    tried: dict[str, float] = {}
    outcome.facts["jax_privacy_ms_by_microbatch"] = tried
    sampling = problem.poisson(batch_size)

    def reference() -> Program:
        fit = PrivateFit(
            problem, sampling, scale.steps(3), reference_engine(sampling, problem.num_records)
        )
        return fit.program("reference engine", "vmap of the gradient; the rest of the step is ours")

    return {
        "reference engine": reference,
        "jax_privacy": lambda: best_microbatch(
            architecture, problem, batch_size, scale.steps(10), tried
        ),
        "Opacus, hooks": lambda: _opacus(problem, batch_size, scale.steps(3), "hooks"),
    }


def parts_of(
    problem: Problem, sampling: dp.PoissonSampling, fit: PrivateFit, scale: Scale
) -> list[Program]:
    """The additional work of privacy in a step, and the optimizer, each alone."""
    parameters = fit.dpsvi.optim.get_params(fit.state.optim_state)
    steps = scale.steps(100)
    return [
        _loops.released_noise(fit.step.released, fit.step.levels, steps),
        _loops.drawn_batch(sampling, problem.data[0], steps),
        _loops.adam(
            "part: Adam", jax.tree.map(lambda x: x + 0, parameters), problem.learning_rate, steps
        ),
    ]


if __name__ == "__main__":
    main(measure, __doc__)
