"""A fit's results as files and on the screen."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.cli._terminal import say, say_text, write_file

if TYPE_CHECKING:
    import numpy as np

    from discreet.inference import DPSVIResult
    from discreet.report import Statement
    from discreet.tables import Records


FILES = (
    "statement.json",
    "statement.txt",
    "posterior.npz",
    "summary.json",
    "fit.png",
    "twin.json",
    "twin.result",
    "twin.schema.toml",
    "report.html",
)


def write_statement(out: Path, statement: "Statement") -> list[Path]:
    """Write the statement into a folder, after removing what an earlier fit left there.

    Returns:
        The files, in the order written.
    """
    for name in FILES[1:]:
        # Beside the new statement they would pass for what it covers, if the rest cannot be written.
        (out / name).unlink(missing_ok=True)
    return [write_file(out / FILES[0], statement.to_json()), write_file(out / FILES[1], str(statement))]


def write_results(
    out: Path,
    result: "DPSVIResult",
    samples: Mapping[str, np.ndarray],
    records: "Records",
    *,
    statement: "Statement",
    note: str,
) -> list[Path]:
    """Write what a fit released into a folder, beside its statement.

    Returns:
        The files, in the order written.
    """
    from discreet.page import course_of, profile_pairs

    summary = {
        "note": note,
        "feature_names": list(records.feature_names),
        "target_centre": records.target_centre,
        "target_scale": records.target_scale,
        "posterior": {
            name: {part: finite_or_none(value) for part, value in row.items()}
            for name, row in summarise(samples, records)
        },
        "losses": [finite_or_none(loss) for loss in result.losses],
        # For the page: the course of the fit, and the decisive points of the plan's profile, (ε, δ) that hold for the statement.
        "course": course_of(result),
        "profile": profile_pairs(result.plan, statement),
        "statement_sha256": hashlib.sha256(statement.to_json().encode("utf-8")).hexdigest(),
    }
    return [
        write_file(out / "posterior.npz", npz(samples)),
        write_file(out / "summary.json", json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"),
    ]


def finite_or_none(value: float) -> float | None:
    """A number as JSON can hold it."""
    return float(value) if math.isfinite(value) else None


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of an .npz file. Any name will do; `numpy.savez` fails for an array named "file"."""
    import numpy as np

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
    return content.getvalue()


def summarise(samples: Mapping[str, np.ndarray], records: "Records") -> list[tuple[str, dict[str, float]]]:
    """Mean, standard deviation and central 90 % interval of every posterior coordinate, by name."""
    import numpy as np

    rows = []
    for site, drawn in samples.items():
        flat = np.asarray(drawn, np.float64).reshape(len(drawn), -1)
        features = site == "weights" and np.shape(drawn)[1:2] == (len(records.feature_names),)
        classes = flat.shape[1] // len(records.feature_names)
        for place in range(flat.shape[1]):
            if features:
                name = records.feature_names[place // classes]
                # The class, by its place among the schema's categories.
                name += f"[{place % classes}]" if np.ndim(drawn) > 2 else ""
            else:
                name = site if flat.shape[1] == 1 else f"{site}[{place}]"
            # A fit that diverged has draws without a mean; that is no reason to lose the others.
            with np.errstate(all="ignore"):
                low, high = np.quantile(flat[:, place], [0.05, 0.95])
                row = {"mean": flat[:, place].mean(), "sd": flat[:, place].std(), "low": low, "high": high}
            rows.append((name, {part: float(value) for part, value in row.items()}))
    return rows


def say_results(
    statement: "Statement",
    samples: Mapping[str, np.ndarray],
    records: "Records",
    files: list[Path],
    *,
    raw: bool = False,
) -> None:
    """Posterior table, statement and file names on the screen."""
    from rich.console import Console
    from rich.table import Table

    scale = "in their own units" if raw else "scaled to [-1, 1] by their public bounds"
    title = (
        f"Posterior (features {scale}). sd and interval: spread of the fitted guide; "
        "the noise of the private fit comes on top"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("", "mean", "sd", "5 %", "95 %"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, row in summarise(samples, records):
        table.add_row(name, *(f"{row[part]:.3f}" for part in ("mean", "sd", "low", "high")))
    Console().print(table)
    say()
    print_statement(statement, files)


def print_statement(statement: "Statement", files: list[Path]) -> None:
    """The statement as it is in its file, then the files."""
    say_text(str(statement))
    say("Files:")
    for file in files:
        say_text(f"  {file}")


def plot(out: Path, result: "DPSVIResult") -> list[Path]:
    """The trade-off curve and the private losses as a PNG, if matplotlib is installed; else nothing."""
    from discreet.plots import draw_losses, draw_trade_off, new_figure

    try:
        figure = new_figure(9, 4)
    except ImportError:
        return []
    left, right = figure.subplots(1, 2)
    draw_trade_off(left, result.plan.profile())
    draw_losses(right, result.losses)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    return [write_file(out / "fit.png", image.getvalue())]
