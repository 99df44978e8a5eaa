"""Accounted events as JSON and back: only those that the accountant knows."""

from typing import Any

from dp_accounting import dp_event

_KINDS: dict[str, tuple[type, dict[str, str]]] = {
    "none": (dp_event.NoOpDpEvent, {}),
    "gaussian": (dp_event.GaussianDpEvent, {"noise_multiplier": "number"}),
    "laplace": (dp_event.LaplaceDpEvent, {"noise_multiplier": "number"}),
    "randomized_response": (
        dp_event.RandomizedResponseDpEvent,
        {"noise_parameter": "number", "num_buckets": "count"},
    ),
    "poisson_sampled": (dp_event.PoissonSampledDpEvent, {"sampling_probability": "number", "event": "event"}),
    "sampled_without_replacement": (
        dp_event.SampledWithoutReplacementDpEvent,
        {"source_dataset_size": "count", "sample_size": "count", "event": "event"},
    ),
    "truncated_subsampled_gaussian": (
        dp_event.TruncatedSubsampledGaussianDpEvent,
        {
            "dataset_size": "count",
            "sampling_probability": "number",
            "truncated_batch_size": "count",
            "noise_multiplier": "number",
        },
    ),
    "self_composed": (dp_event.SelfComposedDpEvent, {"event": "event", "count": "count"}),
    "composed": (dp_event.ComposedDpEvent, {"events": "events"}),
}
_NAMES = {kind: name for name, (kind, _) in _KINDS.items()}


def event_to_dict(event: dp_event.DpEvent) -> dict[str, Any]:
    """The event as dictionaries, lists and numbers.

    Raises:
        ValueError: an event of another kind.
    """
    name = _NAMES.get(type(event))
    if name is None:
        raise ValueError(
            f"{type(event).__name__} cannot be written to a file: only events whose worst case is known are accepted "
            f"({', '.join(kind.__name__ for kind in _NAMES)})."
        )
    content: dict[str, Any] = {"kind": name}
    for field, what in _KINDS[name][1].items():
        value = getattr(event, field)
        if what == "event":
            content[field] = event_to_dict(value)
        elif what == "events":
            content[field] = [event_to_dict(part) for part in value]
        else:
            # float.hex would be exact too; JSON's shortest decimal reads back as the same number.
            content[field] = int(value) if what == "count" else float(value)
    return content


def event_from_dict(content: Any) -> dp_event.DpEvent:
    """The event of `event_to_dict`.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(content, dict) or content.get("kind") not in _KINDS:
        raise ValueError(f"no event of a kind that is known: {str(content)[:80]}")
    kind, fields = _KINDS[content["kind"]]
    if set(content) != {"kind", *fields}:
        raise ValueError(f"an event of kind {content['kind']} has the fields {', '.join(fields)}")
    values: dict[str, Any] = {}
    for field, what in fields.items():
        value = content[field]
        if what == "event":
            values[field] = event_from_dict(value)
        elif what == "events":
            if not isinstance(value, list):
                raise ValueError("composed events are a list")
            values[field] = [event_from_dict(part) for part in value]
        elif isinstance(value, bool) or not isinstance(value, int if what == "count" else int | float):
            raise ValueError(f"{field} of an event is {value!r}, not a {what}")
        else:
            values[field] = value
    return kind(**values)
