"""What the results of all methods have in common, from their fields alone: a file, plain values, HTML for notebooks.

A result is a frozen dataclass with a `statement` among its fields, and mostly a `plan`; all of them
are releases or public facts. A field that is neither has `KEPT_NOWHERE`: no file and no dictionary
has it. One with `NOT_IN_DICT` is too large to read.
"""

from __future__ import annotations

import dataclasses
import html
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from discreet._validate import finite_or_none
from discreet.privacy.accounting import Relation
from discreet.privacy.report import PARTS, Statement, statement_from_dict, use_words
from discreet.storage import Kinds, read_archive, write_archive

__all__ = ["KEPT_NOWHERE", "NOT_IN_DICT", "Released", "keeping"]

KEPT_NOWHERE: Mapping[str, bool] = MappingProxyType({"file": False, "dict": False})
NOT_IN_DICT: Mapping[str, bool] = MappingProxyType({"dict": False})


class Released:
    """The base of results. Subclasses are frozen dataclasses, defined with what a file of theirs is called and made of.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Mean(Released, what="private mean"):
    ...     value: float
    ...     plan: None
    ...     statement: Statement
    """

    what: ClassVar[str]
    version: ClassVar[int]
    noise_in_draws: ClassVar[bool] = False
    """True if the spread of the posterior's draws has the noise of the releases in it."""
    _parts: ClassVar[Any]

    def __init_subclass__(
        cls, *, what: str, parts: Kinds | Callable[[], Kinds] = (), version: int = 1
    ) -> None:
        """Define a kind of result.

        Args:
            what: What a file holds, in a few words.
            parts: Classes of what lies further inside the fields, as `storage.Kinds`; or a function
                that gives them. Those of the statement, relations and the dataclasses that fields
                are annotated with are known.
            version: Version of the fields.
        """
        super().__init_subclass__()
        cls.what = what
        cls.version = version
        cls._parts = parts

    @classmethod
    def _kinds(cls) -> Kinds:
        own: Any = cls._parts() if callable(cls._parts) else cls._parts
        hints = map(_class_of, typing.get_type_hints(cls).values())
        annotated: list[Any] = [kind for kind in hints if dataclasses.is_dataclass(kind)]
        return tuple(dict.fromkeys([*PARTS, Relation, *annotated, *own]))

    @classmethod
    def _kept_in(cls, place: str) -> list[str]:
        return [
            field.name
            for field in dataclasses.fields(typing.cast(Any, cls))
            if field.metadata.get(place, True)
        ]

    def save(self, path: Path | str) -> Path:
        """Write the result into one file, for `load`.

        The file holds releases and public facts, to the bit, and no key, record, model or code. It
        is written atomically; a file of that name is replaced.

        Args:
            path: The file, such as "fit.discreet".

        Returns:
            The path.

        Raises:
            ValueError: The name is that of a table.
            TypeError: A field holds something of your own, which a file without code cannot hold.
            OSError: The file cannot be written.
        """
        if Path(path).suffix.lower() in (".csv", ".parquet"):
            raise ValueError(
                f"save writes a file for `dp.load_result`, and {Path(path).name} has the name of a table: name it fit.discreet, "
                "say. pandas.DataFrame(result.posterior(key, 1_000)) is a table of draws, with to_csv and to_parquet."
            )
        fields = {name: getattr(self, name) for name in self._kept_in("file")}
        return write_archive(path, self.what, self.version, fields, self._kinds())

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote.

        Nothing in the file is run, so it may come from strangers; but its statement is as
        trustworthy as its source.

        Raises:
            ValueError: The file is absent, damaged, incomplete, something else, or from a newer
                discreet.
        """
        fields = read_archive(path, cls.what, cls.version, cls._kinds())
        hints = typing.get_type_hints(cls)
        expected = {name: _class_of(hints[name]) for name in cls._kept_in("file")}
        whole = isinstance(fields, dict) and set(fields) == set(expected)
        if whole and all(
            kind is Any or isinstance(fields[name], kind) for name, kind in expected.items()
        ):
            found = cls(**fields)
            if _is_sound(fields.get("statement")) and found._is_whole():
                return found
        raise ValueError(
            f"{path} does not hold what a {cls.what} holds: it is damaged, or was not written by discreet, or by another version"
        )

    def _is_whole(self) -> bool:
        """Whether the fields of a file belong together."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and finite numbers, for JSON, with the statement; what is not finite is None."""
        fields = {name: _plain(getattr(self, name)) for name in self._kept_in("dict")}
        return {"format": f"discreet {self.what}, version {self.version}", **finite_or_none(fields)}

    def _repr_html_(self) -> str:
        statement: Statement = getattr(self, "statement")  # noqa: B009, a field of the subclass
        return f"{statement._repr_html_()}<p>{html.escape(use_words(statement))}</p>"


@contextmanager
def keeping(released: Any) -> Iterator[None]:
    """Compute from a release without losing it: an error, or Ctrl-C, has it as its `partial_result`."""
    try:
        yield
    except BaseException as error:
        error.__dict__.setdefault("partial_result", released)
        error.add_note(
            f"What was released is paid for, and not lost: this error's partial_result is the {released.what}."
        )
        raise


def _is_sound(statement: Any) -> bool:
    """Whether a statement's facts are of their kinds: those of its JSON are checked one by one."""
    try:
        return statement is None or statement_from_dict(statement.to_dict()) == statement
    except (TypeError, ValueError, AttributeError, KeyError):
        return False


def _class_of(hint: Any) -> Any:
    """The class of a field's values: of an annotation for arrays, that of the arrays."""
    if typing.get_origin(hint) is types.UnionType:
        return hint
    return getattr(hint, "array_type", None) or typing.get_origin(hint) or hint


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    if dataclasses.is_dataclass(value):
        parts = {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return {"kind": type(value).__name__, **parts}
    return value if isinstance(value, int | float | str | None) else str(value)
