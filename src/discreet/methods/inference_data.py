"""Posterior draws for ArviZ, with the statement of what they cost. Draws and nothing else: no record is in reach."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from discreet.privacy.report import Statement

FEATURE = "feature"
_OWN_DIMENSIONS = ("chain", "draw")


def to_arviz(
    samples: Mapping[str, Any],
    *,
    statement: Statement | None,
    feature_names: Sequence[str] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    note: str = "",
) -> Any:
    """Posterior draws as ArviZ keeps them: two halves as chains in the group `posterior`, and the statement in the attributes.

    ArviZ compares chains with one another: `az.summary` has no R-hat of one. An odd number of
    draws, or fewer than 8, is one.

    There is no `sample_stats`, since nothing here was tuned by its acceptance; and never
    `observed_data` or `log_likelihood`: these are the records, or exact functions of each, which no
    epsilon covers. So ArviZ's `loo` and predictive checks against the observed data are not to be
    had.

    Args:
        samples: Draws by the latent's name, along the leading axis: `result.posterior(key, 1000)`,
            or `draws` of `OPSResult` and `DPSGLDResult`.
        statement: The draws' statement; None if they cost nothing, such as prior draws.
        feature_names: Names along the last axis of each latent that has as many entries there,
            `Records.feature_names` say; the dimension is called "feature".
        coords: Names along further dimensions, as in ArviZ.
        dims: Names of a latent's dimensions after the draws, as in ArviZ.
        note: A remark to keep with the draws.

    Returns:
        An `arviz.InferenceData` with ArviZ 0.23 and before, an `xarray.DataTree` with ArviZ 1.
        Attributes of both the whole and
        its posterior: `epsilon`, `delta`, `relation`, `unit`, `private` ("yes", or why not), and
            the whole `statement` as JSON.

    Raises:
        ImportError: ArviZ is not installed.
        ValueError: No draws, latents with different numbers of draws, a latent called chain or
            draw, or names that fit no axis.
    """
    arrays = {name: np.asarray(drawn) for name, drawn in samples.items()}
    named = _dimensions(arrays, feature_names, dims or {})
    known = {name: list(values) for name, values in (coords or {}).items()}
    if feature_names is not None:
        known[FEATURE] = list(feature_names)
    count = len(next(iter(arrays.values())))
    chains = 2 if count % 2 == 0 and count >= 8 else 1
    posterior = {
        name: array.reshape(chains, count // chains, *array.shape[1:])
        for name, array in arrays.items()
    }
    arviz = load_arviz()
    if arviz.__version__.startswith("0."):
        data = arviz.from_dict(posterior=posterior, coords=known, dims=named)
    else:
        data = arviz.from_dict({"posterior": posterior}, coords=known, dims=named)
    facts = _facts(statement, note)
    data.attrs.update(facts)
    data["posterior"].attrs.update(facts)
    return data


def load_arviz() -> Any:
    """The package, without the announcement of its version 1."""
    try:
        with warnings.catch_warnings():
            # The last versions before 1.0 announce it, once a day, to whoever imports them.
            warnings.filterwarnings(
                "ignore", category=FutureWarning, message=r"\s*ArviZ is undergoing"
            )
            return import_module("arviz")
    except ImportError as error:
        raise ImportError(
            "to_arviz hands draws to ArviZ, which is not installed. Install it with pip install 'discreet[arviz]'; "
            "result.posterior(key, 1000) gives the same draws as a dict of arrays without it."
        ) from error


def _dimensions(
    arrays: Mapping[str, np.ndarray],
    feature_names: Sequence[str] | None,
    dims: Mapping[str, Sequence[str]],
) -> dict[str, list[str]]:
    """Names of each latent's dimensions, checked; a latent without any is left to ArviZ."""
    if not arrays:
        raise ValueError("There are no draws: pass a dict with one array a latent.")
    lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if 0 in lengths.values() or len(set(lengths.values())) > 1:
        raise ValueError(
            f"The numbers of draws are {lengths}: each latent must have the same, one at least, along its leading axis."
        )
    if taken := [name for name in _OWN_DIMENSIONS if name in arrays]:
        raise ValueError(
            f"A latent is called {taken[0]!r}, which in ArviZ is the name of a dimension, so that it would be lost: pass the "
            "draws under another name."
        )
    if unknown := sorted(set(dims) - set(arrays)):
        raise ValueError(
            f"dims names {', '.join(unknown)}, but the latents are {', '.join(arrays)}: correct the name, or leave it out."
        )
    named = {name: list(parts) for name, parts in dims.items()}
    for name, parts in named.items():
        if len(parts) != arrays[name].ndim - 1:
            raise ValueError(
                f"dims gives {name!r} {len(parts)} dimension(s), but a draw of it has shape {arrays[name].shape[1:]}: name each "
                "axis after the draws."
            )
    if feature_names is not None:
        along = [
            n
            for n, x in arrays.items()
            if n not in named and x.ndim > 1 and x.shape[-1] == len(feature_names)
        ]
        if not along and not any(FEATURE in parts for parts in named.values()):
            raise ValueError(
                f"There are {len(feature_names)} feature_names, but no latent has a last axis of that length: leave them out, or "
                "name the axes by dims and coords."
            )
        for name in along:
            named[name] = [*(f"{name}_dim_{i}" for i in range(arrays[name].ndim - 2)), FEATURE]
    return named


def _facts(statement: Statement | None, note: str) -> dict[str, Any]:
    """Attributes that NetCDF and Zarr can hold: texts and numbers."""
    facts: dict[str, Any] = {
        "inference_library": "discreet",
        "inference_library_version": version("discreet"),
    }
    if statement is not None:
        facts |= {
            "epsilon": float(statement.epsilon),
            "delta": float(statement.delta),
            "relation": statement.relation,
            "unit": str(statement.unit),
            "private": _verdict(statement),
            "statement": statement.to_json(),
        }
    return facts | ({"note": note} if note else {})


def _verdict(statement: Statement) -> str:
    if statement.is_private:
        return "yes"
    reasons = list(statement.violations)
    if statement.reproducible:
        reasons.append("the random bits can be repeated")
    if not math.isfinite(statement.epsilon):
        reasons.append("no finite epsilon holds at this delta")
    return f"no: {'; '.join(reasons)}"
