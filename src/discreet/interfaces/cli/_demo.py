"""`discreet demo`: a simulated table, fitted privately and not, side by side."""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import discreet as dp
from discreet._validate import ENDS, require
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._fit import Asked
from discreet.interfaces.cli._options import LINEAR
from discreet.interfaces.cli._report import draw_picture, facts_in
from discreet.interfaces.cli._statement import about_words, price_words
from discreet.interfaces.cli._sums import BySums
from discreet.interfaces.cli._terminal import refusing, say, say_json, say_lines, say_text

if TYPE_CHECKING:
    import numpy as np


NUM_RECORDS = 20_000
DELTA = 1e-6
TARGET = "blood_pressure"
# Round bounds that such measurements stay within, not the extremes of this table.
BOUNDS = "age=18:90,sex=female|male,body_mass_index=15:50,smoker=no|yes,salt=0:20,exercise=0:20,blood_pressure=70:230"
# What a coefficient is shown per: in words, and in units of the feature.
STEPS = {
    "age": ("10 years of age", 10),
    "sex=male": ("men, against women", 1),
    "body_mass_index": ("5 kg/m² of body mass index", 5),
    "smoker=yes": ("smokers, against others", 1),
    "salt": ("5 g of salt a day", 5),
    "exercise": ("5 hours of exercise a week", 5),
}
NAME = "a simulated table on blood pressure"
BOUNDS_ARE_PUBLIC = "The bounds of the columns, round numbers written in the code of the demo."
TABLE_IS_SIMULATED = (
    "The table is simulated, with nobody in it: only for that reason may the demo show coefficients "
    "without privacy."
)


@refusing
def demo(
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.")] = 1.0,
    seed: options.Seed = None,
    out: options.Out = Path("discreet-demo"),
    as_json: options.AsJson = False,
) -> None:
    """Fit a simulated medical table privately and see what it costs.

    A linear regression of the blood pressure of 20,000 simulated adults on six columns, at ε = 1.
    Prints the coefficients with their intervals, beside those of a fit without privacy, and draws
    them.

    `discreet demo --epsilon 0.5 --out somewhere`
    """
    schema = dp.tables.schema_from_bounds(BOUNDS, target=TARGET)
    about = about_words(LINEAR, schema, NAME, NUM_RECORDS)

    def complete(statement: "dp.Statement") -> "dp.Statement":
        stated = dataclasses.replace(statement, about=about).with_public(
            BOUNDS_ARE_PUBLIC, dp.report.EACH_ROW_A_PERSON
        )
        return stated.with_notes(TABLE_IS_SIMULATED)

    if not may_overwrite(out / "statement.json"):
        raise ValueError(f"{out} contains the statement of a fit: choose another --out")
    records = load(schema)
    # As JSON: without a progress bar.
    asked = Asked(data=Path(NAME), model=LINEAR, epsilon=epsilon, seed=seed, out=out, as_json=True)
    alone = dp.inference.Processes()
    method = BySums(asked, alone, options.choose_model(LINEAR), schema, None, records=records)
    method.plan = method.plan_for(NUM_RECORDS, DELTA)
    with method.folder():
        method.run()
        method.write(complete)
    draws = in_units(schema, method.samples["weights"])
    figures = figures_of(draws, in_units(schema, least_squares(records)))
    statement = method.statement
    names = [words for words, _ in STEPS.values()]
    picture = functools.partial(
        dp.plots.plot_posterior, {"mmHg": draws}, feature_names=names, statement=statement
    )
    files = method.files + draw_picture(out / "fit.png", picture)
    if as_json:
        say_json(
            "demo", {"coefficients": figures, "statement": statement.to_dict(), "files": files}
        )
    else:
        _say(figures, statement, files)


def may_overwrite(path: Path) -> bool:
    """True if there is no statement yet, or one of this demo: a fit's statement documents its spending."""
    return not path.exists() or BOUNDS_ARE_PUBLIC in facts_in(path).get("public", [])


def simulated() -> "dict[str, np.ndarray]":
    """The columns of the table: adults as they never were.

    Distributions and coefficients are round numbers near what health surveys of western countries
    publish: adults of 48 years and a body mass index of 27 on average, 18 % smokers, 8.5 g of salt
    a day; blood pressure rises by some 5 mmHg in ten years.
    """
    import numpy as np

    rng = np.random.default_rng(20_260)
    age = np.round(rng.triangular(18, 40, 90, NUM_RECORDS))
    male = rng.random(NUM_RECORDS) < 0.49
    body_mass_index = np.round(np.clip(rng.normal(26 + 0.03 * (age - 18), 4.5), 16, 49), 1)
    smoker = rng.random(NUM_RECORDS) < 0.18
    salt = np.round(np.clip(rng.normal(8 + male, 2.5), 0, 20), 1)
    exercise = np.round(np.clip(rng.exponential(3.0, NUM_RECORDS), 0, 20), 1)
    mean = (
        116
        + 0.5 * (age - 40)
        + 4 * male
        + 0.9 * (body_mass_index - 27)
        + 1.5 * smoker
        + 0.8 * (salt - 8)
        - 0.6 * exercise
    )
    return {
        "age": age,
        "sex": np.where(male, "male", "female"),
        "body_mass_index": body_mass_index,
        "smoker": np.where(smoker, "yes", "no"),
        "salt": salt,
        "exercise": exercise,
        TARGET: np.round(np.clip(rng.normal(mean, 14), 70, 230)),
    }


def load(schema: "dp.tables.Schema") -> "dp.tables.Records":
    """The simulated table, encoded by the public bounds."""
    require("pyarrow", extra="tables", what="The demo")
    import pyarrow

    return dp.tables.encode(pyarrow.table(simulated()), schema)


def least_squares(records: "dp.tables.Records") -> "np.ndarray":
    """The coefficients without privacy, in one row."""
    import numpy as np

    assert records.y is not None
    x = np.column_stack([records.x, np.ones(records.num_records)])
    return np.linalg.lstsq(x, records.y, rcond=None)[0][None, :-1]


def in_units(schema: "dp.tables.Schema", weights: "np.ndarray") -> "np.ndarray":
    """Coefficients of the encoded columns in mmHg per the steps of `STEPS`."""
    import numpy as np

    half = {column.name: np.ptp(column.limits) / 2 for column in schema.columns if column.bounds}
    return weights * [
        half[TARGET] * step / half.get(name, 1.0) for name, (_, step) in STEPS.items()
    ]


def figures_of(draws: "np.ndarray", exact: "np.ndarray") -> dict[str, dict[str, float]]:
    """Private coefficients by name, with the ends of their 90 % intervals, and those without privacy."""
    import numpy as np

    columns = np.stack([draws.mean(axis=0), exact[0], *np.quantile(draws, ENDS, axis=0)], axis=1)
    parts = ("private", "non_private", "low", "high")
    names = (words for words, _ in STEPS.values())
    return {
        name: dict(zip(parts, row, strict=True))
        for name, row in zip(names, columns.tolist(), strict=True)
    }


def _say(
    figures: dict[str, dict[str, float]], statement: "dp.Statement", files: list[Path]
) -> None:
    say_lines(
        f"Linear regression of the blood pressure (mmHg) of {NUM_RECORDS:,} simulated adults on six columns."
    )
    say()
    say_text(f"{'':30}{'private':>8}{'90 % interval':>18}{'without privacy':>18}")
    for words, row in figures.items():
        interval = f"{row['low']:.1f} to {row['high']:.1f}"
        say_text(f"{words:30}{row['private']:>8.1f}{interval:>18}{row['non_private']:>18.1f}")
    say()
    price = price_words(statement)
    say_lines(
        f"Private: {price}, for {statement.unit}."
        if statement.is_private
        else f"NOT PRIVATE: {price} does not hold."
    )
    say_lines(f"Use: {dp.report.use_words(statement)}")
    say()
    folder = files[0].parent
    say_lines(f"Files in {folder}: {', '.join(file.name for file in files)}.")
    if folder / "fit.png" in files:
        say_lines(f"Picture: {folder / 'fit.png'}")
    say_lines(f"Page, for a browser: {folder / 'report.html'}")
