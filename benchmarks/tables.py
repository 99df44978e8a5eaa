"""A CSV file of 20 columns, checked against its schema and converted into records: against pyarrow's own reading of it.

python -m benchmarks.tables
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv

from benchmarks._command import main
from benchmarks._harness import Outcome, Program, Scale, alternate
from discreet.data import convert
from discreet.schema import schema_from_bounds

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
    """Seconds a file. pyarrow finds the columns' types by itself, as it does for most of its users."""
    rows = scale.size(1_000_000, 2_000)
    schema = schema_from_bounds(BOUNDS, target="flag0")
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "table.csv", Path(folder) / "records.arrow"
        write(source, rows)
        programs = [
            Program("discreet, convert", lambda: convert(source, schema, out), 1),
            Program("pyarrow, read_csv", lambda: pyarrow.csv.read_csv(source), 1),
        ]
        outcome = Outcome("tables", f"a CSV file of {rows:,} rows and {len(schema.columns)} columns")
        outcome.timings = alternate(programs, min(scale.rounds, 7))
        outcome.compare("discreet, convert / pyarrow, read_csv", "discreet, convert", "pyarrow, read_csv", ("<=", 1.5))
        outcome.facts["bytes"] = source.stat().st_size
    return [outcome]


if __name__ == "__main__":
    main(measure, __doc__)
