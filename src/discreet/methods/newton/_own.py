"""Private Newton for NumPyro models: the posterior of the global latents from some fifty noisy gradients, without settings.

Only gradients of single records' log-likelihoods are used, in unconstrained coordinates. Each of
four stages measures

1. a map under which gradients are alike in all directions; where the noise is small, and in the
   last stage, it follows from what the stage before found of the curvature,
2. how long gradients are, which gives the bound C: the least one whose clipping moves the sum by
   less than the noise; in the last stage a larger one where that costs little. The next two have a
   bound C' of their own, since noise grows with its square,
3. the second moment V of clipped gradients, which is the curvature J where the model is right; in
   the last stage also J, the derivative of clipped gradients,
4. ten or twenty gradients, each at the best guess so far. How they change on the way corrects J.

What clipping takes away moves the estimate as far as it adds up, as it does for a scale, whose long
gradients all point one way. So one of the last gradients is clipped at C / 4: with the lengths it
tells which share of what lies between both bounds adds up, and where to. That share of what lies
beyond C is given back, and intervals are wider in that direction.

What follows is `_algebra`'s: the likelihood of the mapped latents is normal, with the mean J theta
and the covariance V + s^2 I. The prior is exact: the posterior prior(u) times that normal is
sampled without any record (`_sampling`). Latents that no record touches, as a hierarchy's mean and
scale, need no release at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
from jax.sharding import Mesh
from jaxtyping import Bool, Float, PRNGKeyArray
from scipy.special import chdtri
from tqdm.auto import tqdm

from discreet._garbage import uncollected
from discreet._jax import one_release
from discreet.methods.inference import (
    Latents,
    NoPointError,
    Records,
    Share,
    check_public,
    computed,
    latents_of,
    take_apart,
    warn_of_use,
)
from discreet.methods.newton._algebra import (
    DOUBTED_NOISE,
    DOUBTED_SHARE,
    Evidence,
    Gradients,
    Matrix,
    NormalPrior,
    Shrinkage,
    Vector,
    agreement,
    hard,
    is_settled,
    known_less,
    least_ratio,
    lowered,
    ratio_of,
    rebuilt,
    scale_of,
    settle,
    soft,
    spectrum,
    sure_part,
)
from discreet.methods.newton._blocks import Blocks
from discreet.methods.newton._far import decided_by, pulls_from_far, scales_of_squares, span_of
from discreet.methods.newton._lengths import MIDDLE, SEEN, TAIL, Lengths
from discreet.methods.newton._model import (
    EDGES,
    MOST_CURVED,
    ModelSums,
    Public,
    fingerprint_of_prior,
    moments_of,
    program_of,
)
from discreet.methods.newton._model_plan import NUM_GRADIENTS, STAGES, ModelPlan, Stage
from discreet.methods.newton._posterior import OfDraws, label
from discreet.methods.newton._sampling import draw, of_each
from discreet.methods.newton._saved import SavedReleases, joined
from discreet.methods.newton._sums import Parts, layout_of
from discreet.methods.newton._verdict import NEARER, UNSEEN_FAR, Signs, verdict
from discreet.methods.newton._weights import weights_of_records
from discreet.methods.predict import Predictions, log_density_of, model_predictions
from discreet.privacy import random
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.released import Released
from discreet.privacy.report import Statement, Unit

MOST_LATENTS = 512
BY_CHANCE = 1e-9
"""How often noise alone may say that directions are not flat."""
# in standard deviations of one record: a step moves the log density by half its square
LARGEST_STEP = 1.5
FARTHEST_STEP = 1.0  # in standard deviations of each latent's prior
MOST_SCALE = 30.0
"""Of the curvature over the gradients' second moment, before the last stage: far above 1 where a scale is too large."""
MISSED = 6.0
"""How much more than noise counts what moments miss of long gradients: it may be most of one direction, as a rare class's."""
BIAS = 0.3  # share of what clipping takes away that may be left as bias: the rest cancels, or is given back
FREE = 0.2
FREE_PRODUCTS = 0.03
"""Of the last gradients and moments: while their noise over that of sampling is below this, a larger bound costs little."""
FIRST = 3  # gradients of the last stage before the curvature is improved by them
LEANING, SHORTER = 10, 4  # the gradient of the last stage that is clipped at C / 4
FARTHER = 1.8
ELSEWHERE = 0.2
"""Of the share that adds up: longer gradients' over that of shorter ones; the variance of the difference, over all latents."""
DRAWN = 0.7  # share of a latent's variance that long gradients make, where the verdict names it
HIDDEN = 0.5  # the edge of a curvature's noise over its mean eigenvalue, above which directions make a better map
LEAST = 0.05  # eigenvalue of the curvature, of their mean
FAINT = 0.3
MADE_OF_NOISE = 3.0
"""A direction of which records say little: its eigenvalue, of their mean, and in deviations of the noise that may make it."""
BLURRED = 0.4  # deviations by which a scale may be too large for the errors of all others, where the verdict names it
MOVED, DOUBTED = 1.5, 2.0
"""A log scale of residuals is larger by so much of half their mean square, with such a standard deviation."""
FAINTLY = 0.4  # share of a latent's variance in such directions, where the verdict names it
FARTHEST = 0.5  # standard deviations by which an entry of the curvature is shrunk
WIDEST = 2.0
"""Cap on the posterior's variance, over that without the curvature's error, in the allowance for that error: else both grow."""


@dataclasses.dataclass(frozen=True, repr=False)
class DPNewtonResult(OfDraws, Released, what="private Newton fit of a model"):
    """The posterior of a model's global latents: privacy noise and sampling noise are both in it.

    Everything in it is covered by `statement`.

    Attributes:
        draws: Draws of each latent, (draw, ...). Intervals come from them, and predictions.
        learned: For each latent's unconstrained coordinates the share of the prior's variance that
            is gone; where it is small, the prior decides. Of a latent that records touch only in a
            product with scales, the share is the product's.
        clipped: Share of the records with gradients that had one longer than the bound, by a noisy
            histogram.
        counted: Share of the records whose gradient was finite, by the same; the others count as
            nothing. `dropped` has the standard error of its noise.
        silent: Share of the records whose gradient was 0, by the same and with the same noise: of
            which the model says nothing, as where it masks them.
        audible: The same for the records whose gradient was not 0. Its noise is `plan.rest_noise`;
            if the plan's number of records is not the table's, the two do not add up to 1.
        ratio: Standard deviation of the releases' noise over that of sampling.
        moved: Distance of the estimate from where the last gradients were taken, over its own
            spread.
        lack: By how many standard deviations the last gradients miss what the curvature says.
        plan: The plan of the fit.
        statement: The privacy statement.
    """

    draws: Mapping[str, Float[np.ndarray, "draw ..."]]
    learned: Mapping[str, Float[np.ndarray, "..."]]
    clipped: float
    counted: float
    silent: float
    audible: float
    ratio: float
    moved: float
    lack: float
    plan: ModelPlan
    statement: Statement

    @property
    def dropped(self) -> Share:
        """Share of the records that do not count, with the standard error of its noise."""
        return Share(1 - self.counted, self.plan.share_noise)

    @property
    def converged(self) -> bool:
        """True if more gradients would hardly move the estimate, and agree with the curvature."""
        return is_settled(self.moved, self.lack)

    def predict(
        self,
        model: Callable[..., Any],
        *args: Any,
        key: PRNGKeyArray | None = None,
        num_samples: int = 1_000,
        site: str | None = None,
        **kwargs: Any,
    ) -> Predictions:
        """Predict new rows by the model, which the result does not hold. Costs nothing.

        Args:
            model: The model that was fitted.
            args: Its arguments for the new rows, with None for the observation.
            key: Any JAX key, for the draws; None: a new one.
            num_samples: Number of draws.
            site: As in `predict.model_predictions`, as are kwargs.
            kwargs: As there.

        Returns:
            Draws of each row's mean or class probabilities, and of a new outcome. Their spread has
            all noise in it.

        Raises:
            ValueError: As there.
        """
        for_draws, for_outcomes = jax.random.split(
            random.check_key(random.key() if key is None else key)
        )
        draws = self.posterior(for_draws, num_samples)
        return model_predictions(for_outcomes, model, draws, *args, site=site, **kwargs)

    def log_density(
        self, model: Callable[..., Any], *args: Any, site: str | None = None, **kwargs: Any
    ) -> Float[np.ndarray, " row"]:
        """The log of the mean density, over `draws`, of each row's known outcome, which is not private.

        Args and errors are those of `predict.log_density_of`.
        """
        return log_density_of(model, self.draws, site=site, **kwargs)(*args)


def refuse_others(model: Any) -> None:
    """Refuse what is no model, without showing it: it may be the table."""
    if not callable(model):
        raise TypeError(
            f"The model is a {type(model).__name__}: pass a function with NumPyro's sample sites, and then its arguments."
        )


def refuse_many(latents: Latents) -> None:
    """Refuse a model with more latents than private Newton takes."""
    if latents.size > MOST_LATENTS:
        raise NoPointError(
            f"The model has {latents.size:,} coordinates of global latents; private Newton releases matrices of that size, and "
            f"takes at most {MOST_LATENTS}. Fit the model by DPSVI."
        )


class DPNewton:
    """Fits a NumPyro model privately, without settings: draws of its posterior with all noise in them.

    Guarantee: what `run` returns is `plan.event()`, under the plan's relation, but for its `slack`.
    Each release is proved to be its part of that before it runs.

    For models with up to 512 global latents whose observations lie in a plate of the records'
    length. Discrete latents of a record are summed out. Where the posterior has several modes, the
    fit finds the one near its start.

    Args:
        model: The model, with proper priors.
        plan: The plan.
        init: Where the fit starts: values of some latents, as in the model; public. None: the
            prior's mean.
        placeholder: An artificial record, as for DPSVI.
        names: How the verdict calls an element of a latent, by its site and its place there.
        nearer: What the verdict advises where the start was too far away.
        levels: Names of latents that are effects of groups: their first axis has levels, and a
            record has a part in one of them. With many levels, estimates and intervals are then far
            better; where a record has a part in several, they are wrong.
        flat: Directions of the unconstrained latents in which no record's likelihood changes, public:
            of each the parts of latents. For effects a and b of crossed groups {"a": 1.0, "b":
            -1.0}, since records tell of sums of these alone; of z in `scale * z`, of the product.
            Nothing is then estimated along them; without, intervals of such effects may miss, and
            along directions of which records do tell these are lost.
        static_kwargs: Public keyword arguments of the model.

    Raises:
        ValueError: An argument that cannot be used.

    >>> import numpy as np, numpyro, numpyro.distributions as dist, discreet as dp
    >>> def model(x, y):
    ...     slope = numpyro.sample("slope", dist.Normal(0, 2))
    ...     noise = numpyro.sample("noise", dist.HalfNormal(1))
    ...     with numpyro.plate("people", len(y)):
    ...         numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=5_000)
    >>> plan = dp.newton.ModelPlan.calibrate(epsilon=1.0, num_records=5_000)
    >>> result = dp.DPNewton(model, plan=plan).run(dp.random.key(), x, 0.7 * x + 0.3 * rng.normal(size=5_000))
    >>> bool(abs(result.estimate["slope"] - 0.7) < 0.05)
    True
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        plan: ModelPlan,
        init: Mapping[str, Any] | None = None,
        placeholder: Sequence[Any] | None = None,
        names: Callable[[str, Sequence[int]], str] = label,
        nearer: str = NEARER,
        levels: Sequence[str] = (),
        flat: Sequence[Mapping[str, Any]] = (),
        **static_kwargs: Any,
    ) -> None:
        refuse_others(model)
        if not isinstance(plan, ModelPlan):
            raise TypeError(
                f"plan is {plan!r}; pass a ModelPlan, as ModelPlan.calibrate(epsilon=...) makes."
            )
        if init is not None and not isinstance(init, Mapping):
            raise TypeError(
                f"init is a {type(init).__name__}: pass values of latents by their names, as {{'scale': 1.0}}; NumPyro's "
                "init_to_value and others are for guides."
            )
        check_public(static_kwargs)
        self.model, self.plan, self.init = model, plan, dict(init or {})
        self.placeholder = placeholder
        self.names, self.nearer = names, nearer
        self.levels = tuple(levels)
        self.flat = tuple(flat)
        self.static_kwargs = static_kwargs

    @one_release
    def run(
        self,
        rng_key: PRNGKeyArray,
        *args: Any,
        progress_bar: bool = True,
        ledger: Ledger | None = None,
        checkpoint: Path | str | None = None,
        person: str | None = None,
        max_rows: int = 1,
        mesh: Mesh | None = None,
        weights: Any = None,
        **kwargs: Any,
    ) -> DPNewtonResult:
        """Fit the model to records.

        Args:
            rng_key: `discreet.random.key()`, for this fit alone.
            args: The model's arguments: arrays hold records along their leading axis.
            progress_bar: Show progress after two seconds.
            ledger: The table's budget, debited before the first release.
            checkpoint: Folder from which the same call continues, to the same bits, if the process
                dies. Keep it secret.
            person: Name of the column that identifies persons, if a record is all that one person
                has.
            max_rows: With `person`, the largest number of rows of a person in a record.
            mesh: As in `fit_newton`.
            weights: Survey weights over the largest that one may have, a public number: in [0, 1],
                (record,). Estimates are then those of the population, and intervals include how
                weights vary them; the noise grows as that number over the mean weight. For models
                with at most 100 coordinates of latents that records touch. None: all are 1.
            kwargs: As args.

        Returns:
            The posterior.

        Raises:
            ValueError, TypeError: Wrong input, before anything is spent.
            SpentError: The ledger does not hold it.
            PrivacyError: A release could not be proved.
            UseWarning: A warning, where the noise hides the model; as an error it has the fit as
                `partial_result`.
        """
        with joined(mesh, checkpoint) as processes:
            with processes.together():
                key = random.check_key(rng_key)
                records = take_apart(args, kwargs, programs=(self.model,))
                survey = weights_of_records(weights, records.size, self.model)
            saved = SavedReleases(checkpoint, key, self.plan, processes)
            with processes.together(), uncollected():
                latents, start = self._latents(saved.key, records)
                far = pulls_from_far(latents, start)
                blocks = Blocks.of(latents, self.levels, self.flat, len(scales_of_squares(far)))
                if survey and latents.num_touched > MOST_CURVED:
                    raise ValueError(
                        f"Survey weights are for models with at most {MOST_CURVED} coordinates of latents that records touch: of "
                        f"more, here {latents.num_touched}, the curvature is not measured. Leave some out, or weights."
                    )
            leaves = [*map(np.asarray, records.leaves), *survey]
            given = {name: np.asarray(value).tolist() for name, value in self.init.items()}
            options = str((person, max_rows, given, *self.levels, *blocks.told_of_flat))
            saved.describe(plan=repr(self.plan), options=options, records=saved.digest(leaves))
            fitted = getattr(self.model, "__name__", "A model")
            told = {
                "num_touched": latents.num_touched,
                "num_latents": latents.size,
                "fitted": fitted,
                "weighted": bool(survey),
            }
            act = saved.act(ledger, unit=Unit(person, max_rows), **told)
            with jax.enable_x64(True):
                releases = _Releases(
                    latents, leaves, self.plan, act, saved, in_files=records.in_files
                )
                shown = progress_bar and processes.first
                bar = tqdm(total=NUM_GRADIENTS, desc="Newton", delay=2.0, disable=not shown)
                with saved.begun(act), bar:
                    fit = _Fit(releases, latents, self.plan, start, far, blocks).run(bar)
                    stated = saved.stated(act)
                    with uncollected():
                        result = fit.result(saved.words, stated, self.names, self.nearer)
        warn_of_use(result, stated)
        return result

    def _latents(self, key: PRNGKeyArray, records: Records) -> tuple[Latents, Vector]:
        """The model's latents, and where they start; no release, and all that is refused for the model or the records."""
        self.plan.check_size(records.size)
        made_of = {
            "model": self.model,
            "placeholder": self.placeholder,
            "static": self.static_kwargs,
        }
        latents = latents_of(records, key, num_records=self.plan.num_records, **made_of)
        refuse_many(latents)
        return latents, self._start(latents)

    def _start(self, latents: Latents) -> Vector:
        """The prior's mean, but for the latents that are told where to start."""
        mean = moments_of(latents).mean
        if not self.init:
            return mean
        values = {
            name: np.asarray(value)
            for name, value in computed(Latents.values, latents, mean).items()
        }
        if unknown := [name for name in self.init if name not in values]:
            raise ValueError(
                f"init names {unknown[0]!r}, which is no global latent. These are: {', '.join(values)}."
            )
        means = dict(values)
        for name, value in self.init.items():
            if np.shape(value) != values[name].shape:
                raise ValueError(
                    f"init has {name!r} with the shape {np.shape(value)}; in the model it has {values[name].shape}."
                )
            values[name] = np.asarray(value, values[name].dtype)
        with numpyro.validation_enabled(False):
            start = np.asarray(
                latents.joined(latents.objective.points(jax.random.key(0), values)), np.float64
            )
        back = computed(Latents.values, latents, start)
        # From outside of a support, or its end, there is no way to unconstrained space and back.
        bad = [
            name
            for name in self.init
            if not np.allclose(back[name], values[name], rtol=1e-3, atol=1e-6)
        ]
        if bad or not np.isfinite(start).all():
            name = (bad or list(self.init))[0]
            mean = np.array2string(means[name], precision=2, separator=", ", threshold=20)
            raise ValueError(
                f"init has {name!r} outside of its support, or at its end. Choose a value inside, such as the prior's mean, "
                f"about {mean}."
            )
        return start


class _Releases:
    """The records and their certified programs; each call is one release, with a key of its own."""

    def __init__(
        self,
        latents: Latents,
        leaves: Sequence[np.ndarray],
        plan: ModelPlan,
        act: Act,
        saved: SavedReleases,
        *,
        in_files: bool,
    ) -> None:
        made_for = ModelSums(layout_of(leaves), plan.relation, act.reproducible, latents)
        apart = not made_for.are_little(plan.num_records)
        self._parts = parts = Parts(leaves, apart=apart, again=in_files, processes=saved.processes)
        proved = (program_of(x.kind, x.noise, parts.last_turns, made_for) for x in plan.releases)
        prior = [fingerprint_of_prior(latents)] if saved.run_id else []
        self._programs = saved.programs(act, proved, made_for.nowhere, parts, beside=prior)
        self._planned = iter(enumerate(plan.releases))
        self._saved = saved

    def __call__(self, kind: str, public: Public) -> tuple[np.ndarray, float]:
        """The next release of the plan, which is of this kind, and the standard deviation of its noise."""
        number, release = next(self._planned)
        assert release.kind == kind
        return self._saved.release(self._programs[number], public, self._parts), release.noise


class _Fit:
    """The state of a fit: all of it follows from releases and public numbers."""

    def __init__(
        self,
        releases: _Releases,
        latents: Latents,
        plan: ModelPlan,
        start: Vector,
        far: Float[np.ndarray, "pull latent"],
        blocks: Blocks,
    ) -> None:
        self.releases = releases
        self.latents = latents
        self.plan = plan
        self.far = far
        self.blocks = blocks
        self.prior = moments_of(latents)
        self.size = latents.num_touched
        own = slice(0, self.size)
        mean = self.prior.mean[own]
        covariance = self.prior.covariance[own, own]
        nearer = [blocks.nearer(scale) for scale in blocks.scales]
        means = np.array([way @ mean for way in nearer])
        precisions = np.array([np.linalg.inv(way @ covariance @ way.T) for way in nearer])
        self.of_effects = NormalPrior(means, precisions)
        self.precision = precisions[0]
        self.at = start[own]
        self.to = np.diag(np.sqrt(np.diag(covariance)) * blocks.weights)
        self.reach = 1.0
        self.short = 1.0
        self.improved = np.eye(self.size)
        self.shown = np.eye(self.size)
        self.along: list[float] = []
        self.curvature_sigma = np.inf
        self.clipped = 0.0
        self.missing = 0.0
        self.counted = 1.0
        self.silent = 0.0
        self.audible = 1.0

    def run(self, bar: Any) -> _Fit:
        """All stages."""
        for stage in STAGES:
            self._map(stage)
            self._bound(stage)
            self._measure(stage)
            self._step(stage, bar)
        return self

    @property
    def unseen(self) -> float:
        """`Signs.unseen`."""
        return min(self.plan.hidden / self._told, 1.0)

    @property
    def _told(self) -> float:
        """Number of records that are not silent, as far as the noise shows."""
        silent = self.silent if self.silent > SEEN * self.plan.share_noise else 0.0
        return max((1 - silent) * self.plan.num_records, 1.0)

    @property
    def _nowhere_flat(self) -> Matrix:
        """The curvature, and its mean in directions in which the likelihood is flat."""
        mean = np.trace(self.improved) / self.size
        return self.improved + mean * (np.eye(self.size) - self.shown)

    @property
    def _public(self) -> Public:
        return Public(self.to, self.at, self.reach, self.short)

    def _map(self, stage: Stage) -> None:
        """A map by the curvature so far; or by the directions, where there is none or the noise hides it.

        Directions alone are a poor map where one latent's gradients have longer tails, as those of
        a scale. And where few records have a part in one, as at a spline's end, no map makes all
        even: each lengthens those few gradients once more (Tyler, Annals of Statistics 1987).
        """
        known = self._nowhere_flat
        if stage.directions:
            seen, sigma = self.releases("directions", self._public)
            if self.blocks.largest(known, self.curvature_sigma) > HIDDEN:
                known = self._positive(seen, sigma, hard, least=2 * sigma)
        self.to = self.to @ (self.blocks.root(known) * np.sqrt(self.plan.num_records))
        flat, _ = np.linalg.qr(np.linalg.solve(self.to, self.blocks.flat))
        self.shown = np.eye(self.size) - flat @ flat.T

    def _bound(self, stage: Stage) -> None:
        """The bound C whose noise and whose clipping together are the least; and what clipping takes away."""
        (*raw, lost), sigma = self.releases("lengths", self._public)
        # Shown whatever the noise; the verdict only says what stands out.
        self.counted = 1 - float(np.clip(lost / self.plan.num_records, 0, 1))
        self.missing = 1 - self.counted if lost > SEEN * sigma else 0.0
        # Of what has no gradient no bound takes anything away.
        self.silent = float(raw[0]) / self.plan.num_records
        self.audible = float(np.sum(raw[1:]) + lost) / self.plan.num_records
        lengths = Lengths(np.array([0.0, *raw[1:]]), sigma)
        noise = self.plan.noise(sum(stage.gradients))
        edges = EDGES[1:]
        loss = self.size * np.square(noise * edges) + BIAS**2 * np.array(
            [lengths.lost(edge).square for edge in edges]
        )
        most_clipped = lengths.counts.cumsum() < lengths.counts.sum() / 2
        loss[most_clipped] = np.inf
        self.reach = edges[np.argmin(loss)]
        # A matrix's noise grows with the square of its bound: a few long gradients would leave
        # nothing of all others.
        missed = np.array([self._missed(lengths.counts, edge) for edge in edges])
        wide = max(int(self.blocks.others.sum()), 1)
        matrix_noise = 2 * np.sqrt(wide) * self.plan.noise(stage.moments) * np.square(edges)
        loss = np.square(matrix_noise) + np.square(MISSED * missed)
        loss[most_clipped] = np.inf
        self.short = min(self.reach, edges[np.argmin(loss)])
        if not stage.directions:
            # By the map, sampling varies a sum by the root of the number of records, that of an
            # effect by its weight less. Beyond the tail nothing is expected.
            records = self.plan.num_records * float(self.blocks.weights.min()) ** 2
            free = FREE * np.sqrt(records) / noise
            last = 1 + int(np.max(np.nonzero(lengths.seen)[0], initial=0))
            self.reach = max(self.reach, min(free, EDGES[min(last + TAIL, len(EDGES) - 1)]))
            room = np.sqrt(FREE_PRODUCTS * records / self.plan.noise(stage.moments))
            self.short = np.clip(room, self.short, self.reach)
        self.missed = self._missed(lengths.counts, self.short)
        self.guessed = self.missed - self._missed(lengths.seen, self.short)
        self.lost = lengths.lost(self.reach)
        self.between = lengths.lost(self.reach / SHORTER).mean - self.lost.mean
        self.clipped = float(np.clip(lengths.counts[self.reach < MIDDLE].sum() / self._told, 0, 1))

    def _missed(self, counts: Vector, short: float) -> float:
        """What moments miss of gradients that are longer than their bound, a coordinate; from numbers in bins."""
        squares = np.square(np.minimum(MIDDLE, self.reach)) - short**2
        return float(counts @ np.maximum(squares, 0)) / self.size

    def _measure(self, stage: Stage) -> None:
        """The gradients' second moment V, which is the curvature J where the model is right. The last stage measures both.

        There half of their sum is known best, and half of their difference is what stands out of
        the noise.
        """
        raw, sigma = self._scaled("moments")
        if not stage.curvature:
            self.curvature_sigma = sigma
            self.sampling = self.curvature = self._positive(raw, sigma, hard)
            return
        curvature, _ = self._scaled("curvature")
        sigma /= np.sqrt(2)
        self.curvature_sigma = sigma
        middle = self._positive((curvature + raw) / 2, sigma, soft)
        apart, _ = self.blocks.denoised(
            (curvature - raw) / 2,
            sigma,
            lambda part: rebuilt(part, lambda values: hard(values, sigma)),
        )
        least = LEAST * np.trace(middle) / self.size
        self.sampling, self.curvature = [
            rebuilt(middle + sign * apart, lambda values: lowered(values, least, values.sum()))
            for sign in (-1, 1)
        ]
        sampling = self.sampling + self.missed * self.blocks.evenly(middle)
        self.sampling = self.shown @ sampling @ self.shown

    def _scaled(self, kind: str) -> tuple[Matrix, float]:
        """A matrix, which has an equal share of the budget, and the standard deviation of its noise."""
        raw, sigma = self.releases(kind, self._public)
        unit = self.short**2
        return raw * unit, sigma * unit

    def _positive(
        self, raw: Matrix, sigma: float, shrinkage: Shrinkage, least: float | None = None
    ) -> Matrix:
        """A matrix from a noisy one, positive. By `soft`, directions that the noise hides stay uncertain in it."""

        def of_others(part: Matrix) -> Matrix:
            size = len(part)
            if least is not None:
                values, vectors = spectrum(part, sigma, least, shrinkage=shrinkage)
            else:
                mean = max(np.trace(part) / size, 2 * sigma / np.sqrt(size))
                values, vectors = spectrum(
                    part, sigma, LEAST * mean, FARTHEST, shrinkage, size * mean
                )
            return (vectors * values) @ vectors.T

        found, self.left = self.blocks.denoised(raw, sigma, of_others)
        if not self.blocks.groupings:
            return found
        # Of effects that the noise hides, the mean may be negative.
        mean = max(np.trace(found) / self.size, 2 * sigma / np.sqrt(self.size))
        return rebuilt(found, lambda values: np.maximum(values, LEAST * mean))

    def _step(self, stage: Stage, bar: Any) -> None:
        """All gradients of a stage."""
        back = np.linalg.inv(self.to)
        prior = NormalPrior(
            self.of_effects.means @ back.T, self.to.T @ self.of_effects.precisions @ self.to
        )
        points = []
        values = []
        sigmas = []
        first = FIRST if stage.curvature else 1
        of_prior = np.sqrt(np.diag(self.prior.covariance)[: self.size])
        self.lean = np.zeros(self.size)
        self.lean_variance = 0.0
        for step in range(len(stage.gradients)):
            bar.update(1)
            theta = back @ self.at
            if stage.curvature and step == LEANING:
                self._lean(self.improved @ (guess - theta))
                values = [value + self.lost.given * self.lean for value in values]
                continue
            found, sigma = self.releases("gradients", self._public)
            points.append(theta)
            self.along.append(float(np.square(found - self.shown @ found).sum() / sigma**2))
            values.append(self.shown @ found * self.reach + self.lost.given * self.lean)
            sigmas.append(sigma * self.reach)
            self.gradients = Gradients(np.array(points), np.array(values), np.array(sigmas))
            improved = self.curvature
            if step >= first:
                least = 0.02 * np.trace(self.curvature) / self.size
                scale = 1.0
                if stage.directions or self.size > MOST_CURVED:
                    scale = scale_of(
                        self.curvature, self.gradients, MOST_SCALE if stage.directions else 1.0
                    )
                improved = self.blocks.improved(scale * self.curvature, self.gradients, least)
            self.improved = self.shown @ improved @ self.shown
            guess, covariance, _ = settle(
                self.gradients, self.improved, self.improved, prior, theta, rounds=4
            )
            way = guess - theta
            length = np.sqrt(max(way @ self.improved @ way / self.plan.num_records, 1e-12))
            farthest = float(np.max(np.abs(self.to @ way) / of_prior))
            self.at = self.to @ (
                theta + way * min(1.0, LARGEST_STEP / length, FARTHEST_STEP / max(farthest, 1e-9))
            )
        self.theta = guess
        self.covariance = self.shown @ covariance @ self.shown
        self.normal_prior = prior

    def _lean(self, expected: Vector) -> None:
        """Which share of what clipping takes away adds up, by direction, from one gradient with a smaller bound.

        Before the release, any share in any direction is as likely; the prior's part in `expected`
        is small.
        """
        reach = self.reach / SHORTER
        between = max(self.between, 1e-9)
        found, sigma = self.releases("gradients", self._public._replace(reach=reach))
        variance = (reach * sigma / between) ** 2
        raw = (expected - reach * (self.shown @ found)) / between
        few = span_of(self.far @ self.to)
        if few is not None:
            raw = few @ (few.T @ raw)
        kept = FARTHER / (1 + (self.size if few is None else few.shape[1]) * variance)
        lean = kept * raw
        self.lean = lean / max(1.0, float(np.linalg.norm(lean)))
        self.lean_variance = FARTHER * kept * variance

    def result(
        self,
        words: np.ndarray,
        statement: Statement,
        named: Callable[[str, Sequence[int]], str] = label,
        nearer: str = NEARER,
    ) -> DPNewtonResult:
        """The posterior: the exact prior times the normal likelihood."""
        latents = self.latents
        size = self.size
        back = np.linalg.inv(self.to)
        moved = self.lost.square * (self.lean_variance + ELSEWHERE / size)
        hidden = self.lost.left_square * np.outer(self.lean, self.lean)
        theta, covariance, found = self._settled(hidden, moved)
        precision = back.T @ found.likelihood.precision @ back
        pull = back.T @ found.likelihood.pull
        blur = self._blur(covariance)
        for place in scales_of_squares(self.far):
            precision, pull = known_less(precision, pull, place, MOVED * blur, DOUBTED * blur)
        whole = np.linalg.inv(self.prior.covariance)
        linear = whole @ self.prior.mean
        linear[:size] += pull
        whole[:size, :size] += precision
        near = np.linalg.inv(whole)
        vectors = draw(latents, words, near @ linear, (near + near.T) / 2, precision, pull)
        values = of_each(Latents.values, latents, vectors)
        learned = 1 - vectors.var(axis=0) / np.diag(self.prior.covariance)
        moved_by, lack = agreement(
            self.gradients,
            self.improved,
            theta,
            float(np.trace(self.improved @ covariance)),
            self.blocks.flat.shape[1],
        )
        beside = found.extra * size + float(np.trace(hidden))
        noise = found.noise + moved + beside / size
        # Where the likelihood is flat, there is neither.
        ratio = ratio_of(noise * np.trace(self.shown) / size, self.sampling)
        names = [
            named(name, place)
            for name, part in latents.split(learned).items()
            for place in np.ndindex(part.shape)
        ]
        # Of the posterior's variance, what long gradients may have moved that the noise hides.
        along = self.to @ np.linalg.solve(self._nowhere_flat, self.lean)
        drawn = self.lost.left_square * np.square(along) / np.diag(self.to @ covariance @ self.to.T)
        far_out, blurred = self._decided_far_out(covariance)
        signs = Signs(
            ratio=ratio,
            moved=moved_by,
            lack=lack,
            fits=self._least_fit(),
            clipped=self.clipped,
            unseen=self.unseen,
            missing=self.missing,
            names=names,
            learned=learned,
            moved_most=drawn > DRAWN,
            far_out=far_out,
            blurred=blurred,
            faint=self._faint(covariance),
            sloped=self._is_sloped(),
            nearer=nearer,
        )
        return DPNewtonResult(
            draws={
                name: np.asarray(values[name])
                for name in latents.objective.structure.global_latents
            },
            learned=latents.split(learned),
            clipped=self.clipped,
            counted=self.counted,
            silent=self.silent,
            audible=self.audible,
            ratio=ratio,
            moved=moved_by,
            lack=lack,
            plan=self.plan,
            statement=statement.with_use(*verdict(signs)),
        )

    def _settled(self, hidden: Matrix, moved: float) -> tuple[Vector, Matrix, Evidence]:
        """Mean, covariance and evidence of theta, with what clipping hides or moves counted as noise."""
        # An error of the curvature acts as one of its entries, times how far the posterior reaches.
        # Not of effects: a hierarchy's scale would fall to zero where noise is overstated.
        others = self.blocks.others
        error = 0.0
        if others.any():
            typical = np.diag(self.curvature)[others].mean()
            error = 1 / (self.curvature_sigma**-2.0 + (0.1 * typical) ** -2.0)
        free = np.linalg.inv(self.to)[:, ~self.prior.ruled]
        among = self.improved @ free @ np.linalg.solve(free.T @ self._nowhere_flat @ free, free.T)
        widest = WIDEST * float(np.trace(self.covariance))
        mean = float(np.trace(self.improved)) / self.size
        doubt = min(DOUBTED_NOISE * self.curvature_sigma, DOUBTED_SHARE * mean)

        def extra(distance: Vector, spread: Vector) -> Matrix:
            far = distance + spread * min(1.0, widest / float(spread.sum()))
            within = error * float(far[others].sum()) * (among @ among.T)
            return within + np.diag(self.left * others * float(far[~others].sum()))

        return settle(
            self.gradients,
            self.blocks.surely(sure_part(self.improved, doubt), self.left),
            self.sampling + hidden + moved * np.diag(others),
            self.normal_prior,
            self.theta,
            rounds=4,
            extra=extra,
            spread=np.diag(self.covariance),
            shown=self.shown,
        )

    def _is_sloped(self) -> bool:
        """`Signs.sloped`. Along flat directions gradients are noise alone, whose squares have a known distribution."""
        freedom = len(self.along) * self.blocks.flat.shape[1]
        return freedom > 0 and sum(self.along) > chdtri(freedom, BY_CHANCE)

    def _least_fit(self) -> float:
        """`Signs.fits`. Directions that the noise may hide tell nothing, nor do long gradients that did not stand out."""
        ones = np.eye(self.size)
        edge = self.curvature_sigma * np.sqrt(2 * self.size) * ones
        return least_ratio(self.improved + edge, self.sampling - self.guessed * self.shown + edge)

    def _decided_far_out(self, covariance: Matrix) -> Bool[np.ndarray, "2 touched"]:
        """`Signs.far_out` and `Signs.blurred`; `covariance` is the posterior's."""
        if not len(self.far):
            return np.zeros((2, self.size), bool)
        deviations = np.sqrt(np.diag(self.to @ covariance @ self.to.T))
        moves = self.to @ np.linalg.solve(self._nowhere_flat, self.to.T)
        decided = decided_by(self.far, moves, deviations)
        blurred = decided & (self._blur(covariance) > BLURRED * deviations)
        return np.array([decided & (self.unseen > UNSEEN_FAR), blurred])

    def _blur(self, covariance: Matrix) -> float:
        """Half of the mean square that the errors of all latents add to residuals, by which a log scale is larger."""
        return float(np.trace(self.improved @ covariance)) / self.plan.num_records / 2

    def _faint(self, covariance: Matrix) -> Bool[np.ndarray, " touched"]:
        """`Signs.faint`; `covariance` is the posterior's."""
        weights = self.blocks.weights
        to = self.to / weights
        covariance = covariance * np.outer(weights, weights)
        curvature = self.improved / np.outer(weights, weights)
        curvatures, directions = np.linalg.eigh(curvature)
        least = FAINT * float(np.trace(curvature)) / self.size
        few = curvatures < min(MADE_OF_NOISE * self.curvature_sigma, least)
        # Where the prior says more, it does not matter.
        of_prior = to.T @ self.precision @ to
        few &= curvatures > np.einsum("ji,jk,ki->i", directions, of_prior, directions)
        directions = directions[:, few]
        faint = to @ directions
        variances = np.einsum("ij,jk,ik->i", faint, directions.T @ covariance @ directions, faint)
        return variances / np.diag(to @ covariance @ to.T) > FAINTLY
