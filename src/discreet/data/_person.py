"""One row of each person, so that a record is a person."""

import hashlib
import secrets

import numpy as np
import pyarrow

from discreet.schema import DataError

KEY_BYTES = 32


def keep_one_row_a_person(persons: pyarrow.ChunkedArray, *, key: bytes | None = None) -> np.ndarray:
    """Which rows to keep, so that each person has one.

    The rows of a person are put in a secret order, that of a keyed hash (BLAKE2b) of the person and of the row's place among
    that person's rows; the first in it is kept.

    Guarantee: which row of a person is kept depends on that person's own rows and on the key, not on anybody else's rows. So
    two tables that differ by all rows of one person become records that differ by one record, and a plan for records
    protects persons. The same key keeps the same rows of the same table, and each row of a person is as likely as any other.

    Args:
        persons: Whose each row is.
        key: Secret, 16 to 64 bytes; None for 32 bytes from the operating system.

    Returns:
        A Boolean for each row.

    Raises:
        DataError: A row that is nobody's.
        ValueError: A key of another length.

    >>> persons = pyarrow.chunked_array([["ann", "bob", "ann", "cid"]])
    >>> keep_one_row_a_person(persons, key=bytes(32))[[1, 3]]
    array([ True,  True])
    """
    key = secrets.token_bytes(KEY_BYTES) if key is None else key
    if not 16 <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise ValueError(f"key has {len(key)} bytes: give 16 to {hashlib.blake2b.MAX_KEY_SIZE}, or leave it out")
    if persons.null_count:
        raise DataError("the person column has missing cells: each row must say whose it is")
    coded = persons.cast(pyarrow.string()).combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    ends = np.cumsum(counts)
    chosen = order[ends - counts]
    several = np.flatnonzero(counts > 1)
    for person, name in zip(several, coded.dictionary.take(pyarrow.array(several)).to_pylist(), strict=True):
        first = int(np.argmin(_ranks(key, name.encode(), counts[person])))
        chosen[person] = order[ends[person] - counts[person] + first]
    keep = np.zeros(len(codes), bool)
    keep[chosen] = True
    return keep


def _ranks(key: bytes, person: bytes, count: int) -> np.ndarray:
    """Where each of a person's rows stands in the secret order. A digest of 64 bytes is good for eight rows."""
    digests = (hashlib.blake2b(block.to_bytes(8) + person, key=key).digest() for block in range(-(-count // 8)))
    return np.frombuffer(b"".join(digests), ">u8")[:count]
