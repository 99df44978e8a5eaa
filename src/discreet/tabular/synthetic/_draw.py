"""Draw synthetic twins of a table that was fitted: into memory, into files, or from a fit that was saved.

Twins are post-processing. They are computed from a result's released posterior, the model's public
description and a key, so they cost nothing beyond the fit's statement; this file imports no reader
of tables. Each twin comes from a posterior draw of its own (`_twins`), because only then do the
differences between twins show what the posterior does not know, which `combine` needs.
"""

from __future__ import annotations

import csv
import enum
import io
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from discreet._validate import require
from discreet.methods.inference import DPSVIResult, load_result
from discreet.privacy import random
from discreet.privacy.report import Statement
from discreet.storage import read_archive, replacing, write_archive
from discreet.tabular.marginals import MarginalsResult
from discreet.tabular.models import MixtureOfProducts
from discreet.tabular.tables import PARTS_OF_SCHEMA, Schema

if TYPE_CHECKING:
    import pyarrow


class Posterior(Protocol):
    """Anything with posterior draws: `DPSVIResult`, `NoiseAware` and the other results."""

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> Mapping[str, Any]:
        """Draws of the latents, along the leading axis."""
        ...


class Model(Protocol):
    """A model that can draw a table from one value of its latents: `MixtureOfProducts`, or your own."""

    def draw(
        self, latents: Mapping[str, Any], num_records: int, rng: np.random.Generator
    ) -> pyarrow.Table:
        """A table of `num_records` rows."""
        ...


def synthesize(
    key: PRNGKeyArray,
    result: Posterior | Mapping[str, Any],
    model: Model,
    *,
    num_twins: int = 5,
    num_records: int | None = None,
    rows_per_draw: int | None = None,
) -> list[pyarrow.Table]:
    """Draw synthetic twins of the table that was fitted.

    Guarantee: computed from the result, the model's public description and the key alone, so the
    twins together cost nothing beyond `result.statement`, however many there are.

    Each twin comes from a posterior draw of its own. So the differences between twins show the
    posterior's uncertainty, which `combine` needs; several twins from one draw would not show it.

    Args:
        key: Any JAX key.
        result: A fit's result, or `result.noise_aware()`, whose draws include the uncertainty from
            the privacy noise; or draws of the latents, along the leading axis, as many as twins or
            more.
        model: The model that was fitted, such as `MixtureOfProducts`.
        num_twins: Number of twins, at least 1. Use 5 for predictions, 20 or more for `combine`.
        num_records: Rows of each; None: the public number of records of the result's plan.
        rows_per_draw: Number of rows from one posterior draw; None: all of a twin. With fewer, a
            twin is a sample of the posterior predictive distribution: closer to new rows, but
            `combine` is then not valid.

    Returns:
        pyarrow tables with the schema's columns.

    Raises:
        ValueError: A number below 1, no number of records, or too few draws.
    """
    rows = rows_of(result, num_records)
    twins = _twins(key, result, model, num_twins, rows, rows_per_draw, rows)
    return [piece for pieces in twins for piece in pieces]


def _twins(
    key: PRNGKeyArray,
    result: Posterior | Mapping[str, Any],
    model: Model,
    num_twins: int,
    rows: int,
    rows_per_draw: int | None,
    most: int,
) -> Iterator[Iterator[pyarrow.Table]]:
    """Each twin in pieces of at most `most` rows, from posterior draws of its own. Arguments and errors as in `synthesize`."""
    for name, value in (("num_twins", num_twins), ("rows_per_draw", rows_per_draw)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1.")
    each = -(-rows // (rows_per_draw or rows))
    posterior_key, rows_key = jax.random.split(
        random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR)
    )
    seeds = np.asarray(jax.random.bits(rows_key, (num_twins, 4)))
    draws = _draws(posterior_key, result, num_twins * each)
    return (
        _pieces(
            model,
            itertools.islice(draws, each),
            np.random.default_rng(seed),
            rows,
            rows_per_draw or rows,
            most,
        )
        for seed in seeds
    )


MOST_DRAWS = 1_000
"""Posterior draws in memory at a time."""


def _draws(
    key: PRNGKeyArray, result: Posterior | Mapping[str, Any], number: int
) -> Iterator[dict[str, np.ndarray]]:
    """Posterior draws, one after the other."""
    if isinstance(result, Mapping):
        if short := [name for name, values in result.items() if len(values) < number]:
            raise ValueError(
                f"There are fewer draws of {short[0]!r} than the {number} that the twins need, each its own: draw "
                "more from the posterior, or ask for fewer twins."
            )
        return (
            {name: np.asarray(values[i]) for name, values in result.items()} for i in range(number)
        )
    return _draws_in_blocks(key, result, number)


def _draws_in_blocks(
    key: PRNGKeyArray, result: Posterior, number: int
) -> Iterator[dict[str, np.ndarray]]:
    for first in range(0, number, MOST_DRAWS):
        size = min(MOST_DRAWS, number - first)
        block = result.posterior(jax.random.fold_in(key, first) if first else key, size)
        block = {name: np.asarray(values) for name, values in block.items()}
        yield from ({name: values[i] for name, values in block.items()} for i in range(size))


def _pieces(
    model: Model,
    draws: Iterator[dict[str, np.ndarray]],
    rng: np.random.Generator,
    rows: int,
    rows_per_draw: int,
    most: int,
) -> Iterator[pyarrow.Table]:
    """The rows of a twin, in tables of at most `most` rows."""
    several = getattr(model, "draw_several", None)
    latents = {}
    left = 0
    for first in range(0, rows, most):
        tables = []
        parts = []
        needed = min(most, rows - first)
        while needed:
            if not left:
                latents = next(draws)
                left = rows_per_draw
            taken = min(left, needed)
            left -= taken
            needed -= taken
            if several is None:
                tables.append(model.draw(latents, taken, rng))
                continue
            parts.append((latents, taken))
            if not needed or len(parts) == MOST_DRAWS:
                tables.append(several(parts, rng))
                parts = []
        if len(tables) == 1:
            yield tables[0]
        else:
            require("pyarrow", extra="tables", what="A twin from several draws")
            import pyarrow

            yield pyarrow.concat_tables(tables)


def rows_of(result: Any, num_records: int | None) -> int:
    """The number of rows of a twin."""
    if num_records is None:
        known = result if hasattr(result, "num_records") else getattr(result, "plan", None)
        if known is None:
            raise ValueError(
                "The number of rows of a twin is unknown, since this result has no plan: pass num_records."
            )
        return known.num_records
    if num_records < 1:
        raise ValueError(f"num_records is {num_records}; a twin has at least one row.")
    return num_records


PIECE_ROWS = 1 << 17


class TwinFormat(enum.StrEnum):
    """The file format of a twin."""

    CSV = "csv"
    PARQUET = "parquet"


def write_twins(
    key: PRNGKeyArray,
    result: Posterior | Mapping[str, Any],
    model: Model,
    schema: Schema,
    folder: Path | str,
    *,
    num_twins: int = 5,
    num_records: int | None = None,
    rows_per_draw: int | None = None,
    file_format: TwinFormat | str = TwinFormat.CSV,
    on_rows: Callable[[int], object] = lambda rows: None,
) -> list[Path]:
    """Draw twins as `synthesize` does, each into its own file, which is complete or absent.

    Guarantee: as of `synthesize`. `discreet.tables.read_table` reads the file as a table of this
    schema.

    Args:
        key: Any JAX key.
        result: As in `synthesize`.
        model: As in `synthesize`.
        schema: The twins' schema: that of the model; without a person column, unless twins have
            persons with several rows.
        folder: Folder for `twin-1.csv` and so on; files of that name are replaced.
        num_twins: As in `synthesize`.
        num_records: As in `synthesize`.
        rows_per_draw: As in `synthesize`.
        file_format: "csv" or "parquet".
        on_rows: Called with the number of rows of each piece that was written.

    Returns:
        The files.

    Raises:
        ValueError: As `synthesize`; another format; or, for CSV, missing cells that no text stands
            for.
        OSError: A file cannot be written.
    """
    check_format(schema, file_format)
    rows = rows_of(result, num_records)
    files = []
    form = TwinFormat(file_format)
    twins = _twins(key, result, model, num_twins, rows, rows_per_draw, PIECE_ROWS)
    for number, pieces in enumerate(twins, start=1):
        path = Path(folder) / f"twin-{number:0{len(str(num_twins))}d}.{form}"
        with replacing(path) as file:
            for written in _write(file, pieces, schema, form):
                on_rows(written)
        files.append(path)
    return files


def check_format(schema: Schema, file_format: TwinFormat | str) -> None:
    """Check that twins of this schema can be written in a format.

    Raises:
        ValueError: Another format; or, for CSV, missing cells that no text stands for.
    """
    if TwinFormat(file_format) is TwinFormat.CSV:
        _missing_text(schema)


def _write(
    file: BinaryIO, pieces: Iterator[pyarrow.Table], schema: Schema, form: TwinFormat
) -> Iterator[int]:
    """Write the pieces one after the other, and yield the number of rows of each."""
    require("pyarrow", extra="tables", what="Writing twins")
    import pyarrow.csv
    import pyarrow.parquet

    start: Any = pyarrow.parquet.ParquetWriter
    how = {}
    if form is TwinFormat.CSV:
        start = pyarrow.csv.CSVWriter
        missing = _missing_text(schema)
        texts = [text for column in schema.columns for text in column.categories]
        # Where no text needs quotes, none has any.
        style = (
            "none"
            if all(map(_is_plain, [*texts, *([] if missing is None else [missing])]))
            else "needed"
        )
        how["write_options"] = pyarrow.csv.WriteOptions(include_header=False, quoting_style=style)
        header = io.StringIO()
        names = [column.name for column in schema.columns] + (
            [] if schema.person is None else [schema.person]
        )
        csv.writer(header, lineterminator="\n").writerow(names)
        file.write(header.getvalue().encode("utf-8"))
        pieces = (_for_csv(piece, schema, missing) for piece in pieces)
    first = next(pieces)
    with start(file, first.schema, **how) as writer:
        for piece in itertools.chain([first], pieces):
            writer.write_table(piece)
            yield len(piece)


def _is_plain(text: str) -> bool:
    return bool(text) and text == text.strip() and not set(text) & set('",\n\r')


def _missing_text(schema: Schema) -> str | None:
    """The text of a missing cell; None: an empty cell, because that reads as missing or no cell is missing."""
    if not any(column.may_be_missing for column in schema.columns):
        return None
    if not schema.missing_values:
        raise ValueError(
            "The schema permits missing cells but has no text for them, so a CSV file cannot represent them: write Parquet, or "
            'add missing_values = [""] to the schema.'
        )
    # A blank line would not be a row.
    if "" in schema.missing_values and len(schema.columns) > 1:
        return None
    return schema.missing_values[0]


def _for_csv(table: pyarrow.Table, schema: Schema, missing: str | None) -> pyarrow.Table:
    """The table with the schema's text in its missing cells."""
    if missing is None:
        return table
    for place, column in enumerate(schema.columns):
        if column.may_be_missing:
            texts = table.column(place).cast("string").fill_null(missing)
            table = table.set_column(place, column.name, texts)
    return table


RESULT = "twin.result"
MODEL = "twin.model"
_WHAT = "model of a table"
_VERSION = 1
_KINDS = (MixtureOfProducts, *PARTS_OF_SCHEMA)
_MOST = 100_000


class Fitted(NamedTuple):
    """A saved fit to draw twins from; made by `read_fitted`.

    Attributes:
        result: The result, without its guide: use `posterior` of this class.
        model: The model that was fitted.
    """

    result: DPSVIResult | MarginalsResult
    model: MixtureOfProducts

    @property
    def num_records(self) -> int:
        """Rows of a twin: the number of records of the fit's plan, or the one estimated from noisy counts."""
        return rows_of(self.result, None)

    @property
    def num_draws(self) -> float:
        """The number of available draws of the latents; unlimited for a fit to the records."""
        return getattr(self.result, "num_draws", math.inf)

    @property
    def statement(self) -> Statement:
        """The fit's statement."""
        return self.result.statement

    @property
    def not_counted(self) -> str:
        """Which pairs of columns were left out of noisy counts, in words; empty if none."""
        return getattr(self.result, "not_counted", "")

    @property
    def about(self) -> dict[str, Any]:
        """The model's settings in the twins' metadata."""
        return {"components": self.model.components, "slices": self.model.slices}

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, np.ndarray]:
        """Draws of the latents, as `DPSVIResult.posterior` has them.

        The mixture's latents are real and its guide a normal for each, so draws need no program
        that would be compiled first.
        """
        if isinstance(self.result, MarginalsResult):
            return self.result.posterior(key, num_samples)
        secret = random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR)
        rng = np.random.default_rng(np.asarray(jax.random.bits(secret, (4,))))
        params = self.result.params
        return {
            name: params[f"{name}_auto_loc"]
            + params[f"{name}_auto_scale"] * rng.standard_normal((num_samples, *shape))
            for name, shape in _latents(self.model).items()
        }


def write_fitted(
    folder: Path | str, result: DPSVIResult | MarginalsResult, model: MixtureOfProducts
) -> list[Path]:
    """Write a fit of a mixture into a folder, as `discreet fit --model twin` does: the result, and the model with its schema.

    All of it is public or released, and covered by `result.statement`.

    Returns:
        The files.

    Raises:
        OSError: One cannot be written.
    """
    folder = Path(folder)
    # The model comes last: if it exists, the result does.
    return [
        result.save(folder / RESULT),
        write_archive(folder / MODEL, _WHAT, _VERSION, model, _KINDS),
    ]


def read_fitted(folder: Path | str) -> Fitted:
    """Read what `write_fitted` wrote.

    Returns:
        The result and the model, from which `synthesize` and `write_twins` draw. (For
        `noise_aware`, load the result itself by `load_result(folder / "twin.result", model.model,
        model.guide(), placeholder=model.placeholder)`.)

    Raises:
        ValueError: The folder is absent or holds no such fit, or a file is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"{folder} is not a folder: give the one that discreet fit --model twin wrote"
        )
    if not (folder / MODEL).is_file():
        raise ValueError(
            f"{folder} has no {MODEL}, so there is no fit to draw twins from: run discreet fit --model twin"
        )
    model = read_archive(folder / MODEL, _WHAT, _VERSION, _KINDS)
    if not isinstance(model, MixtureOfProducts) or model.slices > _MOST:
        raise ValueError(f"{folder / MODEL} is damaged: restore the file that the fit wrote")
    result = read_result(folder)
    latents = _latents(model)
    if isinstance(result, MarginalsResult):
        values = result.latents
        expected = {name: (result.num_draws, *shape) for name, shape in latents.items()}
    else:
        values = result.params
        expected = {
            f"{name}_auto_{part}": shape
            for name, shape in latents.items()
            for part in ("loc", "scale")
        }
    if {name: np.shape(value) for name, value in values.items()} != expected:
        raise ValueError(
            f"{folder / RESULT} does not fit {MODEL} beside it: its parameters have other names or shapes. Restore the files of "
            "one fit"
        )
    if not all(np.isfinite(value).all() for value in values.values()):
        raise ValueError(
            f"The fit in {folder} failed: its parameters are not finite, so no twin can be drawn. A smaller "
            "learning rate helps, in a further fit that spends again"
        )
    return Fitted(result, model)


def read_result(folder: Path) -> DPSVIResult | MarginalsResult:
    """Read the result alone: of a fit to the records, or to noisy counts.

    Raises:
        ValueError: There is none, or it is damaged.
    """
    try:
        return MarginalsResult.load(folder / RESULT)
    except ValueError:
        return load_result(folder / RESULT)


def _latents(model: MixtureOfProducts) -> dict[str, tuple[int, ...]]:
    levels = sum(model.sizes)
    return {
        "component": (model.components,),
        "base": (levels,),
        "deviations": (model.components, levels),
    }
