"""From a Python function to a certificate, or to the reason why there is none.

`certify` traces the function (`_programs`), refuses what no proof covers (`_refusals`) and captured
records, which would count as public (`refuse_captured_records`), walks through the program and
requires every output to be public or released. The certificate holds the program that was proved,
and calling it runs that program.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from discreet._dp_accounting import DpEvent
from discreet._jax import (
    ClosedJaxpr,
    Literal,
    Var,
    all_constants,
    is_key,
    untried_jax,
    without_dead_code,
)
from discreet._validate import notebook_html
from discreet.privacy.accounting import PrivacyProfile, Relation, neighbours, profile
from discreet.privacy.random import derives_apart
from discreet.privacy.verify._bounds import RecordSet, Table, outside, unnamed
from discreet.privacy.verify._claims import check_expected, covers, delta_formula, formula_lines
from discreet.privacy.verify._control import captured
from discreet.privacy.verify._domain import Key, Private, Public, Value, constant
from discreet.privacy.verify._errors import Origin, PrivacyError, Why, chain_of, from_here
from discreet.privacy.verify._events import event_of
from discreet.privacy.verify._interpreter import Checker, Known, value_of
from discreet.privacy.verify._keyring import KNOWN, PRIVATE, SECRET
from discreet.privacy.verify._programs import (
    check_different,
    fingerprint,
    line_of,
    runner_for,
    shown,
    trace,
)
from discreet.privacy.verify._refusals import refuse_opaque
from discreet.privacy.verify._symbols import (
    Fixed,
    Given,
    check_symbols,
    checked_values,
    event_at,
    fixed_at,
    is_symbolic,
    numbers_of,
    open_in,
    times_at,
)


def names_of(step: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    """Names of the array arguments for messages: position, and name in the function."""
    try:
        named = list(inspect.signature(step).bind(*args).arguments.items())
    except (TypeError, ValueError):
        named = []
    names: list[str] = []
    for position, arg in enumerate(args):
        name = named[position][0] if len(named) == len(args) and named[position][1] is arg else ""
        paths = [
            path for path, x in jax.tree_util.tree_leaves_with_path(arg) if not isinstance(x, Fixed)
        ]
        names += [
            f"{position}{f', {name}' if name else ''}{jax.tree_util.keystr(path)}" for path in paths
        ]
    return names


def inputs_of(
    checker: Checker,
    args: tuple[Any, ...],
    names: Sequence[str],
    positions: tuple[int, ...],
    mask: int | None,
) -> list[Value]:
    """The abstract value of each argument."""
    if (
        any(not 0 <= i < len(args) for i in (*positions, *(() if mask is None else (mask,))))
        or mask in positions
    ):
        raise ValueError(
            f"certify: records={positions} and mask={mask} must be distinct positions among {len(args)} arguments, counted "
            "from 0. Pass the positions of the arguments that hold the records."
        )
    sizes: set[int] = set()
    values: list[Value] = []
    for position, arg in enumerate(args):
        for leaf in jax.tree.leaves(arg):
            if isinstance(leaf, Fixed):
                continue
            name = f"argument {names[len(values)]}"
            example = shown(leaf)
            kind = (
                example
                if isinstance(example, jax.ShapeDtypeStruct)
                else jax.eval_shape(lambda x=example: x)
            )
            if position in positions or position == mask:
                if kind.ndim == 0:
                    raise ValueError(
                        f"certify: {name} is a number; records need a leading axis. Pass arrays, one row per record."
                    )
                sizes.add(kind.shape[0])
                values.append(_record_value(name, kind, position == mask, checker.table))
            elif is_symbolic(leaf):
                values.append(Public(scale=checker.symbols.scale(leaf)))
            elif isinstance(leaf, Given):
                values.append(constant(np.asarray(leaf.value)))
            elif is_key(kind):
                apart = derives_apart(kind.dtype)
                why = (
                    ""
                    if apart
                    else f"two keys that are derived from one of type {kind.dtype} may be equal"
                )
                values.append(checker.keys.new(tuple(kind.shape), SECRET if apart else KNOWN, why))
            else:
                single = kind.ndim == 0 and np.dtype(kind.dtype).kind == "f"
                values.append(Public(scale=unnamed() if single else None))
    if len(sizes) > 1:
        raise ValueError(
            f"certify: records and mask have {sorted(sizes)} rows. Every array of records has one row per record: pad them alike."
        )
    return values


def _record_value(name: str, kind: Any, is_mask: bool, table: RecordSet) -> Private:
    if is_mask and (kind.dtype != np.bool_ or kind.ndim != 1):
        raise ValueError(
            f"certify: the mask, {name}, is {kind.dtype}{list(kind.shape)}; it must be one truth value per row."
        )
    if is_key(kind):
        raise ValueError(
            f"certify: {name} holds keys. Keys are not records: pass them as a separate argument."
        )
    origin = Origin("", f"{name} (the {'mask' if is_mask else 'records'})", mask=is_mask)
    dtype = np.dtype(kind.dtype).kind
    value = Private(table, (0,), origin, linf=1.0 if dtype == "b" else None, finite=dtype in "biu")
    kept = {"zero": frozenset([table]), "absent": frozenset([(outside(table), 1)])}
    return dataclasses.replace(value, **kept) if is_mask else value


def refuse_captured_records(
    program: ClosedJaxpr, chain: tuple[str, ...], args: tuple[Any, ...], positions: tuple[int, ...]
) -> None:
    """Refuse a table that is a constant of the program, since constants count as public."""
    leaves = [shown(x) for i in positions if 0 <= i < len(args) for x in jax.tree.leaves(args[i])]
    arrays = [
        x
        for x in leaves
        if not isinstance(x, jax.ShapeDtypeStruct) and not is_key(jax.eval_shape(lambda x=x: x))
    ]
    tables = [x for x in map(np.asarray, arrays) if x.size > 1]
    # Shapes alone, as in most proofs, are equal to nothing.
    for value in all_constants(program) if tables else ():
        for table in tables if not is_key(value) else ():
            nan = table.dtype.kind == "f"
            same = value.shape == table.shape and np.array_equal(value, table, equal_nan=nan)
            if same and len(np.unique(table)) > 1:
                raise PrivacyError(
                    f"the program holds the records as a constant of shape {list(table.shape)}: the function uses a variable "
                    "from outside that is equal to an argument, and constants count as public.",
                    "use the argument inside of the function.",
                    chain=chain,
                )


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """A proof that a program is private, and the program. Made by `certify`.

    Guarantee: under `relation` and `assumptions`, all `times` calls of the certificate are the
    composition that `event` names, within total variation `slack`; so their joint output is
    (epsilon, delta) differentially private for every pair of `epsilon` and `delta`. With open
    symbols, that holds for every value for which `at` returns a certificate.

    Attributes:
        event: The event of all calls; its numbers may be sympy expressions.
        slack: Total variation between samplers and noise as run and as accounted for; NaN while
            symbols are open in the event.
        times: Number of permitted calls on the same records.
        relation: The neighbouring relation.
        outputs: The status of each output, "public" (the data have no influence) or "released".
        assumptions: The assumptions of the proof, in words.
        notes: Reasons why the event is worse than it could be.
        fingerprint: SHA-256 of the program, constants included.
        versions: Versions of discreet, JAX and Python.
    """

    event: DpEvent
    slack: float
    times: Any
    relation: Relation
    outputs: Mapping[str, str]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    fingerprint: str
    versions: Mapping[str, str]
    # a release's multiplier exceeds the limit that formulas assume
    _beyond: bool = dataclasses.field(repr=False)
    _step: Callable[..., Any] = dataclasses.field(repr=False)
    _args: tuple[Any, ...] = dataclasses.field(repr=False)
    # positions of the records and of the mask
    _masked: tuple[int, ...] = dataclasses.field(repr=False)
    _options: Mapping[str, Any] = dataclasses.field(repr=False)  # of `certify`
    _program: ClosedJaxpr = dataclasses.field(repr=False)
    _out_shape: Any = dataclasses.field(repr=False)
    _wide: bool = dataclasses.field(repr=False)
    _begun: _Begun = dataclasses.field(repr=False)
    _how: Mapping[str, bool] = dataclasses.field(default_factory=dict, repr=False)  # it is compiled

    @property
    def _known(self) -> tuple[str, ...]:
        """The names of all open symbols."""
        return open_in([*jax.tree.leaves(self._args), self.times])

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the symbols that the event depends on, without those that cancel."""
        return open_in(numbers_of(self.event))

    def at(self, /, **values: Any) -> Certificate:
        """Substitute numbers for symbols: the program is traced and proved again with them.

        So the proof checks every condition on a value: a rate above 1 is refused, and so is a
        capacity too small for it.

        Args:
            values: A number for each symbol; omitted symbols stay open.

        Returns:
            The certificate. Call it with the same arguments as this one, including those numbers.

        Raises:
            ValueError: No such symbol; a value outside 1e-30 to 1e30; or an error of the program.
            PrivacyError: No proof with these numbers.
        """
        values = checked_values(values, self._known)
        args = jax.tree.map(lambda x: fixed_at(x, values), self._args)
        found = certify(self._step, *args, times=times_at(self.times, values), **self._options)
        said = event_at(self.event, values)
        # The formula must cover the proof with numbers. It assumes noise multipliers up to a limit;
        # beyond it only the proof with numbers holds.
        compared = not found._beyond and not open_in([*numbers_of(said), *numbers_of(found.event)])
        if compared and not covers(said, found.event, found.slack, found.relation):
            raise PrivacyError(
                f"with these numbers the program differs: its formula evaluates to {said}, its proof to {found.event}.",
                "let the program depend on symbols by arithmetic alone, and not on types or shapes derived from them.",
            )
        return found

    def given(self, /, *args: Any) -> Certificate:
        """Replace the values of `Given` arguments: what follows from them in the program is proved again.

        Args:
            args: The arguments of `certify`, of the same shapes; only `Given` ones may have other
                values.

        Returns:
            The certificate with these values.

        Raises:
            TypeError: The arguments are of another kind.
            PrivacyError: No proof with these values.
        """
        kinds = [jax.typeof(shown(x)) for x in jax.tree.leaves(args)]
        same = [(x.shape, x.dtype) for x in kinds] == [
            (x.shape, x.dtype) for x in self._program.in_avals
        ]
        same = same and jax.tree.structure(args) == jax.tree.structure(self._args)
        if not same or list(_given(args)) != list(_given(self._args)):
            raise TypeError(
                "These arguments are of another kind than those certified. Certify again for these."
            )
        return _proved(self._step, args, self.times, self, **self._options)

    def repeating(self, *, quickly: bool = False) -> Certificate:
        """The certificate of the same program, whose calls give the same bits each time, as on a CPU; slower on a GPU.

        Args:
            quickly: Compile it in half the time, on a CPU, for calls that take three times as long.
        """
        return dataclasses.replace(self, _how={"repeats": True, "quickly": quickly})

    def profile(self) -> PrivacyProfile:
        """The privacy profile of all calls.

        Raises:
            ValueError: The event depends on symbols.
        """
        return self._profile

    @functools.cached_property
    def _profile(self) -> PrivacyProfile:
        if self.symbols:
            raise ValueError(
                f"The cost depends on {', '.join(self.symbols)}. Give their values: certificate.at({_named(self.symbols)})."
            )
        return profile(self.event, self.relation, slack=min(1.0, self.slack))

    def epsilon(self, delta: float, **values: Any) -> float:
        """An upper bound on epsilon at `delta` for all calls, at the `values` of symbols; infinity where unattainable."""
        return (self.at(**values) if values else self).profile().epsilon(delta)

    def delta(self, epsilon: float, **values: Any) -> float:
        """An upper bound on delta at `epsilon` for all calls, at the `values` of symbols."""
        return float((self.at(**values) if values else self).profile().delta(epsilon))

    def delta_expression(self, epsilon: Any = None) -> Any:
        """Delta as a sympy expression of epsilon and the symbols: the exact profile of the event, not a bound.

        Args:
            epsilon: A number or an expression; by default the symbol `epsilon`.

        Raises:
            ValueError: No closed form is known, as for random samples.
        """
        found = delta_formula(self.event, self.relation, epsilon)
        if found is None:
            raise ValueError(
                f"No closed form of delta(epsilon) is known for {self.event}. certificate.epsilon(delta, ...) computes an "
                "upper bound at values of the symbols."
            )
        return found

    def refuse_captured(self, *args: Any) -> None:
        """Refuse records that the program holds as a constant, which counts as public; `certify` did so for its own arguments.

        Args:
            args: As for a call.

        Raises:
            PrivacyError: The program holds an array that is equal to one of the records' or to the
                mask.
        """
        refuse_captured_records(self._program, (), args, self._masked)

    def check(self, claimed: Any) -> None:
        """Check that a claimed event covers the program.

        Args:
            claimed: A DpEvent, or a PrivacyPlan.

        Raises:
            PrivacyError: The claim does not cover the program; with both events and the reason.
        """
        check_expected(self.event, self.slack, claimed, self.relation, self.notes)

    def __call__(self, *args: Any) -> Any:
        """Run the program that was certified.

        Args:
            args: Arguments of the certified structure, shapes and dtypes, with the given numbers in
                place of symbols, and with keys that are used for nothing else.

        Raises:
            TypeError: The arguments are of another kind than those certified.
            ValueError: A symbol has no value, or not the number that is passed; or a key is passed
                twice.
        """
        leaves = self._checked(args)
        # Use the same x64 setting as at trace time, since it affects rounding.
        with jax.enable_x64(self._wide):
            program = runner_for(self._program).of(leaves, **self._how)
            return jax.tree.unflatten(jax.tree.structure(self._out_shape), program(*leaves))

    def compile(self, *args: Any) -> None:
        """Compile the program for calls with such arguments, which takes seconds, and run nothing.

        Args:
            args: As for a call, with the same errors.
        """
        leaves = self._checked(args)
        with jax.enable_x64(self._wide):
            runner_for(self._program).of(leaves, **self._how)

    def _checked(self, args: tuple[Any, ...]) -> list[Any]:
        """The operands of the program."""
        if self._known:
            named = _named(self._known)
            raise ValueError(f"Bind the open symbols first: call certificate.at({named}).")
        leaves, tree = jax.tree.flatten(args)
        proved, own = jax.tree.flatten(self._args)
        if tree != own:
            raise TypeError(
                f"The certificate is for arguments of structure {own}, these have {tree}. Certify again for these."
            )
        for number, (leaf, example) in enumerate(zip(leaves, proved, strict=True)):
            if isinstance(example, Fixed) and (isinstance(leaf, Tracer) or leaf != example.value):
                raise ValueError(
                    f"Argument leaf {number} is {leaf}; the certificate is for {example.value}. Pass that number, or bind "
                    "another with certificate.at."
                )
        leaves = [
            x for x, example in zip(leaves, proved, strict=True) if not isinstance(example, Fixed)
        ]
        for number, given in _given(self._args).items():
            if isinstance(leaves[number], Tracer) or not np.array_equal(
                leaves[number], given.value
            ):
                raise ValueError(
                    f"Argument leaf {number} is {leaves[number]}; the certificate is for {np.asarray(given.value)}. Pass that "
                    "value, or certify again with another."
                )
        for number, (leaf, kind) in enumerate(zip(leaves, self._program.in_avals, strict=True)):
            shape = np.shape(leaf)
            dtype = jax.dtypes.result_type(leaf) if not hasattr(leaf, "dtype") else leaf.dtype
            if tuple(shape) != tuple(kind.shape) or dtype != kind.dtype:
                raise TypeError(
                    f"Argument leaf {number} is {dtype}{list(shape)}, the certified program takes {kind.dtype}"
                    f"{list(kind.shape)}: another program. Certify again, or pad to the certified number of rows."
                )
        check_different(leaves)
        return leaves

    def _repr_html_(self) -> str:
        headline, _, text = str(self).partition("\n")
        return notebook_html(headline, text)

    def __str__(self) -> str:
        """A summary of a few lines."""
        lines = [f"Certified for {neighbours(self.relation).name('record')}: {self.event}"]
        if self.symbols:
            lines += [f"  {x}" for x in formula_lines(self.event, self.relation)]
            lines.append(
                f"  epsilon(delta), computed from above: certificate.epsilon(delta, {_named(self.symbols)})"
            )
        lines += [f"  output {name}: {status}" for name, status in _gathered(self.outputs)]
        lines += [f"  note: {x}" for x in self.notes]
        lines += [f"  assuming: {x}" for x in self.assumptions]
        lines.append(
            f"  program {self.fingerprint[:16]}, "
            + ", ".join(f"{k} {v}" for k, v in self.versions.items())
        )
        return "\n".join(lines)


def _gathered(outputs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each output with its status; more than three arrays of one output with one status are one line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, status in outputs.items():
        found = re.match(r"\w+(\[[^]]*\])?", name)
        groups.setdefault((found[0] if found else name, status), []).append(name)
    for (whole, status), names in groups.items():
        if len(names) > 3:
            yield f"{whole} ({len(names)} arrays)", status
        else:
            yield from ((name, status) for name in names)


def _named(symbols: Sequence[str]) -> str:
    return ", ".join(f"{x}=..." for x in symbols)


def certify(
    step: Callable[..., Any],
    *args: Any,
    records: int | Sequence[int],
    mask: int | None = None,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    expect: Any = None,
    times: Any = 1,
) -> Certificate:
    """Prove a bound on what a JAX program reveals about one record, before it runs.

    The program is traced to a jaxpr, and abstract interpretation bounds the influence of one record
    on each of its values. The output of a primitive without a rule has no bound.

    Guarantee: see `Certificate`. A program for which there is no proof gets no certificate.

    Args:
        step: Any JAX function. Noise is added by `gaussian_mechanism` or `laplace_mechanism`.
        args: Its arguments, or their shapes (`jax.ShapeDtypeStruct`). All but records and mask are
            public; keys are secret. Pass `Given(array)` instead of an array to make it an operand
            whose value the proof uses. Pass a symbol (`symbol`), or an expression of symbols,
            instead of a number: the proof holds for all values.
        records: Positions of the arguments whose leading axis is the records.
        mask: Position of the Boolean argument that marks the real rows; without one all rows are
            real, and under ADD_OR_REMOVE_ONE the sensitivity is 2C, since shapes are fixed.
        relation: The neighbouring relation.
        expect: The claimed event of all calls: a DpEvent, or a PrivacyPlan.
        times: Largest number of calls on the same records: an integer or a symbol. Each call uses
            new keys, and its public arguments may depend on the outputs of earlier calls.

    Returns:
        The certificate: its event, epsilon and delta, and the program, to be called as `step`.

    Raises:
        PrivacyError: No proof; with the output that leaks, the lines on the path, the rule and the
            remedy.
        ValueError: The positions name no arrays with a common leading axis; a symbol may be zero or
            negative.

    Reference:
        Near et al., Duet, OOPSLA 2019; DiffPrivacyInference.jl, the checker for Julia.

    >>> import jax.numpy as jnp, discreet as dp
    >>> def step(key, xs, mask):
    ...     return dp.gaussian_mechanism(key, dp.sum_records(dp.clip_records(xs, 2.0), mask), stddev=6.0)
    >>> certificate = dp.certify(step, dp.random.key(), jnp.ones((100, 3)), jnp.ones(100, bool), records=1, mask=2)
    >>> certificate.event
    GaussianDpEvent(noise_multiplier=3.0)
    """
    neighbours(relation)
    if why := untried_jax():
        raise Why.RELEASE.refusal(f"there is no proof on this release of JAX: {why}")
    if any(map(is_symbolic, leaves := [*jax.tree.leaves(args), times])):
        check_symbols(leaves)
        args = jax.tree.map(lambda x: fixed_at(x, {}), args)
    times = times_at(times, {})
    certificate = _proved(step, args, times, records=records, mask=mask, relation=relation)
    if expect is not None:
        certificate.check(expect)
    return certificate


def _proved(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    times: Any,
    earlier: Certificate | None = None,
    *,
    records: int | Sequence[int],
    mask: int | None,
    relation: Relation,
) -> Certificate:
    """The certificate of `certify`; an `earlier` one has the program, for other values of `Given` arguments."""
    positions = (records,) if isinstance(records, int) else tuple(records)
    masked = positions if mask is None else (*positions, mask)
    if earlier is None:
        program, out_shape = trace(step, args)
        refuse_opaque(program.jaxpr)
        # Drop code that no output needs, in the proof and in the run; effects were refused above.
        program = without_dead_code(program)
        wide = jnp.result_type(float) == np.float64
        refuse_captured_records(program, line_of(step), args, masked)
        checker = Checker(relation, Table(masked=mask is not None))
        inputs = inputs_of(checker, args, names_of(step, args), positions, mask)
        begun = _Begun.of(program, checker, inputs, list(_given(args)))
    else:
        program, out_shape, wide = earlier._program, earlier._out_shape, earlier._wide
        refuse_captured_records(program, line_of(step), args, masked)
        begun = earlier._begun
    checker, outputs = begun.ended(program, _given(args))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(out_shape)]
    results = [f"result{jax.tree_util.keystr(path)}" for path in paths]
    status = {
        name: _status(checker, name, value) for name, value in zip(results, outputs, strict=True)
    }
    event, slack = event_of(checker.items, relation, times)
    slack = math.nan if open_in([*numbers_of(event), slack]) else slack * times
    return Certificate(
        event=event,
        slack=slack,
        times=times,
        relation=relation,
        outputs=status,
        assumptions=_assumptions(program, args, positions, times, mask, checker),
        notes=tuple(dict.fromkeys(map(from_here, checker.notes))),
        fingerprint=fingerprint(program, [x.value for x in _given(args).values()]),
        versions=dict(_versions()),
        _beyond=checker.beyond,
        _step=step,
        _args=args,
        _masked=masked,
        _options={"records": records, "mask": mask, "relation": relation},
        _program=program,
        _out_shape=out_shape,
        _wide=wide,
        _begun=begun,
    )


@functools.cache
def _versions() -> dict[str, str]:
    """Read once: a fit has a certificate for each of its noises."""
    return {
        "discreet": version("discreet"),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class _Begun:
    """A walk up to the first equation that reads a `Given` argument: it is the same whatever the values are.

    Attributes:
        checker: Its state there.
        known: The values there that the rest of the program reads.
        place: The number of equations.
    """

    checker: Checker
    known: Known
    place: int

    @staticmethod
    def of(
        program: ClosedJaxpr, checker: Checker, inputs: list[Value], given: Sequence[int]
    ) -> _Begun:
        """Walk so far; `given` are positions of operands."""
        jaxpr = program.jaxpr
        consts = [captured(checker, x) for x in program.consts]
        known: Known = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, inputs, strict=True))
        later = [jaxpr.invars[number] for number in given]
        for variable in later:
            del known[variable]
        readers = [
            n for n, x in enumerate(jaxpr.eqns) if not _variables(x.invars).isdisjoint(later)
        ]
        place = min(readers, default=len(jaxpr.eqns))
        checker.go_on(jaxpr.eqns[:place], known)
        read = _variables([*jaxpr.outvars, *(v for x in jaxpr.eqns[place:] for v in x.invars)])
        return _Begun(checker, {v: x for v, x in known.items() if v in read}, place)

    def ended(
        self, program: ClosedJaxpr, given: Mapping[int, Given]
    ) -> tuple[Checker, list[Value]]:
        """Walk on with these values: the state at the end, and the outputs."""
        jaxpr = program.jaxpr
        checker = self.checker.forked()
        known = dict(self.known)
        for number, argument in given.items():
            known[jaxpr.invars[number]] = constant(np.asarray(argument.value))
        checker.go_on(jaxpr.eqns[self.place :], known)
        return checker, [value_of(x, known) for x in jaxpr.outvars]


def _variables(atoms: Sequence[Any]) -> set[Var]:
    return {x for x in atoms if not isinstance(x, Literal)}


def _given(args: tuple[Any, ...]) -> dict[int, Given]:
    """The `Given` arguments, by their position among the operands of the program."""
    operands = [x for x in jax.tree.leaves(args) if not isinstance(x, Fixed)]
    return {i: x for i, x in enumerate(operands) if isinstance(x, Given)}


def _status(checker: Checker, name: str, value: Value) -> str:
    if isinstance(value, Key):
        kind, _ = checker.keys.kind(value)
        if kind == SECRET and (used := checker.keys.use_of(value)):
            raise Why.KEY.refusal(
                f"a key is returned that was used for {used[0]}, so its recipient can reproduce the noise or the batch.",
                *filter(None, used[1:]),
                output=name,
            )
        if kind == PRIVATE:
            raise Why.KEY.refusal("a key is returned that depends on records.", output=name)
        # Its recipient may draw from the key, so no noise may come from it, and it may be returned
        # once.
        checker.keys.spend(value, f"output {name}", "the end of the program")
        return "public"
    if isinstance(value, Public):
        return "released" if value.released else "public"
    why = value.why or Why.CLIP("nothing bounds what one record can change")
    if value.axes is not None:
        why = Why.ROW("it has values for each record, and no noise")
    elif value.terms is not None:
        why = Why.NOISE("it is a sum over records with a bound, but without noise")
    raise why.kind.refusal(f"{why}.", *chain_of(value.origin), output=name)


_HELD: WeakKeyDictionary[ClosedJaxpr, list[str]] = WeakKeyDictionary()


def _held(program: ClosedJaxpr) -> list[str]:
    """The types of the constants that a program holds, found once for all certificates that differ in `Given` values."""
    if program not in _HELD:
        _HELD[program] = [f"{x.dtype}{list(x.shape)}" for x in all_constants(program)]
    return _HELD[program]


def _assumptions(
    program: ClosedJaxpr,
    args: tuple[Any, ...],
    positions: tuple[int, ...],
    times: Any,
    mask: int | None,
    checker: Checker,
) -> tuple[str, ...]:
    named = open_in([*jax.tree.leaves(args), times])
    values = _given(args)
    keys = [x for x in program.in_avals if is_key(x)]
    held = _held(program)
    words = [
        f"records are the leading axis of argument{'s' if len(positions) > 1 else ''} {', '.join(map(str, positions))}; one "
        "person is one record, and all records keep their places when one changes",
        "all other arguments are public: known without the data, or released before",
        "public numbers that scale a sum are finite when the program runs",
        "keys passed in are secret, different from one another and used for nothing else",
        "values computed from one record have the same bits whichever others are beside it",
    ]
    if checker.unrounded:
        where = "; ".join(dict.fromkeys(map(from_here, checker.unrounded)))
        words.append(
            f"sums released at {where} are exact: the rounding of dp.sum_records on clipped rows, and of its products with "
            "public numbers, is accounted for; that of other sums is not"
        )
    words += [
        f"{x.name} adds exact noise: its last bits are not accounted for"
        for x in checker.mechanisms
        if not x.on_grid
    ]
    if checker.most_multiplier < math.inf:
        words.append(f"noise multipliers are at most {checker.most_multiplier:.4g}")
    if mask is None and checker.neighbours.hides_membership:
        words.append(
            "there is no mask, so shapes are those of all records and their number is public"
        )
    elif mask is not None:
        words.append("the number of rows, padding included, is public; the mask is not")
    if named:
        words.append(f"{', '.join(named)} are public, positive, and the same in all calls")
    if is_symbolic(times) or times > 1:
        words.append(
            f"the program is called at most {times} times, a number fixed beforehand, on the same records; each call uses new "
            "keys, and its public arguments may depend on the outputs of earlier calls"
        )
    if values:
        numbers = ", ".join(f"{x.value}" for x in values.values() if np.ndim(x.value) == 0)
        words.append(
            f"the program is given the values used in the proof{f': {numbers}' if numbers else ''}"
        )
    if held:
        words.append(f"constants held by the program are public: {', '.join(held)}")
    if any("chacha20" not in str(k.dtype) or "seeded" in str(k.dtype) for k in keys):
        words.append(
            "anyone who knows the seed of a key can derive it again: reproducible, not private"
        )
    return tuple(words)
