"""The examples' tables, encoded with bounds and categories that anybody knows without the data."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path

import numpy as np

ADULT_CATEGORIES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked ?",
    "marital_status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces ?",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
}
ADULT_NUMBERS = {
    # column: (lowest, highest, on a logarithmic scale)
    "age": (17.0, 90.0, False),
    "education_num": (1.0, 16.0, False),
    "capital_gain": (0.0, 99_999.0, True),
    "capital_loss": (0.0, 4_356.0, True),
    "hours_per_week": (1.0, 99.0, False),
}


class NoTable(SystemExit):
    """A table that is not here."""


def find(name: str) -> Path:
    """A table's path: as given, or in $DISCREET_DATA, or in ../shared/data."""
    folders = [Path(), Path(os.environ.get("DISCREET_DATA", "."))]
    folders += [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise NoTable(
        f"No table {name!r}: pass its path, or set DISCREET_DATA to the folder that holds it."
    )


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, gzipped or not."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return list(csv.DictReader(file))


def adult(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Adult: training features and labels, test features and labels.

    Five numbers scaled by public bounds to [-1, 1], six categorical columns one-hot, an intercept:
    50 columns.
    """
    table = rows(path)
    columns = [np.ones(len(table))]
    for name, (low, high, logarithmic) in ADULT_NUMBERS.items():
        values = np.clip([float(row[name]) for row in table], low, high) - low
        scaled = np.log1p(values) / np.log1p(high - low) if logarithmic else values / (high - low)
        columns.append(2.0 * scaled - 1.0)
    for name, categories in ADULT_CATEGORIES.items():
        cells = np.array([row[name] for row in table])
        columns += [(cells == category).astype(float) for category in categories.split()]
    features = np.stack(columns, axis=1).astype(np.float32)
    labels = np.array([row["income"] == ">50K" for row in table], np.float32)
    test = np.array([row["split"] == "test" for row in table])
    return features[~test], labels[~test], features[test], labels[test]


def abalone(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Abalone as in the UAI 2017 experiments: eight standardised features; the first 80 % train."""
    table = rows(path)
    names = [name for name in table[0] if name != "old"]
    features = np.array([[float(row[name]) for name in names] for row in table], np.float32)
    # The table comes standardised; numbers further out than four are made four.
    features = np.concatenate(
        [np.ones((len(table), 1), np.float32), np.clip(features, -4, 4)], axis=1
    )
    labels = np.array([float(row["old"]) for row in table], np.float32)
    cut = int(0.8 * len(table))
    return features[:cut], labels[:cut], features[cut:], labels[cut:]
