"""Each workload runs at a small size and does the work that it claims; no time is asserted."""

import dataclasses
import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from dp_accounting.dp_event import GaussianDpEvent
from numpyro.infer import Trace_ELBO

import discreet as dp
from benchmarks import (
    _child,
    _jax_privacy,
    _opacus,
    _pictures,
    _results,
    batch_sweep,
    compile_time,
    conv_vae,
    figures,
    first_answer,
    full_batch,
    hierarchical,
    logistic,
    memory,
    mixture,
    posteriors,
    public_tables,
    shards,
    simulated_tables,
    synthetic,
    vae,
)
from benchmarks._fits import NonPrivateFit, PrivateFit, Problem, auto_encoder, reference_engine
from benchmarks._harness import TINY, Outcome
from benchmarks._networks import convolutional, dense
from benchmarks._peers import AbsentError, gather, load
from discreet.methods.newton import NewtonPlan
from discreet.privacy.accounting import profile
from discreet.privacy.gradients import Channels, ReferenceEngine
from discreet.tabular.tables import open_records

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    # jax_privacy 2.0 on optax 0.2.8
    pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning"),
]

SMALL = dense(hidden=12, latent_dim=3, pixels=20)


@pytest.fixture
def one_fit_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """All private contenders of a workload are one: most of a test's time would go into compiling the others."""
    made: dict[int, PrivateFit] = {}

    def fit(problem: Problem, sampling: Any, steps: int, engine: Any = None) -> PrivateFit:
        del engine
        if id(problem) not in made:
            made[id(problem)] = PrivateFit(problem, sampling, steps)
        return made[id(problem)]

    for module in (batch_sweep, conv_vae, hierarchical, logistic, mixture, vae):
        monkeypatch.setattr(module, "PrivateFit", fit)


def measured(name: str) -> list[Outcome]:
    outcomes = importlib.import_module(f"benchmarks.{name}").measure(TINY)
    results = _results.new()
    _results.add(results, lambda scale: outcomes, TINY)
    assert _results.as_markdown(results)
    for outcome in outcomes:
        assert all(math.isfinite(figure.value) and figure.value > 0 for figure in outcome.figures)
        assert outcome.facts.get("losses_finite", True)
    return outcomes


def bounds(outcome: Outcome) -> dict[str, tuple[str, float]]:
    return {figure.name: figure.bound for figure in outcome.figures if figure.bound is not None}


def test_networks_are_d3ps_to_the_last_parameter() -> None:
    assert dense().num_parameters == 688_884
    assert convolutional().num_parameters == 640_423


@pytest.mark.usefixtures("one_fit_a_problem")
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("samplers", {"sampler-scaling": {"N = 10,000 / N = 1,000": ("<=", 1.3)}}),
        ("noise", {"noise": {"ChaCha20 / threefry, normal variables": ("<=", 1.0)}}),
        ("machine", {}),
        ("calibration", {}),
        pytest.param(
            "tables",
            {
                "tables": {"discreet, convert / pyarrow, read_csv": ("<=", 1.5)},
                "out-of-core": {"in a file / in memory": ("<=", 1.5)},
            },
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "logistic",
            {"logistic": {"private / NumPyro, not private": ("<=", 1.6)}},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param("mixture", {}, marks=pytest.mark.exhaustive),
        pytest.param(
            "hierarchical",
            {
                "hierarchical": {
                    "private / by hand, same work": ("<=", 1.6),
                    "private / by hand, threefry": ("<=", 1.8),
                }
            },
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_small_workloads(name: str, asked: dict[str, Any]) -> None:
    for outcome in measured(name):
        assert bounds(outcome) == asked.get(outcome.name, {})


@pytest.mark.exhaustive
@pytest.mark.usefixtures("one_fit_a_problem")
def test_vae_with_all_peers() -> None:
    (outcome,) = measured("vae")
    assert outcome.facts["num_parameters"] == 688_884
    (step,) = [x for x in outcome.figures if x.name == "private / NumPyro, not private"]
    assert step.floor is not None
    assert step.floor > 1
    assert "padding" in step.reason
    asked = {
        "private / NumPyro, not private": ("<=", 1.25 * step.floor),
        "Poisson / batches of one size": ("<=", 1.15),
        "reference engine / ours": (">=", 40),
    }
    if "jax_privacy" not in outcome.skipped:
        asked["jax_privacy, best microbatch / ours"] = (">=", 10)
    if "Opacus, ghost" not in outcome.skipped:
        asked["Opacus, ghost / ours"] = (">=", 2.6)
    assert bounds(outcome) == asked
    assert {timing.name for timing in outcome.timings} >= {"part: integer noise", "part: Adam"}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("one_fit_a_problem")
def test_convolutional_vae() -> None:
    (outcome,) = measured("conv_vae")
    assert bounds(outcome) == {"private / NumPyro, not private, the quicker way": ("<=", 2.0)}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("one_fit_a_problem")
def test_sweep_is_plotted(tmp_path: Path) -> None:
    results = _results.new()
    _results.add(results, batch_sweep.measure, TINY)
    workload = results["workloads"]["batch-sweep"]
    assert [figure["name"] for figure in workload["figures"]] == [
        f"batch {size}: private / not private" for size in workload["facts"]["sizes"]
    ]
    batch_sweep.plot(workload, tmp_path / "sweep.svg")
    assert "batch size" in (tmp_path / "sweep.svg").read_text(encoding="utf-8")


def test_compile_time_and_memory_ask_for_fresh_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(*question: Any) -> dict[str, float]:
        asked.append(question)
        return {
            "init_seconds": 1.0,
            "compile_seconds": 3.0,
            "xla_seconds": 2.0,
            "working_bytes": 2**20,
            "peak_bytes": 2**30,
        }

    monkeypatch.setattr(compile_time, "ask", answer)
    monkeypatch.setattr(memory, "ask", answer)
    quick = dataclasses.replace(TINY, tiny=False)
    (times,), (peaks,) = compile_time.measure(quick), memory.measure(quick)
    assert bounds(times) == {"vae: compile": ("<=", 8.0), "logistic: compile": ("<=", 2.0)}
    assert [figure.met for figure in times.figures if figure.bound] == [True, False]
    assert all("compiles for 2.00 s" in figure.reason for figure in times.figures if figure.bound)
    assert set(bounds(peaks).values()) == {("<=", 1.3), ("<=", 2048)}
    assert set(asked) == {
        ("compile", "vae", "private", 128, 60_000),
        ("compile", "vae", "non-private", 128, 60_000),
        ("compile", "logistic", "private", 500, 50_000),
        ("compile", "logistic", "non-private", 500, 50_000),
        ("memory", "vae", "private", 1024, 60_000),
        ("memory", "vae", "non-private", 1024, 60_000),
        ("memory", "vae", "private", 8192, 60_000),
    }


def test_public_tables_are_read_in_one_way_and_intervals_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    age = rng.integers(21, 68, 2_000)
    ill = np.where(rng.random(2_000) < 1 / (1 + np.exp(-(age - 45) / 10)), "yes", "no")
    town = rng.choice(["north", "south", "east"], 2_000)
    frame = pandas.DataFrame(
        {"id": range(2_000), "age": age, "town": town, "ill": ill, "visits": rng.poisson(age / 20)}
    )
    monkeypatch.setattr(public_tables, "load", lambda *_: Mock(data=lambda name: frame))
    ill = public_tables.Source("made up", "ill", "yes", without=("id", "visits"))
    visits = public_tables.Source("made up", "visits", without=("id", "ill"))
    table = public_tables.read(ill)
    assert table.x.shape == (1_600, 3)
    assert table.levels.tolist() == [False, True, True]
    assert -1 <= table.x.min() < table.x.max() <= 1
    monkeypatch.setattr(public_tables, "SOURCES", (ill, visits))
    monkeypatch.setattr(public_tables, "EPSILONS", (3.0,))
    monkeypatch.setattr("sys.argv", ["public_tables", "--fits", "1"])
    public_tables.main()
    said = capsys.readouterr().out
    assert said.count("| made up (1,600 × 3) | 3 |") == 2
    assert float(said.split("At ε = 3, ")[1].split()[0]) >= 0.5


def test_intervals_of_simulated_tables_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    how = [
        "simulated_tables",
        "--tables",
        "4",
        "--columns",
        "4",
        "--records",
        "3000",
        "--epsilon",
        "0.3",
        "3",
    ]
    monkeypatch.setattr("sys.argv", how)
    simulated_tables.main()
    lines = capsys.readouterr().out.splitlines()
    cells = [line.split() for line in lines if line.startswith(("binary ", "counts "))]
    assert len(cells) == 4
    # Of seeds: the same each time. The noise is less for the larger epsilon.
    assert all(float(hold) >= 0.8 for _, _, _, _, hold, *_ in cells)
    assert all(float(cells[i][5]) > 1.2 * float(cells[i + 1][5]) for i in (0, 2))
    assert lines[3].startswith("binary: mean ")


def test_private_posteriors_are_compared_on_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posteriors, "EPSILONS", (3.0,))
    monkeypatch.setattr(
        posteriors, "load", Mock(side_effect=AbsentError("diffprivlib does not import"))
    )
    # Most of the time would go into compiling it.
    monkeypatch.delitem(posteriors.CONTENDERS, "discreet, DPSVI")
    (outcome,) = posteriors.measure(TINY)
    figures = {figure.name: figure.value for figure in outcome.figures}
    absent = ("Opacus, tuned", "diffprivlib, C = 0.01")
    assert outcome.skipped == dict.fromkeys(absent, "diffprivlib does not import")
    best = figures["without privacy: log loss"]
    assert best - 0.03 < figures["discreet, Newton, ε = 3: log loss"] < 0.7
    assert figures["discreet, Newton, ε = 3: exact mean held"] >= 2 / 3
    # The noise alone moves coefficients by several posterior standard deviations of so few rows.
    assert 0 < figures["discreet, Newton, ε = 3: error"] < 20
    assert {timing.name for timing in outcome.timings} == {
        "NumPyro's SVI, not private",
        *(f"{name}, ε = 3" for name in posteriors.CONTENDERS if name not in outcome.skipped),
    }


def test_error_is_in_posterior_standard_deviations() -> None:
    true = posteriors.Fit(np.zeros((1, 2)), np.array([1.0, 2.0]), np.array([0.5, 2.0]))
    found = posteriors.Fit(np.zeros((1, 2)), np.array([2.0, 2.0]))
    assert posteriors.error(found, true) == pytest.approx(math.sqrt(2))


def test_full_batch_sums_are_those_of_the_whole_table() -> None:
    """The floor's work is a gradient and X^T X; private Newton finds the same classes as the peer."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5_000, 3))
    shape = {"family": "binary", "num_features": 3, "num_records": 5_000}
    plan = NewtonPlan.calibrate(epsilon=1.0, **shape)
    np.testing.assert_allclose(full_batch._sums(x, np.ones(5_000), plan), 3 * x.T @ x)
    (outcome,) = full_batch.measure(TINY)
    bounded = bounds(outcome)
    assert bounded["private Newton, in memory / lbfgs"] == ("<=", 1.4)
    assert bounded["private Newton, from a folder / lbfgs"] == ("<=", 2.5)
    assert all(figure.floor is not None and figure.floor > 0 for figure in outcome.figures)
    assert all(figure.peer and figure.ours and figure.reason for figure in outcome.figures)


def test_first_answers_are_those_of_fresh_processes(tmp_path: Path) -> None:
    (outcome,) = first_answer.measure(TINY)
    (figure,) = outcome.figures
    assert figure.name == "scikit-learn, not private"
    assert 0.1 < figure.value < 100
    spent, said = first_answer._spent(
        [sys.executable, "-c", "raise SystemExit('no such peer')"], tmp_path
    )
    assert spent is None
    assert said == "exit status 1: no such peer"


def test_a_first_answer_says_what_imports_take_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        first_answer, "_spent", lambda command, _: (1.5 if "estimators" in command[-1] else 9.0, "")
    )
    (outcome,) = first_answer.measure(dataclasses.replace(TINY, tiny=False))
    bounded = [figure for figure in outcome.figures if figure.bound]
    assert {figure.name for figure in bounded} == {*first_answer._BOUNDS}
    assert all(figure.reason.startswith("1.50 s of imports") for figure in bounded)
    assert first_answer.IMPORTS not in {figure.name for figure in outcome.figures}


def test_pictures_are_drawn_from_results_alone(tmp_path: Path) -> None:
    """Of old results there is no picture, and a contender that was not measured is left out."""
    _pictures.draw({"machine": {}}, tmp_path)
    assert list(tmp_path.iterdir()) == []
    found = [
        {"name": f"{name}, ε = 1", "median_us": 1e6 * (1 + place)}
        for place, name in enumerate(posteriors.CONTENDERS)
        if name != "one-shot"
    ]
    errors = [{"name": f"{one['name']}: error", "value": one["median_us"]} for one in found]
    answers = [
        {"name": "discreet, estimator", "median_us": 2.5e6},
        {"name": first_answer.IMPORTS, "median_us": 1.5e6},
    ]
    workloads = {
        "posteriors-abalone": {"timings": found, "figures": errors},
        "posteriors-absent": {"timings": [], "figures": []},
        "first-answer": {"timings": answers, "figures": []},
    }
    _pictures.draw(workloads, tmp_path)
    seconds = (tmp_path / "first_answer.svg").read_text(encoding="utf-8")
    assert "2.5 s" in seconds
    assert "1.5 s" not in seconds
    errors = (tmp_path / "posteriors.svg").read_text(encoding="utf-8")
    assert "discreet, Newton" in errors
    assert "one-shot" not in errors
    assert "absent" not in errors


def test_the_reference_is_the_mode_of_the_posterior() -> None:
    table = posteriors.simulated(TINY)
    found = posteriors.exact(table)
    x = np.column_stack([np.ones(len(table.x)), table.x]).astype(np.float64)
    spread = table.x.std(axis=0, dtype=np.float64)

    def loss(theta: Any) -> Any:
        middle = theta[0] + jnp.asarray(x[:, 1:].mean(axis=0)) @ theta[1:]
        prior = jnp.square(middle / 5) + jnp.sum(jnp.square(theta[1:] * spread / 2.5))
        return jnp.sum(jnp.logaddexp(0, x @ theta) - table.y * (x @ theta)) + prior / 2

    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(found.mean)), 0, atol=1e-6)


def test_synthetic_twins_are_compared_by_the_same_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins of an invented table: only those from counts have a bound in a full run, and absent peers are named."""
    monkeypatch.setattr(
        synthetic, "load", absent := Mock(side_effect=AbsentError("mbi does not import"))
    )
    by_counts, peer, *others = synthetic.measure(
        TINY, ("counts", "mst", "smartnoise-mst", "smartnoise-aim")
    )
    found = {figure.name: figure.value for figure in by_counts.figures}
    assert 0.5 < found["ε = 1: AUC"] <= 1
    assert 0 < found["ε = 1: TV, one column"] < found["ε = 1: TV, two columns"] < 0.5
    assert peer.skipped["MST on mbi 2"] == "mbi does not import"
    assert [other.name for other in others] == ["twins-smartnoise-mst", "twins-smartnoise-aim"]
    assert all(other.skipped and not other.figures for other in others)
    assert absent.call_args.args == ("snsynth.aim", synthetic.SMARTNOISE)
    results = _results.new()
    _results.add(results, lambda scale: [by_counts, peer], TINY)
    assert "ε = 1: accuracy" in _results.as_markdown(results)


def test_figures_are_compared_with_the_tables_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rivals that answer exactly, and one that is absent: each question has one answer from all, in the same order."""

    def exact(table: Any, questions: Any) -> Any:
        return lambda: {question: figures.truth(table, question) + 1e-3 for question in questions}

    monkeypatch.setattr(
        figures,
        "RIVALS",
        {"diffprivlib": exact, "OpenDP, Laplace": Mock(side_effect=AbsentError("no wheel"))},
    )
    *outcomes, intervals, bounds = figures.measure(TINY)
    # Each of the few draws has some 300 figures: below 80 % once in more than 10,000 runs.
    assert all(80 < figure.value <= 100 for figure in intervals.figures)
    assert [figure.bound for figure in bounds.figures] == [("<=", 2.0)] * 5
    for outcome in outcomes:
        assert outcome.skipped == {"OpenDP, Laplace": "no wheel"}
        for question in outcome.facts.values():
            assert question["diffprivlib"] == pytest.approx(1e-3)
            # A quantile may be exact in all draws.
            assert 0 <= question["discreet"] < 10 * question["half-width"]
        held = next(
            figure for figure in outcome.figures if figure.name == "95 % intervals that hold"
        )
        # A right one holds in fewer than 6 of 10 draws once in 15,000 runs.
        assert held.value >= 60
        words = "questions with an error of at most that of diffprivlib"
        counted = [figure.value for figure in outcome.figures if figure.name == words]
        exactly = sum(
            question["discreet"] <= question["diffprivlib"] for question in outcome.facts.values()
        )
        assert counted == ([] if len(outcome.facts) == 1 else [exactly])


def test_a_peers_program_gets_all_public_levels_and_its_rows_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stand-in for smartnoise-synth whose twin is the table itself: its shares are the table's own."""
    train, test, schema = synthetic.tables(TINY)
    sizes = synthetic.Levels(schema, synthetic.SLICES).sizes

    class Program:
        def __init__(self, epsilon: float, delta: float, **settings: Any) -> None:
            self.settings = (epsilon, delta, settings)

        def fit(self, cells: np.ndarray, *, transformer: Mock) -> None:
            public = np.array(transformer.fit.call_args.args[0])
            assert [set(column) for column in public.T] == [set(range(size)) for size in sizes]
            assert self.settings == (1.0, synthetic.DELTA, {"rounds": 3})
            self.synthesizer = Mock(
                synthetic_data=lambda method: cells if method == "sample" else 0 * cells
            )

        def sample(self) -> np.ndarray:
            return self.synthesizer.synthetic_data()

    transform = Mock(TableTransformer=lambda columns: Mock(columns=columns))
    modules = {"snsynth.aim": Mock(AIMSynthesizer=Program), "snsynth.transform": transform}
    monkeypatch.setattr(synthetic, "load", lambda name, remedy: modules[name])
    twins = synthetic.smartnoise(train, schema, 1.0, TINY, program="AIM", rounds=3)()
    found = synthetic.measures(twins, train, test, schema)
    assert found["TV, one column"] == found["TV, two columns"] == 0
    assert found["AUC"] > 0.9


def test_the_budget_of_a_peer_is_what_its_privacy_costs() -> None:
    """Gaussian noise of this budget costs no more than epsilon, and not much less, by the exact profile."""
    for epsilon in (0.3, 3.0):
        rho = synthetic.concentrated(epsilon, 1e-5)
        spent = profile(
            GaussianDpEvent(math.sqrt(1 / (2 * rho))), dp.Relation.ADD_OR_REMOVE_ONE
        ).epsilon(1e-5)
        assert 0.85 * epsilon < spent <= epsilon


@pytest.mark.exhaustive
def test_fresh_processes_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    times = _child.ask("compile", "logistic", "non-private", 6, 6)
    assert times["compile_seconds"] > 0
    assert times["init_seconds"] > 0
    peaks = _child.ask("memory", "logistic", "private", 6, 6)
    assert 0 <= peaks["working_bytes"] < peaks["peak_bytes"]
    assert peaks["peak_bytes"] > 50e6, "a Python process with JAX holds more than that"
    with pytest.raises(RuntimeError, match="KeyError"):
        _child.ask("no such measurement", "logistic", "private", 8, 8)


# --- the contenders do equal work --------------------------------------------------------------


@pytest.mark.exhaustive
def test_private_and_non_private_fit_the_same_network() -> None:
    problem = auto_encoder(SMALL, 60)
    private = PrivateFit(problem, problem.poisson(10), 3)
    plain = NonPrivateFit(problem, 10, 3)
    assert private.num_parameters == plain.num_parameters == SMALL.num_parameters
    before = jnp.concatenate(
        [x.ravel() for x in jax.tree.leaves(plain.get_params(plain.state.optim_state))]
    )
    private.run()
    plain.run()
    after = jnp.concatenate(
        [x.ravel() for x in jax.tree.leaves(plain.get_params(plain.state.optim_state))]
    )
    assert private.losses.shape == plain.losses.shape == (3,)
    assert np.all(before != after)


def test_private_fit_is_secret_and_uses_the_engine_asked_for() -> None:
    problem = auto_encoder(SMALL, 60)
    sampling = problem.poisson(10)
    engine = reference_engine(sampling, 60)
    assert PrivateFit(problem, sampling, 1, engine).step.engine is engine
    fit = PrivateFit(problem, sampling, 1)
    assert type(fit.step.engine) is not type(engine)
    assert not dp.random.is_reproducible(fit.state.rng_key)
    assert fit.dpsvi.plan.noise_multiplier == 1.5


def test_loss_for_other_peers_is_numpyros() -> None:
    """The same negative ELBO for the same weights, on average over draws of the latent."""
    problem = auto_encoder(SMALL, 40)
    parameters = SMALL.initial_parameters(jax.random.key(0))
    named = {f"{name}$params": value for name, value in parameters.items()}
    elbo = Trace_ELBO(num_particles=2000)
    theirs = elbo.loss(jax.random.key(1), named, SMALL.model, SMALL.guide, *problem.data, N=40)
    ours = jax.vmap(lambda key: SMALL.loss(parameters, problem.data[0], key))(
        jax.random.split(jax.random.key(2), 2000)
    )
    # Both are means of 2,000 draws; 5 standard errors of their difference.
    assert abs(float(theirs) - float(jnp.mean(ours))) < 5 * float(jnp.std(ours)) * (2 / 2000) ** 0.5


def peer(build: Callable[[], Any]) -> Any:
    try:
        return build()
    except AbsentError as reason:
        pytest.skip(str(reason))


def test_jax_privacy_clips_to_the_norm() -> None:
    problem = dataclasses.replace(auto_encoder(SMALL, 60), clipping_norm=0.01)
    fit = peer(lambda: _jax_privacy.JaxPrivacyFit(SMALL, problem, 5, 2, 1))
    parameters = fit.state[0]
    rows = problem.data[0][:5]
    one = optax.tree.norm(fit.gradient(parameters, rows[:1], jax.random.key(0)))
    assert one == pytest.approx(0.01, rel=1e-4)
    assert optax.tree.norm(fit.gradient(parameters, rows, jax.random.key(0))) <= 0.05
    fit.run()
    assert np.all(np.isfinite(jax.tree.leaves(fit.state[0])[0]))


@pytest.mark.parametrize("way", ["non-private", "ghost", "hooks"])
def test_torch_contenders_are_the_same_network_and_clip(way: str) -> None:
    problem = dataclasses.replace(
        auto_encoder(dense(), 30), clipping_norm=0.5, noise_multiplier=1e-6
    )
    fit = peer(lambda: _opacus.TorchFit(problem, 400, 50, 4, 2, way))
    assert fit.num_parameters == 688_884
    fit.run()
    fit.gradient(fit.images[:1])
    if way == "hooks":
        fit.optimizer.pre_step()
    flat = fit.torch.cat([x.grad.flatten() for x in fit.network.parameters()])
    if way == "non-private":
        assert float(flat.norm()) > 5
    else:
        assert float(flat.norm()) == pytest.approx(0.5, rel=0.01)


def test_torch_loss_is_the_negative_elbo() -> None:
    torch = peer(lambda: load("torch"))
    rng = np.random.default_rng(0)
    logits, images = rng.normal(size=(3, 7)), rng.integers(0, 2, (3, 7)).astype(float)
    latent, loc, scale = (
        rng.normal(size=(3, 2)),
        rng.normal(size=(3, 2)),
        rng.uniform(0.5, 2, (3, 2)),
    )
    theirs = _opacus.NegativeELBO(torch)(
        [torch.tensor(x) for x in (logits, latent, loc, scale)], torch.tensor(images)
    )
    entropy = -dist.Normal(loc, scale).log_prob(latent).sum(1) + dist.Normal(0, 1).log_prob(
        latent
    ).sum(1)
    pixels = dist.Bernoulli(logits=jnp.asarray(logits)).log_prob(images).sum(1)
    np.testing.assert_allclose(theirs.numpy(), -(entropy + pixels), rtol=1e-5)


def test_steps_by_hand_are_the_private_step() -> None:
    """Same clipped sum as the general engine for Listing 4, on rows of which some are padding and one is not finite."""
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(12, hierarchical.D)).astype(np.float32) * 2
    xs[3] = np.inf
    ys, ls = (rng.random(12) < 0.5).astype(np.float32), rng.integers(0, hierarchical.L, 12)
    weights = jnp.asarray(rng.normal(size=(hierarchical.L, hierarchical.D)), jnp.float32)
    mask = jnp.arange(12) < 9
    batch = hierarchical.Batch((jnp.asarray(xs), jnp.asarray(ys), jnp.asarray(ls)), mask)
    gradient, _ = hierarchical.clipped(weights, batch, share=0.02)

    def loss(weights: jax.Array, record: Any) -> jax.Array:
        x, y, group = record
        return -dist.Bernoulli(logits=jnp.sum(x * weights[group])).log_prob(y)

    engine = ReferenceEngine()
    exact = engine(loss, weights, batch.rows, mask, 1.0, Channels(0.02))
    np.testing.assert_allclose(gradient, exact.gradient, rtol=2e-4, atol=1e-6)
    assert np.all(np.isfinite(gradient))


def test_absent_peers_are_skipped_with_a_reason() -> None:
    with pytest.raises(AbsentError, match="no_such_peer does not import"):
        load("no_such_peer")
    outcome = Outcome("toy", "a toy")

    def build() -> Any:
        return load("no_such_peer")

    assert gather(outcome, {"peer": build, "there": lambda: 1}) == [1]
    assert "pip install" in outcome.skipped["peer"]


def test_the_shards_benchmark_makes_a_table(tmp_path: Path) -> None:
    shards.make(tmp_path / "table", 5_000, 4)
    records = open_records(tmp_path / "table")
    assert records.x.shape == (5_000, shards.COLUMNS)
    assert set(np.unique(records.y)) == {0, 1}
    assert np.corrcoef(records.x[:, 0], records.y)[0, 1] > 0.3
    assert shards.own_memory() > 0


@pytest.mark.exhaustive
def test_records_in_shards_over_two_processes() -> None:
    found = shards.main(quick=True)
    assert len(found) == 2
    assert found[0]["large"]["released"] == found[1]["large"]["released"]
    for facts in found:
        assert facts["own_memory"] < 2**30
        assert facts["large"]["start"] > 0
        assert len(facts["large"]["step"]) == len(facts["small"]["step"]) == 2
