"""The one door to the parts of JAX that are not in its public interface.

JAX promises stability for `jax.*` only. What discreet needs beyond that passes through this file, so that a new
JAX release can break one short file and no other. Each name says where it comes from and why it is needed.
"""

import hashlib
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
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
    "Var",
    "around",
    "aval",
    "bind",
    "can_make_one_kernel",
    "captured_arrays",
    "define_prng_impl",
    "inside",
    "jax_primitives",
    "marker",
    "one_kernel",
    "one_process",
    "primitive_of",
    "primitives",
    "program_constants",
    "program_digest",
    "program_text",
    "reset_compilation_cache",
    "run_jaxpr",
    "source_line",
    "source_lines",
    "two_way_primitive",
    "used_inputs",
    "users_file",
    "warn_of_spread",
    "without_dead_code",
]
_PACKAGE = str(Path(__file__).parent) + os.sep
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_around: ContextVar[tuple[JaxprEqn, ...]] = ContextVar("around", default=())
# `jax.extend.core`: the types of a traced program, and its primitives, which the book-keeping engine tells apart.
# `define_prng_impl` (jax.extend.random): makes a key type out of our own split, fold_in and bits. JAX calls its
# `jax.extend` modules "semi-public": kept, but outside the deprecation policy.


def used_inputs(function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Which inputs the outputs of a function depend on, found by dead-code elimination of its jaxpr.

    Args:
        function: a traceable function.
        args: example arguments, pytrees of arrays.

    Returns:
        A tuple like `args`, each leaf True if some output may depend on it.
    """
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    _, used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return jax.tree.unflatten(jax.tree.structure(args), used)


def program_text(function: Callable[..., Any], *args: Any) -> str:
    """What a function computes, as text: its jaxpr without dead code and without unused inputs, and its constants.

    Two calls give the same text if the same operations with the same constants lead to the outputs; shapes of inputs
    that the outputs do not depend on do not show.

    Args:
        function: a traceable function.
        args: example arguments, pytrees of arrays.
    """
    closed = jax.make_jaxpr(function)(*args)
    jaxpr, used = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    constants = [np.asarray(x).tobytes().hex() for x in closed.consts if not _is_key(x)]
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


def captured_arrays(function: Callable[..., Any], *args: Any, used_only: bool = False) -> list[Any]:
    """The arrays that a function uses without taking them as arguments: its closure's, as JAX sees it.

    Args:
        function: a traceable function.
        args: example arguments, pytrees of arrays or of their shapes.
        used_only: leave out those that no output depends on.
    """
    found: list[Any] = []
    pending = [jax.make_jaxpr(function)(*args)]
    while pending:
        closed = pending.pop()
        jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars)) if used_only else (closed.jaxpr, None)
        used = {id(x) for equation in jaxpr.eqns for x in equation.invars} | {id(x) for x in jaxpr.outvars}
        consts = zip(closed.jaxpr.constvars, closed.consts, strict=True)
        found += [x for var, x in consts if not _is_key(x) and (id(var) in used or not used_only)]
        for equation in jaxpr.eqns:
            inner = jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr))
            pending += [x for x in inner if isinstance(x, ClosedJaxpr)]
    return found


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


def primitive_of(function: Callable[..., Any], *args: Any) -> Primitive:
    """The last primitive that a function is traced to: for those that `jax.extend` does not name."""
    return jax.make_jaxpr(function)(*args).jaxpr.eqns[-1].primitive


_two_way: set[Primitive] = set()


def jax_primitives() -> frozenset[Primitive]:
    """The primitives that JAX's own modules define, more than `jax.extend` names, and our two-way ones; nobody else's."""
    modules = [m for name, m in sys.modules.items() if name == "jax" or name.startswith("jax.")]
    return frozenset(x for m in modules for x in list(vars(m).values()) if isinstance(x, Primitive)) | _two_way


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
    refuse: str | None,
    shapes: Callable[..., Sequence[Any]] | None = None,
) -> Primitive:
    """A primitive that XLA sees as `function` and a reader of the jaxpr sees as one equation: its meaning is the primitive.

    Args:
        name: what jaxprs print; nothing is ever recognised by it.
        function: (*arrays, **parameters) to a list of arrays, for every platform; parameters are hashable.
        refuse: why it has no meaning under `vmap` and `grad`, and the remedy; None: there it is its function, unmarked.
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

    def batch(operands, axes, **parameters):
        if refuse is not None:
            raise TypeError(f"{name} under vmap: {refuse}")
        mapped = jax.vmap(lambda *x: function(*x, **parameters), in_axes=tuple(axes))
        outputs = mapped(*operands)
        return outputs, [0] * len(outputs)

    def differentiate(primals, tangents, **parameters):
        if refuse is not None:
            raise TypeError(f"{name} under grad: {refuse}")
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


# Releases of jaxlib in which `one_kernel` was tried out: with others nothing is marked, and all is only slower.
_ONE_KERNEL_TRIED_IN = frozenset({"0.10.2"})


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


def one_process(what: str, arrays: Sequence[Any] = ()) -> None:
    """Refuse to release anything from several processes.

    Under `jax.distributed` every process runs the same program, each with a key of its own. JAX does not check that these
    agree, so each process would release the same records with other noise, and state the price of one release.

    Args:
        what: What releases, as its caller knows it.
        arrays: What it is given; tracers and NumPy's arrays live in this process.

    Raises:
        ValueError: There are several processes, or an array lies partly in another one.
    """
    if jax.process_count() > 1 or any(not x.is_fully_addressable for x in _placed(arrays)):
        raise ValueError(
            f"{what} works in one process, and jax.distributed has started {jax.process_count()}. Each of them would draw its "
            "own noise and release the same records once more, with a statement that says the price of one release. Nothing "
            "was spent. Run it in a program that does not call jax.distributed.initialize, with all records in its memory "
            "or a memory map, and hand its result to the other processes."
        )


def warn_of_spread(what: str, arrays: Sequence[Any]) -> None:
    """Warn where one process has spread its arrays over several devices: all of them then do all the work."""
    devices = max((len(x.sharding.device_set) for x in _placed(arrays)), default=1)
    if devices > 1:
        warnings.warn(
            f"{what} was given an array that is spread over {devices} devices. The result is right, but every device does all "
            "the work, which takes several times as long as on one. Pass NumPy arrays, or arrays on one device.",
            UserWarning,
            stacklevel=3,
        )


def _placed(arrays: Sequence[Any]) -> list[jax.Array]:
    return [x for x in arrays if isinstance(x, jax.Array) and not isinstance(x, Tracer)]
