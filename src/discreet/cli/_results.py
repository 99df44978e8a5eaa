"""A fit's results as files and on the screen."""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.cli._terminal import say, say_lines, write_file

if TYPE_CHECKING:
    from discreet.data import Records
    from discreet.inference import DPSVIResult
    from discreet.report import Statement


def write_results(
    out: Path, result: "DPSVIResult", statement: "Statement", samples: Mapping[str, np.ndarray], records: "Records"
) -> list[Path]:
    """Write what a fit released into a folder, the statement first.

    Returns:
        The files, in the order written.
    """
    summary = {
        "feature_names": list(records.feature_names),
        "target_centre": records.target_centre,
        "target_scale": records.target_scale,
        "posterior": dict(summarise(samples, records)),
        "losses": [float(loss) if np.isfinite(loss) else None for loss in result.losses],
    }
    try:
        first = write_file(out / "statement.json", statement.to_json())
    except OSError:
        # What was spent cannot be had back, so at least it must be known.
        say_lines(str(statement))
        raise
    return [
        first,
        write_file(out / "statement.txt", str(statement)),
        write_file(out / "posterior.npz", npz(samples)),
        write_file(out / "summary.json", json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"),
    ]


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of an .npz file. Any name will do; `numpy.savez` fails for an array named "file"."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
    return content.getvalue()


def summarise(samples: Mapping[str, np.ndarray], records: "Records") -> list[tuple[str, dict[str, float]]]:
    """Mean, standard deviation and central 90 % interval of every posterior coordinate, by name."""
    rows = []
    for site, drawn in samples.items():
        flat = np.asarray(drawn, np.float64).reshape(len(drawn), -1)
        features = site == "weights" and flat.shape[1] == len(records.feature_names)
        for place in range(flat.shape[1]):
            if features:
                name = records.feature_names[place]
            else:
                name = site if flat.shape[1] == 1 else f"{site}[{place}]"
            low, high = np.quantile(flat[:, place], [0.05, 0.95])
            rows.append(
                (
                    name,
                    {"mean": flat[:, place].mean(), "sd": flat[:, place].std(), "low": float(low), "high": float(high)},
                )
            )
    return rows


def say_results(
    statement: "Statement", samples: Mapping[str, np.ndarray], records: "Records", files: list[Path]
) -> None:
    """Posterior table, statement and file names on the screen."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Posterior (features scaled to [-1, 1] by their public bounds)", title_justify="left")
    for heading in ("", "mean", "sd", "5 %", "95 %"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, row in summarise(samples, records):
        table.add_row(name, *(f"{row[part]:.3f}" for part in ("mean", "sd", "low", "high")))
    Console().print(table)
    say()
    print_statement(statement, files)


def print_statement(statement: "Statement", files: list[Path]) -> None:
    """The statement as it is in its file, then the files."""
    import typer

    typer.echo(str(statement))
    say("Files:")
    for file in files:
        typer.echo(f"  {file}")


def plot(out: Path, result: "DPSVIResult") -> list[Path]:
    """The trade-off curve and the private losses as a PNG, if matplotlib is installed; else nothing."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _plot_trade_off(left, result.plan.profile())
    _plot_losses(right, result.losses)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    return [write_file(out / "fit.png", image.getvalue())]


def _plot_trade_off(axes: Any, profile: Any) -> None:
    wrong = np.linspace(0, 1, 101)
    axes.plot(wrong, [profile.true_positive_rate(float(rate)) for rate in wrong], label="best attacker")
    axes.plot(wrong, wrong, ":", color="grey", label="guessing")
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate", title="What the best attacker can tell")
    axes.legend()


def _plot_losses(axes: Any, losses: np.ndarray) -> None:
    axes.plot(losses, ".", markersize=2, color="lightgrey", label="released")
    width = max(1, len(losses) // 20)
    if len(losses) > width:
        mean = np.convolve(losses, np.ones(width) / width, mode="valid")
        axes.plot(np.arange(width - 1, len(losses)), mean, label=f"mean of {width} steps")
    axes.set(xlabel="step", ylabel="loss (nats)", title="Private estimate of the negative ELBO")
    axes.legend()
