"""The one door to the parts of JAX that are not in its public interface, and that differ between its releases.

JAX promises stability for `jax.*` only. What discreet needs beyond that passes through this file, so that a new
JAX release can break one short file and no other. Each name says where it comes from and why it is needed.

A proof and a gradient engine read a program as JAX wrote it down, and a release may write it down otherwise: in JAX 0.11 the
parameters of `scan` have other names, and keys are taken apart by another primitive. So discreet says which releases its tests
have run on (`TRIED_FROM`, `UNTRIED_FROM`), and on any other there is no proof (`untried_jax`).
"""

import hashlib
import itertools
import math
import os
import platform
import re
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, lru_cache, partial, wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax._src import distributed as jax_distributed
from jax.core import ShapedArray, Tracer
from jax.experimental.compilation_cache.compilation_cache import reset_cache as reset_compilation_cache
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxpr_as_fun, primitives
from jax.extend.random import define_prng_impl
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import dce_jaxpr

__all__ = [
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "Scan",
    "Sharding",
    "Var",
    "all_constants",
    "around",
    "as_one_curator",
    "aval",
    "await_processes",
    "bind",
    "can_make_one_kernel",
    "captured_arrays",
    "compiled",
    "define_prng_impl",
    "devices_named",
    "double",
    "hi_primitives",
    "inner_programs",
    "inside",
    "is_closed_book",
    "is_over_devices",
    "jax_primitives",
    "marker",
    "newer_primitives",
    "one_kernel",
    "one_process",
    "open_program",
    "outside_meshes",
    "primitive_of",
    "primitives",
    "program_constants",
    "program_digest",
    "program_text",
    "psum_invariant_p",
    "pvary_p",
    "reset_compilation_cache",
    "reshard_p",
    "rounds_like",
    "run_jaxpr",
    "run_kept",
    "scan_of",
    "shard_map_p",
    "sharding_constraint_p",
    "sharding_of",
    "source_line",
    "source_lines",
    "tell_processes",
    "told_by_processes",
    "two_way_primitive",
    "types_of",
    "unstack_p",
    "untried_jax",
    "used_inputs",
    "users_file",
    "warn_of_release",
    "warn_of_spread",
    "without_dead_code",
]

TRIED_FROM, UNTRIED_FROM = "0.10.2", "0.12.0.2"
"""The first release of JAX that the tests ran on, and the first after the last: what pyproject.toml asks for, and no proof
on any other. To try a newer one, run the tests on it (`make test-newest`) and raise the bound in both places."""

double = partial(jax.enable_x64, True)
"""`with double():` computes in float64 where it is asked for; the arrays keep that type behind it, and JAX's own functions give
float32 of them there."""

_PACKAGE = str(Path(__file__).parent) + os.sep
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_around: ContextVar[tuple[JaxprEqn, ...]] = ContextVar("around", default=())
# `jax.extend.core`: the types of a traced program, and its primitives, which the book-keeping engine tells apart.
# `define_prng_impl` (jax.extend.random): makes a key type out of our own split, fold_in and bits. JAX calls its
# `jax.extend` modules "semi-public": kept, but outside the deprecation policy.


def untried_jax() -> str:
    """What to tell a user whose JAX the tests never ran on, in one sentence; empty for a release that they did run on.

    Versions that are no plain release, such as "0.12.0.dev20260101", count as untried.
    """
    if _release(TRIED_FROM) <= _release(jax.__version__) < _release(UNTRIED_FROM):
        return ""
    return (
        f"discreet was tested on JAX {TRIED_FROM} to the last release before {UNTRIED_FROM}, and this is JAX {jax.__version__}, "
        f"which may write programs down in a way that the proofs misread: pip install 'jax>={TRIED_FROM},<{UNTRIED_FROM}'."
    )


def warn_of_release() -> None:
    """Warn where JAX is a release that the tests never ran on."""
    if why := untried_jax():
        warnings.warn(why, UserWarning, stacklevel=3)


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a release; none for anything else, which is less than any."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(x.isdecimal() for x in parts) else ()


class Scan(NamedTuple):
    """What a `scan` equation says, in whichever release of JAX.

    Operands are the constants, then what is carried, then what the loop goes through; the body takes them in this order, and
    gives what is carried and then the results of the turn.
    """

    body: ClosedJaxpr  # the program of one turn
    num_consts: int  # the number of constants
    num_carry: int  # the number of values that are carried
    length: int  # the number of turns
    reverse: bool  # whether the loop goes through its arrays from the end
    unroll: Any  # how many turns are compiled as one

    def apart(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The operands of the equation, or the inputs of its body: constants, what is carried, and the rest."""
        first = self.num_consts + self.num_carry
        return list(operands[: self.num_consts]), list(operands[self.num_consts : first]), list(operands[first:])


def scan_of(equation: JaxprEqn) -> Scan:
    """The parts of a `scan` equation.

    To apply the equation to other operands take `bind`, which hands the parameters on as they are.
    """
    params: Any = equation.params
    if "ft_in" in params:  # JAX 0.11: the operands' structure in the place of two numbers
        num_consts, num_carry = (len(part) for part in params["ft_in"].unpack()[:2])
    else:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    return Scan(params["jaxpr"], num_consts, num_carry, params["length"], params["reverse"], params["unroll"])


def used_inputs(function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Which inputs the outputs of a function depend on: a tuple like `args`, each leaf True if some output may depend on it."""
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    _, used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return jax.tree.unflatten(jax.tree.structure(args), used)


def program_text(function: Callable[..., Any], *args: Any) -> str:
    """What a function computes, as text: its jaxpr without dead code and without unused inputs, and its constants.

    Two calls give the same text if the same operations with the same constants lead to the outputs; shapes of inputs that
    the outputs do not depend on do not show.
    """
    closed = jax.make_jaxpr(function)(*args)
    jaxpr, used = dce_jaxpr(open_program(closed), [True] * len(closed.jaxpr.outvars))
    held = zip(closed.consts, used, strict=False)
    constants = [np.asarray(x).tobytes().hex() for x, is_used in held if is_used and not _is_key(x)]
    used = used[len(closed.consts) :]
    return f"{jaxpr} {used} {constants}"


def program_digest(closed: ClosedJaxpr) -> str:
    """SHA-256 of what a program computes: its jaxpr without dead code, with all shapes, and the constants in it.

    Two programs of one digest are one program. Functions that JAX prints with their place in memory, such as callbacks,
    are the same only where they lie at the same place.
    """
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    digest = hashlib.sha256(jaxpr.pretty_print(use_color=False).encode())
    for constant in program_constants(closed):
        words = jax.random.key_data(constant) if _is_key(constant) else constant
        digest.update(f"{constant.dtype}{constant.shape}".encode() + np.asarray(words).tobytes())
    return digest.hexdigest()


def program_constants(closed: ClosedJaxpr) -> Iterator[Any]:
    """The arrays in a program and in the programs within it, also those that are printed as a shape alone."""
    yield from closed.consts
    pending = [closed.jaxpr]
    while pending:
        for equation in pending.pop().eqns:
            yield from (x.val for x in equation.invars if isinstance(x, Literal) and np.ndim(x.val))
            for inner in jax.tree.leaves(
                tuple(equation.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr)
            ):
                if isinstance(inner, ClosedJaxpr):
                    yield from inner.consts
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    pending.append(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)


def captured_arrays(function: Callable[..., Any], *args: Any) -> list[Any]:
    """The arrays that a function's outputs need without being its arguments: its closure's, as JAX sees it."""
    program = jax.make_jaxpr(function)(*args)
    return [x for x in all_constants(program, used_only=True) if not _is_key(x)]


def inner_programs(equation: JaxprEqn) -> list[ClosedJaxpr]:
    """The programs within an equation, with the constants that they hold.

    To JAX an open jaxpr and a closed one are two types up to 0.10, and one from 0.11 on: here all are closed.
    """
    found: list[ClosedJaxpr] = []
    for parameter in equation.params.values():
        for item in parameter if isinstance(parameter, tuple | list) else (parameter,):
            if isinstance(item, ClosedJaxpr):
                found.append(item)
            elif isinstance(item, Jaxpr):
                found.append(ClosedJaxpr(_without_constants(item), ()))
    return found or _expanded(equation)


def programs_in(program: ClosedJaxpr, *, used_only: bool = False) -> Iterator[ClosedJaxpr]:
    """A program, and all programs within its equations; `used_only`: without the equations that no output needs."""
    program = without_dead_code(program) if used_only else program
    yield program
    for equation in program.jaxpr.eqns:
        for inner in inner_programs(equation):
            yield from programs_in(inner, used_only=used_only)


def all_constants(program: ClosedJaxpr, *, used_only: bool = False) -> list[Any]:
    """The arrays that a program holds, those of the programs within it among them; `used_only`: that its outputs need."""
    found: list[Any] = []
    for each in programs_in(program, used_only=used_only):
        operands = [x for equation in each.jaxpr.eqns for x in equation.invars]
        used = {id(x) for x in (*operands, *each.jaxpr.outvars)}
        held = zip(each.jaxpr.constvars, each.consts, strict=True)
        found += [x for variable, x in held if not used_only or id(variable) in used]
        found += [x.val for x in operands if isinstance(x, Literal) and np.ndim(x.val) > 0]
    return found


def open_program(program: ClosedJaxpr) -> Jaxpr:
    """A program without the constants that it holds: they are its first inputs."""
    return _without_constants(program.jaxpr)


def _without_constants(program: Jaxpr) -> Jaxpr:
    return program.replace(constvars=[], invars=[*program.constvars, *program.invars])


# JAX 0.11 writes `jnp.searchsorted` and a few more as one equation around an object of a class of its own, which knows its
# program. Anybody may write such a class; these are JAX's, and hold no arrays.
_HI_PROGRAMS = ("Ldexp", "Frexp", "Nonzero", "SearchSorted", "Einsum")
_HI_PRIMITIVE = getattr(sys.modules.get("jax._src.hijax"), "call_hi_primitive_p", None)


@cache
def hi_primitives() -> tuple[Primitive, ...]:
    """The primitive of such equations, in a release whose own functions write them."""
    program = jax.make_jaxpr(jnp.searchsorted)(jax.ShapeDtypeStruct((2,), np.float32), 0.0)
    return tuple({e.primitive for x in programs_in(program) for e in x.jaxpr.eqns if e.primitive is _HI_PRIMITIVE})


def is_closed_book(equation: JaxprEqn) -> bool:
    """Whether an equation is around an object that is none of JAX's own, so that nobody knows what it holds."""
    return equation.primitive is _HI_PRIMITIVE and not _expanded(equation)


def _expanded(equation: JaxprEqn) -> list[ClosedJaxpr]:
    if equation.primitive is not _HI_PRIMITIVE:
        return []
    program: Any = equation.params.get("_prim")
    modules = [sys.modules.get(f"jax._src.numpy.{name}") for name in ("hijax", "ufuncs")]
    if type(program) not in [getattr(m, name, None) for m in modules for name in _HI_PROGRAMS]:
        return []
    shapes = [jax.ShapeDtypeStruct(aval(x).shape, aval(x).dtype) for x in equation.invars]
    return [jax.make_jaxpr(lambda *x: program.expand(*program.in_tree.unflatten(x)))(*shapes)]


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def bind(equation: JaxprEqn, operands: Sequence[Any], **changed: Any) -> list[Any]:
    """Apply an equation's primitive to other operands, with some of its parameters changed; the outputs as a list.

    Inner functions (of `custom_jvp`, say) are handed over as they are, so that their rules stay in force.
    """
    primitive = equation.primitive
    with equation.ctx.manager:
        outputs = primitive.bind(*operands, **{**primitive.get_bind_params(equation.params), **changed})
    return list(outputs) if primitive.multiple_results else [outputs]


def aval(atom: Any) -> Any:
    """Shape and dtype of a variable or literal of a jaxpr, which JAX types too broadly."""
    return atom.aval


@contextmanager
def inside(equation: JaxprEqn) -> Iterator[None]:
    """While the program within an equation is looked at: JAX keeps the place of a call with the call only."""
    token = _around.set((*_around.get(), equation))
    try:
        yield
    finally:
        _around.reset(token)


def around() -> tuple[JaxprEqn, ...]:
    """The equations that hold the program that is looked at, the outermost first."""
    return _around.get()


def users_file(name: str) -> bool:
    """Whether a file is neither discreet's nor Python's nor an installed package's."""
    return "site-packages" not in name and not name.startswith((_PACKAGE, _STANDARD_LIBRARY, "<frozen "))


def source_lines(equation: JaxprEqn, keep: Callable[[str], bool] = users_file) -> list[str]:
    """Where the user wrote an equation, as "file:line (function)", then where that function was called, and so on.

    A program within an equation knows no more than its own functions; `source_line` knows the rest. Files are left out
    whose names `keep` does not keep.
    """
    lines = source_info_util.summarize(equation.source_info, num_frames=64).splitlines()
    found = [re.sub(r":(\d+):\d+ \(", r":\1 (", line).replace(".<locals>", "") for line in reversed(lines)]
    return [line for line in found if keep(line)]


def source_line(equation: JaxprEqn) -> str:
    """Where the user wrote an equation: "file:line (function)", or "..., called at file:line (function)".

    The place is the innermost in a file of the user's, the second that in the program's own function. Where no file is
    the user's, any but discreet's will do.
    """
    calls = (equation, *(x for x in reversed(around()) if x is not equation))
    lines = [line for x in calls for line in source_lines(x)]
    lines = lines or [line for x in calls for line in source_lines(x, lambda name: not name.startswith(_PACKAGE))]
    if not lines:
        return ""
    same = lines[-1].split(" (")[0] == lines[0].split(" (")[0]
    return lines[0] if same else f"{lines[0]}, called at {lines[-1]}"


# `jax.lax.with_sharding_constraint` and `jax.reshard` say where a value lies, and hand it on.
sharding_constraint_p: Primitive = vars(sys.modules["jax._src.pjit"])["sharding_constraint_p"]
reshard_p: Primitive = vars(sys.modules["jax._src.pjit"])["reshard_p"]
_NamedAxisEffect: type = vars(sys.modules["jax._src.core"])["NamedAxisEffect"]
# What `jax.shard_map` writes, and within it `jax.lax.psum` and the cast of what is the same on all devices.
shard_map_p: Primitive = vars(sys.modules["jax._src.shard_map"])["shard_map_p"]
psum_invariant_p: Primitive = vars(sys.modules["jax._src.lax.parallel"])["psum_invariant_p"]
pvary_p: Primitive = vars(sys.modules["jax._src.core"])["pvary_p"]


def is_over_devices(equation: JaxprEqn) -> bool:
    """Whether all that an equation does beside its outputs is to let values of several devices meet (`psum` and the like)."""
    return bool(equation.effects) and all(isinstance(x, _NamedAxisEffect) for x in equation.effects)


class Sharding(NamedTuple):
    """What a `shard_map` equation says."""

    body: ClosedJaxpr  # The program that each device runs
    axes: frozenset[str]  # Names of the mesh axes over which it is spread
    devices: int  # Their number
    # For each operand and for each result the array axis that is cut over all of the devices; None: every device has all
    # of it; -1: anything else
    cut: tuple[tuple[int | None, ...], tuple[int | None, ...]]


def sharding_of(equation: JaxprEqn) -> Sharding:
    """The parts of a `shard_map` equation."""
    params: Any = equation.params
    axes = frozenset(params["newly_manual_axes"])
    sizes = dict(params["mesh"].shape)

    def cut(spec: Any) -> int | None:
        named = [(i, names if isinstance(names, tuple) else (names,)) for i, names in enumerate(spec) if names]
        if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
            return -1
        if not named:
            return None
        axis, names = named[0]
        whole = len(named) == 1 and len(names) == len(axes) and frozenset(names) == axes
        return axis if whole else -1

    cuts = tuple(tuple(map(cut, params[name])) for name in ("in_specs", "out_specs"))
    devices = math.prod(sizes[name] for name in axes)
    return Sharding(inner_programs(equation)[0], axes, devices, (cuts[0], cuts[1]))


def devices_named(equation: JaxprEqn) -> frozenset[str] | None:
    """The axes over which a `psum`, or `axis_index`, goes; None if it goes over some of their devices only."""
    params: Any = equation.params
    names = params.get("axes", params.get("axis_name", ()))
    return None if params.get("axis_index_groups") else frozenset(names if isinstance(names, tuple) else (names,))


def primitive_of(function: Callable[..., Any], *args: Any) -> Primitive:
    """The last primitive that a function is traced to: for those that `jax.extend` does not name."""
    return jax.make_jaxpr(function)(*args).jaxpr.eqns[-1].primitive


def newer_primitives(*names: str) -> tuple[Primitive, ...]:
    """Those of the primitives of `jax.lax` that this release has: the oldest that discreet runs on has none of them."""
    return tuple(getattr(jax.lax, name) for name in names if hasattr(jax.lax, name))


# `jnp.unstack`, which JAX 0.11 also makes of `a, b = keys`, where it made slices before.
unstack_p = primitive_of(jnp.unstack, jax.ShapeDtypeStruct((2,), np.float32))

_two_way: set[Primitive] = set()


def jax_primitives() -> frozenset[Primitive]:
    """The primitives that JAX's own modules define, more than `jax.extend` names, and our two-way ones; nobody else's."""
    modules = [m for name, m in sys.modules.items() if name == "jax" or name.startswith("jax.")]
    return frozenset(x for m in modules for x in list(vars(m).values()) if isinstance(x, Primitive)) | _two_way


def types_of(tree: Any) -> Any:
    """Shapes and dtypes of a tree, without the mesh that JAX notes of arrays: inside `shard_map` it would be another one."""

    def bare(x: Any) -> jax.ShapeDtypeStruct:
        kind = jax.typeof(x)
        return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=getattr(kind, "weak_type", False))

    return jax.tree.map(bare, tree)


def run_jaxpr(closed: ClosedJaxpr, *operands: Any) -> list[Any]:
    """The outputs of a traced program."""
    return jaxpr_as_fun(closed)(*operands)


def without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, of the same inputs, without the equations that no output needs."""
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return ClosedJaxpr(jaxpr, closed.consts)


def two_way_primitive(
    name: str,
    function: Callable[..., Any],
    length: Callable[..., int],
    cpu_target: Callable[..., str | None],
) -> Callable[..., Any]:
    """A function of one integer array that XLA computes, or on CPUs perhaps a foreign function: a JAX primitive.

    It maps arrays of shape (*batch, n) to (*batch, m) of the same dtype and is batched by a leading axis, so that
    `function` sees all that there is to compute at once. It has no derivative: integers have none.

    Args:
        name: of the primitive.
        function: (array, **parameters) to array, for every platform and batch.
        length: (**parameters) to m.
        cpu_target: (batch, **parameters) to the name of the registered target that computes the same, or None.
    """
    primitive = Primitive(name)
    _two_way.add(primitive)

    def abstract(x, **parameters):
        return x.update(shape=(*x.shape[:-1], length(**parameters)))  # keeps what else JAX notes of x (shard_map)

    @lru_cache(maxsize=64)  # a program of its own for each call would be compiled anew each time
    def compiled(**parameters):
        return jax.jit(lambda x: primitive.bind(x, **parameters))

    def run(x, **parameters):
        with jax.disable_jit(False):
            return compiled(**parameters)(x)

    def batch(operands, axes, **parameters):
        return primitive.bind(jnp.moveaxis(operands[0], axes[0], 0), **parameters), 0

    def differentiate(primals, tangents, **parameters):
        del tangents
        out = primitive.bind(*primals, **parameters)
        return out, ad.Zero.from_primal_value(out)  # pyright: ignore[reportAttributeAccessIssue]

    lower = mlir.lower_fun(function, multiple_results=False)

    def portable(context, x, **parameters):
        # Within shard_map every shard does its own work: `function` need not know how its argument varies.
        plain = [ShapedArray(a.shape, a.dtype) for a in context.avals_in]
        return lower(context.replace(avals_in=plain), x, **parameters)

    def lower_on_cpu(context, x, **parameters) -> Any:
        target = cpu_target(context.avals_in[0].shape[:-1], **parameters)
        if target is None:
            return portable(context, x, **parameters)
        return jax.ffi.build_ffi_lowering_function(target)(context, x)

    primitive.def_abstract_eval(abstract)
    primitive.def_impl(run)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = differentiate
    mlir.register_lowering(primitive, portable)
    mlir.register_lowering(primitive, lower_on_cpu, platform="cpu")
    return primitive.bind


def marker(
    name: str,
    function: Callable[..., Sequence[Any]],
    *,
    refuse: str | Callable[..., str | None] | None,
    shapes: Callable[..., Sequence[Any]] | None = None,
) -> Primitive:
    """A primitive that XLA sees as `function` and a reader of the jaxpr sees as one equation: its meaning is the primitive.

    Args:
        name: what jaxprs print; nothing is ever recognised by it.
        function: (*arrays, **parameters) to a list of arrays, for every platform; parameters are hashable.
        refuse: why it has no meaning under `vmap` and `grad`, and the remedy; None: there it is its function, unmarked. Or a
            function of the parameters that says either.
        shapes: a function with outputs of the same types, for one that can only be read and not run.
    """
    primitive = Primitive(name)
    typed = shapes or function
    primitive.multiple_results = True

    def run(*operands, **parameters):
        return _jitted(function, tuple(parameters.items()))(*operands)

    def abstract(*avals, **parameters):
        # The types alone, so that what else JAX notes of them (shard_map's axes) does not stop the trace.
        outputs = jax.eval_shape(lambda *x: typed(*x, **parameters), *avals)
        return [ShapedArray(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False)) for x in outputs]

    def check(transformation, parameters):
        why = refuse(**parameters) if callable(refuse) else refuse
        if why is not None:
            raise TypeError(f"{parameters.get('name', name)} under {transformation}: {why}")

    def batch(operands, axes, **parameters):
        check("vmap", parameters)
        mapped = jax.vmap(lambda *x: function(*x, **parameters), in_axes=tuple(axes))
        outputs = mapped(*operands)
        return outputs, [0] * len(outputs)

    def differentiate(primals, tangents, **parameters):
        check("grad", parameters)
        return jax.jvp(
            lambda *x: function(*x, **parameters), tuple(primals), tuple(map(ad.instantiate_zeros, tangents))
        )

    primitive.def_impl(run)
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = differentiate
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=True))
    return primitive


@lru_cache(maxsize=256)
def _jitted(function: Callable[..., Any], parameters: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jax.jit(partial(function, **dict(parameters)))


_QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0}
if jaxlib.version.__version__ == "0.10.2":
    # The older code for groups of operations, which is sooner made. Other releases of jaxlib may refuse the option.
    _QUICKLY["xla_cpu_use_fusion_emitters"] = False


def run_once(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit` for a small program that is called a few times in all: compiled in half the time, without optimisations.

    Not for use within another `jit`, where JAX refuses compiler options.
    """
    return jax.jit(function, compiler_options=_QUICKLY, **options)


def run_kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """`run_once` for a function that is made anew for each fit: what is compiled is kept by what it computes."""

    def run(*args: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        name = program_digest(program)
        if name not in _KEPT:
            if len(_KEPT) >= _MOST_KEPT:
                _KEPT.clear()
            _KEPT[name] = run_once(partial(run_jaxpr, program))
        return jax.tree.unflatten(jax.tree.structure(shapes), _KEPT[name](*jax.tree.leaves(args)))

    return run


_KEPT: dict[str, Callable[..., list[Any]]] = {}
_MOST_KEPT = 64


def compiled(lowered: Any, *, repeats: bool = False) -> Any:
    """`lowered.compile()`, without a fault of XLA for CPU (jaxlib 0.10.2 to 0.12): a product that reads memory nobody wrote.

    With `repeats` the program gives the same bits each time, as XLA's do on a CPU. Else, on a GPU, scattered values are added
    in the order in which threads come, and products are made in the way that was fastest when the program was compiled.

    XLA for CPU hands groups of operations to YNNPACK. In a group with a matrix product one of whose factors is spread out there
    from fewer numbers, as in `(x @ jnp.ones((d, k))).sum()`, the factor is not always made, and the product is with what other
    rows have left in memory. A program with such a group is compiled again, each product a group of its own.
    """
    gpu = jax.default_backend() == "gpu"
    program = lowered.compile(compiler_options={"xla_gpu_deterministic_ops": True} if gpu and repeats else None)
    if jax.default_backend() != "cpu":
        return program
    executable = program.runtime_executable()
    if executable not in _APART:
        if len(_APART) >= _MOST_KEPT:
            _APART.clear()
        apart = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
        _APART[executable] = lowered.compile(compiler_options=apart) if reads_unwritten(program.as_text()) else None
    return _APART[executable] or program


def rounds_like() -> str:
    """The kind of device that computes; of a CPU its model and the instructions for vectors, by which XLA chooses the code."""
    kind = jax.devices()[0].device_kind
    cpu = Path("/proc/cpuinfo")
    if jax.default_backend() != "cpu" or not cpu.is_file():
        return f"{kind} {platform.machine()}"
    facts = dict(re.findall(r"^(.*?)\s*: (.*)$", cpu.read_text(encoding="utf-8").split("\n\n")[0], re.MULTILINE))
    flags = facts.get("flags", facts.get("Features", "")).split()
    vectors = sorted(x for x in flags if re.match(r"sse|avx|fma|amx|asimd|sve|bf16", x))
    named = [facts.get(name, "") for name in ("vendor_id", "cpu family", "model", "model name", "CPU part")]
    return " ".join([kind, platform.machine(), *named, *vectors])


_APART: dict[Any, Any] = {}  # for each executable the program to be run in its place, or None
_COMPUTATION = re.compile(r"^(%\S+) \(.*?^\}", re.MULTILINE | re.DOTALL)
_INSTRUCTION = re.compile(r"^ +(?:ROOT )?(%\S+) = \S+ ([\w-]+)\((.*?)\)", re.MULTILINE)


def reads_unwritten(program: str) -> bool:
    """Whether a compiled program's text has a group with a matrix product of what the group itself spreads out."""
    groups = set(re.findall(r"calls=(%[^ ,]+).*__ynn_fusion", program))
    return any(_multiplies_spread(x[0]) for x in _COMPUTATION.finditer(program) if groups and x[1] in groups)


def _multiplies_spread(computation: str) -> bool:
    spread: set[str] = set()
    for name, operation, operands in _INSTRUCTION.findall(computation):
        if operation == "broadcast" or spread.intersection(re.findall(r"%[^ ,)]+", operands)):
            if operation == "dot":
                return True
            spread.add(name)
    return False


# Releases of jaxlib in which `one_kernel` was tried out: with others nothing is marked, and all is only slower.
_ONE_KERNEL_TRIED_IN = frozenset({"0.10.2", "0.12.0.1"})


def can_make_one_kernel() -> bool:
    """Whether `one_kernel` has an effect here: on the CPU, under jit, and with a jaxlib in which it was tried out."""
    tried = jaxlib.version.__version__ in _ONE_KERNEL_TRIED_IN
    return tried and jax.default_backend() == "cpu" and not jax.config.values["jax_disable_jit"]


def one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, compiled on the CPU into one kernel; for a loop of many small operations.

    XLA for CPU compiles each operation or fusion to a kernel of its own and spends about 50 ns on calling it, in a loop
    for every turn. A call with this mark becomes one kernel, loops included; XLA sets it on loops of less than 1 kB.

    Only for functions written for it: arrays as arguments, all of them used; no scatter, sort, matrix product, custom
    call or callback. XLA checks none of this: an argument that its simplifications leave unused ends the process.
    """

    def marked(*args: Any) -> Any:
        with set_xla_metadata(inlineable="false", xla_cpu_small_call="true"):
            return jax.jit(function)(*args)

    return marked


_one_curator: ContextVar[bool] = ContextVar("one_curator", default=False)


@contextmanager
def as_one_curator(several: bool) -> Iterator[None]:
    """Within it, several processes make one release together: their caller sees to one key, one program and one debit."""
    token = _one_curator.set(several or _one_curator.get())
    try:
        yield
    finally:
        _one_curator.reset(token)


_meetings = itertools.count()
_FAILED = "discreet/failed"


def tell_processes(why: str) -> bool:
    """Let other processes know that this one ends, and why; empty: tell nothing.

    Process 0, where the coordination service is, then waits for the others: without the service JAX aborts them. The
    result is whether there are several.
    """
    state = jax_distributed.global_state
    if state.client is None or state.num_processes == 1:
        return False
    with suppress(jax.errors.JaxRuntimeError):  # process 0 may be gone
        if why:
            state.client.key_value_set(f"{_FAILED}/{state.process_id}", why)
        until = time.monotonic() + 3.0 * (bool(why) and state.process_id == 0)
        while time.monotonic() < until and len(state.client.key_value_dir_get(_FAILED)) < state.num_processes:
            time.sleep(0.05)
    return True


def told_by_processes() -> str:
    """What another process told, if one ended; else empty."""
    client, told = jax_distributed.global_state.client, []
    with suppress(jax.errors.JaxRuntimeError):
        told = [] if client is None else client.key_value_dir_get(_FAILED)
    return told[0][1] if told else ""


def await_processes(seconds: float = 300.0) -> None:
    """Wait until all processes of `jax.distributed` have come to this call.

    By the coordination service of `jax._src.distributed`, which needs no connection between the processes: gloo gives up
    where one comes to the first collective 30 seconds after another.
    """
    client = jax_distributed.global_state.client
    assert client is not None
    client.wait_at_barrier(f"discreet {next(_meetings)}", int(1000 * seconds))


def one_process(what: str, arrays: Sequence[Any] = ()) -> None:
    """Refuse to release anything from several processes.

    Under `jax.distributed` every process runs the same program, each with a key of its own. JAX does not check that these
    agree, so each process would release the same records with other noise, and state the price of one release.
    An array that lies partly in another process is refused, too; tracers and NumPy's arrays live in this one.
    """
    if _one_curator.get():
        return
    if jax.process_count() > 1 or any(not x.is_fully_addressable for x in _placed(arrays)):
        raise ValueError(
            f"{what} works in one process, and jax.distributed has started {jax.process_count()}. Each of them would draw its "
            "own noise and release the same records once more, with a statement that says the price of one release. Nothing "
            "was spent. DPSVI and DPSGLD fit in all of them together if run is given mesh=, a mesh over all devices. Run all "
            "else in a program that does not call jax.distributed.initialize, with all records in its memory or a memory map, "
            "and hand its result to the other processes."
        )


_P = ParamSpec("_P")
_R = TypeVar("_R")


def outside_meshes(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The same function, outside of the mesh that `jax.set_mesh` has set: what it traces says itself where values lie."""

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if jax.sharding.get_abstract_mesh().empty:
            return function(*args, **kwargs)
        with jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ())):
            return function(*args, **kwargs)

    return called


def warn_of_spread(what: str, arrays: Sequence[Any]) -> None:
    """Warn where one process has spread its arrays over several devices: all of them then do all the work."""
    devices = max((len(x.sharding.device_set) for x in _placed(arrays)), default=1)
    if devices > 1:
        warnings.warn(
            f"{what} was given an array that is spread over {devices} devices. The result is right, but every device does all "
            "the work, which takes several times as long as on one. Pass mesh= to run of DPSVI or DPSGLD; else NumPy arrays, "
            "or arrays on one device.",
            UserWarning,
            stacklevel=3,
        )


def _placed(arrays: Sequence[Any]) -> list[jax.Array]:
    return [x for x in arrays if isinstance(x, jax.Array) and not isinstance(x, Tracer)]
