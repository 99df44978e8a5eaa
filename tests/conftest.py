"""What every room's tests share: where the tables are."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root folder."""
    return REPOSITORY


@pytest.fixture(scope="session")
def table():
    """A function from a file name to the path of that public table; skips the test where the table is absent.

    Tables are never committed. They are looked for in $DISCREET_DATA, then in ../shared/data beside the repository.
    """

    def find(name: str) -> Path:
        named = os.environ.get("DISCREET_DATA")
        folders = [Path(named)] if named else [REPOSITORY.parent / "shared" / "data"]
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
        pytest.skip(f"{name} is not in {folders[0]}: set DISCREET_DATA to a folder that holds it")

    return find
