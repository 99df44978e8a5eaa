"""`d3p.svi`: d3p's `DPSVI`, implemented with discreet's.

d3p's `update` gets a batch and a state, but neither the sampling scheme nor the number of records
of the table. The noise does not depend on these, but epsilon does. So a fit is *bound* at its first
batch (`_binding`). A batch of another kind is bound anew; all bindings of a fit must agree on the
sampling and on N, or there is no statement. Assumptions of a binding (such as arrays that no
batchifier returned) go into the statement's notes. Positional arguments of `init` and `update` are
records, keyword arguments are public, as in d3p.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.infer import SVI

from discreet._jax import untraced
from discreet._numpyro import one_model, trace_of
from discreet._validate import positive
from discreet.interfaces.compat.d3p import random as d3p_random
from discreet.interfaces.compat.d3p._binding import (
    Binding,
    Scheme,
    as_batch,
    comparable,
    complete_guide,
    declared_num_records,
    find_law,
)
from discreet.interfaces.compat.d3p.dputil import (
    Calibration,
    D3PAccountingWarning,
    NoiseScale,
    whole_steps,
)
from discreet.interfaces.compat.d3p.minibatch import (
    BatchLaw,
    GetBatch,
    Source,
    drawn_for,
    origin_of,
    source_of,
)
from discreet.interfaces.compat.d3p.modelling import is_array
from discreet.methods import inference
from discreet.methods.inference import DPSVIState, Records, take_apart
from discreet.privacy import random
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.report import Statement, make_statement

__all__ = ["DPSVI", "DPSVIState", "get_observations_scale"]

_OPEN_HORIZON = 10**9
"""Steps of the plan behind a loop of unknown length, of which only the sampler and noise are used."""

Program = Callable[..., Any]


def get_observations_scale(
    model: Program,
    model_args: Sequence[Any],
    model_kwargs: Mapping[str, Any],
    params: Mapping[str, Any],
) -> float:
    """Find the factor by which a model scales the log density of its observations, N / batch size; 1 without observations.

    Raises:
        ValueError: Observed sites with different factors.
    """
    seeded = handlers.seed(handlers.substitute(model, data=dict(params)), jax.random.key(0))
    sites = trace_of(seeded, *model_args, **model_kwargs).values()
    observed = [site["scale"] for site in sites if site["type"] == "sample" and site["is_observed"]]
    scales = {1.0 if scale is None else float(scale) for scale in observed}
    if len(scales) > 1:
        raise ValueError(
            f"The model's observed sites are scaled by different factors, {sorted(scales)}."
        )
    return next(iter(scales), 1.0)


class DPSVI(SVI):
    """Differentially private SVI with d3p's arguments and discreet's noise, clipping and accounting.

    Guarantee: with batches from this package's batchifiers, each drawn once and used in one
    `update`, and each state used in one `update`, `statement(state)` covers all results of `update`
    and `get_params`. See `discreet.inference.DPSVI` for the step. `update` refuses a state that was
    used; in a loop that you compile it cannot, and there the noise depends on the sum it hides.

    The number of records N is that of the model's plate, `plate("...", N, batch_size)`; the
    sampling scheme that of the batchifier that returned the arrays. Arrays changed since are
    matched by their number of rows, and the statement notes it; name their batchifier with
    `batches` if that is ambiguous.

    Args:
        model: The model; positional array arguments hold records along their leading axis.
        guide: The guide. Latents that it lacks are drawn from the model's prior given the others.
        optim: An optimizer of `numpyro.optim` or optax.
        per_example_loss: `Trace_ELBO()` or `TraceMeanField_ELBO()`.
        clipping_threshold: C, the L2 bound on one record's contribution.
        dp_scale: Noise multiplier: standard deviation of the noise on the sum, divided by C.
        rng_suite: `discreet.compat.d3p.random`, or its `debug`, whose results are labelled not
            private.
        clip_unscaled_observations: False: C applies to a record's contribution times N, as in d3p.
        perturb: "parameters", d3p's rule, for comparable results; "latents", discreet's own, has
            less noise.
        num_iter: Number of updates, fixed beforehand. None: that of `approximate_sigma` if
            `dp_scale` comes from it.
        batches: `get_batch` of the batchifier behind `update`'s batches. None: found by its arrays.
        public_evaluation: True declares every record passed to `evaluate` public. False: `evaluate`
            takes records from a batchifier of another table.
        static_kwargs: Public keyword arguments of model and guide, such as N.

    Raises:
        ValueError, TypeError: An invalid argument.

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
        public_evaluation: bool = False,
        **static_kwargs: Any,
    ) -> None:
        super().__init__(model, guide, optim, per_example_loss, **static_kwargs)
        self._clipping_threshold = positive(
            "clipping_threshold",
            clipping_threshold,
            hint="Without a bound on a record's contribution no noise hides it.",
        )
        self._dp_scale = positive(
            "dp_scale", dp_scale, hint="For a fit that is not private use numpyro.infer.SVI."
        )
        self._calibration: Calibration | None = (
            dp_scale.calibration if isinstance(dp_scale, NoiseScale) else None
        )
        if rng_suite not in (d3p_random, d3p_random.debug):
            raise ValueError(
                f"rng_suite is {getattr(rng_suite, '__name__', type(rng_suite).__name__)}; noise comes from discreet's ChaCha20 "
                "alone. Leave it out, or pass discreet.compat.d3p.random or its debug."
            )
        self._debug = rng_suite is d3p_random.debug
        self._clip_unscaled = clip_unscaled_observations
        self._perturb = perturb
        self._num_iter = None if num_iter is None else whole_steps(num_iter)
        if not isinstance(batches, GetBatch | None):
            raise TypeError(
                f"batches is a {type(batches).__name__}; pass the second thing that a batchifier of "
                "discreet.compat.d3p.minibatch returns: init, get_batch = subsample_batchify_data(...)."
            )
        self._batches = None if batches is None else batches.source
        self._public_evaluation = public_evaluation
        self._bindings: dict[Any, Binding] = {}
        """Bindings by kind of batch, reused by fits with other keys."""
        self._found: dict[Any, tuple[Binding, Scheme]] = {}
        """The bindings since `init`, by kind of batch and batchifier."""
        self._used: dict[Binding, set[Scheme]] = {}
        """The bindings and sampling schemes of the updates."""
        self._drawn: dict[Any, int] = {}
        """The batches used, and their update."""
        self._tested: dict[Source, None] = {}
        """The batchifiers of the test records passed to `evaluate`."""
        self._exact_notes: set[str] = set()
        self._losses: dict[Any, Callable[..., Any]] = {}
        self._latest: Binding | None = None

    def init(
        self, rng_key: Any, *args: Any, init_params: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> DPSVIState:
        """Create the initial state, from shapes and dtypes of the records, never values (d3p reads values).

        Args:
            rng_key: Key of the fit, of any kind; it determines the noise.
            args: A batch, as for `update`.
            init_params: Public initial values of `param` sites, constrained.
            kwargs: Public arguments of model and guide, as for `update`.

        Raises:
            TypeError, ValueError: A model, guide, key or batch that cannot be fitted privately.
        """
        key = d3p_random.as_key(rng_key)
        args = as_batch(args)
        self._found = {}
        self._drawn = {}
        binding, _ = self._bind(args, take_apart(args, {}), kwargs)
        return binding.fit.init(key, *args, init_params=init_params)

    def update(
        self,
        svi_state: DPSVIState,
        *args: Any,
        mask: Any = True,
        forward_mode_differentiation: bool = False,
        **kwargs: Any,
    ) -> tuple[DPSVIState, Float[Array, ""]]:
        """Make one noisy release from a batch, and one step of the optimizer. Compiled at the first call.

        Args:
            svi_state: The state; pass each one to `update` once.
            args: A batch, from `get_batch`.
            mask: Boolean mask of the real rows; required with Poisson batches.
            forward_mode_differentiation: Must be False.
            kwargs: Public arguments of model and guide.

        Returns:
            The next state, and a **private** estimate of the negative ELBO of all records, in nats.
            (d3p returns the exact loss of the batch, which leaks.)

        Raises:
            ValueError: An unsuitable batch, or more updates than `num_iter`.
        """
        if forward_mode_differentiation:
            raise ValueError(
                "forward_mode_differentiation=True is not supported: gradients are computed in reverse mode."
            )
        records = take_apart(args, {})
        binding, drawn = self._binding_of(args, records, kwargs)
        self._check_mask(mask, binding, drawn)
        if (
            self._num_iter is not None
            and not isinstance(svi_state.step, Tracer)
            and svi_state.step >= self._num_iter
        ):
            raise ValueError(
                f"num_iter = {self._num_iter} updates were declared, and all have been made. More would cost more than "
                "declared; declare them beforehand."
            )
        if drawn not in self._used.get(binding, ()):
            self._check_untested(drawn)
        batch = self._check_fresh(svi_state, records.leaves, binding.law)
        update = binding.fit.update
        if not untraced():
            args, mask = self._drawn_anew(svi_state, records, mask)
            update = functools.partial(inference.update_in_loop, binding.fit)
        mask = jnp.broadcast_to(jnp.asarray(mask, bool), records.size)
        after = update(svi_state, *args, mask=mask)
        # From here on the update counts: a refusal above releases nothing.
        self._used.setdefault(binding, set()).add(drawn)
        self._latest = binding
        if batch is not None:
            self._drawn[batch] = int(svi_state.step)
        return after

    def run(
        self,
        rng_key: Any,
        num_steps: int,
        *args: Any,
        init_state: DPSVIState | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run all updates like NumPyro's `SVI.run`: each gets all of `args`. Continues from `init_state`, once.

        All updates up to the last state are in its `statement`, those before `init_state` included.

        Raises:
            ValueError: As `init` and `update`, or `init_state` was used before.
        """
        if init_state is not None:
            # Within the compiled loop no update can detect that its noise was drawn before.
            random.claim(init_state.rng_key, int(init_state.step))
        return super().run(rng_key, num_steps, *args, init_state=init_state, **kwargs)

    def stable_update(self, svi_state: DPSVIState, *args: Any, **kwargs: Any) -> Any:
        """Refuse: rejecting a step would depend on exact values.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "stable_update rejects a step if an exact loss or gradient is NaN, which would leak. Use update; a NaN in a release "
            "shows in the parameters."
        )

    def get_params(self, svi_state: DPSVIState) -> dict[str, Any]:
        """Return the values of the `param` sites, constrained. They are releases and may be published."""
        return self._bound().fit.get_params(svi_state)

    def evaluate(
        self, svi_state: DPSVIState, *args: Any, non_private: bool = False, **kwargs: Any
    ) -> Float[Array, ""]:
        """Compute the exact negative ELBO of a batch, with the scale of the model's plate: **not private**.

        The records must be declared test data in one of three ways: a batchifier of this package
        returned them, and its table has no row in common with the fitted table (the statement then
        notes that epsilon does not cover them); `DPSVI(..., public_evaluation=True)`; or
        `non_private=True` here.

        Args:
            svi_state: A state.
            args: A batch, without padding.
            non_private: Declare that these records are public or that the number will not be
                published.
            kwargs: Public arguments of model and guide.

        Raises:
            ValueError: The records may be those of the fit.
        """
        if self._public_evaluation:
            self._exact_notes.add(
                "evaluate computed exact losses of records declared public (public_evaluation=True); ε does not cover them."
            )
        elif not non_private:
            self._check_test_data(args)
        key = random.as_threefry(random.subkey(svi_state.rng_key, random.Purpose.POSTERIOR))
        guide = self._bound().fit.guide
        records = take_apart(args, {})
        public = {**self.static_kwargs, **kwargs}

        def loss(key: Any, params: Mapping[str, Any], arrays: list[Array]) -> Float[Array, ""]:
            with one_model:
                return self.loss.loss(
                    key, dict(params), self.model, guide, *records.rebuild(arrays)[0], **public
                )

        name = records.static, comparable(kwargs, records.size)
        compiled = self._losses.setdefault(name, jax.jit(loss))
        return compiled(key, self.get_params(svi_state), records.leaves)

    def statement(self, svi_state: DPSVIState, delta: float | None = None) -> Statement:
        """Make the privacy statement of the updates that led to a state, including intermediate states.

        Guarantee: epsilon is an upper bound at `delta` for `max(updates made, updates declared)`
        updates, if batches were drawn as their batchifier draws them. `num_iter`, or that of
        `approximate_sigma`, declares the number. Without it the statement assumes, and notes, that
        the number was fixed beforehand: had it been chosen by looking at results, the composition
        would not hold.

        Args:
            svi_state: The latest state.
            delta: None: that of `approximate_sigma`, else a cautious choice.

        Raises:
            ValueError: No update was made, or updates got batches of several laws.
        """
        steps = int(svi_state.step)
        if steps == 0:
            raise ValueError(
                "This state comes from no update: nothing was released, so there is no statement. Call update first."
            )
        binding, drawn = self._only_law()
        declared = self._num_iter
        if declared is None and self._calibration is not None:
            declared = _declared_updates(binding.law, self._calibration)
        if delta is None and self._calibration is not None:
            delta = self._calibration.delta
        # Anyone who can reproduce a batchifier's key knows the batches: no amplification.
        seeded = any(
            source.seeded for one in drawn if not one.law.disjoint for source in one.sources
        )
        public = [
            "the model, the guide and the optimizer",
            "shapes and dtypes of a single record's arrays",
        ]
        return make_statement(
            binding.plan(steps if declared is None else declared),
            delta=delta,
            steps_completed=binding.law.units(steps),
            reproducible=self._debug or random.is_reproducible(svi_state.rng_key) or seeded,
            public=[*public, *(f"the argument {name}" for name in binding.fit.static_kwargs)],
            notes=[
                *_notes_on(binding.law, steps, declared),
                *sorted({one.doubt for one in drawn if one.doubt is not None}),
                *sorted(self._exact_notes),
            ],
            released=[
                "the parameters of the fit after every update",
                "a private loss estimate at every update",
            ],
            method=f'discreet.compat.d3p.DPSVI, perturb="{self._perturb}"',
            user_supplied_batches=True,
            contribution_bound=binding.fit.contribution_bound,
        )

    def get_epsilon(
        self,
        target_delta: float,
        q: float,
        num_epochs: float | None = None,
        num_iter: float | None = None,
    ) -> float:
        """Compute epsilon of a number of updates with the batches in use: an upper bound, under `statement`'s relation.

        Args:
            target_delta: Target delta, above 0, well below 1 / N.
            q: Sampling rate; must be that of the batches.
            num_epochs: Passes of 1 / q updates each; or
            num_iter: Number of updates, fixed beforehand.

        Raises:
            ValueError: Called before `init`, a q that is not the batches', or no number of updates.
        """
        return self._plan_for(q, num_epochs, num_iter).epsilon(target_delta)

    def get_delta(
        self,
        target_epsilon: float,
        q: float,
        num_epochs: float | None = None,
        num_iter: float | None = None,
    ) -> float:
        """Compute delta of a number of updates with the batches in use: an upper bound. Arguments as in `get_epsilon`."""
        return self._plan_for(q, num_epochs, num_iter).delta(target_epsilon)

    def _plan_for(self, q: float, num_epochs: float | None, num_iter: float | None) -> PrivacyPlan:
        binding = self._bound()
        rate = binding.law.rate
        if num_epochs is not None:
            num_iter = num_epochs / rate
        if num_iter is None:
            raise ValueError(
                "Give num_iter or num_epochs: epsilon grows with the number of updates."
            )
        # A batch size is an integer, so a program's q may be off by up to one record.
        if abs(q - rate) > 1 / binding.law.num_records:
            raise ValueError(
                f"q is {q:g}, but batches are drawn as {binding.law}, at rate {rate:g}. Epsilon depends on the actual rate: "
                "pass it."
            )
        return binding.plan(whole_steps(num_iter))

    def _check_mask(self, mask: Any, binding: Binding, drawn: Scheme) -> None:
        whole = isinstance(mask, bool) and mask
        if whole and binding.law.masked:
            raise ValueError(
                "These batches are padded, and the mask marks the rows that are records: pass it, as in "
                "batch, mask = get_batch(i, batchifier_state); update(svi_state, *batch, mask=mask). Without it, padding "
                "would count as records."
            )
        if not whole and not drawn.sources:
            raise ValueError(
                "The batch has a mask, but the sampling rate of its records is unknown. Draw it with poisson_batchify_data, and "
                "pass DPSVI(..., batches=get_batch) if that is not found."
            )

    def _check_fresh(self, state: DPSVIState, arrays: Sequence[Any], law: BatchLaw) -> Any:
        """The identity of a batch within the fit; None if unknown or irrelevant. Refuse a batch that was used before."""
        origin = origin_of(arrays)
        number = None if origin is None or law.rate == 1.0 else origin.number()
        if origin is None or number is None:
            return None
        remedy = (
            "Its records would be in more updates than the accounting of fresh batches assumes. Draw one for each update: "
            "get_batch(i, batchifier_state) with i the number of the update."
        )
        if isinstance(state.step, Tracer):
            raise ValueError(
                f"A compiled loop would use batch number {number[0]} in every update. {remedy}"
            )
        if isinstance(state.rng_key, Tracer):
            return None
        step = int(state.step)
        # A disjoint batch may be used again in another pass.
        in_pass = step // law.updates if law.disjoint else 0
        batch = (
            np.asarray(jax.random.key_data(state.rng_key)).tobytes(),
            origin.source,
            number,
            in_pass,
        )
        if self._drawn.get(batch, step) != step:
            raise ValueError(
                f"Batch number {number[0]} of this batchifier state was in an update before. {remedy}"
            )
        return batch

    def _drawn_anew(
        self, state: DPSVIState, records: Records, mask: Any
    ) -> tuple[tuple[Any, ...], Any]:
        """The arguments and the mask of a compiled update, drawn for its step; see `drawn_for`."""
        masks = [mask] if is_array(mask) else []
        leaves = drawn_for(state.step, [*records.leaves, *masks])
        args, _ = records.rebuild(leaves[: len(records.leaves)])
        return args, leaves[-1] if masks else mask

    def _check_test_data(self, args: tuple[Any, ...]) -> None:
        """Accept records of a table that this fit does not use in `evaluate`, with a warning; refuse any others."""
        self._bound()
        source = source_of(take_apart(args, {}).leaves)
        if source in self._tested:
            return
        drawn = {one for _, one in self._found.values()}.union(*self._used.values())
        if source is None or not all(
            one.doubt is None and _are_apart(source, one) for one in drawn
        ):
            raise ValueError(
                "evaluate computes the exact loss of its records, so publishing it leaks; d3p does not account for that. These "
                "records are not known to be test data: a batchifier must have returned these arrays, from a table without a "
                "row in common with the fitted one, and the batches of the fit must be unchanged as well. The loss that update "
                "returns is private. If all records that you evaluate are public, pass DPSVI(..., public_evaluation=True), or "
                "pass non_private=True here if you do not publish the number."
            )
        self._tested[source] = None
        said = (
            f"evaluate computed exact losses of test records ({source.law}). They are not records of the fit, and ε does not "
            "cover them: do not publish these losses unless the test records are public."
        )
        self._exact_notes.add(said)
        warnings.warn(said, D3PAccountingWarning, stacklevel=3)

    def _check_untested(self, drawn: Scheme) -> None:
        if self._tested and not (
            drawn.doubt is None and all(_are_apart(source, drawn) for source in self._tested)
        ):
            raise ValueError(
                "evaluate computed exact losses of test records, and these batches may contain the same records: ε would not "
                "cover those losses. Make a DPSVI for each fit, or evaluate on other records."
            )

    def _bound(self) -> Binding:
        if self._latest is None:
            raise ValueError(
                "Call init before this, as in svi_state = dpsvi.init(rng_key, *batch)."
            )
        return self._latest

    def _only_law(self) -> tuple[Binding, set[Scheme]]:
        """The binding of all updates of this fit, and the sampling schemes of their batches."""
        if len({(binding.law, binding.fit.plan.num_records) for binding in self._used}) > 1:
            laws = sorted({str(binding.law) for binding in self._used})
            raise ValueError(
                f"Updates of this DPSVI got batches of several laws: {'; '.join(laws)}. A statement covers one: make a "
                "DPSVI for each fit."
            )
        if not self._used:
            binding = self._bound()
            return binding, {drawn for found, drawn in self._found.values() if found is binding}
        return next(iter(self._used)), set().union(*self._used.values())

    def _binding_of(
        self, args: tuple[Any, ...], records: Records, public: Mapping[str, Any]
    ) -> tuple[Binding, Scheme]:
        """The binding of a batch for `update`, also under tracing, and for kinds of batches that `init` did not get."""
        self._bound()
        found = self._found.get(_kind_of(records, public))
        if found is not None:
            return found
        with jax.ensure_compile_time_eval():
            binding, drawn = self._bind(args, records, public)
            binding.fit.init(random.key(0), *records.rebuild(records.filled(0, records.size))[0])
        return binding, drawn

    def _bind(
        self, args: tuple[Any, ...], records: Records, public: Mapping[str, Any]
    ) -> tuple[Binding, Scheme]:
        kind = _kind_of(records, public)
        static = {**self.static_kwargs, **public}
        declared = declared_num_records(self.model, args, static)
        before = self._latest.law if self._latest is not None and self._found else None
        drawn = find_law(records.leaves, declared, self._batches, before)
        law = drawn.law
        num_records = law.num_records if declared is None else declared
        facts = law, num_records, kind[:-1]
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
            guide = complete_guide(self.model, self.guide, args, static)
            fit = inference.DPSVI(
                self.model, guide, self.optim, self.loss, plan=plan, perturb=self._perturb, **static
            )
            self._bindings[facts] = Binding(law, fit)
            _warn_if_dearer(self._bindings[facts], self._calibration)
        self._latest = self._bindings[facts]
        self._found[kind] = self._latest, drawn
        return self._latest, drawn


def _kind_of(records: Records, public: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key that is equal for batches of the same batchifier that one compiled program can process."""
    return (
        records.signature,
        records.size,
        comparable(public, records.size),
        source_of(records.leaves),
    )


def _are_apart(source: Source, drawn: Scheme) -> bool:
    return bool(drawn.sources) and all(source.is_apart_from(one) for one in drawn.sources)


def _declared_updates(law: BatchLaw, calibration: Calibration) -> int:
    """The number of updates in the noise's calibration.

    For disjoint batches noise is calibrated as for full batches (q = 1), one for each pass.
    """
    passes = law.disjoint and calibration.rate == 1.0
    return calibration.num_iter * (law.updates if passes else 1)


def _warn_if_dearer(binding: Binding, target: Calibration | None) -> None:
    """Warn if the noise was calibrated for other batches, and these cost more."""
    if target is None:
        return
    plan = binding.plan(_declared_updates(binding.law, target))
    epsilon = plan.epsilon(target.delta)
    if epsilon <= 1.001 * target.epsilon:
        return
    warnings.warn(
        f"dp_scale = {plan.noise_multiplier:.4g} was calibrated for epsilon = {target.epsilon:g} at delta = "
        f"{target.delta:g} (q = {target.rate:g}, {target.num_iter} steps, {target.relation.name}), but the batches are "
        f"{binding.law}: under {binding.law.relation.name} they cost epsilon = {epsilon:.4g}. Use approximate_sigma with "
        "subsample_batchify_data, approximate_sigma_remove_relation with poisson_batchify_data, and the same q; for "
        "split_batchify_data calibrate one full-batch step a pass (q = 1).",
        D3PAccountingWarning,
        stacklevel=4,
    )


def _notes_on(law: BatchLaw, steps: int, declared: int | None) -> list[str]:
    """Notes for the statement on the number of updates and on disjoint batches."""
    notes = []
    if declared is None:
        notes.append(
            f"No number of updates was declared, so ε is that of the {steps} updates made, as if their number had been "
            "fixed beforehand. If it was chosen by looking at parameters or losses, ε may not hold: declare "
            "num_iter, or use the noise that approximate_sigma returns."
        )
    elif steps > declared:
        notes.append(
            f"{steps} updates were made although {declared} had been declared; ε is that of all {steps}, as if they had "
            "been declared."
        )
    if law.disjoint:
        notes.append(
            f"Batches were the pieces of a shuffled table: {law.updates} disjoint batches of {law.rows} "
            "records a pass, each batch's sum with its own noise. A record is in at most one batch of a pass, so a step above "
            "stands for one pass, without amplification by subsampling. This holds if each pass was completed."
        )
    return notes
