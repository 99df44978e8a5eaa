"""A table to records and a fit of records that stay on disk: against pyarrow's own reading, and against a fit in memory.

python -m benchmarks.tables
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.ipc
from numpyro.infer.autoguide import AutoNormal

from benchmarks import logistic
from benchmarks._child import ask
from benchmarks._command import main
from benchmarks._fits import PrivateFit, Problem
from benchmarks._harness import Figure, Outcome, Program, Scale, alternate
from benchmarks._results import number
from discreet.methods.inference._records import take_apart
from discreet.tabular.tables import convert, open_records, read_table, schema_from_bounds

READING = "part: read_table"
REGIONS = ("north", "south", "east", "west")
BOUNDS = ",".join(
    [
        *(f"real{i}=0:100" for i in range(8)),
        *(f"count{i}=0:50" for i in range(4)),
        *(f"flag{i}=no|yes" for i in range(4)),
        *(f"region{i}={'|'.join(REGIONS)}" for i in range(3)),
        "born=1970-01-01:2024-12-31",
    ]
)


def write(path: Path, rows: int, seed: int = 0) -> None:
    """An invented table that fits the bounds."""
    rng = np.random.default_rng(seed)
    columns = {f"real{i}": np.round(rng.uniform(0, 100, rows), 3) for i in range(8)}
    columns |= {f"count{i}": rng.integers(0, 50, rows) for i in range(4)}
    columns |= {f"flag{i}": np.array(["no", "yes"])[rng.integers(0, 2, rows)] for i in range(4)}
    columns |= {f"region{i}": np.array(REGIONS)[rng.integers(0, 4, rows)] for i in range(3)}
    columns["born"] = rng.integers(0, 20_000, rows).astype("datetime64[D]")
    pyarrow.csv.write_csv(pyarrow.table(columns), path)


def measure(scale: Scale) -> list[Outcome]:
    """Conversion, and the fit of what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        return [_conversion(scale, Path(folder)), _out_of_core(scale, Path(folder))]


def _conversion(scale: Scale, folder: Path) -> Outcome:
    """Seconds a file. pyarrow finds the columns' types by itself, as it does for most of its users."""
    rows = scale.size(1_000_000, 2_000)
    schema = schema_from_bounds(BOUNDS, target="flag0")
    source, out = folder / "table.csv", folder / "records"
    write(source, rows)
    programs = [
        Program("discreet, convert", lambda: convert(source, schema, out), 1),
        Program("pyarrow, read_csv", lambda: pyarrow.csv.read_csv(source), 1),
        Program(READING, lambda: read_table(source, schema), 1),
    ]
    outcome = Outcome("tables", f"a CSV file of {rows:,} rows and {len(schema.columns)} columns")
    outcome.timings = alternate(programs, min(scale.rounds, 7))
    reading = number(outcome.together([READING], "pyarrow, read_csv"))
    outcome.compare(
        "discreet, convert / pyarrow, read_csv",
        "discreet, convert",
        "pyarrow, read_csv",
        ("<=", 1.5),
        f"reading with the schema's types takes {reading} of pyarrow's, the rest encodes, writes and hashes",
    )
    outcome.facts["bytes"] = source.stat().st_size
    return outcome


def _out_of_core(scale: Scale, folder: Path) -> Outcome:
    """The same compiled loop on the same records, which lie in a file or in memory."""
    rows, batch = scale.size(5_000_000, 6), scale.size(1_000, 6)
    path = folder / "numbers.records"
    write_numbers(path, rows)
    steps = scale.steps(2_000)
    mapped, memory = (
        PrivateFit(problem, problem.poisson(batch), steps)
        for problem in (problem_of(path), problem_of(path, True))
    )
    outcome = Outcome(
        "out-of-core",
        f"logistic regression, N = {rows:,}, D = {NUMBERS}, batch {batch}, records on disk",
    )
    outcome.timings = alternate(
        [mapped.program("records in a file", "memory-mapped"), memory.program("records in memory")],
        scale.rounds,
    )
    outcome.compare("in a file / in memory", "records in a file", "records in memory", ("<=", 1.5))
    table = sum(file.stat().st_size for file in path.iterdir())
    outcome.facts["bytes"] = table
    if not scale.tiny:
        # What a fit takes whatever the table's size is, such as the compiler's memory, is that of a
        # small one.
        few = folder / "few.records"
        write_numbers(few, 50 * batch)
        grown = {
            side: ask("mapped", str(path), side, batch, rows)["grown_bytes"]
            for side in ("file", "memory")
        }
        grown["small file"] = ask("mapped", str(few), "file", batch, 50 * batch)["grown_bytes"]
        outcome.facts["private_memory"] = grown
        for side in ("file", "memory"):
            name = f"{side}: memory of the fit's own, above a small table's, per byte of the file"
            bound = ("<=", 0.1) if side == "file" else None
            outcome.figures.append(
                Figure(name, (grown[side] - grown["small file"]) / table, bound=bound)
            )
    return outcome


NUMBERS = 20


def write_numbers(path: Path, rows: int, seed: int = 0) -> None:
    """Converted records with random features and a target that follows the first."""
    rng = np.random.default_rng(seed)
    names = [f"x{i}" for i in range(NUMBERS)]
    source = path.with_suffix(".source.arrow")
    schema = pyarrow.schema(
        [*((name, pyarrow.float64()) for name in names), ("y", pyarrow.string())]
    )
    with pyarrow.ipc.new_file(source, schema) as writer:
        for first in range(0, rows, 100_000):
            x = rng.uniform(-1, 1, (NUMBERS, min(100_000, rows - first)))
            y = np.where(rng.random(x.shape[1]) < 1 / (1 + np.exp(-3 * x[0])), "1", "0")
            writer.write_table(pyarrow.table([*x, y], schema=schema))
    bounds = ",".join([*(f"{name}=-1:1" for name in names), "y=0|1"])
    convert(source, schema_from_bounds(bounds, target="y"), path)
    source.unlink()


def problem_of(path: Path, in_memory: bool = False) -> Problem:
    """The converted records as `DPSVI.run` takes them, or copied into memory."""
    records = open_records(path)
    arrays = [np.array(x) if in_memory else x for x in (records.x, records.y)]
    leaves = tuple(take_apart(arrays, {}).leaves)
    return Problem(
        logistic.model, AutoNormal(logistic.model), leaves, static={"N": records.num_records}
    )


if __name__ == "__main__":
    main(measure, __doc__)
