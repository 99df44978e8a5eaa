"""A first clipping norm without data: the gradient norms of records that the model itself makes up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.handlers as handlers
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import Unit
from numpyro.optim import SGD
from numpyro.primitives import Messenger

from discreet import random
from discreet._validate import integer, probability
from discreet.inference._dpsvi import DPSVI
from discreet.inference._elbo import Objective
from discreet.inference._records import Program, Records, refuse_tables, take_apart
from discreet.plan import PrivacyPlan
from discreet.sampling import FullBatch

MakeUp = Callable[[PRNGKeyArray, int], Sequence[Any]]
QUANTILES = (0.1, 0.5, 0.9, 0.99)
_UNKNOWN_LENGTH = 1000
_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class ClippingSuggestion:
    """A clipping norm to begin with, and the reason. Made by `suggest_clipping`.

    Attributes:
        norm: The value for `clipping_norm=`, or for `initial=` of an `AdaptiveClipping`; two digits.
        quantile: The fraction of artificial gradients that lie within it.
        quantiles: Pairs (fraction, norm) of the artificial gradients.
        redrawn: Observed sites whose values the model made up.
        why: The source of the number, and its limits.
    """

    norm: float
    quantile: float
    quantiles: tuple[tuple[float, float], ...]
    redrawn: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"clipping_norm = {self.norm:g}. {self.why}"


def suggest_clipping(
    model: Program,
    guide: Program,
    *shapes: Any,
    key: PRNGKeyArray,
    make_up: MakeUp | None = None,
    quantile: float = 0.9,
    num_made_up: int = 256,
    num_records: int | None = None,
    loss: Any = None,
    **static_kwargs: Any,
) -> ClippingSuggestion:
    """Propose a clipping norm from artificial records, without access to data.

    Guarantee: nothing here is computed from records, so the suggestion costs no privacy. It takes shapes; arrays of
    more than one row are refused, since they look like the table.

    Each artificial record has covariates as described below, and observations drawn from the prior predictive: latents
    from the prior, then the observed sites from the model. The suggestion is a quantile of the L2 norms of such
    records' gradients at the guide's initial parameters, in what `DPSVI` clips (`perturb="latents"`).

    An observation that the model changes first, such as by padding, is redrawn for the model alone: where the guide reads it,
    pass `make_up=`.

    It is a guess. Gradients change while a model is fitted, mostly they shrink, and real covariates are not standard
    normal. It is of use as `initial=` of an `AdaptiveClipping`, or to see the order of magnitude.

    Args:
        model: As for DPSVI.
        guide: As for DPSVI.
        shapes: One for each argument of the model, in order. `jax.ShapeDtypeStruct((N, 5), jnp.float32)`, for which
            floats are made up as standard normals and integers as zeros; or an artificial record as an array with a
            leading axis of one, as DPSVI's `placeholder`, which is repeated. Public numbers, strings and None stay.
        key: Any key.
        make_up: Instead of shapes, a function (key, rows) that draws artificial arguments, arrays with `rows` along the
            leading axis; for example from public bounds. Its observations are used as they are.
        quantile: The fraction of artificial gradients that is to be within the norm, above 0 and below 1.
        num_made_up: Number of artificial records.
        num_records: The public number of records, where a plate of the model declares it. None: that of the shapes.
        loss: As for DPSVI.
        static_kwargs: Public keyword arguments of model and guide.

    Returns:
        The norm, quantiles and the reason in words.

    Raises:
        ValueError, TypeError: What looks like data, or a model that DPSVI refuses or whose gradients are not finite.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist, discreet as dp
        >>> from numpyro.infer.autoguide import AutoNormal
        >>> def model(x, y):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        ...     with numpyro.plate("data", x.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
        >>> x, y = jax.ShapeDtypeStruct((5000, 4), jnp.float32), jax.ShapeDtypeStruct((5000,), jnp.float32)
        >>> suggestion = dp.inference.suggest_clipping(model, AutoNormal(model), x, y, key=dp.random.key(0))
        >>> bool(1.0 < suggestion.norm < 4.0), suggestion.redrawn
        (True, ('y',))
    """
    probability(
        "suggest_clipping: quantile", quantile, hint="It is the fraction of artificial gradients within the norm."
    )
    integer("suggest_clipping: num_made_up", num_made_up, 10)
    # A stream of its own, and one for which JAX compiles less: there is nothing to keep secret.
    secret = random.subkey(random.check_key(key, "key"), random.Purpose.INIT)
    row_key, start_key, each_key = jax.random.split(random.as_threefry(secret), 3)
    arguments, length = _made_up(shapes, make_up, row_key, num_made_up)
    given = take_apart(arguments, {})
    plan = PrivacyPlan(
        sampling=FullBatch(),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        num_steps=1,
        num_records=num_records or length or _UNKNOWN_LENGTH,
    )
    dpsvi = DPSVI(model, guide, SGD(1.0), loss, plan=plan, **static_kwargs)
    objective, psi = _starting(dpsvi, start_key, given)
    if not (num_records or length):
        # Nobody said how long a table is here, so anything long may be one.
        lengths = sorted({n for x in objective.held for n in x.shape})
        refuse_tables(objective.held, lengths, (model, guide))
    redraw = () if make_up is not None else _redrawable(objective, psi, given.leaves, each_key)
    norms = _norms(objective, psi, given.leaves, redraw, jax.random.split(each_key, num_made_up))
    return _suggestion(np.asarray(norms, np.float64), quantile, redraw)


def starting_objective(dpsvi: DPSVI, key: PRNGKeyArray, *arguments: Any) -> tuple[Objective, dict[str, Any]]:
    """The objective of a `DPSVI` and its unconstrained initial parameters, for fits of invented records.

    Of the arguments, which are the model's, only shapes and dtypes are used. Errors as for `DPSVI.init`.
    """
    return _starting(dpsvi, key, take_apart(arguments, {}))


def _starting(dpsvi: DPSVI, key: PRNGKeyArray, records: Records) -> tuple[Objective, dict[str, Any]]:
    state = dpsvi._init(key, records, None)
    return dpsvi._initialised().objective, dpsvi.optim.get_params(state.optim_state)


def _made_up(
    shapes: Sequence[Any], make_up: MakeUp | None, key: PRNGKeyArray, rows: int
) -> tuple[tuple[Any, ...], int | None]:
    """Arguments of the model that hold `rows` artificial records, and the length that the shapes had."""
    if make_up is not None:
        if shapes:
            raise ValueError("suggest_clipping: pass shapes or make_up=, not both; make_up returns all the arguments.")
        return _called(make_up, key, rows), None
    leaves, structure = jax.tree.flatten(tuple(shapes), is_leaf=lambda x: x is None)
    keys = jax.random.split(key, max(1, len(leaves)))
    made = [_column(leaf, one, rows) for leaf, one in zip(leaves, keys, strict=False)]
    lengths = {x.shape[0] for x in leaves if isinstance(x, jax.ShapeDtypeStruct) and x.shape[0] > 1}
    if len(lengths) > 1:
        raise ValueError(f"suggest_clipping: the shapes have different numbers of records: {sorted(lengths)}.")
    return jax.tree.unflatten(structure, made), next(iter(lengths), None)


def _column(leaf: Any, key: PRNGKeyArray, rows: int) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        if not leaf.shape:
            raise ValueError("suggest_clipping: a shape is (), without a leading axis for the records.")
        shape = (rows, *leaf.shape[1:])
        real = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.random.normal(key, shape, leaf.dtype) if real else jnp.zeros(shape, leaf.dtype)
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) or np.ndim(leaf) == 0:
        return leaf
    if leaf.shape[0] != 1:
        raise ValueError(
            f"suggest_clipping was given an array of {leaf.shape[0]} rows, which looks like the table. A norm computed from "
            "records is not private. Pass its shape, jax.ShapeDtypeStruct(x.shape, x.dtype), one artificial record with a "
            "leading axis of one, or make_up=, a function that draws artificial records."
        )
    return jnp.repeat(jnp.asarray(leaf), rows, axis=0)


def _called(make_up: MakeUp, key: PRNGKeyArray, rows: int) -> tuple[Any, ...]:
    """Call make_up, and refuse it if it returns the same rows for every key."""
    first, second = (tuple(make_up(one, rows)) for one in jax.random.split(key))
    arrays, again = take_apart(first, {}).leaves, take_apart(second, {}).leaves
    if arrays[0].shape[0] != rows:
        raise ValueError(
            f"suggest_clipping: make_up was asked for {rows} artificial records and returned {arrays[0].shape[0]}. Draw as many "
            "as it is asked for."
        )
    fixed = all(np.array_equal(x, y) for x, y in zip(arrays, again, strict=True))
    if fixed and any(np.any(np.asarray(x) != np.asarray(x[:1])) for x in arrays):
        raise ValueError(
            "suggest_clipping: make_up returns the same records for different keys, which looks like a table. A norm computed "
            "from records is not private. Draw artificial records with the key that it is given."
        )
    return first


class Unobserved(Messenger):
    """Draws a model's observations, but for factors: all of them, or those at `names`. `passed` has what was observed."""

    def __init__(self, fn: Program, names: Sequence[str] | None = None) -> None:
        super().__init__(fn)
        self.names = names
        self.passed: dict[str, Any] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or not msg["is_observed"] or isinstance(msg["fn"], Unit):
            return
        if self.names is None or msg["name"] in self.names:
            self.passed[msg["name"]] = msg["value"]
            msg["value"], msg["is_observed"] = None, False


def _prior_predictive(
    objective: Objective, psi: Mapping[str, Any], rows: list[Array], names: Sequence[str], key: PRNGKeyArray
) -> tuple[dict[str, Any], list[Array]]:
    """Observations of one record drawn from the model, and the record with them where it is handed over as it is."""
    unobserved = Unobserved(objective.programs.model, names)
    plates, params = objective.structure.record_plates, objective.constrain(psi)
    trace, _ = objective.programs.trace(unobserved, rows, key, plates, params)
    values = {name: trace[name]["value"].astype(jnp.result_type(x)) for name, x in unobserved.passed.items()}
    # An amortised guide reads the observation too: it must see the artificial one.
    replaced = list(rows)
    for name, passed in unobserved.passed.items():
        for i, row in enumerate(rows):
            if passed is row and row.shape == values[name].shape:
                replaced[i] = values[name].astype(row.dtype)
    return values, replaced


def _redrawable(
    objective: Objective, psi: Mapping[str, Any], leaves: list[Array], key: PRNGKeyArray
) -> tuple[str, ...]:
    """The observed sites that the model can draw: not factors, nor distributions without a sampler."""
    names: list[str] = []
    row = [x[:1] for x in leaves]
    for name in objective.structure.observed:
        try:
            values, _ = jax.eval_shape(lambda k, n=name: _prior_predictive(objective, psi, row, (n,), k), key)
        except NotImplementedError:
            continue
        names += values
    return tuple(names)


def _norms(
    objective: Objective, psi: Mapping[str, Any], leaves: list[Array], redraw: tuple[str, ...], keys: PRNGKeyArray
) -> Float[Array, "record"]:
    """The L2 norm of each artificial record's gradient in u, each with a guide draw of its own."""

    def one(record: tuple[list[Array], PRNGKeyArray]) -> Float[Array, ""]:
        row, key = record
        prior, draw, local = jax.random.split(key, 3)
        rows, chosen = [x[None] for x in row], objective
        if redraw:
            values, rows = _prior_predictive(objective, psi, rows, redraw, prior)
            observed = handlers.condition(objective.programs.model, data=values)
            chosen = dataclasses.replace(objective, programs=dataclasses.replace(objective.programs, model=observed))
        u, _ = objective.link(psi, draw)
        own = [objective.local_start[name] for name, _ in objective.structure.local_params]
        gradient = jax.grad(chosen.record_loss)(u, [*(x[0] for x in rows), *own], local)
        return jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(gradient)))

    return jax.jit(lambda *records: jax.lax.map(one, records, batch_size=_AT_ONCE))(leaves, keys)


def _suggestion(norms: Float[np.ndarray, "record"], quantile: float, redrawn: tuple[str, ...]) -> ClippingSuggestion:
    finite = norms[np.isfinite(norms)]
    norm = float(np.quantile(finite, quantile)) if len(finite) else 0.0
    if len(finite) < len(norms) / 2 or norm == 0.0:
        raise ValueError(
            f"suggest_clipping: {len(norms) - len(finite)} of {len(norms)} artificial records have a gradient that is not "
            f"finite, and the {quantile:g} quantile of the others is {norm:g}. The artificial records do not fit the model: pass "
            "one of your own, or make_up=, a function that draws records in its support."
        )
    drawn = (
        f"observations ({', '.join(redrawn)}) drawn from the prior predictive" if redrawn else "observations as made up"
    )
    table = ", ".join(f"{p:g}: {np.quantile(finite, p):.2g}" for p in QUANTILES)
    why = (
        f"It is the {quantile:g} quantile of the gradient norms of {len(finite)} artificial records, {drawn}, at the guide's "
        f"initial parameters (quantiles {table}). No data were used. It is a guess: real covariates have other scales, and "
        "gradients mostly shrink during a fit. Pass it as initial= of an AdaptiveClipping, which finds its own way from "
        "there, or compare fits of public or synthetic data."
    )
    return ClippingSuggestion(
        norm=float(f"{norm:.2g}"),
        quantile=quantile,
        quantiles=tuple((p, float(f"{np.quantile(finite, p):.2g}")) for p in QUANTILES),
        redrawn=redrawn,
        why=why,
    )
