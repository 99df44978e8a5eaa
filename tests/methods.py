"""Every method on one small table, for tests of what all methods do alike, and for the table of `tools/stats.py`.

`@method` enters one: the public function or method that makes the release, and the options and
results that it needs not have, whose reasons are in docs/other-methods.md. `SUM` are those of a
method that is one query.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoDelta

import discreet as dp
from discreet.methods.moments import MomentsPlan, fit_moments
from discreet.methods.newton import NewtonPlan, fit_newton
from discreet.tabular.private_schema import PrivateSchemaPlan
from discreet.tabular.scores import ComparisonPlan, ScorePlan
from discreet.tabular.tables import schema_from_bounds

ADD, REPLACE = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
N = 1_000
X = np.linspace(0, 1, N, dtype=np.float32)


SUM = frozenset({"max_rows", "checkpoint", "mesh", "progress_bar", "require_proof", "to_arviz"})

Method = Callable[..., Any]


class Entry(NamedTuple):
    """What is known of a method."""

    act: Callable[..., Any]
    lacks: frozenset[str]

    @property
    def result(self) -> type:
        """The class of what the act returns."""
        function = inspect.unwrap(self.act)
        named = function.__annotations__["return"]
        return function.__globals__[named] if isinstance(named, str) else named

    @property
    def asks_for_a_seed(self) -> bool:
        """Whether it refuses a key from a seed without `non_private_seed=True`."""
        return "non_private_seed" in inspect.signature(self.act).parameters


METHODS: dict[Method, Entry] = {}


def method(act: Callable[..., Any], lacks: Iterable[str] = ()) -> Callable[[Method], Method]:
    """Enter a method by its act, and what it lacks of `tools/stats.py`'s OPTIONS and RESULTS."""

    def enter(call: Method) -> Method:
        METHODS[call] = Entry(act, frozenset(lacks))
        return call

    return enter


def model(x: Any, **anything: Any) -> None:
    del anything
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("n", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1), obs=x)


@functools.cache
def calibrated(kind: Any, relation: dp.Relation = ADD, **shape: Any) -> Any:
    """The plan of a method for the table."""
    terms = {"epsilon": 1.0, "delta": 1e-6, "num_records": N, "relation": relation}
    return kind.calibrate(**terms | shape)


def plan(relation: dp.Relation = ADD, **changes: Any) -> dp.PrivacyPlan:
    return calibrated(
        dp.PrivacyPlan,
        relation,
        **{"num_steps": 5, "sampling": dp.FullBatch(), "clipping_norm": 1.0, **changes},
    )


@functools.cache
def score_plan(relation: dp.Relation = ADD) -> ScorePlan:
    return ScorePlan.calibrate(epsilon=0.5, delta=1e-7, relation=relation)


@method(dp.DPSVI.run)
def by_steps(key: Any, x: Any = X, relation: dp.Relation = ADD, **options: Any) -> Any:
    dpsvi = dp.DPSVI(model, AutoDelta(model), numpyro.optim.Adam(0.01), plan=plan(relation))
    return dpsvi.run(key, x, progress_bar=False, **options)


@functools.cache
def chain(relation: dp.Relation = ADD) -> dp.DPSGLD:
    return dp.DPSGLD(model, plan=plan(relation), step_size=(1e-4, 10.0, 0.55))


@method(dp.DPSGLD.run)
def by_langevin(key: Any, x: Any = X, relation: dp.Relation = ADD, **options: Any) -> Any:
    return chain(relation).run(key, x, progress_bar=False, **options)


@method(dp.OnePosteriorSample.run, {"checkpoint", "mesh", "require_proof"})
def one_sample(key: Any, x: Any = X, relation: dp.Relation = ADD, **options: Any) -> Any:
    terms: dict[str, Any] = {
        "epsilon": 1.0,
        "log_likelihood_bound": 2.0,
        "relation": relation,
        "num_records": N,
    }
    ops = dp.OnePosteriorSample(model, **terms, num_warmup=10, num_samples=10)
    return ops.run(key, x, progress_bar=False, **options)


@method(fit_moments, SUM - {"to_arviz"})
def by_moments(key: Any, x: Any = X, relation: dp.Relation = ADD, **options: Any) -> Any:
    return fit_moments(
        key, x[:, None], 0.5 * x, calibrated(MomentsPlan, relation, num_features=1), **options
    )


@method(fit_newton, {"max_rows", "require_proof"})
def by_newton(key: Any, x: Any = X, relation: dp.Relation = ADD, **options: Any) -> Any:
    terms = calibrated(NewtonPlan, relation, family="binary", num_features=1)
    return fit_newton(key, x[:, None], x > 0.5, terms, **options)


@method(dp.DPNewton.run, {"require_proof"})
def of_a_model(key: Any, x: Any = X, relation: dp.Relation = ADD, **options: Any) -> Any:
    terms = calibrated(dp.newton.ModelPlan, relation)
    return dp.DPNewton(model, plan=terms).run(key, x, progress_bar=False, **options)


@method(dp.marginals.private_marginals, SUM | {"person"})
def counted(key: Any, x: Any = X, relation: dp.Relation = ADD, **options: Any) -> Any:
    schema, tables = schema_from_bounds("x=0:1,y=0:1"), [("x",), ("y",)]
    terms = {"epsilon": 1.0, "delta": 1e-6, "relation": relation, "tables": tables}
    return dp.marginals.private_marginals(
        key, {"x": x, "y": x}, dp.marginals.MarginalsPlan.calibrate(schema, **terms), **options
    )


@method(dp.private_schema.private_schema, SUM | {"person"})
def bought(
    key: Any, x: Any = X, relation: dp.Relation = ADD, person: str | None = None, **options: Any
) -> Any:
    plan = PrivateSchemaPlan.calibrate(
        ("x",), epsilon=1.0, delta=1e-6, relation=relation, person=person
    )
    return dp.private_schema.private_schema(key, {"x": x, "id": np.arange(len(x))}, plan, **options)


@method(dp.scores.private_metrics, SUM)
def scored(key: Any, x: Any = X, relation: dp.Relation = ADD, **options: Any) -> Any:
    if "person" in options:
        options["groups"] = np.arange(len(x))
    return dp.scores.private_metrics(
        key, lambda rows: rows, x, x > 0.5, plan=score_plan(relation), **options
    )


@functools.cache
def comparison_plan(relation: dp.Relation) -> ComparisonPlan:
    return ComparisonPlan.calibrate(epsilon=0.5, delta=1e-7, num_fits=2, relation=relation)


@method(dp.compare, SUM)
def ranked(key: Any, x: Any = X, relation: dp.Relation = ADD, **options: Any) -> Any:
    if "person" in options:
        options["groups"] = np.arange(len(x))
    fits = {"a": lambda rows: -np.square(rows), "b": lambda rows: -np.abs(rows)}
    terms = comparison_plan(relation)
    return dp.compare(fits, x, plan=terms, rng_key=key, **options)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to the bit."""
    if dataclasses.is_dataclass(one):
        names = [
            field.name for field in dataclasses.fields(one) if field.metadata.get("file", True)
        ]
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in names
        )
    if isinstance(one, dict | list | tuple):
        leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
        return all(same(a, b) for a, b in zip(leaves, others, strict=True))
    if isinstance(one, np.ndarray):
        return one.tobytes() == other.tobytes()
    return one == other or (one != one and other != other)  # NaN
