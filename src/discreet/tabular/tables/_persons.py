"""At most so many rows of each person, so that a record is a person."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

import numpy as np

from discreet._validate import integer
from discreet.tabular.tables._schema import DataError

if TYPE_CHECKING:
    import pyarrow


KEY_BYTES = 32


def rows_of_persons(
    persons: pyarrow.ChunkedArray, max_rows: int = 1, *, key: bytes | None = None
) -> np.ndarray:
    """Choose the rows of each person to use, at most `max_rows`.

    The rows of a person who has more are put in a secret order, that of a keyed hash (BLAKE2b) of
    the person and of the row's place among that person's rows; the first in it are used.

    Guarantee: which rows of a person are used depends on that person's own rows and on the key, not
    on anybody else's rows, and so does a person's line of the result but for the numbers of the
    rows in the table. So two tables that differ by all rows of one person become records that
    differ by one record, and a plan for records protects persons. The same key chooses the same
    rows of the same table, and each row of a person is as likely as any other.

    Args:
        persons: The person of each row. Texts are compared as they are: an id in two spellings is
            two persons.
        max_rows: Public; 1 at least.
        key: Secret, 16 to 64 bytes; None for 32 bytes from the operating system.

    Returns:
        Persons by `max_rows`: the numbers of the rows, in order and then -1 where a person has
            fewer. Persons are in the order
        of the first row that is used.

    Raises:
        DataError: A row without a person.
        ValueError: A key of another length, or no rows.

    >>> import pyarrow
    >>> persons = pyarrow.chunked_array([["ann", "bob", "ann", "cid"]])
    >>> rows_of_persons(persons, max_rows=3)
    array([[ 0,  2, -1],
           [ 1, -1, -1],
           [ 3, -1, -1]])
    """
    import pyarrow

    integer("max_rows", max_rows)
    key = secrets.token_bytes(KEY_BYTES) if key is None else key
    if not 16 <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise ValueError(
            f"key has {len(key)} bytes: give 16 to {hashlib.blake2b.MAX_KEY_SIZE}, or leave it out"
        )
    if persons.null_count:
        raise DataError("the person column has missing cells: each row must say whose it is")
    coded = persons.cast(pyarrow.string()).combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    starts = np.cumsum(counts) - counts
    places = np.arange(max_rows)
    there = places < counts[:, None]
    rows = np.where(there, order[np.where(there, starts[:, None] + places, 0)], -1)
    more = np.flatnonzero(counts > max_rows)
    for person, name in zip(
        more, coded.dictionary.take(pyarrow.array(more)).to_pylist(), strict=True
    ):
        first = np.argsort(_ranks(key, name.encode(), counts[person]), kind="stable")[:max_rows]
        rows[person] = order[starts[person] + np.sort(first)]
    return rows[np.argsort(rows[:, 0])]


def keep_one_row_a_person(persons: pyarrow.ChunkedArray, *, key: bytes | None = None) -> np.ndarray:
    """A Boolean for each row: whether it is the one of its person that `rows_of_persons` chooses.

    >>> import pyarrow
    >>> keep_one_row_a_person(pyarrow.chunked_array([["ann", "bob", "ann", "cid"]]), key=bytes(32))[[1, 3]]
    array([ True,  True])
    """
    keep = np.zeros(len(persons), bool)
    keep[rows_of_persons(persons, key=key)[:, 0]] = True
    return keep


def _ranks(key: bytes, person: bytes, count: int) -> np.ndarray:
    """Position of each of a person's rows in the secret order. A digest of 64 bytes serves eight rows."""
    digests = (
        hashlib.blake2b(block.to_bytes(8) + person, key=key).digest()
        for block in range(-(-count // 8))
    )
    return np.frombuffer(b"".join(digests), ">u8")[:count]
