"""Results of private fits, in memory and in files: releases and post-processing; no key, no record, no code."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import keystr
from jaxtyping import Array, Float, PRNGKeyArray

from discreet._validate import choice, integer
from discreet.methods.inference._elbo import Objective
from discreet.methods.inference._forms import ArrayForm, Form, is_plain, kinds, objective_of
from discreet.methods.inference._records import Program
from discreet.methods.inference._step import PrivateStep, StepFigures
from discreet.methods.inference._trace import Trace, parted
from discreet.privacy import random
from discreet.privacy.accounting import neighbours
from discreet.privacy.clipping import AdaptiveClipping
from discreet.privacy.mechanisms import GAUSSIAN
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.released import KEPT_NOWHERE, NOT_IN_DICT, Released
from discreet.privacy.report import NOT_USABLE, PREDICTION, Statement, headline, use_words
from discreet.storage import kind_of

if TYPE_CHECKING:
    from discreet.methods.inference._noise_aware import NoiseAware


class Outcome(NamedTuple):
    """The outcome of a loop of `steps` releases: last iterate, figures and C per step, and the kept iterates."""

    last: Any
    figures: Float[np.ndarray, "step figure"]  # rows of `StepFigures`
    clipping_norms: Float[np.ndarray, "step"]
    trace: Trace
    steps: int


class Share(NamedTuple):
    """A share of the records, estimated from releases, with the standard error of noise and sampling."""

    value: float
    stderr: float

    def __str__(self) -> str:
        """In per cent, with no more digits than the error allows."""
        places = 1 if self.stderr < 0.0005 else 0
        error = float(f"{200 * self.stderr:.1g}")
        return f"{100 * min(max(self.value, 0.0), 1.0):.{places}f} % (± {error:g})"


MOST_CLIPPED = 0.15
"""The largest share of clipped gradients of a fit whose parameters may be used."""
_MOST_DROPPED = 0.02
_LARGEST_MOVE = 0.25
_MOST_LEFT = 0.3  # of a parameter's way, in the second half of a fit
MOST_NOISE = 0.85
"""The largest error from noise in the mean of all steps of a fit that predicts, over the error from sampling (`too_few`).

At epsilon 1, 14 fits of seven tables of 750 to 4,900 people kept 76 % or more of what there was to
learn where it was up to 0.77; from 0.88 on six fits of three tables kept 74 % at most, and three of
them predicted worse than one number for all.
"""
_SHOWN = 40  # numbers in print
# the gradients of more may lie in few directions, and noise in others does not matter
_FEW_PARAMETERS = 50


def too_few(plan: PrivacyPlan, num_parameters: int, noun: str = "record") -> str:
    """The reason why a fit is not usable whatever the table has, or nothing; by public numbers alone.

    The mean gradient of a record has the noise C noise_multiplier / (rate N sqrt(num_steps)) in
    each coordinate. With gradients half as long as C, spread over d coordinates, N records
    determine it up to C / (2 sqrt(d N)). A fit that does not converge has a larger error, and one
    whose gradients lie in few of many directions a smaller one.

    Args:
        plan: The plan of the fit.
        num_parameters: Number d of coordinates with noise.
        noun: The privacy unit, "record" or "person".
    """
    noise = plan.usual_noise / (plan.rate * plan.num_records * math.sqrt(plan.num_steps))
    to_sampling = 2 * noise * math.sqrt(num_parameters * plan.num_records)
    if num_parameters > _FEW_PARAMETERS or to_sampling <= MOST_NOISE:
        return ""
    return (
        f"at this epsilon {plan.num_records:,} {noun}s are too few for {num_parameters} parameters: the noise may hide all that "
        f"they show. A larger epsilon, more {noun}s or fewer columns help"
    )


def _judged(statement: Statement, result: DPSVIResult, num_parameters: int) -> Statement:
    """The statement with the shares of clipped and of dropped records, and the verdict on the result's use."""
    clipped = result.clipped
    counted = result.counted
    plan = result.plan
    statement = statement.with_notes(
        f"In the second half of the fit {clipped} of the {statement.noun}s had a gradient longer than C, which was shortened."
    )
    if 1 - counted.value - 3 * counted.stderr > _MOST_DROPPED:
        fewer = (
            ", or the table has fewer records than the plan says"
            if neighbours(plan.relation).hides_membership
            else ""
        )
        missing = Share(1 - counted.value, counted.stderr)
        statement = statement.with_data_warnings(
            f"{missing} of the {plan.num_records:,} {statement.noun}s did not count: their loss or its gradient is not finite at "
            f"these parameters{fewer}. The fit is that of the others."
        )
    if not all(np.isfinite(x).all() for x in jax.tree.leaves((result.params, result.last_params))):
        return statement.with_use(
            NOT_USABLE,
            "the fit diverged: its parameters are not finite. Choose smaller steps of the optimizer, or scale the data",
        )
    if clipped.value - 2 * clipped.stderr > MOST_CLIPPED:
        return statement.with_use(
            NOT_USABLE,
            f"{clipped} of the gradients were shortened, so the fit answers another question than the model's. "
            f"{_longer(plan, result.clipping_norms)}",
        )
    if few := too_few(plan, num_parameters, statement.noun):
        return statement.with_use(NOT_USABLE, few)
    if (left := result.trace.still_to_go) > _MOST_LEFT:
        return statement.with_use(
            NOT_USABLE,
            f"some parameters still moved steadily: {100 * left:.0f} % of their change came in the second half of the fit. Plan "
            "more steps, give the optimizer a larger learning rate, or start nearer (init_loc_fn of the guide)",
        )
    drifts = ""
    if result.converged is False:
        drifts = "the fit had not converged, so a longer one would give others, and "
    return statement.with_use(
        PREDICTION,
        f"{clipped} of the gradients were shortened. Do not read single coefficients, least of all scales and what rests on long "
        f"tails: {drifts}a fit in steps does not measure how far its noise and shortened gradients moved them",
    )


def _longer(plan: PrivacyPlan, norms: Float[np.ndarray, "step"]) -> str:
    """What lets a fit shorten fewer gradients."""
    rule = plan.clipping
    if not isinstance(rule, AdaptiveClipping):
        return (
            "Leave the clipping norm out (clipping_norm of the plan; --clip of discreet fit), so that one is found, or choose "
            "a larger one"
        )
    most = rule.limits[1]
    if norms[-1] > 0.9 * most:
        return (
            f"C stood at its largest value, {most:g}: scale the data or the weights of records, or give AdaptiveClipping "
            "another maximum"
        )
    return f"C had not caught up with them after {len(norms):,} steps: plan more steps"


class UseWarning(UserWarning):
    """A fit is not usable, or is not that of all records. Its statement says the same."""


def warn_of_use(result: Any, before: Statement, *, stacklevel: int = 4) -> None:
    """Warn of what a fit's releases say against its use, where the fit was called.

    Where warnings are errors, this one has the whole fit as `partial_result`, since it is paid for.

    Args:
        result: The result, with its statement.
        before: The statement before the releases were looked at.
        stacklevel: As in `warnings.warn`; 4 is the caller of `DPSVI.run`.
    """
    found = [
        warning for warning in result.statement.data_warnings if warning not in before.data_warnings
    ]
    if result.statement.use == NOT_USABLE:
        found.insert(0, use_words(result.statement))
    for words in found:
        warning = UseWarning(words)
        warning.__dict__["partial_result"] = result
        warnings.warn(warning, stacklevel=stacklevel)


@dataclasses.dataclass(frozen=True)
class DPSVIResult(Released, what="result of a private fit", parts=kinds):
    """The outcome of `DPSVI.run`. Everything in it is covered by `statement`; it holds no key.

    Attributes:
        params: Values of the `param` sites, averaged over the tail of the fit (`trace.average`;
            `averaged_over` says over how many iterates); ready for NumPyro's `Predictive` and
            `guide.sample_posterior`.
        last_params: The same of the last iterate.
        losses: One private estimate of the negative ELBO of all records a step, in nats. They
            scatter by the noise of the release; a running mean shows the trend. They are biased:
            each record's loss is clipped to within `loss_bound` of `DPSVI` from the placeholder's,
            which a wider bound avoids at the price of more noise. NaN where the fit gave no share
            of its budget to the loss.
        clipping_norms: The clipping norm C of each step done. With `AdaptiveClipping` its path, a
            release.
        shares: Two noisy shares of the records a step: those whose gradient was longer than C, and
            those that counted at all, since their loss and gradient are finite. Relative to the
            plan's public number of records.
        trace: The iterates.
        statement: The privacy statement.
        plan: The plan of the fit.
        steps_completed: Fewer than `plan.num_steps` after Ctrl-C, or if the parameters ceased to be
            finite numbers, which the statement then says; the cost remains the plan's.
    """

    params: dict[str, Any]
    last_params: dict[str, Any]
    losses: Float[np.ndarray, "step"]
    clipping_norms: Float[np.ndarray, "step"]
    shares: Float[np.ndarray, "step two"]
    trace: Trace = dataclasses.field(metadata=NOT_IN_DICT)
    statement: Statement
    plan: PrivacyPlan
    steps_completed: int
    _form: Form | None = dataclasses.field(
        default=None, repr=False, compare=False, metadata=NOT_IN_DICT
    )
    _objective: Objective | None = dataclasses.field(
        default=None, repr=False, compare=False, metadata=KEPT_NOWHERE
    )

    @property
    def averaged_over(self) -> int:
        """The number of iterates averaged in `params`: 1 if a fit made fewer than 20 steps."""
        return self.trace.averaged_over

    @property
    def clipped(self) -> Share:
        """The share of the records whose gradient was clipped, in the second half of the fit; the more, the more biased it is."""
        return _late_share(self.shares[:, 0])

    @property
    def counted(self) -> Share:
        """The share of the public number of records that counted, with a finite loss and gradient, in the same steps."""
        return _late_share(self.shares[:, 1])

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, Array]:
        """Draw the global latents from the fitted guide; post-processing, at no cost.

        Args:
            key: Any JAX key.
            num_samples: Number of draws.

        Returns:
            For each global latent an array with the draws along the leading axis, as
            NumPyro's `Predictive(model, posterior_samples)` takes them. For ArviZ: `to_arviz`.

        Raises:
            ValueError: The result holds no guide, since it was unpickled or loaded without one; or
                num_samples < 1.
        """
        if self._objective is None:
            raise ValueError(
                "This result holds no guide, since it was unpickled, or loaded without one. Load it by "
                "discreet.load_result(path, model, guide); or draw with dpsvi.posterior(key, result.params, num_samples) of a "
                "DPSVI that was initialised."
            )
        return draw_posterior(self._objective, key, self.params, num_samples)

    def to_arviz(self, key: PRNGKeyArray, num_samples: int, **names: Any) -> Any:
        """Convert draws of `noise_aware()` for ArviZ, with the statement in their attributes; at no cost.

        Those of `posterior` lack the noise of the fit, so that their intervals, which `az.summary`
        prints, do not hold.

        Args:
            key: Any JAX key.
            num_samples: Number of draws.
            names: feature_names, coords and dims of `discreet.inference_data.to_arviz`.

        Returns:
            As `discreet.inference_data.to_arviz`.

        Raises:
            ImportError: ArviZ is not installed.
            ValueError: As `noise_aware` and `discreet.inference_data.to_arviz`.
        """
        return self.noise_aware().to_arviz(key, num_samples, **names)

    def noise_aware(self, method: str | None = None, *, start: float | None = None) -> NoiseAware:
        """Compute the posterior that includes the noise of the private fit, from the trace alone, at no cost.

        The fit ends near the parameters that a fit without noise would have found, not at them, and
        `posterior` takes no notice: at small epsilon its intervals are too narrow. Here these
        parameters are unknowns, and their own posterior given the trace is carried into the draws.
        docs/noise-aware.md has the derivations, and what stays uncorrected.

        Args:
            method: "trace" adds the variance of the tail's mean, in all variational parameters of
                any guide; "regression" infers each location from the noisy gradients, which
                `run(..., keep_gradients=True)` keeps. None: "regression" where the fit kept them,
                else "trace".
            start: Start of the tail, as a fraction of the trace. None: where it has no drift.

        Returns:
            An object with `posterior(key, num_samples)`, like this one.

        Raises:
            ValueError: Clipping moved the fit, by how much nobody knows; another method, a result
                without a guide, a trace without a converged tail or with too few iterates in it,
                without gradients, or a guide that has no locations.

        Reference:
            "trace": Jälkö, Prediger, Honkela and Kaski, DPVIm, 2023. "regression": Alrawajfeh,
            Jälkö and Honkela, AISTATS 2025.
        """
        from discreet.methods.inference._noise_aware import METHODS

        if method is None:
            method = "trace" if self.trace.gradients is None else "regression"
        choice("method", method, METHODS)
        if self._objective is None:
            raise ValueError(
                "This result holds no guide, since it was unpickled, or loaded without one. Load it by "
                "discreet.load_result(path, model, guide)."
            )
        if self.plan.mechanism != GAUSSIAN:
            raise ValueError(
                f"The noise is that of {type(self.plan.mechanism).__name__}; noise_aware supports Gaussian noise only. "
                "Use posterior(key, num_samples)."
            )
        # Shortened gradients move the optimum by about this many posterior widths, as these are 1 /
        # sqrt(N) of a gradient.
        clipped = self.clipped
        moved = (clipped.value - 2 * clipped.stderr) * math.sqrt(self.plan.num_records)
        if self.plan.clipping.adapts or moved > _LARGEST_MOVE:
            some = "C moves, so some" if self.plan.clipping.adapts else clipped
            raise ValueError(
                f"{some} of the gradients were shortened, which moves the parameters by an amount that no draws have, so no "
                "interval would hold. Give the plan a number as clipping_norm that is above the longest gradient of a record. "
                "The draws of posterior(key, num_samples) are for predictions."
            )
        # Of a step's gradient, whatever C was then; the loss's share and the batch's own chance add
        # to it.
        least_noise = (
            min(self.plan.noise_multipliers) * float(np.min(self.clipping_norms)) / self.plan.rate
        )
        aware = METHODS[method](self._objective, self.params, self.trace, start, least_noise)
        return dataclasses.replace(aware, statement=self.statement)

    @property
    def converged(self) -> bool | None:
        """True if the parameters show no drift at the end of the fit; None: it has too few steps to tell."""
        iterates = self.trace.iterates
        if len(iterates) * 0.9 < 20:
            return None
        return bool(np.isfinite(iterates).all()) and self.trace.converged_from is not None

    def plot(self, **options: Any) -> Any:
        """Draw the releases: what `discreet.plots.plot_releases` makes of this result, with its options.

        Raises:
            ImportError: Matplotlib is absent.
        """
        # The core loads no matplotlib.
        from discreet.methods.plots import plot_releases

        return plot_releases(self, **options)

    def __repr__(self) -> str:
        """Short repr without arrays."""
        spent = self.statement
        use = f", {spent.use}" * bool(spent.use)
        count = sum(np.size(x) for x in jax.tree.leaves(self.params))
        return (
            f"DPSVIResult({count} parameters, {self.steps_completed} of {self.plan.num_steps} steps, "
            f"averaged over {self.averaged_over}{use}, {spent.brief})"
        )

    def __str__(self) -> str:
        """A table of estimates, without intervals, which a fit in steps does not have; the verdict, and the price."""
        rows = [
            (
                keystr(path, simple=True, separator="/") + str([*place] if place else ""),
                f"{x[place]:.4g}",
            )
            for path, x in jax.tree.leaves_with_path(self._estimates())
            for place in itertools.islice(np.ndindex(x.shape), _SHOWN + 1)
        ]
        rows = [*rows[:_SHOWN], ("...", "")] if len(rows) > _SHOWN else rows
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:{width}}  {value:>10}" for name, value in (("", "estimate"), *rows)]
        return "\n".join([*lines, use_words(self.statement), headline(self.statement)])

    def _estimates(self) -> dict[str, Any]:
        """The global latents' means over draws and the model's parameters; without a guide, all parameters."""
        if self._objective is None:
            return jax.tree.map(np.asarray, self.params)
        count = sum(np.size(x) for x in jax.tree.leaves(self.params))
        draws = self.posterior(jax.random.key(0), min(1_000, max(20, 1_000_000 // max(count, 1))))
        means = {name: np.mean(np.asarray(x, np.float64), axis=0) for name, x in draws.items()}
        own = {name: self.params[name] for name in self._objective.structure.model_params}
        return {**means, **jax.tree.map(np.asarray, own)}

    def __getstate__(self) -> dict[str, Any]:
        """Without the guide, which may be a local function."""
        return {**self.__dict__, "_objective": None}


def result_of(
    step: PrivateStep, outcome: Outcome, statement: Statement, plan: PrivacyPlan
) -> DPSVIResult:
    """Build the `DPSVIResult` from a loop's outcome."""
    last = outcome.last
    averaged = parted(outcome.trace.average(), last)
    params, last_params = (
        jax.tree.map(np.asarray, step.objective.constrain(psi)) for psi in (averaged, last)
    )
    records = step.objective.programs.records
    structure = step.objective.structure
    arguments = records.rebuild(
        [ArrayForm(tuple(x.shape[1:]), str(x.dtype)) for x in records.leaves]
    )
    arguments = arguments if is_plain(arguments) else None
    result = DPSVIResult(
        params=params,
        last_params=last_params,
        losses=outcome.figures[:, 0],
        clipping_norms=outcome.clipping_norms,
        shares=outcome.figures[:, 1:],
        trace=outcome.trace,
        statement=dataclasses.replace(statement, steps_completed=outcome.steps),
        plan=plan,
        steps_completed=outcome.steps,
        _form=Form(arguments, structure.global_latents, bool(structure.local_params)),
        _objective=step.objective,
    )
    num_parameters = step.released - len(StepFigures._fields)
    return dataclasses.replace(result, statement=_judged(result.statement, result, num_parameters))


def _late_share(shares: Float[np.ndarray, "step"]) -> Share:
    late = shares[len(shares) // 2 :].astype(np.float64)
    stderr = float(np.std(late, ddof=1)) / math.sqrt(len(late)) if len(late) > 1 else math.inf
    return Share(float(np.mean(late)), stderr)


_ELSEWHERE = {
    "linear regression from noisy moments": ("discreet.methods.moments", "MomentsResult"),
    "private Newton fit": ("discreet.methods.newton", "NewtonResult"),
    "private Newton fit of a model": ("discreet.methods.newton", "DPNewtonResult"),
    "regression by a formula": ("discreet.tabular.formulas", "Regression"),
}
"""Where other results are defined, by what their files hold; loaded when such a file is read."""


def load_result(
    path: Path | str,
    model: Program | None = None,
    guide: Program | None = None,
    *,
    placeholder: Sequence[Any] | None = None,
    **static_kwargs: Any,
) -> Any:
    """Read a result that its `save` wrote: of `DPSVI`, or, without model and guide, of `regress`, `DPNewton` and `fit`.

    No content of the file is executed, so it may come from strangers; but its statement is as
    trustworthy as its source.

    Args:
        path: The file.
        model: The model that was fitted, for `posterior` and `noise_aware`, which are refused
            without it.
        guide: Its guide.
        placeholder: As in `DPSVI`.
        static_kwargs: The keyword arguments that the `DPSVI` had for its model.

    Returns:
        The result as it was saved, to the bit; the same key gives the same draws.

    Raises:
        ValueError: The file is absent, damaged, incomplete, something else, or from a newer
            discreet; or model and guide have other latents, or parameters of other names, shapes or
            dtypes.
    """
    if model is None and guide is None:
        module, name = _ELSEWHERE.get(kind_of(path), (__name__, DPSVIResult.__name__))
        return getattr(import_module(module), name).load(path)
    loaded = DPSVIResult.load(path)
    if model is None or guide is None:
        raise ValueError(
            "Draws need the model and its guide: give both, or neither to have the numbers alone."
        )
    if loaded._form is None:
        raise ValueError(
            "The file does not say what records look like, since the result was unpickled before it was saved: load it "
            "without model and guide, and draw with dpsvi.posterior(key, result.params, num_samples)."
        )
    objective = objective_of(
        loaded._form, loaded.plan, loaded.params, model, guide, placeholder, static_kwargs
    )
    return dataclasses.replace(loaded, _objective=objective)


def draw_posterior(
    objective: Objective, key: PRNGKeyArray, params: Mapping[str, Any], num_samples: int
) -> dict[str, Array]:
    """Draws of the global latents from the guide at `params`."""
    integer("num_samples", num_samples)
    secret = random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR)
    return objective.draw_posterior(dict(params), secret, num_samples)
