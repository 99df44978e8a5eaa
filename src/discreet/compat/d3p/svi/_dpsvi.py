"""d3p's `DPSVI`, on discreet's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
from jax.core import Tracer
from jaxtyping import Array, Float

from discreet import inference, random
from discreet.compat.d3p import random as d3p_random
from discreet.compat.d3p.dputil import Calibration, NoiseScale, whole_steps
from discreet.compat.d3p.minibatch import GetBatch, source_of
from discreet.compat.d3p.svi._arguments import Layout, as_mask, blank, count_rows
from discreet.compat.d3p.svi._binding import (
    Binding,
    Drawn,
    declared_updates,
    find_law,
    notes_on,
    source_named,
    warn_if_dearer,
)
from discreet.compat.d3p.svi._programs import complete_guide, declared_num_records
from discreet.inference import DPSVIState, claim
from discreet.plan import PrivacyPlan
from discreet.report import Statement, make_statement

_OPEN_HORIZON = 10**9
"""Steps of the plan behind a loop of unknown length: only its sampler and noise are read from it."""


class DPSVI:
    """Differentially private SVI with d3p's arguments; the noise, the clipping and the accounting are discreet's.

    Guarantee: with batches from this package's batchifiers, each drawn once and used in one `update`, all that comes
    out of `update` and `get_params` is covered by `statement(state)`. See `discreet.inference.DPSVI` for the step.

    The number of records N is read from the model's plate, `plate("...", N, batch_size)`; how batches are drawn from
    the batchifier that handed out the arrays. Arrays that were changed since are matched by their number of rows, and
    the statement says so; say with `batches` where they come from if that is not enough.

    Args:
        model: the model; array arguments hold records along their leading axis.
        guide: the guide. Latents that it lacks are drawn from the model's prior given those that it has.
        optim: an optimizer of `numpyro.optim` or optax.
        per_example_loss: `Trace_ELBO()` or `TraceMeanField_ELBO()`.
        clipping_threshold: C, the L2 bound on one record's contribution.
        dp_scale: noise multiplier: standard deviation of the noise on the sum, divided by C.
        rng_suite: `discreet.compat.d3p.random`, or its `debug`, which marks the result as not private.
        clip_unscaled_observations: False: C is meant for a record's contribution times N, as in d3p.
        perturb: "parameters", d3p's rule, so that results compare; "latents", discreet's own, has less noise.
        num_iter: number of updates, fixed beforehand. None: that of `approximate_sigma` if `dp_scale` comes from it.
        batches: `get_batch` of the batchifier that `update` gets its batches from. None: found by its arrays.
        static_kwargs: public keyword arguments of model and guide, such as N.

    Raises:
        ValueError, TypeError: an argument that cannot be used.

    Reference:
        Prediger, Loppi, Kaski, Honkela. d3p. PoPETs 2022(2), Sections 3 and 4.
    """

    def __init__(
        self,
        model: Any,
        guide: Any,
        optim: Any,
        per_example_loss: Any,
        clipping_threshold: float,
        dp_scale: float,
        rng_suite: Any = d3p_random,
        clip_unscaled_observations: bool = True,
        *,
        perturb: str = "parameters",
        num_iter: float | None = None,
        batches: GetBatch | None = None,
        **static_kwargs: Any,
    ) -> None:
        """See the class."""
        _check_numbers(clipping_threshold, dp_scale)
        self.model = model
        self.guide = guide
        self.optim = optim
        self.loss = per_example_loss
        self.static_kwargs = static_kwargs
        self._clipping_threshold = float(clipping_threshold)
        self._dp_scale = float(dp_scale)
        self._calibration: Calibration | None = dp_scale.calibration if isinstance(dp_scale, NoiseScale) else None
        self._debug = _is_debug(rng_suite)
        self._clip_unscaled = clip_unscaled_observations
        self._perturb = perturb
        self._num_iter = None if num_iter is None else whole_steps(num_iter)
        self._batches = source_named(batches)
        self._bindings: dict[Any, Binding] = {}
        self._found: dict[Any, tuple[Binding, Drawn]] = {}
        self._used: dict[Binding, set[Drawn]] = {}
        self._latest: Binding | None = None
        self._compiled = jax.jit(self._update, static_argnums=(0, 1))

    # --- NumPyro's verbs ------------------------------------------------------------------

    def init(self, rng_key: Any, *args: Any, **kwargs: Any) -> DPSVIState:
        """The initial state. Of the arguments only shapes and dtypes are used, never values (d3p reads values).

        Args:
            rng_key: key of the fit, of any kind; noise follows from it.
            args: a batch, as `update` will get it.
            kwargs: likewise.

        Raises:
            TypeError, ValueError: a model, guide, key or batch that cannot be fitted privately.
        """
        key = d3p_random.as_key(rng_key)
        self._found = {}
        binding, _ = self._bind(args, kwargs)
        return binding.fit.init(key, *args, **kwargs)

    def update(
        self, svi_state: DPSVIState, *args: Any, mask: Any = True, **kwargs: Any
    ) -> tuple[DPSVIState, Float[Array, ""]]:
        """One noisy release from a batch, and one step of the optimizer. Compiled at the first call.

        Args:
            svi_state: the state; give each one to `update` once.
            args: a batch, from `get_batch`.
            mask: which rows are real; must be given with Poisson batches.
            kwargs: likewise.

        Returns:
            The next state, and a **private** estimate of the negative ELBO of all records, in nats. (d3p's is the exact
            loss of the batch, and showing it leaks.)

        Raises:
            ValueError: a batch that does not fit, or more updates than `num_iter`.
        """
        rows = count_rows(args, kwargs)
        binding, drawn = self._binding_of(args, kwargs)
        whole = isinstance(mask, bool) and mask
        if whole and binding.law.masked:
            raise ValueError(
                "These batches are padded, and the mask says which of their rows are records: pass it on, as in "
                "batch, mask = get_batch(i, batchifier_state); update(svi_state, *batch, mask=mask). Without it, padding "
                "would count as records."
            )
        if not whole and not drawn.sources:
            raise ValueError(
                "The batch came with a mask, but it is not known at which rate its records were drawn. Draw it with "
                "poisson_batchify_data, and pass that as DPSVI(..., batches=get_batch) if it is not found."
            )
        self._check_horizon(svi_state)
        if not isinstance(svi_state.step, Tracer):
            claim(svi_state.rng_key, int(svi_state.step))
        self._used.setdefault(binding, set()).add(drawn)
        self._latest = binding
        layout, arrays = Layout.of(args, kwargs)
        return self._compiled(binding, layout, svi_state, arrays, as_mask(mask, rows))

    def _update(
        self, binding: Binding, layout: Layout, state: DPSVIState, arrays: list[Array], mask: Array
    ) -> tuple[DPSVIState, Float[Array, ""]]:
        args, kwargs = layout.fill(arrays)
        return binding.fit.update(state, *args, mask=mask, **kwargs)

    def get_params(self, svi_state: DPSVIState) -> dict[str, Any]:
        """Values of the `param` sites, constrained. Releases: they may be published."""
        return self._bound().fit.get_params(svi_state)

    def evaluate(self, svi_state: DPSVIState, *args: Any, non_private: bool = False, **kwargs: Any) -> Float[Array, ""]:
        """The exact negative ELBO of the batch passed, scaled as the model's plate says: **not private**.

        Args:
            svi_state: a state.
            args: a batch, without padding.
            non_private: must be True, to say that these records are public or that the number will not be shown.
            kwargs: likewise.

        Raises:
            ValueError: `non_private` was not set.
        """
        if not non_private:
            raise ValueError(
                "evaluate computes the exact loss of the records it is given, so showing it leaks; d3p does not account "
                "for that. The loss that update returns is private; or pass non_private=True if these records are public "
                "or the number stays with you."
            )
        key = random.as_threefry(random.subkey(svi_state.rng_key, random.Purpose.POSTERIOR))
        guide = self._bound().fit.guide
        layout, arrays = Layout.of(args, kwargs)

        def loss(params: Mapping[str, Any], arrays: list[Array]) -> Float[Array, ""]:
            args, kwargs = layout.fill(arrays)
            return self.loss.loss(key, dict(params), self.model, guide, *args, **kwargs, **self.static_kwargs)

        return jax.jit(loss)(self.get_params(svi_state), arrays)

    # --- the price ------------------------------------------------------------------------

    def statement(self, svi_state: DPSVIState, delta: float | None = None) -> Statement:
        """What the updates that led to a state spent, all states on the way included.

        Guarantee: epsilon is an upper bound at `delta` for `max(updates made, updates declared)` updates, if batches
        were drawn as their batchifier draws them. Declared is `num_iter`, or that of `approximate_sigma`. Where
        nothing was declared, the number of updates is taken to have been fixed beforehand, and a note says so: had it
        been chosen by looking at results, the composition would not hold.

        Args:
            svi_state: the latest state.
            delta: None: that of `approximate_sigma`, else a cautious choice.

        Raises:
            ValueError: no update was made, or updates got batches of several laws.
        """
        steps = int(svi_state.step)
        if steps == 0:
            raise ValueError(
                "No update was made from this state, so nothing was released and there is nothing to state."
            )
        binding, drawn = self._only_law()
        declared = self._num_iter
        if declared is None and self._calibration is not None:
            declared = declared_updates(binding.law, self._calibration)
        if delta is None and self._calibration is not None:
            delta = self._calibration.delta
        released = ["variational parameters after every update", "a private loss estimate at every update"]
        public = ["the model, the guide and the optimizer", "shapes and dtypes of the record arrays"]
        return make_statement(
            self._plan(binding, steps if declared is None else declared),
            delta=delta,
            steps_completed=binding.law.units(steps),
            reproducible=self._debug or random.is_reproducible(svi_state.rng_key) or _from_a_seed(drawn),
            public=[*public, *(f"the argument {name}" for name in self.static_kwargs)],
            notes=[
                *notes_on(binding.law, steps, declared),
                *sorted({one.doubt for one in drawn if one.doubt is not None}),
            ],
            released=released,
            method=f'discreet.compat.d3p.DPSVI, perturb="{self._perturb}"',
            user_supplied_batches=True,
            contribution_bound=binding.fit.contribution_bound,
        )

    def get_epsilon(
        self, target_delta: float, q: float, num_epochs: float | None = None, num_iter: float | None = None
    ) -> float:
        """Epsilon of so many updates with the batches in use: an upper bound, under `statement`'s relation.

        Args:
            target_delta: above 0, well below 1 / N.
            q: sampling rate; must be that of the batches.
            num_epochs: passes, 1 / q updates each; or
            num_iter: number of updates, fixed beforehand.

        Raises:
            ValueError: before `init`, a q that is not the batches', or no number of updates.
        """
        return self._plan_for(q, num_epochs, num_iter).epsilon(target_delta)

    def get_delta(
        self, target_epsilon: float, q: float, num_epochs: float | None = None, num_iter: float | None = None
    ) -> float:
        """Delta of so many updates with the batches in use: an upper bound. Arguments as in `get_epsilon`."""
        return self._plan_for(q, num_epochs, num_iter).delta(target_epsilon)

    def _plan_for(self, q: float, num_epochs: float | None, num_iter: float | None) -> PrivacyPlan:
        binding = self._bound()
        rate = binding.law.rate
        if num_epochs is not None:
            num_iter = num_epochs / rate
        if num_iter is None:
            raise ValueError("Give num_iter or num_epochs: epsilon grows with the number of updates.")
        # A batch size is a whole number, so that q of a program may be off by up to one record.
        if abs(q - rate) > 1 / binding.law.num_records:
            raise ValueError(
                f"q is {q:g}, but batches are drawn as {binding.law}, at rate {rate:g}. Epsilon follows from what runs: "
                "pass that rate."
            )
        return self._plan(binding, whole_steps(num_iter))

    def _plan(self, binding: Binding, num_steps: int) -> PrivacyPlan:
        return binding.law.plan(
            clipping_norm=binding.clipping_norm,
            noise_multiplier=self._dp_scale,
            num_steps=num_steps,
            num_records=binding.num_records,
        )

    def _check_horizon(self, state: DPSVIState) -> None:
        if self._num_iter is None or isinstance(state.step, Tracer):
            return
        if int(state.step) >= self._num_iter:
            raise ValueError(
                f"num_iter = {self._num_iter} updates were declared, and this state has made them all. More would cost "
                "more than was promised; declare them beforehand."
            )

    # --- binding --------------------------------------------------------------------------

    def _bound(self) -> Binding:
        if self._latest is None:
            raise ValueError("Call init before this, as in svi_state = dpsvi.init(rng_key, *batch).")
        return self._latest

    def _only_law(self) -> tuple[Binding, set[Drawn]]:
        """What the updates of this fit had in common, and how their batches were drawn."""
        if len({(binding.law, binding.num_records) for binding in self._used}) > 1:
            laws = sorted({str(binding.law) for binding in self._used})
            raise ValueError(
                f"Updates of this DPSVI got batches of several laws: {'; '.join(laws)}. A statement is for one: make a "
                "DPSVI for each fit."
            )
        if not self._used:
            binding = self._bound()
            return binding, {drawn for found, drawn in self._found.values() if found is binding}
        return next(iter(self._used)), set().union(*self._used.values())

    def _binding_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Binding, Drawn]:
        """What `update` needs for a batch, possibly while JAX traces, and for batches that `init` saw no like of."""
        if self._latest is None:
            raise ValueError("Call init before update, as in svi_state = dpsvi.init(rng_key, *batch).")
        found = self._found.get(_kind_of(args, kwargs))
        if found is not None:
            return found
        rows = count_rows(args, kwargs)
        with jax.ensure_compile_time_eval():
            binding, drawn = self._bind(args, kwargs)
            args, kwargs = blank((args, dict(kwargs)), rows)
            binding.fit.init(random.key(0), *args, **kwargs)
        return binding, drawn

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Binding, Drawn]:
        count_rows(args, kwargs)
        everything = {**kwargs, **self.static_kwargs}
        declared = declared_num_records(self.model, args, everything)
        layout, arrays = Layout.of(args, kwargs)
        before = None if self._latest is None or not self._found else self._latest.law
        drawn = find_law(arrays, declared, self._batches, before)
        law = drawn.law
        num_records = law.num_records if declared is None else declared
        facts = (law, num_records, layout, tuple((array.shape, str(array.dtype)) for array in arrays))
        if facts not in self._bindings:
            clipping_norm = self._clipping_threshold / (1 if self._clip_unscaled else num_records)
            plan = PrivacyPlan(
                sampling=law.sampling,
                clipping_norm=clipping_norm,
                noise_multiplier=self._dp_scale,
                num_steps=_OPEN_HORIZON,
                num_records=num_records,
                relation=law.relation,
            )
            guide = complete_guide(self.model, self.guide, args, everything)
            fit = inference.DPSVI(
                self.model, guide, self.optim, self.loss, plan=plan, perturb=self._perturb, **self.static_kwargs
            )
            # What is compiled for a fit serves the next one with another key.
            self._bindings[facts] = Binding(law, num_records, clipping_norm, fit)
            warn_if_dearer(self._bindings[facts], self._dp_scale, self._calibration)
        self._latest = self._bindings[facts]
        self._found[_kind_of(args, kwargs)] = self._latest, drawn
        return self._latest, drawn


def _kind_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What two batches have in common that can go through the same program and were drawn by the same batchifier."""
    layout, arrays = Layout.of(args, kwargs)
    return layout, tuple((x.shape, str(x.dtype)) for x in arrays), source_of(arrays)


def _from_a_seed(drawn: set[Drawn]) -> bool:
    """Whether what amplifies privacy is no secret: a batchifier was started with a key that can be made again."""
    return any(source.seeded for one in drawn if not one.law.disjoint for source in one.sources)


def _check_numbers(clipping_threshold: float, dp_scale: float) -> None:
    for name, value, why in (
        ("clipping_threshold", clipping_threshold, "without a bound on one record's contribution no noise hides it"),
        ("dp_scale", dp_scale, "without noise nothing is private; for a non-private fit use numpyro.infer.SVI"),
    ):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be positive and finite: {why}.")


def _is_debug(rng_suite: Any) -> bool:
    if isinstance(rng_suite, ModuleType) and rng_suite in (d3p_random, d3p_random.debug):
        return rng_suite is d3p_random.debug
    raise ValueError(
        f"rng_suite is {getattr(rng_suite, '__name__', type(rng_suite).__name__)}; noise comes from discreet's ChaCha20 alone. "
        "Leave it out, or pass discreet.compat.d3p.random or its debug."
    )
