"""Plots show what was released, and everything that they claim to show."""

import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from discreet.methods.inference import Trace
from discreet.methods.plots import (
    GroupMeans,
    LevelShares,
    draw_losses,
    plot_levels,
    plot_posterior,
    plot_releases,
    running_mean,
)

SPENT = SimpleNamespace(epsilon=0.9997, delta=1e-6)
NOISE = np.random.default_rng(0).normal(size=(400, 3))


def fit(**changes):
    """A fit of three parameters, of which the second travels."""
    iterates = (
        NOISE * 0.01 + np.array([0.0, 1.0, 0.0]) * np.minimum(np.arange(400) / 100, 1.0)[:, None]
    )
    content = {
        "trace": Trace(np.arange(1, 401), iterates.astype(np.float32)),
        "losses": np.linspace(10, 5, 400),
        "clipping_norms": np.ones(400),
        "shares": np.ones((400, 2)),
        "params": {"w_auto_scale": np.ones(1), "w_auto_loc": np.zeros(2)},
        "statement": SPENT,
    }
    return SimpleNamespace(**{**content, **changes})


def test_a_notebook_shows_the_picture_and_not_its_name() -> None:
    figure = plot_releases(fit())
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(figure))._repr_png_().startswith(b"\x89PNG")


def labels(axes) -> list[str]:
    """What is written on the axes, and the lines' names beside them."""
    beside = axes.get_legend().get_texts() if axes.get_legend() else []
    return [text.get_text() for text in (*axes.texts, *beside)]


def test_the_trace_shows_what_moved_and_shades_what_is_averaged(tmp_path) -> None:
    result = fit()
    figure = plot_releases(result, most=1, path=tmp_path / "releases.png")
    trace, losses = figure.axes
    assert labels(trace) == ["averaged", "w_auto_loc[1]"]
    np.testing.assert_array_equal(trace.lines[0].get_ydata(), result.trace.iterates[:, 1])
    first = result.trace.steps[result.trace.averaged_from]
    assert trace.patches[0].get_x() == first
    np.testing.assert_allclose(
        result.trace.average(), result.trace.iterates[first - 1 :].mean(axis=0), rtol=1e-5
    )
    assert "1 of 3" in trace.get_title(loc="left")
    assert losses.get_xlabel() == "step"
    assert losses.get_ylabel() == "loss (nats)"
    assert "0.9997" in figure.get_suptitle()
    assert (tmp_path / "releases.png").stat().st_size < 150_000


def test_norms_are_shown_where_they_move_and_losses_where_they_were_paid_for() -> None:
    moving = plot_releases(fit(clipping_norms=np.linspace(0.1, 1, 400)))
    assert [axes.get_ylabel() for axes in moving.axes] == [
        "unconstrained value",
        "loss (nats)",
        "clipping norm C",
    ]
    assert len(plot_releases(fit(losses=np.full(400, np.nan))).axes) == 1


def test_a_chain_shades_its_draws() -> None:
    chain = fit(
        draws={"w": np.zeros((5, 2)), "w_a": np.zeros(5)},
        draw_steps=np.array([300, 320, 340, 360, 380]),
    )
    del chain.params, chain.clipping_norms
    axes = plot_releases(chain).axes[0]
    # In the order of w_a_unconstrained and w_unconstrained, which is not that of w and w_a.
    assert labels(axes) == ["draws are kept", "w_a", "w[0]", "w[1]"]
    assert axes.patches[0].get_x() == 300


def test_a_fit_that_still_travels_says_so_where_it_is_averaged() -> None:
    travelling = (np.cumsum(np.ones((400, 3)), axis=0) + NOISE).astype(np.float32)
    axes = plot_releases(fit(trace=Trace(np.arange(1, 401), travelling))).axes[0]
    assert labels(axes)[0] == "averaged, still drifting"
    assert axes.patches[0].get_x() == 361  # the last tenth


def test_parameters_in_a_tree_have_the_names_of_their_places() -> None:
    params = {"net$params": {"dense": {"kernel": np.zeros((1, 2)), "bias": np.zeros(1)}}}
    drawn = labels(plot_releases(fit(params=params)).axes[0])
    assert drawn[1:] == [
        f"net$params.dense.{name}" for name in ("bias[0]", "kernel[0,0]", "kernel[0,1]")
    ]


def test_coordinates_without_known_names_get_numbers() -> None:
    assert labels(plot_releases(fit(params={"simplex": np.ones(4)})).axes[0])[1:] == [
        f"coordinate {i}" for i in range(3)
    ]


def test_the_mean_of_the_losses_begins_with_the_first_and_spans_the_picture() -> None:
    losses = np.linspace(1_000, 500, 400) + np.tile([9_000.0, -9_000.0], 200)
    mean = running_mean(losses, 20)
    assert mean[0] == losses[0]
    assert mean[-1] == pytest.approx(losses[-20:].mean())
    axes = Figure().subplots()
    draw_losses(axes, losses)
    assert axes.get_title() == "Clipped private loss"
    low, high = axes.get_ylim()
    assert high - low < 9_000
    assert low < mean[-1] < mean[5] < high
    np.testing.assert_array_equal(
        running_mean(np.array([np.nan, 2.0, np.inf, 4.0]), 2), [np.nan, 2, 2, 4]
    )
    for unusable in (np.zeros(0), np.full(3, np.nan), np.ones(1)):
        draw_losses(Figure().subplots(), unusable)


def test_intervals_and_means_are_those_of_the_draws() -> None:
    draws = {
        "scale": np.linspace(0, 1, 101),
        "weights": np.stack([np.linspace(-1, 1, 101), np.full(101, 4.0)], axis=1),
    }
    figure = plot_posterior(
        draws, feature_names=["age", "smoker"], units={"weights": "log-odds"}, statement=SPENT
    )
    scale, weights = figure.axes
    ends = [list(line.get_xdata()) for line in scale.lines[1:]]
    assert ends == [pytest.approx([0.05, 0.95]), pytest.approx([0.25, 0.75]), pytest.approx([0.5])]
    assert [label.get_text() for label in weights.get_yticklabels()] == ["smoker", "age"]
    assert weights.get_xlabel() == "weights (log-odds)"
    # Its row has the name.
    assert scale.get_xlabel() == ""
    assert [label.get_text() for label in scale.get_yticklabels()] == ["scale"]
    assert "0.9997" in figure.get_suptitle()


def test_of_many_rows_the_picture_says_how_many_it_shows() -> None:
    many = NOISE[:, :1] + np.arange(50) * np.where(np.arange(50) % 2, 1, -1)
    (axes,) = plot_posterior({"weights": many}, most=2).axes
    assert axes.get_xlabel() == "weights, 2 of 50 rows"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["weights[49]", "weights[48]"]


def test_histograms_are_densities_and_intervals_those_given() -> None:
    value, low, high = (
        np.array([0.2, 0.6, 0.2]),
        np.array([0.1, 0.4, 0.0]),
        np.array([0.3, 0.7, 0.4]),
    )
    sliced = LevelShares(
        ["0", "1", "missing"], np.array([0.0, 1.0, 3.0]), value, low, high, "years"
    )
    named = LevelShares(["a", "b", "c"], None, value, low, high, "")
    groups = GroupMeans(["a", "b"], value[:2], low[:2], high[:2], "mean years")
    columns = {"age": sliced, "place": named, "age by place": groups}
    age, place, means = plot_levels(columns, title="Shares").axes[:3]
    assert means.lines[0].get_ydata().tolist() == [0.2, 0.6]
    assert means.get_ylim()[0] > 0
    assert means.get_ylabel() == "mean years"
    assert [bar.get_height() for bar in age.patches] == pytest.approx([0.2, 0.3])
    assert [bar.get_height() for bar in place.patches] == pytest.approx([0.2, 0.6, 0.2])
    spans = [line[:, 1].tolist() for line in age.collections[0].get_segments()]
    assert spans == [pytest.approx([0.1, 0.3]), pytest.approx([0.2, 0.35])]
    assert age.get_xlabel() == "years"


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: plot_releases(fit(), most=13), "told apart"),
        (lambda: plot_releases(fit(trace=Trace(np.zeros(0, int), np.zeros((0, 3))))), "no iterate"),
        (lambda: plot_posterior({}), "nothing to draw"),
        (lambda: plot_posterior({"w": [1.0]}), "two draws"),
        (lambda: plot_posterior({"w": [1.0, np.nan]}), "diverged"),
    ],
)
def test_wrong_input_is_refused(draw, words) -> None:
    with pytest.raises(ValueError, match=words):
        draw()


def test_without_matplotlib_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'discreet\[plot\]'"):
        plot_posterior({"w": [1.0, 2.0]})
