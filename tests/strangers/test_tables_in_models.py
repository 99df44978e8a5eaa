"""A model that holds its table is taken with `with_records`: the table is exchanged wherever the model reaches it, or refused."""

import functools
import importlib
import importlib.util
import sys
import weakref
from collections import namedtuple
from contextvars import ContextVar
from types import FunctionType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.handlers as handlers
import pytest
from flax import nnx
from numpyro.contrib.module import nnx_module, random_nnx_module
from numpyro.infer import TraceGraph_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density

from discreet.inference import with_levels, with_records
from discreet.inference._structure import auto_guides

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 300
rng = np.random.default_rng(3)
X = rng.normal(size=(N, 2)).astype(np.float32)
Y = jnp.asarray(rng.normal(size=N), jnp.float32)
ALIAS = X
FEATURES = X.shape[1]
FEW = X[:3].copy(), Y[:3] + 1.0
W = {"w": np.float32(0.3)}


def observe(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        # By NumPy, which would compute a public constant at once from an array that is no argument.
        numpyro.sample("y", dist.Normal(w * x[:, 0] + np.sum(x, axis=1), 1), obs=y)


# --- every place where a table may be ---------------------------------------------------------------


def in_globals():
    observe(X, Y)


def under_two_names():
    observe(X if FEATURES == 3 else ALIAS, Y)


def in_a_closure(x=X):
    y = Y

    def model():
        observe(x, y)

    return model


def in_a_function_within():
    def inner():
        observe(X, Y)

    inner()


def with_a_method_named_eval():
    MEAN.eval()
    observe(X, Y)


def features():
    return X


def in_a_helper():
    observe(features(), Y)


def in_a_default(x=X, *, y=Y):
    observe(x, y)


def within(values):
    def model():
        observe(values[0], values[1]["y"])

    return model


class Holder:
    def __init__(self, x, y):
        self.x, self.own = x, [y]

    def model(self):
        self.again(1)

    def again(self, times):
        observe(self.x, self.own[0]) if times == 0 else self.again(times - 1)

    __call__ = model


def calls_itself(times=2):
    observe(X, Y) if times == 0 else calls_itself(times - 1)


def in_a_namespace(held):
    return lambda: observe(held.x, held.y[0])


def inner(y=Y):
    def model(times=2):
        observe(X, y) if times == 0 else model(times - 1)

    return model


def unobserved(x):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w * x[:, 0] + np.sum(x, axis=1), 1))


@handlers.scale(scale=1.0)
def decorated():
    observe(X, Y)


@pytest.fixture
def module(tmp_path):
    """A module of the user's that holds the table."""
    (tmp_path / "my_tables.py").write_text("def features():\n    return X\n")
    spec = importlib.util.spec_from_file_location("my_tables", tmp_path / "my_tables.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.X = X
    sys.modules["my_tables"] = made
    yield made
    del sys.modules["my_tables"]


PLACES = {
    "globals": in_globals,
    "two names": under_two_names,
    "closure": in_a_closure(),
    "function within": in_a_function_within,
    "helper": in_a_helper,
    "defaults": in_a_default,
    "partial": functools.partial(observe, X, y=Y),
    "containers": within((X, {"y": Y})),
    "list": within([X, {"y": Y}]),
    "method": Holder(X, Y).model,
    "object": Holder(X, Y),
    "recursion": calls_itself,
    "recursion in a closure": inner(),
    "method named eval": with_a_method_named_eval,
    "namespace": in_a_namespace(SimpleNamespace(x=X, y=[Y])),
    "handler": decorated,
    "levels": with_levels(calls_itself, times=1),
}


@pytest.mark.parametrize("model", PLACES.values(), ids=PLACES)
def test_exchanged_wherever_it_is(model):
    named = with_records(model, X, Y)
    expected, _ = log_density(observe, FEW, {}, W)
    assert log_density(named, FEW, {}, W)[0] == expected
    # The model itself is as it was.
    assert log_density(model, (), {}, W)[0] == log_density(observe, (X, Y), {}, W)[0]


def test_exchanged_in_another_module(module):
    def by_attribute():
        observe(module.X, Y)

    def by_function():
        observe(module.features(), Y)

    for model in (by_attribute, by_function):
        assert log_density(with_records(model, X, Y), FEW, {}, W)[0] == log_density(observe, FEW, {}, W)[0]
    assert module.X is X


def test_conditioned_and_with_arguments_of_its_own():
    """The model's own arguments come first."""
    named = with_records(handlers.condition(unobserved, {"y": Y}), Y)
    assert log_density(named, FEW, {}, W)[0] == log_density(observe, FEW, {}, W)[0]


def test_records_behind_an_axis_of_length_one():
    row = Y[None]

    def model():
        numpyro.sample("y", dist.Normal(numpyro.sample("w", dist.Normal(0, 1)), 1), obs=row)

    shapes = handlers.trace(handlers.seed(with_records(model, row), 0)).get_trace(FEW[1])
    assert shapes["y"]["value"].shape == (1, 3)
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(1, 300\)"):
        with_records(model, row)(FEW[0])


# --- what cannot be exchanged is refused: with NumPy it would be a public constant without a word ----


VIEW, OF_JAX, STANDARDISED, TRANSPOSED = X[:3], np.asarray(Y)[:3], (X - X.mean(0)) / X.std(0), jnp.asarray(X).T
Rows = namedtuple("Rows", "x y")
ROWS = Rows(X, Y)


class OfAClass:
    x = X

    def model(self):
        observe(self.x, Y)


class InASlot:
    __slots__ = ("x",)


SLOT = InASlot()
SLOT.x = X


@jax.jit
def compiled():
    return jnp.asarray(np.sum(X, axis=1))


@functools.cache
def cached():
    return X


def namespace():
    observe(OfAClass.x, Y)


def slot():
    observe(SLOT.x, Y)


def rows():
    observe(ROWS.x, Y)


def compiled_helper():
    observe(X + compiled()[:, None], Y)


def cached_helper():
    observe(cached(), Y)


def view():
    observe(X * np.sum(VIEW), Y)


def view_of_jax():
    observe(X, Y * np.sum(OF_JAX))


def transposed():
    observe(X + 0 * TRANSPOSED.T, Y)


def standardised():
    observe(STANDARDISED, Y + 0 * X[:, 0])


def imports():
    from my_tables import X as mine  # pyright: ignore[reportMissingImports]

    observe(X + np.sum(mine), Y)


def calling(helper):
    """A model whose helper gives the table in a way that is not in its own text."""

    def model():
        observe(X + np.sum(helper()), Y)

    return model


class Tagged(np.ndarray):
    x = 0


class Space(SimpleNamespace):
    pass


class PartlyInSlots:
    __slots__ = ("__dict__", "own")

    def __init__(self, x):
        self.own, self.x = 0, x


BOX, CONTEXT, WEAK = np.empty(1, object), ContextVar("CONTEXT"), weakref.ref(X)
TAGGED, SPACE, PARTLY = np.zeros(3).view(Tagged), Space(x=X), PartlyInSlots(X)
BOX[0] = TAGGED.x = X
CONTEXT.set(X)


def by_sys_modules_within():
    import sys as system

    return system.modules["my_tables"].X


def moved(helper, **names):
    """A helper in a module of its own."""
    return FunctionType(helper.__code__, names, helper.__code__.co_name)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (calling(lambda: BOX[0]), "a ndarray"),
        (calling(lambda: TAGGED.x), "a Tagged"),
        (calling(lambda: SPACE.x), "a Space"),
        (calling(lambda: PARTLY.x), "a PartlyInSlots"),
        (calling(lambda: CONTEXT.get()), "a ContextVar"),
        (calling(lambda: WEAK()), r"a (weakref|ReferenceType)"),
        (calling(moved(lambda: globals()["X"], X=X)), "looks names up"),
        (calling(moved(lambda: globals()["HELD"]["x"], HELD={"x": X})), "looks names up"),
        (calling(moved(lambda: eval("X"), X=X)), "looks names up"),
        # Another array of a module of the user's may be found before the table.
        (calling(moved(lambda: sys.modules["my_tables"].X, sys=sys)), "looks names up|also reaches"),
        (calling(moved(by_sys_modules_within)), "looks names up|also reaches"),
        (
            calling(moved(lambda: importlib.import_module("my_tables").X, importlib=importlib)),
            "looks names up|also reaches",
        ),
        (OfAClass().model, "OfAClass"),
        (namespace, "OfAClass"),
        (slot, "InASlot"),
        (rows, "Rows"),
        (compiled_helper, "compiled"),
        (cached_helper, "cached"),
        (view, "VIEW"),
        (view_of_jax, "OF_JAX"),
        (transposed, "TRANSPOSED"),
        (standardised, "STANDARDISED"),
        (imports, "imports"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
@pytest.mark.usefixtures("module")
def test_what_cannot_be_exchanged_is_refused(model, words):
    with pytest.raises(ValueError, match=words) as refused:
        with_records(model, X, Y)
    assert "with_records" in str(refused.value)
    assert len(str(refused.value)) < 500


def test_names_that_are_not_those_of_the_model():
    with pytest.raises(ValueError, match=r"does not hold the array of shape \(300, 2\)"):
        with_records(observe, X)
    with pytest.raises(ValueError, match=r"also reaches an array of shape \(300, 2\) \(X\)"):
        with_records(in_globals, Y)
    with pytest.raises(ValueError, match="twice"):
        with_records(in_globals, X, Y, X)
    with pytest.raises(ValueError, match=r"\[3, 300\] records"):
        with_records(view, X, Y, VIEW)
    with pytest.raises(TypeError, match="list"):
        with_records(in_globals, [1.0])
    with pytest.raises(ValueError, match="2 tables, and 1 argument"):
        with_records(in_globals, X, Y)(FEW[0])
    with pytest.raises(ValueError, match="Pass the tables last"):
        with_records(in_globals, X, Y)(*reversed(FEW))


def test_a_guide_is_not_copied():
    guide = AutoNormal(in_globals)
    with pytest.raises(ValueError, match="AutoNormal"):
        with_records(lambda: guide(), X, Y)
    # One that does not hold the table is found within, to be set up on an artificial record.
    other = AutoNormal(observe)
    assert list(auto_guides(with_records(lambda: other(X, Y), X, Y))) == [other]


def test_a_global_that_is_bound_otherwise_afterwards(monkeypatch):
    named = with_records(in_globals, X, Y)
    monkeypatch.setitem(globals(), "X", X.copy())
    with pytest.raises(ValueError, match="with_records"):
        named(*FEW)


# --- NumPyro's examples of this kind -----------------------------------------------------------------


LABEL = jnp.asarray(rng.integers(0, 2, N))[jnp.newaxis]
NUM_FEATURES = X.shape[1]


def german_credit():
    """`german_credit`: no argument, no plate, and records along the second axis of an array."""
    scale = numpyro.sample("log_tau_zero", dist.Normal(0, 10))
    scales = numpyro.sample("log_tau_i", dist.Normal(scale, jnp.ones(NUM_FEATURES)))
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(NUM_FEATURES), jnp.exp(scales)))
    logits = jnp.einsum("nd,md->mn", X, beta[jnp.newaxis, :])
    numpyro.sample("obs", dist.Bernoulli(logits=logits), obs=LABEL)


def german_credit_reparam(centeredness=None):
    """`german_credit`, the other one: within a function."""

    def model():
        with handlers.reparam(config={"beta": LocScaleReparam(centeredness)}):
            german_credit()

    return model


def of_arguments(x, label):
    scale = numpyro.sample("log_tau_zero", dist.Normal(0, 10))
    scales = numpyro.sample("log_tau_i", dist.Normal(scale, jnp.ones(x.shape[1])))
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(x.shape[1]), jnp.exp(scales)))
    with numpyro.plate("data", len(label)):
        numpyro.sample("obs", dist.Bernoulli(logits=x @ beta), obs=label)


REPARAM = {"beta": LocScaleReparam()}


@pytest.mark.parametrize(
    ("model", "same"),
    [
        (german_credit, of_arguments),
        pytest.param(german_credit_reparam(), handlers.reparam(of_arguments, REPARAM), marks=pytest.mark.exhaustive),
    ],
)
def test_a_table_in_globals(stranger, model, same):
    """`german_credit` (two): the losses are those of the model that takes arguments and has a plate."""
    program = stranger(with_records(model, X, LABEL), X, LABEL[0])
    losses, free = program.losses()
    expected, its_free = stranger(same, X, LABEL[0]).losses()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(free, its_free, rtol=1e-5)
    assert program.certify()


class Mean(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(1, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x, rngs=None):
        return self.second(nnx.sigmoid(self.first(x)))


class Scale(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(1, 1, rngs=rngs)

    def __call__(self, x, rngs=None):
        return nnx.softplus(self.linear(x))


MEAN, SCALE = Mean(nnx.Rngs(0)), Scale(nnx.Rngs(1))


def networks(x):
    """`nnx_example`, whose observations are in `handlers.condition`."""
    prior = {"linear.kernel": dist.HalfNormal(1.0), "linear.bias": dist.Normal(0.0, 1.0)}
    mean, scale = nnx_module("mu_nn", MEAN), random_nnx_module("sigma_nn", SCALE, prior=prior)
    mu, sigma = numpyro.deterministic("mu", mean(x).squeeze()), numpyro.deterministic("sigma", scale(x).squeeze())
    with numpyro.plate("data", len(x)):
        numpyro.sample("likelihood", dist.Normal(loc=mu, scale=sigma))


def test_observations_in_condition(stranger):
    """`nnx_example`: the losses are those of the model that observes an argument."""
    x = X[:, :1]
    named = with_records(handlers.condition(networks, data={"likelihood": Y}), Y)
    program = stranger(named, x, Y, loss=TraceGraph_ELBO())
    losses, free = program.losses()

    def observed(x, y):
        handlers.condition(networks, {"likelihood": y})(x)

    expected, its_free = stranger(observed, x, Y).losses()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(free, its_free, rtol=1e-5)
    assert program.certify()
