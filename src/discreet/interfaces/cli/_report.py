"""A fit's results as files, on the screen, and as a page: `discreet report`."""

from __future__ import annotations

import hashlib
import io
import json
import math
import shlex
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import discreet as dp
from discreet._validate import ENDS
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._terminal import refusing, say, say_error, say_json, write_file

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure


COUNTS = "twin.counts"


def twins_words(folder: Path) -> str:
    """The command that fits twins to the counts in a folder."""
    return f"discreet fit --model twin --data {shlex.quote(str(folder / COUNTS))} --out twin"


FILES = (
    "statement.json",
    "statement.txt",
    "scores.json",
    "description.json",
    "description.txt",
    "description.png",
    "posterior.npz",
    "posterior.csv",
    "summary.json",
    "fit.png",
    COUNTS,
    "twin.model",
    "twin.result",
    "model.json",
    "fit.discreet",
    "report.html",
)


def write_statement(out: Path, statement: "dp.Statement") -> list[Path]:
    """Write the statement into a folder, after removing what an earlier fit left there; returns the files."""
    for name in FILES[1:]:
        # Beside the new statement they would pass for what it covers, if the rest cannot be
        # written.
        (out / name).unlink(missing_ok=True)
    return [
        write_file(out / FILES[0], statement.to_json()),
        write_file(out / FILES[1], str(statement)),
    ]


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of an .npz file. Any name will do; `numpy.savez` fails for an array named "file"."""
    import numpy as np

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
    return content.getvalue()


def relative(samples: Mapping[str, np.ndarray], contrasts: np.ndarray) -> dict[str, np.ndarray]:
    """Draws of a regression with the weights of one column's categories relative to their mean, which the intercept gets.

    These weights and the intercept can be shifted against each other without any effect on the
    predictions. `contrasts` is the matrix of `dp.models.contrasts`.
    """
    import numpy as np

    with np.errstate(all="ignore"):  # of a fit that diverged
        drawn = np.concatenate([samples["intercept"][:, None], samples["weights"]], axis=1)
        drawn = np.moveaxis(np.tensordot(contrasts, drawn, (1, 1)), 0, 1)
    return {**samples, "intercept": drawn[:, 0], "weights": drawn[:, 1:]}


def summarise(
    samples: Mapping[str, np.ndarray],
    records: "dp.tables.Records",
    estimate: "np.ndarray | None" = None,
    classes: Sequence[str] = (),
    point_only: Sequence[str] = (),
) -> list[tuple[str, dict[str, float]]]:
    """Mean, standard deviation and central 90 % interval of every posterior coordinate, by name.

    Without an `estimate` of the first coordinates, which stands beside the mean of draws that
    include the noise, there is a mean alone; of sites in `point_only` always. `classes` are the
    categories of a multinomial target.
    """
    import numpy as np

    rows: list[tuple[str, dict[str, float]]] = []
    for site, drawn in samples.items():
        flat = np.asarray(drawn, np.float64).reshape(len(drawn), -1)
        features = site == "weights" and np.shape(drawn)[1:2] == (len(records.feature_names),)
        each = flat.shape[1] // (len(records.feature_names) if features else 1)
        labels = (
            classes if site in ("intercept", "weights") and len(classes) == each else range(each)
        )
        for place, column in enumerate(flat.T):
            name = records.feature_names[place // each] if features else site
            name += f"[{labels[place % each]}]" if each > 1 else ""
            # A column may be named as a latent is, whose row it would replace.
            name += COLUMN * (features and name.partition("[")[0] in samples)
            # A fit that diverged has draws without a mean; that is no reason to lose the others.
            with np.errstate(all="ignore"):
                numbers = (column.mean(), column.std(), *np.quantile(column, ENDS))
            if estimate is None or site in point_only:
                numbers = (numbers[0], math.nan, math.nan, math.nan)
            rows.append((name, dict(zip(PARTS, map(float, numbers), strict=True))))
    for (_, row), value in zip(rows, () if estimate is None else np.ravel(estimate), strict=False):
        row["to_predict"] = float(value)
    return rows


COLUMN = " (column)"
PARTS = ("mean", "sd", "low", "high")


def latent_of(name: str) -> str:
    """The latent that a row of `summarise` is of; the row's name where that is a feature's.

    >>> latent_of("intercept[yes]"), latent_of("intercept[yes] (column)")
    ('intercept', 'intercept[yes] (column)')
    """
    return name if name.endswith(COLUMN) else name.partition("[")[0]


NO_INTERVAL = ("sigma",)
"""Latents of ready models whose intervals need normal residuals of constant spread; of Abalone's shell weight 0 of 30 held."""


def draw_picture(file: Path, draw: Callable[[], "Figure"]) -> list[Path]:
    """Write a picture, if matplotlib is installed; the file, or none."""
    try:
        return [write_picture(file, draw())]
    except ImportError:
        return []


def write_picture(file: Path, figure: "Figure") -> Path:
    """Draw a figure to a file, whose ending tells the format."""
    image = io.BytesIO()
    with warnings.catch_warnings(record=True) as lacking:
        warnings.filterwarnings("always", message="Glyph")
        figure.savefig(image, format=file.suffix.lstrip(".") or "png", dpi=120)
    if lacking:
        say_error(
            f"{file} shows boxes in place of letters that matplotlib's font does not have. The other files have them."
        )
    return write_file(file, image.getvalue())


PAGE = "report.html"
PUT_BACK = "is damaged: put back the file that the fit wrote"


class Written(NamedTuple):
    """A page that was written: where, what it states, and what it shows besides the statement."""

    file: Path
    statement: "dp.Statement"
    parts: tuple[str, ...]


@refusing
def report(
    fitted: Annotated[
        Path,
        typer.Argument(
            metavar="FIT", help="The folder that discreet fit wrote.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page. Left out: report.html in the fit's folder.")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="The table's ledger, whose history the page then shows."),
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="What the table is called. Left out: as the ledger calls it.")
    ] = "",
    contact: Annotated[
        str,
        typer.Option(
            help="Who answers questions: a name or an address. Left out: as the fit says."
        ),
    ] = "",
    as_json: options.AsJson = False,
) -> None:
    """Write the privacy report of a fit as one HTML page.

    `discreet report discreet-fit --out report.html`

    `discreet report discreet-fit --ledger survey.ledger --contact dpo@example.org`

    The page is for data protection officers: what was protected, what ε means (with an interactive
    trade-off curve), the budget, the plan, the course of the fit, the posterior, the limits, and the
    statement's JSON. It loads nothing from the network. The command reads only what the fit wrote
    and spends nothing. It replaces an earlier page.
    """
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out is {out}: give a file name that ends in .html")
    if out is not None and out.is_dir():
        raise ValueError(f"--out {out} is a folder: give the name of a file in it")
    written = write_page(fitted, out, ledger=ledger, dataset=dataset, contact=contact)
    statement = written.statement
    if as_json:
        facts = statement.to_dict()
        kept = {name: facts[name] for name in ("is_private", "epsilon", "delta")}
        say_json("report", {**kept, "shows": written.parts, "files": [written.file]})
        return
    if not statement.is_private:
        say_error("NOT PRIVATE: no ε holds for this fit, as its statement and the page say.")
    say(f"{written.file}: the statement{''.join(f', {part}' for part in written.parts)}.")


def write_page(
    fitted: Path,
    out: Path | None = None,
    *,
    ledger: Path | None = None,
    dataset: str = "",
    contact: str = "",
) -> Written:
    """Write the page of a fit's folder, by default into it, with its table's ledger and the folder of its twins if given."""
    path = fitted / "statement.json"
    content = read_json(path, "give the folder that discreet fit wrote")
    try:
        statement = dp.report.statement_from_dict(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    shown: dict[str, Any] = {}
    if (fitted / "description.json").is_file():
        shown = _of_description(fitted, content)
    elif (fitted / "twin.model").is_file():
        shown = _of_twins(fitted, content)
    elif (fitted / "summary.json").is_file():
        shown = _of_summary(fitted, statement)
    shown["budget"] = None if ledger is None else dp.page.budget_of(dp.Ledger(ledger), statement)
    try:
        page = dp.page.statement_page(statement, **shown, dataset=dataset, contact=contact)
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError):
        raise ValueError(f"{fitted}: statement.json or summary.json {PUT_BACK}") from None
    names = {
        "description": "description",
        "budget": "budget",
        "course": "course of the fit",
        "panels": "posterior",
    }
    parts = tuple(name for key, name in names.items() if shown.get(key))
    try:
        return Written(write_file(out or fitted / PAGE, page), statement, parts)
    except OSError as error:
        raise ValueError(
            f"{out or fitted / PAGE} cannot be written ({error.strerror}): choose another --out"
        ) from None


def read_json(path: Path, remedy: str) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON: {remedy}") from None


def facts_in(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _of_summary(fitted: Path, statement: "dp.Statement") -> dict[str, Any]:
    """The page's part on the summary of a regression."""
    path = fitted / "summary.json"
    summary = read_json(path, "put back the file that the fit wrote")
    digest = hashlib.sha256((fitted / "statement.json").read_bytes()).hexdigest()
    if not isinstance(summary, dict):
        raise ValueError(f"{path} {PUT_BACK}")
    if summary.get("statement_sha256") != digest:
        raise ValueError(
            f"{path} is not of the statement beside it: put back the files that one fit wrote"
        )
    try:
        pairs = [(float(epsilon), float(delta)) for epsilon, delta in summary["profile"]]
        if not dp.page.may_hold(statement, pairs):
            raise ValueError
        return {
            "course": summary["course"],
            "pairs": pairs,
            "panels": [dp.page.panel_of_summary(summary["posterior"])],
            "note": str(summary["note"]),
            "units": str(summary.get("units", "")),
        }
    except (LookupError, TypeError, AttributeError, ValueError):
        raise ValueError(f"{path} {PUT_BACK}") from None


def _of_description(fitted: Path, content: Any) -> dict[str, Any]:
    """The page's part on a description."""
    path = fitted / "description.json"
    facts = read_json(path, "put back the file that discreet describe wrote")
    try:
        if facts["statement"] != content:
            raise ValueError
        return {"description": dp.page.description_of(facts)}
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError):
        raise ValueError(
            f"{path} is damaged, or not of the statement beside it: put back the file that discreet describe wrote"
        ) from None


def _of_twins(fitted: Path, content: Any) -> dict[str, Any]:
    """The page's part on a fit of the whole table."""
    result = dp.synthetic.read_result(fitted)
    if json.loads(result.statement.to_json()) != content:
        raise ValueError(
            f"{fitted / 'twin.result'} is not of the statement beside it: put back the files that one fit wrote"
        )
    return {
        "course": dp.page.course_of(result),
        "pairs": profile_of(getattr(result, "plan", None), result.statement),
    }


def profile_of(plan: Any, statement: "dp.Statement") -> list[tuple[float, float]]:
    """Pairs (ε, δ) that hold for the statement: the decisive ones of the plan's profile, if it has one."""
    if hasattr(plan, "profile"):
        return dp.page.profile_pairs(plan, statement)
    return [(point.epsilon, point.delta) for point in statement.figures.profile]
