"""`discreet predict`: a fit and a table to predictions."""

import csv
import io
import json
import math
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import discreet as dp
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._options import LINEAR, REGRESSIONS
from discreet.interfaces.cli._report import facts_in
from discreet.interfaces.cli._terminal import (
    check_file,
    refusing,
    say,
    say_error,
    say_json,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


Fit = Annotated[
    Path,
    typer.Argument(metavar="FIT", help="The folder that discreet fit wrote.", show_default=False),
]


_ELEMENTS = 2**22


@refusing
def predict(
    fitted: Fit,
    data: options.Data,
    out: Annotated[Path, typer.Option(help="The file of the predictions, .csv.")] = Path(
        "predictions.csv"
    ),
    out_of_bounds: options.OutOfBoundsRule = options.OutOfBoundsName.REFUSE,
    overwrite: options.OverwriteFile = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict the target of new records by a fit. Spends nothing.

    `discreet predict discreet-fit --data new.csv --out predictions.csv`

    Writes a row for each row of the table, in its order: probabilities of categories, or the
    expected number in the target's unit; empty where the schema drops the row. The table needs the
    features alone, as the fit's schema describes them. **The fit's statement does not protect the
    new records**: a row of the file says what the cells of that record say.
    """
    import numpy as np

    check_file(out, endings=(".csv",), overwrite=overwrite)
    model, schema, target, draws = _fit_of(fitted)
    table = dp.tables.read_table(data, schema.only_features(), out_of_bounds=out_of_bounds)
    records = dp.tables.encode_features(table, schema, out_of_bounds=out_of_bounds)
    x = records.x
    _check_size(draws, x, fitted)
    found = _predict(model, draws, records.target_scale, records.target_centre, x).reshape(
        len(x), -1
    )
    names = (
        [target.name]
        if target.kind.has_bounds
        else [f"{target.name}={x}" for x in target.categories]
    )
    names = names[-found.shape[1] :]  # Of two categories the second
    content = io.StringIO()
    rows = [["" if np.isnan(value) else f"{value:.9g}" for value in row] for row in found]
    csv.writer(content, lineterminator="\n").writerows([names, *rows])
    write_file(out, content.getvalue())
    if facts_in(fitted / "statement.json").get("is_private") is False:
        say_error(
            "NOT PRIVATE: the fit is not private, as its statement says, so the predictions are not either."
        )
    if as_json:
        say_json("predict", {"rows": len(rows), "columns": names, "files": [out]})
    else:
        say(
            f"Wrote {len(rows):,} predictions to {out}. A row says what the cells of that record say: the fit's statement does "
            "not protect these records."
        )


def _check_size(draws: "dict[str, np.ndarray]", x: "np.ndarray", fitted: Path) -> None:
    if draws["weights"].shape[1:] != (x.shape[-1], *draws["intercept"].shape[1:]):
        raise ValueError(
            f"the posterior in {fitted} is not that of the schema in its summary.json: fit again"
        )


def _fit_of(
    folder: Path,
) -> "tuple[str, dp.tables.Schema, dp.tables.Column, dict[str, np.ndarray]]":
    """The model's name, the schema, its target and the posterior draws of a fit; ValueError where it is not scored here."""
    import numpy as np

    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        with np.load(folder / "posterior.npz", allow_pickle=False) as archive:
            draws = {
                name: np.asarray(archive[name], np.float64) for name in ("weights", "intercept")
            }
        if summary.get("to_predict") is not None:  # what predicts better than the mean of the draws
            best = np.asarray(summary["to_predict"], np.float64)
            draws = {"weights": best[None, 1:], "intercept": best[:1]}
        model = summary["model"]
        _mean_of(model)
        text = str(summary["schema"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        raise ValueError(
            f"{folder} does not have a fit that can be scored, or predict: give the folder of a discreet fit with a built-in "
            f"model that predicts a column ({', '.join(REGRESSIONS)})"
        ) from None
    schema = dp.tables.schema_from_dict(tomllib.loads(text))
    assert schema.target_column is not None
    return model, schema, schema.target_column, draws


def _mean_of(model: str) -> "Callable[[np.ndarray], np.ndarray]":
    """From linear predictors to probabilities of the classes, or means; KeyError for a model that is not scored."""
    return dp.predict.likelihood_of(dp.models.REGRESSIONS[model].likelihood).mean


def _predict(
    model: str, draws: "dict[str, np.ndarray]", scale: float, centre: float, x: "np.ndarray"
) -> "np.ndarray":
    """Probabilities of the classes, or means in the target's own unit, averaged over the draws."""
    import numpy as np

    weights = draws["weights"]
    intercept = draws["intercept"]
    rows = np.asarray(x, np.float64)
    if model == LINEAR:
        return (
            _lines(rows, weights.mean(axis=0)[None], intercept.mean()[None])[:, 0] * scale + centre
        )
    mean = _mean_of(model)
    at_once = max(1, _ELEMENTS // math.prod(intercept.shape))
    found = []
    for start in range(0, len(rows), at_once):
        line = _lines(rows[start : start + at_once], weights, intercept)
        found.append(mean(line).mean(axis=1))
    return np.concatenate(found)


def _lines(rows: "np.ndarray", weights: "np.ndarray", intercept: "np.ndarray") -> "np.ndarray":
    """Linear predictors, a row for each record, by sums column by column.

    A matrix product rounds a row otherwise where other rows stand beside it, and a score counts
    bins of predictions: one record more could move other records to the next bin.
    """
    import numpy as np

    line = np.repeat(intercept[None], len(rows), axis=0)
    for column in range(rows.shape[1]):
        line += rows[:, column].reshape(-1, *[1] * intercept.ndim) * weights[:, column]
    return line
