"""The statement as plain values for JSON, and back: facts are read, the texts beside them are for people and are not."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from discreet._validate import is_integer, is_real

if TYPE_CHECKING:
    from discreet.privacy.report._facts import Statement

FORMAT = "discreet privacy statement, version 2"
_PAIRS = {
    "attack_power": ("false_positive_rate", "largest_true_positive_rate"),
    "posterior_beliefs": ("before", "largest_after"),
}
_SHARES = ("delta", "right_guesses")


def as_dict(statement: Statement) -> dict[str, Any]:
    """Plain dictionaries, lists, strings and finite numbers; what is infinite is None beside its reason."""
    content: dict[str, Any] = {"format": FORMAT, "is_private": statement.is_private}
    content |= {
        field.name: getattr(statement, field.name) for field in dataclasses.fields(statement)
    }
    content |= vars(content.pop("figures")) | vars(statement.unit)
    content["profile"] = [vars(point) for point in statement.figures.profile]
    content["receipt"] = None if statement.receipt is None else vars(statement.receipt)
    for name, parts in _PAIRS.items():
        content[name] = [dict(zip(parts, pair, strict=True)) for pair in content[name]]
    for name in ("unit", "relation_in_words", "meaning", "randomness", "warnings"):
        content[name] = getattr(statement, name)
    return _finite(content)


def _finite(value: Any) -> Any:
    """Containers copied to plain ones; a number without a value becomes None beside its reason."""
    if isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for key, item in value.items():
            plain[str(key)] = _finite(item)
            if isinstance(item, float) and not math.isfinite(item):
                infinite = "infinite: no finite value holds at this delta"
                plain[f"{key}_reason"] = "not a number" if math.isnan(item) else infinite
        return plain
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if isinstance(value, int | str) or value is None else str(value)


def statement_from_dict(content: Any) -> Statement:
    """Read the statement from the result of `Statement.to_dict` or `to_json`; a missing number is infinite.

    A file is as trustworthy as its source: this checks that it is complete, not that it is true.
    Raises a ValueError if it is not a statement, of another version, incomplete, or contradictory.
    """
    from discreet.privacy.report._facts import Figures, Statement, Unit

    if not isinstance(content, Mapping) or not str(content.get("format", "")).startswith(
        "discreet privacy statement"
    ):
        raise ValueError(
            "it is not a discreet privacy statement: give the statement.json that a fit wrote"
        )
    if content["format"] != FORMAT:
        raise ValueError(
            f"it is a {content['format']}, and this discreet reads {FORMAT!r}: use the version that wrote it"
        )
    parts = {"figures": Figures, "unit": Unit}
    own = [field.name for field in dataclasses.fields(Statement) if field.name not in parts]
    names = [*own, *(field.name for part in parts.values() for field in dataclasses.fields(part))]
    if lacking := sorted(set(names) - set(content)):
        raise ValueError(
            f"the statement lacks {', '.join(lacking)}: give the statement.json as the fit wrote it"
        )
    try:
        whole = {name: _record(part, content) for name, part in parts.items()}
        statement = Statement(**whole, **_fields(Statement, own, content))
    except (TypeError, KeyError, ValueError):
        raise ValueError(
            "the statement has a value of the wrong kind: give the statement.json as the fit wrote it"
        ) from None
    if statement.is_private is not content.get("is_private"):
        raise ValueError(
            "the statement contradicts itself in is_private: give the statement.json as the fit wrote it"
        )
    return statement


def _record(kind: Any, content: Mapping[str, Any]) -> Any:
    """A dataclass from the values of its fields."""
    return kind(**_fields(kind, [field.name for field in dataclasses.fields(kind)], content))


def _fields(kind: Any, names: list[str], content: Mapping[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {name: _parsed(name, hints[name], content[name]) for name in names}


def _parsed(name: str, kind: Any, value: Any) -> Any:
    """A field's value from JSON, by the field's type."""
    if name in _PAIRS:
        first, second = _PAIRS[name]
        return tuple((_share(pair[first]), _share(pair[second])) for pair in _of(list, value))
    return _share(value) if name in _SHARES else _of(kind, value)


def _of(kind: Any, value: Any) -> Any:
    """A value of this type from JSON: numbers are at least 0, and a float that is None was infinite; else a TypeError."""
    if typing.get_origin(kind) is types.UnionType:
        return None if value is None else _of(typing.get_args(kind)[0], value)
    if dataclasses.is_dataclass(kind):
        return _record(kind, _of(dict, value))
    if kind is float and value is None:
        return math.inf
    if kind is str and isinstance(value, str):
        value.encode()  # half a character is refused: no page could be written
        return value
    container = typing.get_origin(kind) or kind
    known = is_real if kind is float else is_integer if kind is int else None
    if known is None:
        if not isinstance(value, {tuple: list, Mapping: dict}.get(container, container)):
            raise TypeError
        return (
            tuple(_of(typing.get_args(kind)[0], item) for item in value)
            if container is tuple
            else value
        )
    if not known(value) or not value >= 0:
        raise TypeError
    return kind(value)


def _share(value: Any) -> float:
    if value is None or not _of(float, value) <= 1 or 0 < value < 1e-300:
        raise TypeError
    return float(value)
