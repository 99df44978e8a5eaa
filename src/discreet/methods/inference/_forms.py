"""The form of a saved fit: what a file keeps of its program, and how that is rebuilt.

A file has no code, so whoever loads a fit brings model and guide again. The form has the shapes and
dtypes of one record, public arguments and the names of latents, which is enough to rebuild the
objective for draws and to refuse other programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from discreet.methods.inference._elbo import Objective
from discreet.methods.inference._records import Program, take_apart
from discreet.methods.inference._trace import Trace
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.clipping import AdaptiveClipping
from discreet.privacy.mechanisms import MECHANISMS
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.report import PARTS as STATEMENT
from discreet.privacy.sampling import SAMPLERS


@dataclasses.dataclass(frozen=True)
class ArrayForm:
    """The shape and dtype of one record's part of an argument."""

    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class Form:
    """The facts, besides model and guide, for drawing from a saved fit. Public."""

    # `(args, kwargs)` of the model, with an `ArrayForm` for each array of records; None where they
    # are nested in objects that a file does not hold
    arguments: Any
    latents: tuple[str, ...]  # names of the global latents
    keeps_local: bool  # True if records had their own parameters


def kinds() -> tuple[type, ...]:
    """The classes of which a saved result may hold objects; of samplers and mechanisms, those that are listed."""
    return (
        AdaptiveClipping,
        ArrayForm,
        Form,
        PrivacyPlan,
        Relation,
        Trace,
        *STATEMENT,
        *SAMPLERS,
        *map(type, MECHANISMS),
    )


def is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(isinstance(key, str) for key in value) and all(map(is_plain, value.values()))
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | ArrayForm)


def objective_of(
    form: Form,
    plan: PrivacyPlan,
    params: Mapping[str, Any],
    model: Program,
    guide: Program,
    placeholder: Sequence[Any] | None,
    static: Mapping[str, Any],
) -> Objective:
    """Rebuild the part of a fit's program that draws need."""
    if form.arguments is None:
        raise ValueError(
            "The fit's arguments were nested in objects that a file does not hold, so its guide cannot be set up again. Load "
            "the result without model and guide, and draw with dpsvi.posterior(key, result.params, num_samples)."
        )
    made = jax.tree.map(
        lambda x: np.zeros((1, *x.shape), x.dtype) if isinstance(x, ArrayForm) else x,
        tuple(form.arguments),
    )
    objective, psi, _ = Objective.of(
        take_apart(*made),
        random.key(0),
        placeholder=placeholder,
        look=False,
        model=model,
        guide=guide,
        static=static,
        num_records=plan.num_records,
        keeps_local=form.keeps_local,
    )
    latents = objective.structure.global_latents
    if latents != form.latents:
        raise ValueError(
            f"The file is of a fit of {_named(form.latents)}, and this model has {_named(latents)}: give the "
            "model that was fitted."
        )
    _check_same(_shapes(params), _shapes(jax.eval_shape(objective.constrain, psi)))
    return objective


def _named(names: Sequence[str]) -> str:
    return f"the global latents {', '.join(names)}" if names else "no global latents"


def _shapes(params: Mapping[str, Any]) -> dict[str, str]:
    return {
        keystr(path, simple=True, separator="/"): f"{jnp.result_type(x)} of shape {jnp.shape(x)}"
        for path, x in jax.tree.leaves_with_path(dict(params))
    }


def _check_same(saved: Mapping[str, str], needed: Mapping[str, str]) -> None:
    for name in [*saved, *needed]:
        if saved.get(name) != needed.get(name):
            raise ValueError(
                f"The file does not fit the guide: the param site {name!r} is {saved.get(name, 'absent')} in the file, and "
                f"{needed.get(name, 'absent')} in model and guide. Give those of the fit, with the same keyword arguments (and "
                "the same jax_enable_x64)."
            )
