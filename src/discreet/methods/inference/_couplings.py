"""The check for couplings between records in a model or a guide.

A fit evaluates each record alone, in a plate of one row. This is the user's model only if the log
density of all records together is the sum of that of each alone, at any values of the latents. That
fails with a mean over the table, the number of rows, or rows that are shifted, sorted or reversed
against one another. Privacy does not depend on it, since a record evaluated alone meets no other;
but the fit would be that of another model.

So artificial rows are evaluated together and alone, at the same values of everything random: the
shared latents (drawn by the guide), those of each record (moderate values in their support,
whatever the guide is), and one value of each that is summed out. Their number is a prime, so that a
shift by any amount but its multiples moves them. Rows whose values lie outside a support are
replaced by the placeholder record. The guide's density of the records' latents is compared
likewise.

A program that draws random numbers besides its latents (dropout) draws others for a row alone than
for many. There the mixed difference l(a, b) - l(a', b) - l(a, b') + l(a', b') over two halves of
the rows is computed, which is zero for sums over rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar
from numpyro.distributions import biject_to

from discreet._jax import run_once, used_inputs
from discreet._numpyro import artificial_records
from discreet.methods.inference._autoguides import auto_guides
from discreet.methods.inference._plates import log_density, value_of_improper
from discreet.methods.inference._records import Message, Values

if TYPE_CHECKING:
    from discreet.methods.inference._elbo import Objective

_ROWS = 101


def moved_start(psi: Values, rng: np.random.Generator) -> Any:
    """Parameters near those with which a fit starts: weights that start at zero would hide what they multiply."""
    return jax.tree.map(
        lambda x: np.asarray(x) + rng.uniform(0.1, 0.2, x.shape).astype(x.dtype), psi
    )


def refuse_couplings(objective: Objective, psi: Values) -> None:
    """Refuse a model or guide whose density of many rows is no product over them."""
    structure = objective.structure
    programs = objective.programs
    rng = np.random.default_rng(0)
    psi = moved_start(psi, rng)
    names = *structure.observed, *structure.local_latents, *(site.name for site in structure.summed)
    made_up = [[_made_up(np.asarray(x)[0], rng) for x in objective.placeholder] for _ in range(2)]
    _compare(objective, "model", programs.model, names, psi, made_up, rng)
    # AutoGuides read no record, and have the size of the one row on which they were set up.
    covered = {name for part in auto_guides(programs.guide) for name in part.prototype_trace or ()}
    if structure.guide_locals and covered.isdisjoint(structure.local_latents):
        _compare(objective, "guide", programs.guide, structure.guide_locals, psi, made_up, rng)


@dataclasses.dataclass(frozen=True, eq=False)
class _Densities:
    """A program's log densities of artificial rows."""

    objective: Objective
    program: Callable[..., Any]
    names: Sequence[str]  # the sites
    local: Sequence[str]  # the records' latents among them
    is_model: bool

    def __call__(
        self, rows: Any, given: Values, shared: Any, key: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The log density of each site, and the records' latents."""
        objective = self.objective
        values = {**shared}
        for name, at in objective.structure.local_params:
            start = jnp.expand_dims(objective.local_start[name], at)
            values[name] = objective.transforms[name](jnp.repeat(start, len(rows[0]), at))
        values |= given
        trace = objective.programs.trace(self.program, rows, key, values, rule=self._value)
        return {name: log_density(trace[name]) for name in self.names}, {
            name: trace[name]["value"] for name in self.local
        }

    def _value(self, site: Message) -> Any:
        """A value of a record's latent in the model, without a sampler, which may take long to compile."""
        if (
            site["type"] != "sample"
            or site["value"] is not None
            or not self.is_model
            or site["name"] not in self.local
        ):
            return value_of_improper(site)
        transform = biject_to(site["fn"].support)
        shape = transform.inverse_shape(site["kwargs"].get("sample_shape", ()) + site["fn"].shape())
        return transform(
            jnp.asarray(np.random.default_rng(1).uniform(-1.0, 1.0, shape), jnp.float32)
        )


def _fixed_keys() -> list[Any]:
    """Keys that make the check deterministic; several, since one draw of the latents may hide a coupling.

    Of words, which compiles nothing.
    """
    words = [jax.device_put(np.array([0, seed], np.uint32)) for seed in range(4)]
    return [jax.random.wrap_key_data(x, impl="threefry2x32") for x in words]


def _compare(
    objective: Objective,
    what: str,
    program: Callable[..., Any],
    names: Sequence[str],
    psi: Values,
    made_up: list[list[np.ndarray]],
    rng: np.random.Generator,
) -> None:
    structure = objective.structure
    local = [n for n in names if n in structure.local_latents or n in structure.guide_locals]
    run = _Densities(objective, program, names, local, is_model=what == "model")
    summed = [site for site in structure.summed if site.name in names]
    choices = {site.name: site.values()[rng.integers(site.size, size=_ROWS)] for site in summed}
    axes = {site.name: site.axis for site in summed}
    together = {
        name: jnp.asarray(np.concatenate(list(x), axis=axes[name])) for name, x in choices.items()
    }

    def share(psi: Any, key: Any) -> dict[str, Any]:
        params = objective.constrain(psi)
        return {**params, **objective.draw_globals(params, key)}

    def of_all(
        rows: Any, given: Values, psi: Any, key: Any
    ) -> tuple[Float[Array, "row"], dict[str, Any], dict[str, Any]]:
        shared = share(psi, key)
        densities, values = run(rows, {**together, **given}, shared, key)
        found = [
            jnp.sum(jnp.moveaxis(densities[n], at[0][n], 0).reshape(_ROWS, -1), 1)
            for n in densities
            if n not in whole
        ]
        # Terms of no single row count with the first row: then the sum over all rows is compared.
        of_none = sum((jnp.sum(densities[name]) for name in whole), jnp.zeros(()))
        terms = jnp.sum(jnp.stack([*found, jnp.zeros(_ROWS)]), 0).at[0].add(of_none)
        return terms, values, shared

    def of_one(row: Any, given: Values, shared: Any, key: Any) -> Scalar:
        given = {name: jnp.expand_dims(x, at[1][name]) for name, x in given.items()}
        densities, _ = run([x[None] for x in row], given, shared, key)
        return sum((jnp.sum(x) for x in densities.values()), jnp.zeros(()))

    keys = _fixed_keys()
    shapes = jax.eval_shape(share, psi, keys[0])
    few = [x[:1] for x in made_up[0]]
    one = jax.eval_shape(run, few, {n: x[0] for n, x in choices.items()}, shapes, keys[0])
    many = jax.eval_shape(run, made_up[0], together, shapes, keys[0])
    whole = [name for name in names if one[0][name].shape == many[0][name].shape]
    at = jax.tree.map(_axis, one, many)
    # Without one axis for the records, a term is one for all of them, and a latent none of each.
    axes_found = [*(at[0][name] for name in names if name not in whole), *at[1].values()]
    if None in axes_found:
        _refuse_coupling(what, None)
    at = at[0], {**at[1], **axes}

    each = jax.vmap(of_one, (0, 0, None, None))
    placeholders = [np.repeat(np.asarray(x), _ROWS, axis=0) for x in objective.placeholder]
    half = rng.random(_ROWS) < 0.5

    def of_each(values: Values) -> dict[str, Any]:
        found = {name: jnp.moveaxis(x, at[1][name], 0) for name, x in values.items()}
        return found | {name: jnp.squeeze(x, 1 + axes[name]) for name, x in choices.items()}

    with artificial_records():
        of_them = jax.eval_shape(of_each, many[1])
        *_, is_random = used_inputs(each, made_up[0], of_them, shapes, keys[0])

    def couples(jit: Callable[..., Any]) -> bool:
        all_alone = jit(each)
        all_together = jit(of_all)
        for key in keys:
            with artificial_records():
                _, values, shared = all_together(made_up[0], {}, psi, key)
                given = of_each(values)
                inside = [np.isfinite(all_alone(rows, given, shared, key)) for rows in made_up]
                first, second = (
                    _choose(*x, placeholders) for x in zip(inside, made_up, strict=True)
                )
                if is_random:
                    pairs = ((a, b) for a in (first, second) for b in (first, second))
                    found = [
                        np.asarray(all_together(_choose(half, *x), values, psi, key)[0], np.float64)
                        for x in pairs
                    ]
                    one_way = found[0] - found[1]
                    other = found[2] - found[3]
                else:
                    one_way = np.asarray(all_together(first, values, psi, key)[0], np.float64)
                    other = np.asarray(all_alone(first, given, shared, key), np.float64)
            if not _alike(one_way, other):
                return True
        return False

    # What is compiled quickly may round otherwise alone than together, which a chaotic model, such
    # as sin(1e5 x), makes large.
    if couples(run_once) and couples(jax.jit):
        _refuse_coupling(what, whole[0] if whole else None)


def _refuse_coupling(what: str, joint: str | None) -> NoReturn:
    """Refuse a model or guide that couples records; `joint` names a site whose log density should be a sum over them."""
    if joint is not None:
        raise ValueError(
            f"The observed site (or factor) {joint!r} reads the records, but its log density has no axis that follows "
            "them and is no sum over them: the log density of artificial records together differs from the sum over each of "
            "them alone. A joint density of all records, such as a Gaussian process or a time series whose steps are the "
            "records, or a statistic of the table couples them in principle. Otherwise give one term for each record: "
            'with numpyro.plate("data", xs.shape[0]).'
        )
    raise ValueError(
        f"The {what} couples records: the log density of artificial records together differs from the sum over each of "
        "them alone (by a mean over the records, batch normalisation, the number of rows, or rows that are shifted or "
        "sorted, for example). Each record is evaluated alone here, so it would mean something else. Use public "
        "constants instead."
    )


def _choose(which: Any, rows: Sequence[Any], others: Sequence[Any]) -> list[np.ndarray]:
    """Rows of one table or of the other."""
    return [
        np.where(which.reshape(-1, *[1] * (np.ndim(x) - 1)), x, y)
        for x, y in zip(rows, others, strict=True)
    ]


def _axis(one: Any, many: Any) -> int | None:
    """The axis that numbers the records; None: there is no such axis, or more than one."""
    if len(one.shape) != len(many.shape):
        return None
    changed = [
        i for i, sizes in enumerate(zip(one.shape, many.shape, strict=True)) if sizes[0] != sizes[1]
    ]
    return changed[0] if len(changed) == 1 and many.shape[changed[0]] == _ROWS else None


def _alike(together: Float[np.ndarray, "row"], alone: Float[np.ndarray, "row"]) -> bool:
    """True if rows agree together and alone up to rounding, each or, in another order, in their sum."""
    finite = np.isfinite(alone)
    together = together[finite]
    alone = alone[finite]
    size = np.abs(alone)
    if np.all(np.abs(together - alone) <= 1e-3 * (1.0 + size)):
        return True
    return bool(abs(together.sum() - alone.sum()) <= 1e-5 * (1.0 + size.sum()))


def _made_up(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Artificial values of one argument for many records, some of which keep the placeholder's."""
    shape = _ROWS, *x.shape
    if x.dtype == np.bool_:
        values = rng.random(shape) < 0.5
    elif jnp.issubdtype(x.dtype, jnp.integer):
        values = x + rng.integers(0, 2, shape)
    else:
        values = rng.uniform(0.05, 0.95, shape)
    kept = (rng.random(_ROWS) < 0.25).reshape(-1, *[1] * x.ndim)
    return np.where(kept, x, values).astype(x.dtype)
