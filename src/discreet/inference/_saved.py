"""A result's way into a file and back: releases and public facts, no key, no record, no code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discreet import random
from discreet.accounting import Relation
from discreet.clipping import AdaptiveClipping
from discreet.inference._keys import init_keys
from discreet.inference._objective import Objective
from discreet.inference._plates import Program
from discreet.inference._records import take_apart
from discreet.inference._setup import choose_placeholder, initial_parameters
from discreet.inference._structure import find_structure
from discreet.inference._trace import Trace
from discreet.plan import PaidRelease, PrivacyPlan
from discreet.report import ProfilePoint, Statement
from discreet.sampling import SAMPLERS
from discreet.storage import read_archive, write_archive

WHAT, VERSION = "result of a private fit", 1


@dataclasses.dataclass(frozen=True)
class ArrayForm:
    """What one record has of an argument: an array of this shape and dtype."""

    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class Form:
    """What must be known of a fit, besides its model and guide, to draw from it again. Public.

    Attributes:
        arguments: `(args, kwargs)` of the model, with an `ArrayForm` for each array of records; None where they are nested
            in objects that a file does not hold.
        latents: names of the global latents.
        keeps_local: whether records had parameters of their own.
    """

    arguments: Any
    latents: tuple[str, ...]
    keeps_local: bool

    @classmethod
    def of(cls, objective: Objective) -> Form:
        """The form of a fit."""
        records, structure = objective.records, objective.structure
        arguments = records.rebuild([ArrayForm(tuple(x.shape[1:]), str(x.dtype)) for x in records.leaves])
        return cls(arguments if _is_plain(arguments) else None, structure.global_latents, bool(structure.local_params))


def kinds() -> tuple[type, ...]:
    """The classes of which a saved result may hold objects; of samplers, those that are listed."""
    return (
        AdaptiveClipping,
        ArrayForm,
        Form,
        PaidRelease,
        PrivacyPlan,
        ProfilePoint,
        Relation,
        Statement,
        Trace,
        *SAMPLERS,
    )


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | ArrayForm)


def write_fields(path: Path | str, fields: Mapping[str, Any]) -> Path:
    """Write a result's fields. Errors as `write_archive`."""
    return write_archive(path, WHAT, VERSION, fields, kinds())


def read_fields(path: Path | str, expected: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """A result's fields.

    Args:
        path: the file.
        expected: names of the fields and what they are.

    Raises:
        ValueError: as `read_archive`, or there are other fields.
    """
    fields = read_archive(path, WHAT, VERSION, kinds())
    whole = isinstance(fields, dict) and set(fields) == set(expected)
    if not whole or not all(isinstance(fields[name], kind) for name, kind in expected.items()):
        raise ValueError(f"{path} does not hold what a {WHAT} holds: it is damaged, or was not written by discreet")
    return fields


def objective_of(
    form: Form,
    plan: PrivacyPlan,
    params: Mapping[str, Any],
    model: Program,
    guide: Program,
    placeholder: Sequence[Any] | None,
    static: Mapping[str, Any],
) -> Objective:
    """The program of a fit again, as far as draws need it.

    Raises:
        ValueError: model and guide are not those of the fit, as far as names, shapes and dtypes tell.
    """
    if form.arguments is None:
        raise ValueError(
            "The fit's arguments were nested in objects that a file does not hold, so its guide cannot be set up again. Load "
            "the result without model and guide, and draw with dpsvi.posterior(key, result.params, num_samples)."
        )
    made = jax.tree.map(
        lambda x: np.zeros((1, *x.shape), x.dtype) if isinstance(x, ArrayForm) else x, tuple(form.arguments)
    )
    records = take_apart(*made)
    structure_key, values_key, _ = init_keys(random.key(0))
    made_up = choose_placeholder(model, records, placeholder, structure_key, static, plan.num_records)
    structure = find_structure(
        model, guide, records, made_up, structure_key, static, plan.num_records, form.keeps_local
    )
    if structure.global_latents != form.latents:
        raise ValueError(
            f"The file is of a fit of {_named(form.latents)}, and this model has {_named(structure.global_latents)}: give the "
            "model that was fitted."
        )
    psi, own, transforms = initial_parameters(
        model, guide, records, made_up, structure, values_key, static, init_params=None
    )
    objective = Objective(
        model=model,
        guide=guide,
        records=records._replace(leaves=records.shapes(records.size)),
        placeholder=tuple(made_up),
        static=static,
        structure=structure,
        transforms=transforms,
        mean_field=False,
        num_particles=1,
        local_start=own,
    )
    _check_same(_shapes(params), _shapes(jax.eval_shape(objective.constrain, psi)))
    return objective


def _named(names: Sequence[str]) -> str:
    return f"the global latents {', '.join(names)}" if names else "no global latents"


def _shapes(params: Mapping[str, Any]) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{jnp.result_type(x)} of shape {jnp.shape(x)}"
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
