"""All uses of JAX's internals, and of interfaces that differ between its releases.

JAX promises stability for `jax.*` only. Everything else that discreet needs is imported here, so
that a new JAX release can break this file only. A comment gives the origin and purpose of each
name.

Proofs and gradient engines read jaxprs, which differ between releases: in JAX 0.11 the parameters
of `scan` have other names, and keys are unpacked by another primitive. So discreet declares the
tested releases (`TRIED_FROM`, `UNTRIED_FROM`), and proves nothing on any other (`untried_jax`).
"""

import hashlib
import itertools
import math
import operator
import os
import platform
import re
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, lru_cache, partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax._src import core as jax_core, distributed as jax_distributed, xla_bridge
from jax.core import ShapedArray, Tracer
from jax.experimental.compilation_cache import compilation_cache
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import source_info_util
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var as Var,
    jaxpr_as_fun as jaxpr_as_fun,
    primitives as primitives,
)
from jax.extend.random import define_prng_impl as define_prng_impl
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import dce_jaxpr

TRIED_FROM = "0.10.2"
UNTRIED_FROM = "0.12.0.2"
"""The first tested release of JAX, and the first untested one after it, as in pyproject.toml; there
is no proof on any other. To add a newer one, run the tests on it (`make test-newest`) and raise the
bound in both places."""

reset_compilation_cache = compilation_cache.reset_cache
untraced = jax_core.trace_state_clean
"""True outside of all functions that `jit`, `vmap`, `grad`, `scan` or another transformation of JAX
traces. The public interface shows whether a value is traced, not whether code is."""
double = partial(jax.enable_x64, True)
"""`with double():` permits float64; its arrays keep that type outside, where JAX's own functions return float32 for them."""

_PACKAGE = str(Path(__file__).parent) + os.sep
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
# The equations around the current nested program, the outermost first.
_around: ContextVar[tuple[JaxprEqn, ...]] = ContextVar("around", default=())
# `jax.extend.core`: the types of a traced program, and its primitives, which the book-keeping
# engine tells apart. `define_prng_impl` (jax.extend.random): makes a key type out of our own split,
# fold_in and bits. JAX calls its `jax.extend` modules "semi-public": kept, but outside the
# deprecation policy.


def untried_jax() -> str:
    """A sentence that warns users of an untested release of JAX; empty for a tested one.

    Development versions, such as "0.12.0.dev20260101", count as untested.
    """
    if (
        release_numbers(TRIED_FROM)
        <= release_numbers(jax.__version__)
        < release_numbers(UNTRIED_FROM)
    ):
        return ""
    return (
        f"discreet was tested on JAX {TRIED_FROM} to the last release before {UNTRIED_FROM}, and this is JAX {jax.__version__}, "
        f"whose jaxprs the proofs may misread: pip install 'jax>={TRIED_FROM},<{UNTRIED_FROM}'."
    )


def release_numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release; an empty tuple, which compares lowest, for anything else."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(x.isdecimal() for x in parts) else ()


def refuse_traced(what: str) -> None:
    """Refuse to fit or release inside of a function that JAX traces: data are read, and budgets are debited, outside.

    Raises:
        TypeError: JAX traces the caller.
    """
    if not untraced():
        raise TypeError(
            f"{what} works outside of JAX's transformations; call it without jit, vmap or scan."
        )


_forked = False


def _note_fork() -> None:
    """Note in a forked child whether its parent had used JAX, which `backends_are_initialized` of xla_bridge tells."""
    global _forked
    _forked = xla_bridge.backends_are_initialized()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def refuse_forked() -> None:
    """Refuse to compute in a process that was forked from one that had used JAX: it would wait forever."""
    if _forked:
        raise RuntimeError(
            "This process was forked from one that had used JAX, whose threads are missing here, so a computation would wait "
            "for them forever. Nothing was spent. Start processes by multiprocessing.get_context('spawn'), or fork before JAX "
            "is used."
        )


class Scan(NamedTuple):
    """The parts of a `scan` equation, for every supported release of JAX.

    Operands are the constants, the carry and the scanned arrays; the body takes them in this order,
    and returns the carry and the results of the iteration.
    """

    body: ClosedJaxpr  # the program of one iteration
    num_consts: int  # the number of constants
    num_carry: int  # the number of carried values
    length: int  # the number of iterations
    reverse: bool  # whether the arrays are scanned from the end
    unroll: Any  # the number of iterations compiled as one

    def apart(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Split the operands of the equation, or the inputs of its body: constants, carry, and scanned arrays."""
        first = self.num_consts + self.num_carry
        return (
            list(operands[: self.num_consts]),
            list(operands[self.num_consts : first]),
            list(operands[first:]),
        )


def scan_of(equation: JaxprEqn) -> Scan:
    """The parts of a `scan` equation.

    To apply the equation to other operands use `bind`, which keeps the parameters.
    """
    params: Any = equation.params
    if "ft_in" in params:  # JAX 0.11: the operands' structure instead of two numbers
        num_consts, num_carry = (len(part) for part in params["ft_in"].unpack()[:2])
    else:
        num_consts = params["num_consts"]
        num_carry = params["num_carry"]
    return Scan(
        params["jaxpr"],
        num_consts,
        num_carry,
        params["length"],
        params["reverse"],
        params["unroll"],
    )


def used_inputs(function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Dependence of a function's outputs on its inputs: a tuple like `args`, each leaf True if some output may depend on it."""
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    _, used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return jax.tree.unflatten(jax.tree.structure(args), used)


def inputs_of_outputs(program: ClosedJaxpr) -> list[list[bool]]:
    """For each output of a program: for each input, True if the output may depend on it."""
    numbers = range(len(program.jaxpr.outvars))
    return [dce_jaxpr(program.jaxpr, [i == number for i in numbers])[1] for number in numbers]


# Of zeros alone they make zeros; a product needs one.
_OF_ZEROS = (
    primitives.add_p,
    primitives.add_jaxvals_p,
    primitives.broadcast_in_dim_p,
    primitives.concatenate_p,
    primitives.convert_element_type_p,
    primitives.copy_p,
    primitives.neg_p,
    primitives.pad_p,
    primitives.reduce_sum_p,
    primitives.reshape_p,
    primitives.rev_p,
    primitives.slice_p,
    primitives.squeeze_p,
    primitives.sub_p,
    primitives.transpose_p,
)


def outputs_of_zeros(program: ClosedJaxpr, inputs: Sequence[bool] = ()) -> list[bool]:
    """For each output of a program, True if it is 0 wherever it is finite, since the program multiplies by a 0 of its own.

    `inputs` says which of the program's inputs are 0, if any.
    """
    zeros = set(itertools.compress(program.jaxpr.invars, inputs))
    held = zip(program.jaxpr.constvars, program.consts, strict=True)
    zeros |= {variable for variable, value in held if not (is_key(value) or np.any(value))}

    def is_zero(atom: Any) -> bool:
        return not np.any(atom.val) if isinstance(atom, Literal) else atom in zeros

    for equation in program.jaxpr.eqns:
        operands = [is_zero(x) for x in equation.invars]
        if equation.primitive is primitives.jit_p:
            found = outputs_of_zeros(inner_programs(equation)[0], operands)
        elif equation.primitive in (primitives.mul_p, primitives.dot_general_p):
            found = [any(operands)]
        elif equation.primitive is primitives.select_n_p:
            found = [all(operands[1:])]
        else:
            found = [equation.primitive in _OF_ZEROS and all(operands)] * len(equation.outvars)
        zeros.update(itertools.compress(equation.outvars, found))
    return [is_zero(x) for x in program.jaxpr.outvars]


def part_of_program(program: ClosedJaxpr, outputs: Sequence[int]) -> tuple[ClosedJaxpr, list[int]]:
    """The program of some outputs, in their order, and the numbers of the inputs that it takes: those that it needs."""
    wanted = [i in outputs for i in range(len(program.jaxpr.outvars))]
    jaxpr, used = dce_jaxpr(program.jaxpr, wanted)
    return ClosedJaxpr(jaxpr, program.consts), [i for i, is_used in enumerate(used) if is_used]


def program_text(closed: ClosedJaxpr) -> str:
    """A program as text: its jaxpr without dead code and without unused inputs, and its constants.

    Two have the same text if the same operations with the same constants lead to the outputs;
    shapes of inputs that the outputs do not depend on do not show.
    """
    jaxpr, used = dce_jaxpr(open_program(closed.jaxpr), [True] * len(closed.jaxpr.outvars))
    held = zip(closed.consts, used, strict=False)
    constants = [np.asarray(x).tobytes().hex() for x, is_used in held if is_used and not is_key(x)]
    used = used[len(closed.consts) :]
    return f"{jaxpr} {used} {constants}"


def program_digest(closed: ClosedJaxpr) -> str:
    """SHA-256 of a program's jaxpr without dead code, with all shapes, and of its constants.

    Equal digests mean equal programs. Functions that JAX prints with their address, such as
    callbacks, differ unless their addresses are equal.
    """
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    digest = hashlib.sha256(jaxpr.pretty_print(use_color=False).encode())
    for constant in all_constants(closed):
        words = jax.random.key_data(constant) if is_key(constant) else constant
        digest.update(f"{constant.dtype}{constant.shape}".encode() + np.asarray(words).tobytes())
    return digest.hexdigest()


def captured_arrays(function: Callable[..., Any], *args: Any) -> list[Any]:
    """The arrays that a function closes over and its outputs need."""
    program = jax.make_jaxpr(function)(*args)
    return [x for x in all_constants(program, used_only=True) if not is_key(x)]


def inner_programs(equation: JaxprEqn) -> list[ClosedJaxpr]:
    """The programs within an equation, with the constants that they hold.

    In JAX open and closed jaxprs are two types up to 0.10, and one from 0.11 on: here all are
    closed.
    """
    found: list[ClosedJaxpr] = []
    parameters = tuple(equation.params.values())
    for item in jax.tree.leaves(parameters, is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr)):
        if isinstance(item, ClosedJaxpr):
            found.append(item)
        elif isinstance(item, Jaxpr):
            found.append(ClosedJaxpr(open_program(item), ()))
    if equation.primitive is not _HI_PRIMITIVE:
        return found
    program: Any = equation.params.get("_prim")
    modules = [sys.modules.get(f"jax._src.numpy.{name}") for name in ("hijax", "ufuncs")]
    if type(program) not in [getattr(m, name, None) for m in modules for name in _HI_PROGRAMS]:
        return []
    shapes = [jax.ShapeDtypeStruct(aval(x).shape, aval(x).dtype) for x in equation.invars]
    return [jax.make_jaxpr(lambda *x: program.expand(*program.in_tree.unflatten(x)))(*shapes)]


def programs_in(program: ClosedJaxpr, *, used_only: bool = False) -> Iterator[ClosedJaxpr]:
    """A program, and all programs within its equations; `used_only`: without the equations that no output needs."""
    program = without_dead_code(program) if used_only else program
    yield program
    for equation in program.jaxpr.eqns:
        for inner in inner_programs(equation):
            yield from programs_in(inner, used_only=used_only)


def all_constants(program: ClosedJaxpr, *, used_only: bool = False) -> list[Any]:
    """The arrays that a program and its nested programs hold; `used_only`: those that its outputs need."""
    found: list[Any] = []
    for each in programs_in(program, used_only=used_only):
        operands = [x for equation in each.jaxpr.eqns for x in equation.invars]
        used = {id(x) for x in (*operands, *each.jaxpr.outvars)}
        held = zip(each.jaxpr.constvars, each.consts, strict=True)
        found += [x for variable, x in held if not used_only or id(variable) in used]
        found += [x.val for x in operands if isinstance(x, Literal) and np.ndim(x.val) > 0]
    return found


def open_program(program: Jaxpr) -> Jaxpr:
    """A program without the constants that it holds: they are its first inputs."""
    return program.replace(constvars=[], invars=[*program.constvars, *program.invars])


# JAX 0.11 represents `jnp.searchsorted` and a few others as one equation around an object that
# contains its program. Anyone may write such a class; these are JAX's, and hold no arrays.
_HI_PROGRAMS = ("Ldexp", "Frexp", "Nonzero", "SearchSorted", "Einsum")
_HI_PRIMITIVE = getattr(sys.modules.get("jax._src.hijax"), "call_hi_primitive_p", None)


@cache
def hi_primitives() -> tuple[Primitive, ...]:
    """The primitive of such equations, in releases whose own functions use it."""
    program = jax.make_jaxpr(jnp.searchsorted)(jax.ShapeDtypeStruct((2,), np.float32), 0.0)
    return tuple(
        {
            e.primitive
            for x in programs_in(program)
            for e in x.jaxpr.eqns
            if e.primitive is _HI_PRIMITIVE
        }
    )


def is_opaque(equation: JaxprEqn) -> bool:
    """True if an equation is around an opaque object that is not JAX's own."""
    return equation.primitive is _HI_PRIMITIVE and not inner_programs(equation)


def is_key(x: Any) -> bool:
    """True if an array, or its shape, is of PRNG keys."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def bind(equation: JaxprEqn, operands: Sequence[Any], **changed: Any) -> list[Any]:
    """Apply an equation's primitive to other operands, with some of its parameters changed; the outputs as a list.

    Inner functions (such as those of `custom_jvp`) are passed unchanged, so that their rules apply.
    """
    primitive = equation.primitive
    with equation.ctx.manager:
        outputs = primitive.bind(
            *operands, **{**primitive.get_bind_params(equation.params), **changed}
        )
    return list(outputs) if primitive.multiple_results else [outputs]


aval: Callable[[Any], Any] = operator.attrgetter("aval")
"""Shape and dtype of a variable or literal of a jaxpr, which JAX types too broadly."""


def dtype_of(atom: Any) -> np.dtype[Any]:
    """The number type of a variable or literal of a jaxpr."""
    return np.dtype(aval(atom).dtype)


@contextmanager
def inside(equation: JaxprEqn) -> Iterator[None]:
    """Context of an equation's nested program, which has no source lines of its caller."""
    token = _around.set((*_around.get(), equation))
    try:
        yield
    finally:
        _around.reset(token)


@lru_cache(maxsize=4096)
def users_file(name: str) -> bool:
    """True unless a file is discreet's, Python's or an installed package's."""
    return "site-packages" not in name and not name.startswith(
        (_PACKAGE, _STANDARD_LIBRARY, "<frozen ")
    )


def place_of(error: BaseException) -> str:
    """The place of an error in the user's program: " (file:line, in function: source)"."""
    frames = [x for x in traceback.extract_tb(error.__traceback__) if users_file(x.filename)]
    return (
        f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}: {frames[-1].line})"
        if frames
        else ""
    )


@lru_cache(maxsize=4096)
def _lines_of(frames: Any) -> tuple[str, ...]:
    """The lines of an equation's call stack, "file:line (function)", the outermost last.

    A nested program lists only its own functions; `source_line` adds the rest. Kept: a program is
    proved once for each size of its noise.
    """
    # `summarize` reads nothing of a source but the stack, by which JAX's own object is not hashed.
    source: Any = SimpleNamespace(traceback=frames)
    lines = source_info_util.summarize(source, num_frames=64).splitlines()
    return tuple(
        re.sub(r":(\d+):\d+ \(", r":\1 (", line).replace(".<locals>", "")
        for line in reversed(lines)
    )


def source_line(equation: JaxprEqn) -> str:
    """The source of an equation in the user's code: "file:line (function)", or "..., called at file:line (function)".

    The first place is the innermost in a user's file, the second that in the program's own
    function. Without a user's file, any file except discreet's is used.
    """
    calls = (equation, *(x for x in reversed(_around.get()) if x is not equation))
    stack = [line for x in calls for line in _lines_of(x.source_info.traceback)]
    lines = list(filter(users_file, stack)) or [
        line for line in stack if not line.startswith(_PACKAGE)
    ]
    if not lines:
        return ""
    same = lines[-1].split(" (")[0] == lines[0].split(" (")[0]
    return lines[0] if same else f"{lines[0]}, called at {lines[-1]}"


# `jax.lax.with_sharding_constraint` and `jax.reshard` set the sharding of a value and return it.
sharding_constraint_p: Primitive = vars(sys.modules["jax._src.pjit"])["sharding_constraint_p"]
reshard_p: Primitive = vars(sys.modules["jax._src.pjit"])["reshard_p"]
_NamedAxisEffect: type = vars(sys.modules["jax._src.core"])["NamedAxisEffect"]
# The primitives of `jax.shard_map`, and within it of `jax.lax.psum` and of the cast of replicated
# values.
shard_map_p: Primitive = vars(sys.modules["jax._src.shard_map"])["shard_map_p"]
psum_invariant_p: Primitive = vars(sys.modules["jax._src.lax.parallel"])["psum_invariant_p"]
pvary_p: Primitive = vars(sys.modules["jax._src.core"])["pvary_p"]


def is_over_devices(equation: JaxprEqn) -> bool:
    """True if an equation's only effect is communication between devices (`psum` and the like)."""
    return bool(equation.effects) and all(isinstance(x, _NamedAxisEffect) for x in equation.effects)


Cuts = tuple[int | None, ...]
"""For each operand or result the array axis sharded over all of the devices; None: replicated; -1: anything else."""


def sharding_of(equation: JaxprEqn) -> tuple[ClosedJaxpr, frozenset[str], int, Cuts, Cuts]:
    """The parts of a `shard_map` equation: the program of each device, mesh axes, devices; the cuts of operands and results."""
    params: Any = equation.params
    axes = frozenset(params["newly_manual_axes"])
    sizes = dict(params["mesh"].shape)

    def cut(spec: Any) -> int | None:
        named = [
            (i, names if isinstance(names, tuple) else (names,))
            for i, names in enumerate(spec)
            if names
        ]
        if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
            return -1
        if not named:
            return None
        axis, names = named[0]
        whole = len(named) == 1 and len(names) == len(axes) and frozenset(names) == axes
        return axis if whole else -1

    ins, outs = (tuple(map(cut, params[name])) for name in ("in_specs", "out_specs"))
    return inner_programs(equation)[0], axes, math.prod(sizes[name] for name in axes), ins, outs


def devices_named(equation: JaxprEqn) -> frozenset[str] | None:
    """The axes of a `psum` or `axis_index`; None if it covers only some of their devices."""
    params: Any = equation.params
    names = params.get("axes", params.get("axis_name", ()))
    return (
        None
        if params.get("axis_index_groups")
        else frozenset(names if isinstance(names, tuple) else (names,))
    )


def primitive_of(function: Callable[..., Any], *args: Any) -> Primitive:
    """The last primitive in a function's trace, for primitives that `jax.extend` does not export."""
    return jax.make_jaxpr(function)(*args).jaxpr.eqns[-1].primitive


def newer_primitives(*names: str) -> tuple[Primitive, ...]:
    """The primitives of `jax.lax` that this release has; the oldest supported release has none of them."""
    return tuple(getattr(jax.lax, name) for name in names if hasattr(jax.lax, name))


# `jnp.unstack`, which JAX 0.11 also uses for `a, b = keys`, instead of slices.
unstack_p = primitive_of(jnp.unstack, jax.ShapeDtypeStruct((2,), np.float32))

_two_way: set[Primitive] = set()


def jax_primitives() -> frozenset[Primitive]:
    """The primitives of JAX's own modules, more than `jax.extend` exports, and discreet's own."""
    modules = [m for name, m in sys.modules.items() if name == "jax" or name.startswith("jax.")]
    return (
        frozenset(x for m in modules for x in list(vars(m).values()) if isinstance(x, Primitive))
        | _two_way
    )


def types_of(tree: Any) -> Any:
    """Shapes and dtypes of a tree, without the mesh of its arrays, which differs inside `shard_map`."""
    kinds = jax.tree.map(jax.typeof, tree)
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False)),
        kinds,
    )


def with_lookups(closed: ClosedJaxpr, value: float) -> tuple[ClosedJaxpr, list[JaxprEqn]]:
    """A program in which a lookup outside of an array gives `value` (rounded, of integers), and its equations that look up.

    These are the lookups for which JAX promises nothing (`x[i]`, which takes the nearest element)
    or NaN (`jnp.take`). One that says what it does there, such as `x.at[i].get(mode="clip")`, is
    left as it is.
    """
    found: list[JaxprEqn] = []

    def changed(item: Any) -> Any:
        # JAX 0.12 has one class for both.
        jaxpr = item.jaxpr if isinstance(item, ClosedJaxpr) else item
        if not isinstance(jaxpr, Jaxpr):
            return item
        jaxpr = jaxpr.replace(eqns=[each(x) for x in jaxpr.eqns])
        return ClosedJaxpr(jaxpr, item.consts) if isinstance(item, ClosedJaxpr) else jaxpr

    def each(equation: JaxprEqn) -> JaxprEqn:
        before = len(found)
        options = equation.params
        if equation.primitive is primitives.gather_p:
            modes = jax.lax.GatherScatterMode
            kind = aval(equation.outvars[0]).dtype.kind
            fill = options["fill_value"]
            fills = options["mode"] is modes.FILL_OR_DROP and (fill is None or fill != fill)
            if (fills or options["mode"] is modes.PROMISE_IN_BOUNDS) and kind in "fiu":
                found.append(equation)
                number = value if kind == "f" else round(value)
                return equation.replace(
                    params={**options, "mode": modes.FILL_OR_DROP, "fill_value": number}
                )
        params = jax.tree.map(
            changed, options, is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr)
        )
        of_users = [
            any(map(users_file, _lines_of(x.source_info.traceback))) for x in found[before:]
        ]
        found[before:] = [
            x if of_user else equation for x, of_user in zip(found[before:], of_users, strict=True)
        ]
        return equation.replace(params=params) if found[before:] else equation

    return changed(closed), found


def without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program with the same inputs, without the equations that no output needs."""
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return ClosedJaxpr(jaxpr, closed.consts)


def two_way_primitive(
    name: str,
    function: Callable[..., Any],
    length: Callable[..., int],
    cpu_target: Callable[..., str | None],
) -> Callable[..., Any]:
    """Make a JAX primitive of one integer array, computed by XLA, or on CPUs by an optional foreign function.

    It maps arrays of shape (*batch, n) to (*batch, m) of the same dtype and is batched by a leading
    axis, so that `function` sees all that there is to compute at once. It has no derivative:
    integers have none.

    Args:
        name: Name of the primitive.
        function: Function from (array, **parameters) to array, for every platform and batch.
        length: Function from (**parameters) to m.
        cpu_target: Function from (batch, **parameters) to the name of the registered target that
            computes the same, or None.
    """
    primitive = Primitive(name)
    _two_way.add(primitive)

    def abstract(x, **parameters):
        # keeps other attributes of x (shard_map)
        return x.update(shape=(*x.shape[:-1], length(**parameters)))

    @lru_cache(maxsize=64)  # a new program for each call would be compiled each time
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
        # Within shard_map every shard does its own work: `function` does not depend on how its
        # argument varies.
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


exact_product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
"""A product in its operands' type, whatever `jax_default_matmul_precision` says: "F32_F32_F32" rounds doubles and integers."""


def known_number(value: Any) -> tuple[float | None, list[Any]]:
    """Split a number: a parameter of a primitive if it is known, else an additional operand."""
    return (None, [value]) if isinstance(value, Tracer) else (float(value), [])


def marker(
    name: str,
    function: Callable[..., Sequence[Any]],
    *,
    refuse: str | None,
    shapes: Callable[..., Sequence[Any]] | None = None,
    keyed: bool = False,
) -> Primitive:
    """Make a marker: a primitive that XLA compiles as `function` and that is one equation in the jaxpr.

    Args:
        name: Name in printed jaxprs; it identifies nothing.
        function: Function from (*arrays, **parameters) to a list of arrays, for every platform;
            parameters are hashable.
        refuse: The reason why it is undefined under `vmap` and `grad`, and the remedy; None: there
            it is replaced by its function.
        shapes: A function with outputs of the same types, for a primitive that can be traced but
            not run.
        keyed: True if the first operand is a key, and the parameter `mapped` says that `vmap` and
            `grad` are not refused; `vmap` must then map the key with the other operands.
    """
    primitive = Primitive(name)
    typed = shapes or function
    own = _own_key(name) if keyed else None
    primitive.multiple_results = True

    def run(*operands, **parameters):
        return _jitted(function, tuple(parameters.items()))(*operands)

    def abstract(*avals, **parameters):
        # Only the types, since other attributes (shard_map's axes) would stop the trace.
        outputs = jax.eval_shape(lambda *x: typed(*x, **parameters), *avals)
        return [
            ShapedArray(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False)) for x in outputs
        ]

    def check(transformation, parameters):
        if refuse is not None and not parameters.get("mapped", False):
            raise TypeError(f"{parameters.get('name', name)} under {transformation}: {refuse}")

    def batch(operands, axes, **parameters):
        check("vmap", parameters)

        def one(*x):
            x = x if own is None else (own.bind(*jax.lax.stop_gradient(x)), *x[1:])
            return function(*x, **parameters)

        outputs = jax.vmap(one, in_axes=tuple(axes))(*operands)
        return outputs, [0] * len(outputs)

    def differentiate(primals, tangents, **parameters):
        check("grad", parameters)
        return jax.jvp(
            lambda *x: function(*x, **parameters),
            tuple(primals),
            tuple(map(ad.instantiate_zeros, tangents)),
        )

    primitive.def_impl(run)
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = differentiate
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=True))
    return primitive


def _own_key(name: str) -> Primitive:
    """Make a primitive that returns its first operand, a key, and refuses every `vmap` that maps other operands but not the key.

    A marker's batching rule replaces the marker by its function, so it cannot check the maps around
    the first one; this can.
    """
    primitive = Primitive(f"own_key_of_{name}")

    def batch(operands, axes):
        if axes[0] is None:
            raise TypeError(
                f"{name} under vmap: all rows have one key, so each would draw the same, and subtraction removes the noise. Map "
                "over keys as well, one for each row: jax.random.split(key, number of rows)."
            )
        return primitive.bind(*operands), axes[0]

    primitive.def_impl(lambda key, *others: key)
    primitive.def_abstract_eval(lambda key, *others: key)
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, lambda context, key, *others: [key])
    return primitive


@lru_cache(maxsize=256)
def _jitted(
    function: Callable[..., Any], parameters: tuple[tuple[str, Any], ...]
) -> Callable[..., Any]:
    return jax.jit(partial(function, **dict(parameters)))


_QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0}
if jaxlib.version.__version__ == "0.10.2":
    # The older code for fusions, which compiles faster. Other releases of jaxlib may refuse the
    # option.
    _QUICKLY["xla_cpu_use_fusion_emitters"] = False


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Memo(dict[_Key, _Value]):
    """A cache of at most `most` entries, whose oldest one goes when it is full."""

    most = 128

    def __setitem__(self, key: _Key, value: _Value) -> None:
        super().__setitem__(key, value)
        for oldest in [*self][: -self.most]:  # a copy, since other threads may write
            self.pop(oldest, None)


run_once = partial(jax.jit, compiler_options=_QUICKLY)
"""`jax.jit` for a small program that is called a few times: compiled in half the time, without
optimisations. Not for use within another `jit`, where JAX refuses compiler options."""


def run_kept(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function that each fit makes anew, by `run_once`: compiled programs are cached by their text."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    name = program_digest(program)
    if name not in _KEPT:
        _KEPT[name] = run_once(jaxpr_as_fun(program))
    return jax.tree.unflatten(jax.tree.structure(shapes), _KEPT[name](*jax.tree.leaves(args)))


_KEPT = Memo[str, Callable[..., list[Any]]]()


def compiled(lowered: Any, *, repeats: bool = False, quickly: bool = False) -> Any:
    """Compile like `lowered.compile()`, and avoid a bug of XLA for CPU (jaxlib 0.10.2 to 0.12) that reads unwritten memory.

    With `repeats` the program gives the same bits each time, as on a CPU. Otherwise, on a GPU,
    scattered values are added in the order of threads, and products use the algorithm that was
    fastest at compile time. With `quickly` it is compiled as by `run_once`, on a CPU.

    XLA for CPU passes fusions to YNNPACK. In a fusion with a matrix product one of whose factors is
    broadcast there, as in `(x @ jnp.ones((d, k))).sum()`, the factor is not always computed, and
    the product uses whatever other rows left in memory. A program with such a fusion is compiled
    again, with each product in a separate fusion.
    """
    if jax.default_backend() != "cpu":
        gpu = jax.default_backend() == "gpu"
        return lowered.compile(
            compiler_options={"xla_gpu_deterministic_ops": True} if gpu and repeats else None
        )
    options = _QUICKLY if quickly else {}
    program = lowered.compile(compiler_options=options)
    executable = program.runtime_executable()
    if executable not in _APART:
        apart = options | {
            "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
        }
        _APART[executable] = (
            lowered.compile(compiler_options=apart) if reads_unwritten(program.as_text()) else None
        )
    return _APART[executable] or program


def rounds_like() -> str:
    """All that lets one program give other numbers: kind of device, XLA's flags, JAX's options; of a CPU its instructions, too.

    With another `jax_threefry_partitionable` the same keys draw other numbers, and no jaxpr shows
    it. Flags that only say how many devices a CPU is, or where to write programs, are left out.
    """
    flags = re.findall(
        r"--(?!xla_force_host_platform_device_count|xla_dump)\S+", os.environ.get("XLA_FLAGS", "")
    )
    named = re.compile("threefry|precision|optimiz|effort|fitting|remat_pass")
    # Options that hold within a `with` are attributes, the others stand among the values alone.
    options = [
        f"{x}={getattr(jax.config, x, value)}"
        for x, value in sorted(jax.config.values.items())
        if named.search(x)
    ]
    kind = " ".join([jax.devices()[0].device_kind, *sorted(flags), *options])
    cpu = Path("/proc/cpuinfo")
    if jax.default_backend() != "cpu" or not cpu.is_file():
        return f"{kind} {platform.machine()}"
    facts = dict(
        re.findall(
            r"^(.*?)\s*: (.*)$", cpu.read_text(encoding="utf-8").split("\n\n")[0], re.MULTILINE
        )
    )
    instructions = facts.get("flags", facts.get("Features", "")).split()
    vectors = sorted(x for x in instructions if re.match(r"sse|avx|fma|amx|asimd|sve|bf16", x))
    named = [
        facts.get(name, "")
        for name in ("vendor_id", "cpu family", "model", "model name", "CPU part")
    ]
    return " ".join([kind, platform.machine(), *named, *vectors])


_APART = Memo[Any, Any]()  # for each executable its replacement, or None
_COMPUTATION = re.compile(r"^(%\S+) \(.*?^\}", re.MULTILINE | re.DOTALL)
_INSTRUCTION = re.compile(r"^ +(?:ROOT )?(%\S+) = \S+ ([\w-]+)\((.*?)\)", re.MULTILINE)


def reads_unwritten(program: str) -> bool:
    """True if a compiled program's text has a fusion with a matrix product of a factor broadcast in the fusion."""
    groups = set(re.findall(r"calls=(%[^ ,]+).*__ynn_fusion", program))
    return any(
        _multiplies_spread(x[0])
        for x in _COMPUTATION.finditer(program)
        if groups and x[1] in groups
    )


def _multiplies_spread(computation: str) -> bool:
    spread: set[str] = set()
    for name, operation, operands in _INSTRUCTION.findall(computation):
        if operation == "broadcast" or spread.intersection(re.findall(r"%[^ ,)]+", operands)):
            if operation == "dot":
                return True
            spread.add(name)
    return False


# Releases of jaxlib in which `one_kernel` was tested: with others it has no effect, and code is
# only slower.
_ONE_KERNEL_TRIED_IN = frozenset({"0.10.2", "0.12.0.1"})


def can_make_one_kernel() -> bool:
    """True if `one_kernel` has an effect here: on the CPU, under jit, and with a tested jaxlib."""
    tried = jaxlib.version.__version__ in _ONE_KERNEL_TRIED_IN
    return tried and jax.default_backend() == "cpu" and not jax.config.values["jax_disable_jit"]


def one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function on the CPU into one kernel; for a loop of many small operations.

    XLA for CPU compiles each operation or fusion to a separate kernel and spends about 50 ns on
    each call, in every iteration of a loop. A call with this attribute becomes one kernel, loops
    included; XLA sets it on loops of less than 1 kB.

    Only for functions written for it: arrays as arguments, all of them used; no scatter, sort,
    matrix product, custom call or callback. XLA checks none of this: an argument that its
    simplifications leave unused ends the process.
    """

    def marked(*args: Any) -> Any:
        with set_xla_metadata(inlineable="false", xla_cpu_small_call="true"):
            return jax.jit(function)(*args)

    return marked


_one_curator: ContextVar[bool] = ContextVar("one_curator", default=False)


@contextmanager
def as_one_curator(several: bool) -> Iterator[None]:
    """Context in which several processes make one release: the caller ensures one key, one program and one debit."""
    token = _one_curator.set(several or _one_curator.get())
    try:
        yield
    finally:
        _one_curator.reset(token)


_meetings = itertools.count()
_FAILED = "discreet/failed"


def tell_processes(why: str) -> bool:
    """Notify other processes that this one ends, and why; send nothing if `why` is empty.

    Process 0, which runs the coordination service, then waits for the others: without the service
    JAX aborts them. Returns True if there are several processes.
    """
    state = jax_distributed.global_state
    if state.client is None or state.num_processes == 1:
        return False
    with suppress(jax.errors.JaxRuntimeError):  # process 0 may be gone
        if why:
            state.client.key_value_set(f"{_FAILED}/{state.process_id}", why)
        until = time.monotonic() + 3.0 * (bool(why) and state.process_id == 0)
        while (
            time.monotonic() < until
            and len(state.client.key_value_dir_get(_FAILED)) < state.num_processes
        ):
            time.sleep(0.05)
    return True


def told_by_processes() -> str:
    """The notification of another process that ended; empty without one."""
    client = jax_distributed.global_state.client
    told = []
    with suppress(jax.errors.JaxRuntimeError):
        told = [] if client is None else client.key_value_dir_get(_FAILED)
    return told[0][1] if told else ""


def await_processes() -> None:
    """Wait, for five minutes at most, until all processes of `jax.distributed` reach this call.

    It uses the coordination service of `jax._src.distributed`, which needs no connection between
    the processes: gloo times out if one reaches the first collective 30 seconds after another.
    """
    client = jax_distributed.global_state.client
    assert client is not None
    client.wait_at_barrier(f"discreet {next(_meetings)}", 300_000)


def one_process(what: str, arrays: Sequence[Any] = ()) -> None:
    """Refuse to release anything from several processes.

    Under `jax.distributed` every process runs the same program, each with its own key. JAX does not
    check that these agree, so each process would release the same records with other noise, and
    state the cost of one release. Arrays that lie partly in another process are refused, too;
    tracers and NumPy arrays belong to this one. So is a process that cannot compute
    (`refuse_forked`).
    """
    refuse_forked()
    if _one_curator.get():
        return
    if jax.process_count() > 1 or any(not x.is_fully_addressable for x in _placed(arrays)):
        raise ValueError(
            f"{what} works in one process, and jax.distributed has started {jax.process_count()}. Each of them would draw its "
            "own noise and release the same records again, with a statement of the cost of one release. Nothing was spent. "
            "DPSVI, DPSGLD and private Newton fit in all of them together if given mesh=, a mesh over all devices. Run all else "
            "in a program that does not call jax.distributed.initialize, with all records in its memory or a memory map, and "
            "pass its result to the other processes."
        )


_P = ParamSpec("_P")
_R = TypeVar("_R")


@contextmanager
def _own_settings() -> Iterator[None]:
    """Outside of the mesh of `jax.set_mesh`, as programs of discreet set all shardings themselves, and by JAX's usual rules.

    What finds faults in a user's program finds none here, and an error after the debit would lose
    the budget: programs of NumPyro mix types and ranks, results are moved to the host, and a loss
    that was not released is NaN.
    """
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.transfer_guard("allow"),
        jax.disable_jit(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.debug_key_reuse(False),
    ):
        if jax.sharding.get_abstract_mesh().empty:
            yield
            return
        with jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ())):
            yield


in_own_settings = _own_settings()
"""Decorator of a function that runs in discreet's own settings of JAX."""


def one_release(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run a private method in discreet's own settings of JAX, outside of JAX's transformations, and in one process.

    A method that is given a mesh over all processes joins them itself.
    """

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        refuse_traced(function.__qualname__)
        if kwargs.get("mesh") is None:
            one_process(function.__qualname__, [*args, *kwargs.values()])
        with _own_settings():
            return function(*args, **kwargs)

    return called


def warn_of_spread(what: str, arrays: Sequence[Any]) -> None:
    """Warn if one process has sharded its arrays over several devices: all of them then do all the work."""
    devices = max((len(x.sharding.device_set) for x in _placed(arrays)), default=1)
    if devices > 1:
        warnings.warn(
            f"{what} was given an array that is sharded over {devices} devices. The result is right, but every device does all "
            "the work, which takes several times as long as on one. Pass mesh= to run of DPSVI or DPSGLD; else NumPy arrays, "
            "or arrays on one device.",
            UserWarning,
            stacklevel=3,
        )


def _placed(arrays: Sequence[Any]) -> list[jax.Array]:
    return [x for x in arrays if isinstance(x, jax.Array) and not isinstance(x, Tracer)]
