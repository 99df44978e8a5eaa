"""The fit: each release, read before the next one is measured, and the posterior that follows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from discreet._jax import in_own_settings, one_process, refuse_traced
from discreet._validate import integer
from discreet.methods.inference import warn_of_use
from discreet.methods.moments._gradients import LastStage, reach_of
from discreet.methods.moments._plan import KINDS, PRODUCTS, SHARES, MomentsPlan
from discreet.methods.moments._posterior import FLOORS, SCALES, WIDE, Measurement, Posterior, sigma_of
from discreet.methods.moments._sums import SHARE_OF_TARGET, TURN, Sum, whole
from discreet.methods.moments._verdict import cautious, use_of
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.query import Gaussian, Query, in_turns, turns_for
from discreet.privacy.released import Released
from discreet.privacy.report import Statement, Unit
from discreet.privacy.verify import Certificate

_INTERCEPT = 0.5  # the leading 1 in the first release: it is easily seen, and costs the others less like this
_WIDTH = 3.0  # standard deviations at which residuals are clipped, at least
_FLATTEST = 10.0  # the least mean length of whitened rows is 1 / _FLATTEST: then weights differ little
_SEEN = 4.0  # times the edge of the noise: what the features' eigenvalues are at least, so that rows may be short
_HIDDEN = 3.0  # standard deviations of the noise: a column whose sum and squares are below is a rare category's
_LATEST = 3.0  # of `_flatness`: beyond it, shorter rows let no longer residuals pass


@dataclasses.dataclass(frozen=True)
class MomentsResult(Released, what="linear regression from noisy moments", parts=(MomentsPlan, Relation)):
    """The posterior of a linear regression given noisy moments: privacy and sampling noise are both in it.

    Attributes:
        mean: Posterior mean of intercept and weights, (feature + 1,), in the units of the fitted arrays.
        covariance: Their posterior covariance.
        estimate: Intercept and weights to predict with, shrunk towards 0 where the noise hides them.
        variance: The residuals' variance, seen with a normal error; the prior of their standard deviation is flat on (0, 1).
        variance_spread: Standard deviation of that error.
        mean_squares: Released mean square of each feature, (feature,): of a 0/1 column about its share. Long rows count less.
        plan: The plan of the fit.
        statement: The privacy statement.
    """

    noise_in_draws = True

    mean: Float[np.ndarray, " feature+1"]
    covariance: Float[np.ndarray, "feature+1 feature+1"]
    estimate: Float[np.ndarray, " feature+1"]
    variance: float
    variance_spread: float
    mean_squares: Float[np.ndarray, " feature"]
    plan: MomentsPlan
    statement: Statement

    @property
    def learned(self) -> Float[np.ndarray, " feature+1"]:
        """For each of `mean` the share of the prior's variance that is gone; where it is small, the prior decides."""
        return 1 - np.diag(self.covariance)

    @property
    def to_predict(self) -> dict[str, np.ndarray]:
        """The estimate, as one draw of `intercept` and `weights`."""
        return {"intercept": self.estimate[:1], "weights": self.estimate[None, 1:]}

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, np.ndarray]:
        """Independent draws of `intercept`, (draw,), `weights`, (draw, feature), and `sigma`, (draw,). They cost nothing.

        Those of `sigma` take residuals to be normal, and of one spread: where they have long tails all draws are too small.

        Args:
            key: Any JAX key.
            num_samples: Number of draws.
        """
        secret = random.subkey(random.check_key(key), random.Purpose.POSTERIOR)
        one, other = jax.random.split(secret)
        drawn = np.asarray(jax.random.normal(one, (integer("num_samples", num_samples), len(self.mean))), np.float64)
        values, vectors = np.linalg.eigh(self.covariance)
        drawn = self.mean + (drawn * np.sqrt(np.maximum(values, 0))) @ vectors.T
        ends, chances = sigma_of(self.variance, self.variance_spread)
        uniform = np.asarray(jax.random.uniform(other, (num_samples,)), np.float64)
        return {
            "intercept": drawn[:, 0],
            "weights": drawn[:, 1:],
            "sigma": np.interp(uniform, np.append(0, np.cumsum(chances)), ends),
        }

    def to_arviz(self, key: PRNGKeyArray, num_samples: int, **names: Any) -> Any:
        """Draws of `posterior` for ArviZ, with the statement in their attributes; as `discreet.inference_data.to_arviz`."""
        from discreet.methods.inference_data import to_arviz

        return to_arviz(self.posterior(key, num_samples), statement=self.statement, **names)


@in_own_settings
def fit_moments(
    rng_key: PRNGKeyArray,
    x: Float[np.ndarray, "record feature"],
    y: Float[np.ndarray, " record"],
    plan: MomentsPlan,
    *,
    person: str | None = None,
    ledger: Ledger | None = None,
) -> MomentsResult:
    """Fit a linear regression to noisy moments.

    Guarantee: all that is returned is `plan.event()`, under the plan's relation, but for its `slack`. Each release is proved
    to be its part of that before it runs. Sums are exact, since rows are rounded to a grid.

    The prior is that of `models.linear_regression`: intercept and weights Normal(0, 1). Where the noise hides a coefficient, its
    posterior is the prior, and `estimate` is near 0: it predicts no worse than the middle of the target's bounds but for chance.

    Args:
        rng_key: `discreet.random.key()`, for this fit alone.
        x: Features of about unit size.
        y: Targets in [-1, 1].
        plan: The plan of the fit.
        person: Name of the column that identifies persons, if each record is all that one person has.
        ledger: The table's budget, debited before the first release.

    Returns:
        The posterior.

    Raises:
        ValueError, TypeError: Wrong input, before anything is spent.
        SpentError: The ledger does not hold it.
        PrivacyError: A release could not be proved.
        UseWarning: A warning, where the noise hides the line; as an error it has the fit as `partial_result`.

    >>> import numpy as np, discreet as dp
    >>> from discreet.methods.moments import MomentsPlan, fit_moments
    >>> x = np.random.default_rng(0).uniform(-1, 1, (20_000, 2))
    >>> plan = MomentsPlan.calibrate(epsilon=1.0, delta=1e-6, num_features=2, num_records=20_000)
    >>> found = fit_moments(dp.random.key(), x, x @ [0.5, -0.3], plan)
    >>> bool(np.abs(found.mean - [0, 0.5, -0.3]).max() < 0.05)
    True

    Reference:
        Bernstein and Sheldon, Differentially private Bayesian linear regression, NeurIPS 2019.
    """
    refuse_traced("fit_moments")
    one_process("fit_moments", [x, y])
    key = random.check_key(rng_key)
    rows = np.asarray(x, np.float64)
    target = np.asarray(y, np.float64)
    if rows.ndim != 2 or target.shape != rows.shape[:1] or rows.shape[1] != plan.num_features or not len(rows):
        raise ValueError(
            f"x and y have the shapes {rows.shape} and {target.shape}: pass (record, {plan.num_features}) and (record,), as in "
            "the plan."
        )
    plan.check_size(len(rows))
    act = Act.on(plan, key, random.Purpose.MOMENTS, ledger=ledger, unit=Unit(person))
    # XLA compiles a loop of one turn otherwise.
    table = in_turns([rows, target], max(2, turns_for(len(rows), TURN)), TURN)
    releases = zip(KINDS, plan.stddevs, strict=True)
    queries = [Query(Sum(kind), Gaussian(noise, noise), plan.relation, records=(1, 2, 3)) for kind, noise in releases]
    programs = [query.certificate(act.key, *table, *_start(plan)) for query in queries]
    act.prove(*programs, named=False)  # their fingerprints follow the number of records
    act.begin()
    keys = jax.random.split(act.key, len(programs))
    wide, found, last = _measure(programs, keys, table, plan)
    paid = act.statement
    statement = paid.with_use(*use_of(wide, found, last))
    back = np.linalg.inv(last.to)
    squares = np.einsum("ji,jk,ki->i", back, last.features, back)
    result = MomentsResult(
        wide.mean,
        wide.covariance,
        cautious(found, last),
        found.seen,
        found.spread,
        mean_squares=squares[1:] / max(squares[0], last.noise),
        plan=plan,
        statement=statement,
    )
    warn_of_use(result, paid, stacklevel=3)
    return result


def _flatness(plan: MomentsPlan) -> float:
    """How many times shorter than 1 whitened rows are on average: the shorter, the more the weights are alike.

    Where the line is not the mean of the target, other weights fit another line. With rows of length 1 it was up to five
    standard errors from least squares on public tables, with rows of length 1/3 up to two; noise widens intervals by a tenth
    more. Shorter rows are harder to see under the noise, so they are so short only where there are many; residuals are clipped
    later there, too.
    """
    size = plan.num_features + 1
    edge = plan.stddevs[1] * math.sqrt(2 * size)
    # An eigenvalue is N / size / (1 + flatness^2 / 2), about.
    seen = plan.num_records / size / (_SEEN * edge)
    return math.sqrt(np.clip(2 * (seen - 1), 1, _FLATTEST**2))


def _start(plan: MomentsPlan) -> tuple[np.ndarray, np.ndarray, np.float64]:
    """The map, the line and the width of the first release."""
    diagonal = [_INTERCEPT, *np.ones(plan.num_features)]
    return np.diag(diagonal), np.zeros(len(diagonal)), np.float64(1 / math.sqrt(SHARE_OF_TARGET))


def _measure(
    programs: list[Certificate], keys: Any, table: Sequence[np.ndarray], plan: MomentsPlan
) -> tuple[Posterior, Posterior, Measurement]:
    """The releases, each read before the next.

    Returns:
        The posterior under the wide prior, that under the prior of unknown scale, and the last release of products.
    """
    size = plan.num_features + 1
    total = plan.num_records * whole(plan.num_features)
    to, line, width = _start(plan)
    cut = math.inf
    flatness = _flatness(plan)
    rare = None
    wide, found = (Posterior.before(size, scales) for scales in (WIDE, SCALES))
    planned = list(zip(programs, keys, plan.stddevs, strict=True))
    for (program, key, noise), share, floor in zip(planned[:PRODUCTS], SHARES, FLOORS, strict=False):
        moments = np.asarray(program(key, *table, to, line, np.float64(width)), np.float64)
        known = {"noise": noise, "share": share / (1 - SHARES[PRODUCTS])}
        release = Measurement.of(moments, total, to=to, line=line, width=width, cut=cut, **known)
        wide = wide.after(release, WIDE)
        found = found.after(release, SCALES)
        # Residuals have this variance around the line found so far, on average over the records.
        back = np.linalg.inv(to)
        unsure = np.trace(release.features @ back @ found.covariance @ back.T)
        around = found.variance + unsure / release.weight
        second = release.features
        if rare is None:  # the squares of such columns may be so large
            hidden = _HIDDEN * noise
            sums = np.maximum(np.abs(second[0]), np.diag(second))
            rare = np.where((sums < hidden) & (np.arange(size) > 0), hidden, 0)
        else:
            second = second + to.T @ (rare[:, None] * to)
        eigenvalues, eigenvectors = np.linalg.eigh(second)
        least = floor * noise * math.sqrt(2 * size)
        stretched = eigenvectors * np.sqrt(release.weight / (np.maximum(eigenvalues, 0) + least) / size)
        even = to @ stretched @ eigenvectors.T
        to = even / flatness
        line = found.mean
        # No residual is longer than the target's bound and the line's largest value.
        longest = 1 + min(1.0, np.abs(line).sum())
        cut = (_WIDTH + min(flatness, _LATEST) - 1) * math.sqrt(around)
        width = min(longest, cut) / math.sqrt(SHARE_OF_TARGET)
        cut = cut if cut < longest else math.inf
    program, key, noise = planned[PRODUCTS]
    lengths = np.asarray(program(key, *table, even, line, np.float64(1)), np.float64)
    into = np.linalg.inv(release.to) @ even
    curvature = into.T @ release.features @ into * release.total / release.weight
    least = found.variance * np.trace(curvature)
    of_gradients = plan.noise_multiplier / math.sqrt(sum(SHARES[PRODUCTS + 1 :]))
    reach, squares = reach_of(lengths, noise, of_gradients, size, least, plan.num_records)
    seen = float(np.trace(curvature))  # 0 where noise hides all products: then gradients tell nothing
    variance = squares / seen if seen else found.variance
    last = LastStage(release, even, curvature, variance)
    start = found
    start_wide = wide
    for program, key, noise in planned[PRODUCTS + 1 :]:
        value = np.asarray(program(key, *table, even, line, np.float64(reach)), np.float64)
        last.points.append(np.linalg.inv(even) @ line)
        last.values.append(value * reach)
        last.noise = noise * reach
        if not seen:
            continue
        wide = last.posterior(start_wide, WIDE)
        found = last.posterior(start, SCALES)
        line = found.mean
    return wide, found, release
