"""For every primitive that has a rule, honest programs that meet it with operands of every kind."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from discreet._jax import primitives as p

from .operands import CONSTANTS, FLOATS, NUMBERS, ROWS, TRACED, TRUTHS, WHOLE, Case

CASES: dict[str, list[Case]] = {}
PUBLIC = (*CONSTANTS, *TRACED)
MEETING = (
    *(
        "raw",
        "finite",
        "limited",
        "limited or NaN",
        "below",
        "clipped",
        "other",
        "masked",
        "placed",
        "norm",
        "factor",
    ),
    *("sum", "other sum", "small", "scalar", "two", "zero", "line", "places", "table of numbers"),
)
FEW = ("raw", "limited", "placed", "sum", "line", "places")


def enter(name: str, function: Callable[..., Any], *names: str, **options: Any) -> None:
    CASES.setdefault(name, []).append(Case(function, names, **options))


def each(
    name: str,
    function: Callable[..., Any],
    names: Sequence[str] = (*FLOATS, *NUMBERS),
    **options: Any,
) -> None:
    """One operand, of all kinds."""
    enter(name, lambda *xs: [function(x) for x in xs], *names, **options)


def pairs(name: str, function: Callable[..., Any], names: Sequence[str] = FEW) -> None:
    """Two operands, of all kinds, in any order."""
    own = [i for i, x in enumerate(names) if x not in PUBLIC]
    both = [(i, j) for i in range(len(names)) for j in range(len(names)) if i in own or j in own]
    enter(
        name, lambda *xs: [function(*jnp.broadcast_arrays(xs[i], xs[j])) for i, j in both], *names
    )


def triples(name: str, function: Callable[..., Any], choices: Sequence[Sequence[str]]) -> None:
    names = sorted({x for choice in choices for x in choice})
    places = [[names.index(x) for x in choice] for choice in choices]
    enter(
        name,
        lambda *xs: [function(*jnp.broadcast_arrays(*(xs[i] for i in place))) for place in places],
        *names,
    )


def _elementwise() -> None:
    for name in (
        *(
            "abs",
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "bessel_i0e",
            "bessel_i1e",
            "cbrt",
            "ceil",
            "cos",
            "cosh",
        ),
        *(
            "digamma",
            "erf",
            "erf_inv",
            "erfc",
            "exp",
            "exp2",
            "expm1",
            "floor",
            "is_finite",
            "lgamma",
            "log",
            "log1p",
        ),
        *(
            "logistic",
            "neg",
            "round",
            "rsqrt",
            "sign",
            "sin",
            "sinh",
            "sqrt",
            "square",
            "tan",
            "tanh",
        ),
    ):
        each(name, getattr(lax, name))
    for name in ("log2", "one_minus_square"):
        if hasattr(lax, f"{name}_p"):  # since JAX 0.11 and 0.12
            each(name, getattr(lax, name))
    if hasattr(lax, "one_minus_square"):
        each("one_minus_square", lax.one_minus_square, WHOLE)
    for number in (2, 3, -1, 0):
        each("integer_pow", lambda x, n=number: lax.integer_pow(x, n))
    each("copy", lambda x: p.copy_p.bind(x))
    for name, function in (
        ("real", lambda z: z),
        ("imag", lambda z: z),
        ("conj", lax.conj),
        ("abs", lax.abs),
        ("sin", lax.sin),
    ):
        part = lax.imag if name == "imag" else lax.real
        each(name, lambda x, f=function, part=part: _part(part, f(lax.complex(x, 20.0 * x))), ROWS)
    pairs("complex", lax.complex)
    each("name", lambda x: checkpoint_name(x, "it"))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    each("sharding_constraint", lambda x: lax.with_sharding_constraint(x, here))
    each("stop_gradient", lambda x: p.stop_gradient_p.bind(x))
    each("reduce_precision", lambda x: lax.reduce_precision(x, 5, 7))
    each("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.uint32), FEW[:3])
    for kind in ("float16", "bfloat16", "int32", "uint8", "bool"):
        each(
            "convert_element_type",
            lambda x, kind=kind: lax.convert_element_type(x, kind),
            (*ROWS, "sum"),
        )
        each(
            "convert_element_type",
            lambda x, kind=kind: lax.convert_element_type(x, kind),
            (*WHOLE, *TRUTHS),
        )
    each(
        "convert_element_type", lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), (*ROWS, "sum")
    )
    for name in ("abs", "neg", "sign", "population_count", "clz", "not"):
        each(name, getattr(lax, {"not": "bitwise_not"}.get(name, name)), WHOLE)
    each("not", lax.bitwise_not, TRUTHS)
    each("not", lambda t: [jnp.where(~t, 0.0, 1.0), jnp.where(~~t, 1.0, 0.0)], TRUTHS)
    each("integer_pow", lambda x: lax.integer_pow(x, 2), WHOLE)
    for name in ("add", "sub", "mul", "div", "max", "min"):
        pairs(name, getattr(lax, name), MEETING)
        pairs(name, getattr(lax, name), (*WHOLE, "numbers"))
    pairs("add_any", lambda x, y: p.add_jaxvals_p.bind(x, y), MEETING)
    for name in ("atan2", "pow", "rem", "nextafter"):
        pairs(name, getattr(lax, name))
    slow = [("raw", "limited"), ("placed", "limited"), ("line", "raw")]  # to compile
    triples("igamma", lax.igamma, slow)
    triples("igammac", lax.igammac, slow)
    triples("igamma_grad_a", p.igamma_grad_a_p.bind, slow[:2])
    triples("zeta", lax.zeta, slow)
    triples("polygamma", lambda x, y: lax.polygamma(jnp.floor(jnp.abs(x)), y), slow)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        pairs(name, getattr(lax, name), (*FEW, "norm", "one", "scalar"))
        pairs(name, getattr(lax, name), (*WHOLE, "numbers"))
    each("eq", lambda x: lax.eq(x, x))
    for name in ("eq", "ne"):
        each(
            name, lambda x: [jnp.nan_to_num(x), jnp.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)]
        )
    for primitive in (p.eq_to_p, p.lt_to_p, p.le_to_p):
        pairs(primitive.name, primitive.bind)
    for name in ("and", "or", "xor"):
        bits = getattr(lax, f"bitwise_{name}")
        pairs(name, bits, TRUTHS)
        pairs(name, bits, (*WHOLE, "numbers"))
    for name in ("shift_left", "shift_right_logical", "shift_right_arithmetic", "rem"):
        pairs(name, getattr(lax, name), (*WHOLE, "numbers"))
    bounds = [("zero", x, "one") for x in FLOATS] + [
        ("two", "raw", "limited"),
        ("places", "limited or NaN", "one"),
    ]
    triples("clamp", lax.clamp, [*bounds, ("scalar", "sum", "one"), ("zero", "one", "sum")])


def _part(part: Callable[..., Any], z: Any) -> Any:
    return part(z) if jnp.iscomplexobj(z) else z


_elementwise()
