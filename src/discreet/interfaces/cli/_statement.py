"""What the command line adds to a statement (the model, the columns, the treatment of cells), and its warnings before a run."""

import dataclasses
import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import discreet as dp
from discreet.interfaces.cli._options import LINEAR, MULTINOMIAL, REGRESSIONS, TWIN
from discreet.interfaces.cli._terminal import say_error

if TYPE_CHECKING:
    from discreet.interfaces.cli._own_model import Prepared

DESCRIPTION = "description"
ERRORS_TELL = "Whether an error occurs is not covered by ε."
ODD_CELLS = {
    "refuse": "A cell outside its bounds or categories would have stopped the fit with an error naming the column. "
    + ERRORS_TELL,
    "clip": "Numbers outside their bounds, if there were any, were moved to the nearest bound. Any other cell that the schema "
    f"does not allow would have stopped the fit with an error naming the column. {ERRORS_TELL}",
    "missing": "Cells that the schema does not allow were treated as missing. A missing cell in a column without a rule for it "
    f"would have stopped the fit with an error naming the column. {ERRORS_TELL}",
}


def about_words(
    model: str, schema: "dp.tables.Schema", dataset: str, count: int | None = None
) -> str:
    """What is computed by a model of this name, or by `DESCRIPTION`, from which table and for whom; names in quotation marks.

    >>> schema = dp.tables.schema_from_bounds("age=20:60,visits=0:9,smoker=no|yes", target="smoker")
    >>> about_words("logistic", schema, "a.csv", 1_500)
    'A logistic regression of “smoker” (yes against no) on 2 columns of “a.csv”, 1,500 records; its coefficients were released.'
    >>> about_words(DESCRIPTION, schema, "a.csv")
    'Noisy counts, shares and means of 3 columns of “a.csv”.'
    >>> about_words(DESCRIPTION, dataclasses.replace(schema, person="id"), "a.csv")
    'Noisy counts, shares and means of 3 columns of “a.csv”. Of each person one row is used, chosen by a secret random order.'
    """
    target = schema.target_column
    number = len(schema.columns)
    of = ""
    if target is not None and model not in (TWIN, DESCRIPTION):
        number -= 1
        classes = target.categories
        between = f" ({classes[1]} against {classes[0]})" if len(classes) == 2 else ""
        of = f"of “{target.name}”{between} on "
    table = f"{number} column{'s' * (number != 1)} of “{dataset}”"
    table += "" if count is None else f", {count:,} {'persons' if schema.person else 'records'}"
    rows = ""
    if schema.drops and model not in (TWIN, DESCRIPTION):
        rows += f" Rows with {dropped_cells(schema)} are left out."
    if schema.person is not None and (schema.max_rows == 1 or model == DESCRIPTION):
        most = "one row is" if schema.max_rows == 1 else f"at most {schema.max_rows} rows are"
        rows += f" Of each person {most} used, chosen by a secret random order."
    if model == DESCRIPTION:
        return f"Noisy counts, shares and means of {table}.{rows}"
    if model == TWIN:
        return f"A model of {table}, to draw synthetic rows from; the model was released.{rows}"
    if model in REGRESSIONS:
        name = model.replace("-", " ").replace("poisson", "Poisson")
        return f"A {name} regression {of}{table}; its coefficients were released.{rows}"
    return (
        f"The model “{Path(model).name}” {of or 'of '}{table}; its parameters were released.{rows}"
    )


def price_words(statement: "dp.Statement") -> str:
    """The (ε, δ) of a statement."""
    return f"ε = {dp.accounting.upper(statement.epsilon)} at δ = {statement.delta:g}"


def dropped_cells(schema: "dp.tables.Schema") -> str:
    """The cells for which a schema leaves rows out.

    >>> schema = dp.tables.schema_from_bounds("age=20:60,vote=no|yes", target="vote")
    >>> age, vote = (dataclasses.replace(column, missing="drop") for column in schema.columns)
    >>> dropped_cells(dataclasses.replace(schema, columns=(age, vote)))
    'a missing cell in “age” or “vote”'
    >>> vote = dataclasses.replace(vote, out_of_bounds=dp.tables.OutOfBounds.MISSING)
    >>> dropped_cells(dataclasses.replace(schema, columns=(age, vote)))
    'a missing cell in “age” or “vote”, or with a value that the schema does not list,'
    """
    named = " or ".join(f"“{name}”" for name in schema.drops)
    columns = [column for column in schema.columns if column.name in schema.drops]
    others = any(column.out_of_bounds == dp.tables.OutOfBounds.MISSING for column in columns)
    return f"a missing cell in {named}" + (
        ", or with a value that the schema does not list," if others else ""
    )


def facts_about(model: str, schema: "dp.tables.Schema") -> dict[str, str]:
    """The model and the schema of a regression, and the unit of its coefficients."""
    target = schema.target_column
    assert target is not None
    scale = {
        "logistic": f"the log odds of “{target.name}” = “{target.categories[-1]}”"
        if target.categories
        else "",
        MULTINOMIAL: "the log of a category's probability, up to a term that all categories share,",
        LINEAR: f"“{target.name}”, in halves of the range of its bounds,",
    }.get(model, f"the log of the mean of “{target.name}”")
    units = (
        f"A coefficient says how much {scale} changes if a number moves by half of the range of its bounds, or if a record is in "
        "the category that is named after the column."
    )
    return {"model": model, "schema": dp.tables.schema_to_toml(schema), "units": units}


def warn(
    schema: "dp.tables.Schema",
    seed: int | None,
    ledger: Path | None,
    data: Path | None = None,
    *,
    by_bounds: bool = False,
) -> None:
    """Say loudly, before the run, what makes its result not private; a ledger cannot hold such a fit.

    Of a table in `data`, say also that a row is protected, if the schema does not say whether a
    person may have several.
    """
    if ledger is not None and seed is not None:
        raise ValueError(
            "--ledger is for private fits, and this one would not be private (--seed): leave one of them out"
        )
    if seed is not None:
        say_error(
            "NOT PRIVATE: with --seed the noise can be reproduced and removed. The statement says so."
        )
    if data is None or schema.person is not None or schema.each_row:
        return
    remedy = 'In the schema, write person = "COLUMN" to protect persons, or person = "each row" if no person has two rows.'
    if by_bounds:
        remedy = (
            "Add --person COLUMN to protect persons (COLUMN:5 to use up to 5 rows of each), or --person 'each row' if no "
            "person has two rows."
        )
    say_error(f"Each row is protected, not a person with several rows. {remedy}")


def complete_statement(
    statement: "dp.Statement",
    schema: "dp.tables.Schema",
    out_of_bounds: str,
    *,
    counted: bool = True,
    own: "Prepared | None" = None,
    drops: bool = False,
    weighs: bool = False,
    about: str = "",
    contact: str = "",
) -> "dp.Statement":
    """The statement of the fit with what the command line knows besides.

    It leaves out rows that the schema drops if it `drops`, and counts rows by their survey weights
    if it `weighs`.
    """
    lines = zip(schema.columns, schema.describe(), strict=True)
    bought = schema.bought.columns if schema.bought is not None else ()
    public = [line for column, line in lines if column.name not in bought]
    described = f"Columns and their bounds or categories: {'; '.join(public)}."
    if public and described not in statement.public:
        statement = statement.with_public(described)
    own_rules = [
        f"{x.name} ({x.out_of_bounds})" for x in schema.columns if x.out_of_bounds is not None
    ]
    # The day only: a page for people says it.
    notes = [ODD_CELLS[out_of_bounds]]
    if schema.bought is not None and schema.bought.in_words() not in statement.notes:
        notes.append(schema.bought.in_words())
    made_on = str(datetime.datetime.now(datetime.UTC).date())
    moved = [
        x.name
        for x in schema.columns
        if x.kind.has_bounds and (x.out_of_bounds or out_of_bounds) == "clip"
    ]
    if moved:
        statement = statement.with_data_warnings(
            f"Numbers outside their bounds, if there were any, were moved to the nearest bound ({dp.report.listed(moved)}); "
            "whether there were is not published. All results, intervals too, are for the moved numbers."
        )
    if own_rules:
        notes.append(
            f"The schema has its own rules for cells that it does not allow in {', '.join(own_rules)}."
        )
    if (
        schema.weight is not None
        and (words := schema.weight_words(weighs=weighs)) not in statement.notes
    ):
        notes.append(words)
    if schema.person is not None:
        kept = "one was" if schema.max_rows == 1 else f"at most {schema.max_rows} were"
        notes.append(
            f"Each person is one record: of the rows with the same '{schema.person}' {kept} used, by a secret order that "
            "depends on nobody else's rows. An identifier that is written in two ways is two persons."
        )
    elif schema.each_row:
        statement = statement.with_public(dp.report.EACH_ROW_A_PERSON)
    else:
        notes.append(
            "The schema does not say whether a person may have several rows. If so, ε is that of one row: a person with k rows "
            "has up to k times that ε, and a larger δ."
        )
    if drops and schema.drops:
        notes.append(
            f"Rows with {dropped_cells(schema)} contributed nothing, as the schema asks. They count as "
            f"{statement.noun}s, and their exact number was not published."
        )
    if not counted:
        notes.append(
            f"The number of {statement.noun}s is a public figure that the user gave, not the file's count."
        )
    if own is not None and own.preprocesses:
        notes.append(
            f"preprocess of {own.own.path.name} was called with each row by itself. That it keeps nothing from one call to the "
            "next was not checked."
        )
    stated = dataclasses.replace(statement, about=about, made_on=made_on, contact=contact)
    return stated.with_notes(*notes)
