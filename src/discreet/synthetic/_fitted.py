"""A fitted model of a table in a folder: all that twins need, and nothing of the table."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from discreet import random
from discreet.inference import DPSVIResult, load_result
from discreet.models import MixtureOfProducts
from discreet.plan import PrivacyPlan
from discreet.storage import write_file
from discreet.tables import DataError, schema_from_toml, schema_to_toml

RESULT, SCHEMA, MODEL = "twin.result", "twin.schema.toml", "twin.json"
FORMAT = "discreet model of a table, version 1"
_MOST = 100_000


class Fitted(NamedTuple):
    """What twins are drawn from; made by `read_fitted`.

    Attributes:
        result: Without its guide: `posterior` of this class stands in for its own.
        model: What was fitted.
    """

    result: DPSVIResult
    model: MixtureOfProducts

    @property
    def plan(self) -> PrivacyPlan:
        """That of the fit."""
        return self.result.plan

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, np.ndarray]:
        """Draws of the latents, as `DPSVIResult.posterior` has them.

        The mixture's latents are real and its guide a normal for each, so draws need no program that would be compiled first.
        """
        secret = random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR)
        rng, params = np.random.default_rng(np.asarray(jax.random.bits(secret, (4,)))), self.result.params
        return {
            name: params[f"{name}_auto_loc"] + params[f"{name}_auto_scale"] * rng.standard_normal((num_samples, *shape))
            for name, shape in _latents(self.model).items()
        }


def write_fitted(folder: Path | str, result: DPSVIResult, model: MixtureOfProducts) -> list[Path]:
    """Write a fit of a mixture into a folder, as `discreet fit --model twin` does: the result, the schema and the settings.

    All of it is public or released, and covered by `result.statement`.

    Returns:
        The files.

    Raises:
        OSError: One cannot be written.
    """
    folder, schema = Path(folder), schema_to_toml(model.schema)
    settings = {
        "format": FORMAT,
        "model": type(model).__name__,
        "components": model.components,
        "slices": model.slices,
        "schema_sha256": _digest(schema),
    }
    return [
        result.save(folder / RESULT),
        write_file(folder / SCHEMA, schema),
        # Last: where it is, the others are.
        write_file(folder / MODEL, json.dumps(settings, indent=2) + "\n"),
    ]


def read_fitted(folder: Path | str) -> Fitted:
    """Read what `write_fitted` wrote.

    Returns:
        The result and the model, from which `synthesize` and `write_twins` draw. (For `noise_aware`, load the result itself by
        `load_result(folder / "twin.result", model.model, model.guide(), placeholder=model.placeholder)`.)

    Raises:
        ValueError: The folder is absent or holds no such fit, a file is damaged, or the schema is not that of the fit.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: give the one that discreet fit --model twin wrote")
    components, slices, digest = _settings(folder)
    schema = schema_from_toml(folder / SCHEMA)
    if _digest(schema_to_toml(schema)) != digest:
        raise DataError(
            f"{folder / SCHEMA} is not the schema of the fit: its columns, bounds or categories were changed since, and what "
            "was learnt would be read as something else. Put back the file that the fit wrote"
        )
    model = MixtureOfProducts(schema, components=components, slices=slices)
    result = load_result(folder / RESULT)
    shapes = {name: np.shape(value) for name, value in result.params.items()}
    expected = {f"{name}_auto_{part}": shape for name, shape in _latents(model).items() for part in ("loc", "scale")}
    if shapes != expected:
        raise ValueError(
            f"{folder / RESULT} does not fit {MODEL} and {SCHEMA} beside it: its parameters have other names or shapes. Put back "
            "the files that one fit wrote"
        )
    if not all(np.isfinite(value).all() for value in result.params.values()):
        raise ValueError(
            f"The fit in {folder} went wrong: its parameters are not finite, so there is nothing to draw from. A smaller "
            "learning rate helps, in a further fit that spends again"
        )
    return Fitted(result, model)


def _latents(model: MixtureOfProducts) -> dict[str, tuple[int, ...]]:
    levels = sum(model.levels.sizes)
    return {"component": (model.components,), "base": (levels,), "deviations": (model.components, levels)}


def _settings(folder: Path) -> tuple[int, int, str]:
    path = folder / MODEL
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {MODEL}, so it holds no fit that twins can be drawn from: those of discreet fit --model twin do"
        )
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        form, name = found["format"], found["model"]
        components, slices, digest = found["components"], found["slices"], str(found["schema_sha256"])
        whole = all(type(x) is int and 0 < x <= _MOST for x in (components, slices))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise ValueError(f"{path} is damaged: put back the file that the fit wrote") from None
    if form != FORMAT or name != MixtureOfProducts.__name__:
        raise ValueError(
            f"{path} says {form!r} and {name!r}, which this discreet does not know: it was written by a newer one, or by hand"
        )
    if not whole:
        raise ValueError(f"{path} is damaged: put back the file that the fit wrote")
    return components, slices, digest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
