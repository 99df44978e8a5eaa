"""A statement back from its JSON."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from discreet.report._statement import FORMAT, ProfilePoint, Statement

_TEXTS = (
    *("method", "unit", "relation", "relation_in_words", "delta_chosen", "meaning", "mechanism", "event", "accountant"),
    "randomness",
)
_LISTS = ("released", "warnings", "public", "not_covered", "violations", "notes")
_PAIRS = {
    "attack_power": ("false_positive_rate", "largest_true_positive_rate"),
    "posterior_beliefs": ("before", "largest_after"),
}


def statement_from_dict(content: Any) -> Statement:
    """The statement that `Statement.to_dict` made a dictionary of, or `to_json` a text.

    What is in a file is worth as much as whoever hands it on: this checks that it is whole, not that it is true.

    Args:
        content: The dictionary, of a file's JSON say.

    Returns:
        An equal statement; a number that had no value is infinite.

    Raises:
        ValueError: It is no statement, of another version, incomplete, or contradicts itself.
    """
    if not isinstance(content, Mapping) or not str(content.get("format", "")).startswith("discreet privacy statement"):
        raise ValueError("it is no discreet privacy statement: give the statement.json that a fit wrote")
    if content["format"] != FORMAT:
        raise ValueError(f"it is a {content['format']}, and this discreet reads {FORMAT!r}: use the one that wrote it")
    names = {field.name for field in dataclasses.fields(Statement)}
    if lacking := sorted(names - set(content)):
        raise ValueError(f"the statement lacks {', '.join(lacking)}: give the statement.json as the fit wrote it")
    try:
        statement = Statement(**{name: _value(name, content[name]) for name in names})
    except (TypeError, KeyError):
        raise ValueError(
            "the statement has a value of the wrong kind: give the statement.json as the fit wrote it"
        ) from None
    if statement.is_private is not content.get("is_private"):
        raise ValueError("the statement contradicts itself in is_private: give the statement.json as the fit wrote it")
    return statement


def _value(name: str, value: Any) -> Any:
    if name in _TEXTS:
        return _of(str, value)
    if name in _LISTS:
        return tuple(_of(str, item) for item in _of(list, value))
    if name in _PAIRS:
        first, second = _PAIRS[name]
        return tuple((_share(pair[first]), _share(pair[second])) for pair in _of(list, value))
    if name == "profile":
        return tuple(ProfilePoint(delta=_share(x["delta"]), epsilon=_number(x["epsilon"])) for x in _of(list, value))
    if name in ("epsilon", "gaussian_mu"):
        return _number(value)
    if name == "delta":
        return _share(value)
    if name == "reproducible":
        return _of(bool, value)
    if name in ("steps_completed", "horizon"):
        return _whole(value)
    return dict(_of(dict, value))


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError
    return value


def _number(value: Any) -> float:
    """At least 0; None was infinite."""
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise TypeError
    return float(value)


def _share(value: Any) -> float:
    if value is None or not 0 <= _number(value) <= 1:
        raise TypeError
    return float(value)
