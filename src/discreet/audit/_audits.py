"""Audits: run a program many times on two neighbouring tables, and attack its releases.

`audit_mechanism` audits any program; `audit_fit` passes it the private step of a fit on two tables; `worst_case` makes the two
tables on which a plan's step reveals the most about one record. `audit_one_run` needs a single run with many canaries, which
`canary_fit` provides. The attacker uses scores: those of the caller (such as a likelihood ratio), and those that
`learned_scores` learns from the first half of the runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoDelta
from scipy import special, stats
from tqdm.auto import tqdm

from discreet import random
from discreet._validate import choice, fraction, integer, is_real, probability, real
from discreet.accounting import PrivacyProfile, Relation, profile as profile_of, pure_event, relation_name, suggest
from discreet.audit._verdict import Claim, Verdict, claimed_epsilon, judge, one_run_epsilon
from discreet.inference import DPSGLD, DPSVI, OnePosteriorSample, releases_of
from discreet.plan import PrivacyPlan

# --- scores learned from the first half of the runs ---------------------------------------


Released = Float[np.ndarray, "run *release"]
Score = Callable[[Released], Float[np.ndarray, " run"]]


def learned_scores(present: Released, absent: Released) -> dict[str, Score]:
    """Learn scores from the releases of the first half of the runs; axes: runs, then steps if there are two more axes.

    "direction": along the difference of the two means, each number divided by its variance: the best score for
    independent Gaussian noise and a canary that adds a constant. "spread": how far apart the steps lie in the direction
    of their mean difference, which shows noise that is drawn once for all steps.
    """
    there, gone = _steps(present), _steps(absent)
    fine = [x[_finite(x)] for x in (there, gone)]
    # Runs that are not finite are classified by that alone: to the side that has more of them.
    odd = np.inf if len(fine[0]) / len(there) <= len(fine[1]) / len(gone) else -np.inf
    if not all(len(x) for x in fine):
        return {"direction": _whole(lambda x: np.zeros(len(x)), odd)}
    apart = fine[0].mean(axis=0) - fine[1].mean(axis=0)
    variance = (fine[0].var(axis=0) + fine[1].var(axis=0)) / 2
    weights = _weights(apart, variance)
    common = _weights(apart.mean(axis=0), variance.mean(axis=0))
    scores = {"direction": _whole(lambda x: np.einsum("rsk,sk->r", x, weights), odd)}
    if there.shape[1] > 1:
        scores["spread"] = _whole(lambda x: np.ptp(x @ common, axis=1), odd)
    return scores


def _steps(released: Released) -> Float[np.ndarray, "run step number"]:
    wide = np.asarray(released, np.float64)
    return wide.reshape(len(wide), wide.shape[1] if wide.ndim > 2 else 1, -1)


def _finite(x: Float[np.ndarray, "run step number"]) -> Bool[np.ndarray, " run"]:
    return np.asarray(np.isfinite(x).all(axis=(1, 2)))


def _weights(apart: np.ndarray, variance: np.ndarray) -> np.ndarray:
    # Numbers without noise get a large weight if they differ, and none if they do not.
    floor = 1e-12 * max(float(np.max(np.square(apart), initial=0.0)), 1e-300)
    return apart / np.maximum(variance, floor)


def _whole(score: Callable[[Any], np.ndarray], odd: float) -> Score:
    def of(released: Released) -> np.ndarray:
        steps = _steps(released)
        fine = _finite(steps)
        return np.where(fine, score(np.where(fine[:, None, None], steps, 0.0)), odd)

    return of


# --- any program --------------------------------------------------------------------------


Program = Callable[[PRNGKeyArray], Any]
_AT_ONCE = 1024
_MOST_BYTES = 2**32


def audit_mechanism(
    with_canary: Program,
    without_canary: Program,
    *,
    claim: Claim | float,
    delta: float,
    runs: int = 4000,
    confidence: float = 0.99,
    seed: int = 0,
    scores: Mapping[str, Score] | None = None,
    relation: Relation | None = None,
    target: str = "a mechanism",
    progress_bar: bool = True,
) -> Verdict:
    """Compute a lower bound on the ε of a program, from many runs on each of two neighbouring tables.

    Guarantee: since runs are independent, the lower bound exceeds the program's ε at `delta` with probability at most
    1 - confidence, for any scores. The runs' keys follow from `seed`: another seed is another audit, and the best of many audits
    is not a valid audit. With a claim for all δ, the attacker's rates are also compared with the whole claim.

    A score and a threshold, in one of the two directions, are chosen on the first half of the runs; Clopper-Pearson bounds on
    the rates of that one test, from the second half, give ε >= log((TPR - δ) / FPR).

    Args:
        with_canary: Function from a key to the release with the canary in the table: an array, or a tree of arrays. JAX traces
            it; it is mapped over keys, or called in a loop if it contains a mechanism that refuses `vmap`.
        without_canary: The same on the neighbouring table.
        claim: The claim: a `PrivacyPlan`, a `PrivacyProfile`, or the ε at `delta`.
        delta: The δ to audit at; 0 for a pure ε.
        runs: Releases from each table; half of them choose the test. No ε above about log(runs / 11) can be shown.
        confidence: Such as 0.99.
        seed: Any integer.
        scores: Further scores by name, each from released values (run, ...) to a number per run; added to those learned from
            the first half of the runs. A score may not use one run to score another.
        relation: By default the claim's, or ADD_OR_REMOVE_ONE.
        target: Description of the audited program.
        progress_bar: Show progress after two seconds.

    Raises:
        TypeError, ValueError: Arguments that do not make an audit.

    Reference:
        Jagielski, Ullman and Oprea, Auditing differentially private machine learning, NeurIPS 2020.

    >>> import jax, jax.numpy as jnp, discreet as dp
    >>> from discreet.audit import audit_mechanism
    >>> def noisy(total):
    ...     return lambda key: dp.gaussian_mechanism(key, jnp.float32(total), stddev=4.0)
    >>> audit_mechanism(noisy(1.0), noisy(0.0), claim=1.0, delta=1e-5, runs=200).contradicted
    False
    """
    check_options(claim, delta, runs, confidence)
    with progress(2 * runs, progress_bar) as done:
        # The two sides use different keys.
        sides = enumerate((with_canary, without_canary))
        present, absent = (repeated(program, seed, side, runs, done) for side, program in sides)
    return verdict_of(
        present,
        absent,
        claim=claim,
        delta=delta,
        confidence=confidence,
        scores=scores,
        relation=relation,
        target=target,
    )


def verdict_of(
    present: Float[np.ndarray, "run *release"],
    absent: Float[np.ndarray, "run *release"],
    *,
    claim: Claim | float,
    delta: float,
    confidence: float,
    scores: Mapping[str, Score] | None,
    relation: Relation | None,
    target: str,
) -> Verdict:
    """Judge releases with the canary and without it, as `audit_mechanism` does."""
    half = len(present) // 2
    every = {**learned_scores(present[:half], absent[:half]), **(scores or {})}
    sides = ({name: np.asarray(score(x)) for name, score in every.items()} for x in (present, absent))
    rates = judge(*sides, delta=delta, confidence=confidence)
    whole = claim.profile() if isinstance(claim, PrivacyPlan) else claim
    return Verdict(
        target=target,
        epsilon_lower=rates.epsilon(delta),
        claimed_epsilon=claimed_epsilon(claim, delta),
        delta=delta,
        confidence=confidence,
        runs=len(present) + len(absent),
        relation=(relation or getattr(claim, "relation", Relation.ADD_OR_REMOVE_ONE)).name,
        score=f"{rates.score}; the attacker says {rates.says!r}",
        power=rates.true_positive_rate,
        false_alarm=rates.false_positive_rate,
        allowed_power=float(whole.true_positive_rate(rates.false_positive_rate))
        if isinstance(whole, PrivacyProfile)
        else math.nan,
        mu_lower=rates.mu,
        evidence={"right": rates.caught, "wrong": rates.false_alarms, "of": rates.trials},
    )


def check_options(claim: Any, delta: float, runs: int, confidence: float) -> None:
    """Refuse arguments that do not make an audit, before anything is run."""
    if not (is_real(claim) or callable(getattr(claim, "epsilon", None))):
        raise TypeError(
            f"claim is a {type(claim).__name__}; pass the claimed guarantee: a PrivacyPlan, a PrivacyProfile, or the "
            "epsilon at delta as a number (infinity for none)."
        )
    if is_real(claim):
        real("claim", claim, 0.0, math.inf)
    fraction("delta", delta, hint="It should be well below 1 / number of records.")
    integer("runs", runs, least=20, hint="Thousands are needed to show an epsilon of 4.")
    probability("confidence", confidence, hint="0.99 is a common choice.")


@contextmanager
def progress(total: int, shown: bool) -> Iterator[Callable[[int], Any]]:
    """A progress bar over runs, shown after two seconds."""
    with tqdm(
        total=total, disable=None if shown else True, delay=2.0, unit="run", desc="audit", mininterval=0.2
    ) as bar:
        yield lambda count: bar.update(count)


def repeated(
    program: Program, seed: int, side: int, runs: int, done: Callable[[int], Any] = lambda count: None
) -> Float[np.ndarray, "run *release"]:
    """Run a program with many keys: one compiled program, a thousand keys at a time."""
    keys = jax.random.split(jax.random.fold_in(random.key(seed), side), runs)
    # A program that is a pytree has its table as a leaf: two tables of one shape are then compiled once.
    program = program if isinstance(program, Partial) else Partial(program)
    size = math.prod(jax.eval_shape(_flat, program, keys[0]).shape) * 4
    if size * 2 * runs > _MOST_BYTES:
        raise ValueError(
            f"{runs} runs from each table release {size * 2 * runs / 2**30:.3g} GiB, more than an audit keeps. Make fewer runs, "
            "audit fewer steps, or release less; the rest is not audited."
        )
    together = min(runs, _AT_ONCE, max(1, 2**28 // max(size, 1)))
    try:
        jax.eval_shape(_mapped, program, keys[:together])
        whole = _mapped
    except TypeError:
        whole = _looped  # a program that fails for another reason than `vmap` also fails here
    found = []
    for start in range(0, runs, together):
        # The last call has the size of the others, so nothing is compiled again.
        first = min(start, runs - together)
        found.append(np.asarray(whole(program, keys[first : first + together]))[start - first :])
        done(len(found[-1]))
    return np.concatenate(found)


def _flat(program: Program, key: PRNGKeyArray) -> Array:
    leaves = jax.tree.leaves(program(key))
    if len(leaves) == 1:
        return jnp.asarray(leaves[0], jnp.float32)
    return jnp.concatenate([jnp.asarray(x, jnp.float32).ravel() for x in leaves])


@jax.jit
def _mapped(program: Partial, keys: PRNGKeyArray) -> Array:
    return jax.vmap(lambda key: _flat(program, key))(keys)


@jax.jit
def _looped(program: Partial, keys: PRNGKeyArray) -> Array:
    return jax.lax.map(lambda key: _flat(program, key), keys)


# --- a fit: its private step, on a table with the canary and on one without ---------------


def audit_fit(
    method: DPSVI | DPSGLD | OnePosteriorSample,
    with_canary: Sequence[Any],
    without_canary: Sequence[Any],
    *,
    delta: float | None = None,
    runs: int = 4000,
    confidence: float = 0.99,
    seed: int = 0,
    scores: Mapping[str, Score] | None = None,
    init_params: Mapping[str, Any] | None = None,
    target: str | None = None,
    progress_bar: bool = True,
) -> Verdict:
    """Compute a lower bound on the ε of a fit, to compare with its plan, from many short fits of two neighbouring tables.

    It runs the fit's own step, sampler and noise (`inference.releases_of`), mapped over keys. The attacker sees all releases of
    a fit: the noisy gradient and the private loss of each step. **Use artificial tables**: an audit does not protect them, and
    its keys are derived from a seed.

    The bound is close to the claim if the neighbours saturate the clipping; `worst_case` makes such tables. For your own model,
    a good canary is a record whose gradient has norm C and differs from all others.

    Args:
        method: `DPSVI` or `DPSGLD` with the audited plan; or `OnePosteriorSample`, of which one draw is audited: each call of
            its `run` returns `num_draws` of them.
        with_canary: Arguments of `run`: arrays with the records, including the canary.
        without_canary: The same for the neighbouring table: one record less under ADD_OR_REMOVE_ONE, one replaced under
            REPLACE_ONE. If the arrays have one length, the caller must make sure that they are neighbours.
        delta: The δ to audit at; None: the plan's, or a cautious choice; 0 for one posterior sample.
        runs: Fits of each table.
        confidence: As in `audit_mechanism`.
        seed: Likewise.
        scores: Likewise; from released values (run, step, number).
        init_params: As in `DPSVI.run`.
        target: Description of the audited fit.
        progress_bar: Show progress after two seconds.

    Raises:
        TypeError, ValueError: Tables that are not neighbours, or errors of `run` and `audit_mechanism`.
    """
    if not isinstance(method, DPSVI | DPSGLD | OnePosteriorSample):
        raise TypeError(
            f"method is a {type(method).__name__}; pass a DPSVI, DPSGLD or OnePosteriorSample. Audit other programs with "
            "audit_mechanism, as functions of a key."
        )
    with_canary, without_canary = tuple(with_canary), tuple(without_canary)
    relation = method.relation if isinstance(method, OnePosteriorSample) else method.plan.relation
    _check_neighbours(with_canary, without_canary, relation.name)
    if isinstance(method, OnePosteriorSample):
        if scores or init_params:
            raise ValueError("One posterior sample has neither initial values nor steps; omit scores and init_params.")
        claim, delta = profile_of(pure_event(method.epsilon / method.num_draws), relation), delta or 0.0
        what = "OnePosteriorSample, one draw"
    else:
        claim = plan = method.plan
        if delta is None:
            delta = suggest(num_records=plan.num_records).delta if plan.target_delta is None else plan.target_delta
        what = f"{type(method).__name__}, {plan.sampling!r}, {plan.num_steps} steps"
    check_options(claim, delta, runs, confidence)
    programs: list[Callable[..., np.ndarray]] = []
    for args in (with_canary, without_canary):
        if isinstance(method, OnePosteriorSample):
            programs.append(partial(_draws, method, args))
        else:
            programs.append(partial(repeated, releases_of(method, *args, init_params=init_params)))
    with progress(2 * runs, progress_bar) as done:
        present, absent = (run(seed, side, runs, done) for side, run in enumerate(programs))
    return verdict_of(
        present,
        absent,
        claim=claim,
        delta=delta,
        confidence=confidence,
        scores=scores,
        relation=relation,
        target=target or what,
    )


def _draws(
    method: OnePosteriorSample, args: Sequence[Any], seed: int, side: int, runs: int, done: Callable[[int], None]
) -> np.ndarray:
    """The last states of chains, as `run` releases them; the chains of one call run together."""
    key, found, count = jax.random.fold_in(random.key(seed), side), [], 0
    while count < runs:
        draws = method.run(jax.random.fold_in(key, count), *args, progress_bar=False).draws
        found.append(np.concatenate([x.reshape(len(x), -1) for x in draws.values()], axis=1))
        count += len(found[-1])
        done(len(found[-1]))
    return np.concatenate(found)[:runs]


def _check_neighbours(with_canary: Sequence[Any], without_canary: Sequence[Any], relation: str) -> None:
    """Refuse tables whose lengths rule out that they are neighbours."""
    lengths = [{np.shape(x)[0] for x in jax.tree.leaves(side) if np.ndim(x)} for side in (with_canary, without_canary)]
    if any(len(x) != 1 for x in lengths):
        raise ValueError(
            "with_canary and without_canary are the arguments of run, such as (xs, ys): arrays of equally many rows each. "
            f"These have {sorted(lengths[0])} and {sorted(lengths[1])} rows."
        )
    there, gone = (x.pop() for x in lengths)
    more = 1 if relation == "ADD_OR_REMOVE_ONE" else 0
    if there - gone != more:
        raise ValueError(
            f"The tables have {there} records with the canary and {gone} without, but neighbours with "
            f"{relation_name(relation, 'record')} have {'one more' if more else 'as many'} with it. Other tables would "
            "contradict a true claim."
        )


# --- worst-case neighbours for the private step -------------------------------------------


# In units of C: far beyond the clipping norm, so that missing clipping shows.
_STRONG = 1e6
_FLAT = 1e4
_FAR = 1e3
_METHODS = ("DPSVI", "DPSGLD")


def pulled(pull: Any) -> None:
    """A model whose gradient for a record is that record."""
    theta = numpyro.sample("theta", dist.Normal(0.0, _FLAT).expand([pull.shape[1]]).to_event(1))
    with numpyro.plate("records", pull.shape[0]):
        numpyro.factor("pull", -(pull @ theta))


@dataclasses.dataclass(frozen=True, eq=False)
class WorstCase:
    """Two neighbouring tables and the audited fit of them; made by `worst_case`.

    Attributes:
        method: A `DPSVI` or a `DPSGLD` of a model that each record pulls in its own direction.
        with_canary: Arguments of `run`; the canary is record 0.
        without_canary: The same for the neighbour.
        scores: The likelihood ratio of the two cases, the optimal attack if the step is correct; empty with an adaptive
            clipping norm.
    """

    method: DPSVI | DPSGLD
    with_canary: tuple[Float[np.ndarray, "record dim"]]
    without_canary: tuple[Float[np.ndarray, "record dim"]]
    scores: dict[str, Score]

    def audit(self, **options: Any) -> Verdict:
        """Audit it with `audit_fit` and its options."""
        return audit_fit(self.method, self.with_canary, self.without_canary, scores=self.scores, **options)


def worst_case(plan: PrivacyPlan, method: str = "DPSVI", *, others: int = 7, loss_share: float = 0.0) -> WorstCase:
    """Make neighbours that saturate a plan: the canary's gradient has norm 1e6 C, in its own direction.

    The other records have gradient zero, except with batches of fixed size: there they all pull against the canary, so that a
    record drawn in its place is as far from it as possible.

    Args:
        plan: The audited plan. Its number of steps should be small.
        method: "DPSVI" or "DPSGLD".
        others: Number of records beside the canary, under ADD_OR_REMOVE_ONE: the guarantee covers tables of any length, and in
            short ones a batch is far from its expected size. Under REPLACE_ONE there are `plan.num_records` records in all.
        loss_share: The private loss's share of the release, as in `DPSVI`. Above 0 the canary's loss exceeds its bound, too, and
            only learned scores are used.

    Raises:
        ValueError: An unknown method, or no record beside the canary.

    Reference:
        Nasr, Song, Thakurta, Papernot and Carlini, Adversary instantiation, IEEE S&P 2021 (gradient canaries).
    """
    integer("others", others, hint="The table without the canary needs a record.")
    _refuse_unknown_sampler(plan)
    against = plan.sampling.constant_size
    replaced = plan.relation is Relation.REPLACE_ONE
    rows = (plan.num_records if replaced else others + 1) - 1
    strong = np.float32(_STRONG * plan.clipping.start)
    rest = np.full((rows, 1), -strong if against else 0.0, np.float32)
    canary = np.full((1, 1), strong, np.float32)
    there = np.concatenate([canary, rest])
    gone = np.concatenate([-canary, rest]) if replaced else rest
    scores: dict[str, Score] = {}
    if not plan.clipping.adapts and loss_share == 0:
        scores["likelihood ratio"] = lambda released: log_ratio(plan, released[:, :, 0]).sum(axis=1)
    return WorstCase(_method(plan, method, 1, loss_share), (there,), (gone,), scores)


def canary_fit(
    plan: PrivacyPlan, num_canaries: int, method: str = "DPSVI"
) -> Callable[[int, Bool[np.ndarray, " canary"]], Float[np.ndarray, " canary"]]:
    """Make one fit of a table of many canaries, for `audit_one_run`: each has its own direction, and a gradient norm above C.

    Args:
        plan: The audited plan, under ADD_OR_REMOVE_ONE and with a fixed clipping norm.
        num_canaries: Number of canaries, and of the fit's parameters.
        method: "DPSVI" or "DPSGLD".

    Returns:
        A function from a seed and the Boolean membership of each canary to a score for each: the log-likelihood ratio.

    Raises:
        ValueError: A plan for another relation, or with an adaptive clipping norm.
    """
    if plan.relation is not Relation.ADD_OR_REMOVE_ONE or plan.clipping.adapts:
        raise ValueError(
            "Present and absent canaries are neighbours if one record is added or removed, and their scores need a fixed "
            "clipping norm. Audit such a plan, or use worst_case."
        )
    _refuse_unknown_sampler(plan)
    fit = _method(plan, method, num_canaries, 0.0)
    pulls = np.eye(num_canaries, dtype=np.float32) * np.float32(_STRONG * plan.clipping.start)

    def run(seed: int, included: Bool[np.ndarray, " canary"]) -> Float[np.ndarray, " canary"]:
        # One record without a gradient, so that the table is never empty.
        table = np.concatenate([pulls[included], np.zeros((1, num_canaries), np.float32)])
        released = np.asarray(releases_of(fit, table)(random.key(seed)), np.float64)
        # Beside the gradient stand the counts, which say nothing about single canaries.
        return log_ratio(plan, released[:, :num_canaries]).sum(axis=0)

    return run


def _refuse_unknown_sampler(plan: PrivacyPlan) -> None:
    if not (plan.sampling.independent or plan.sampling.constant_size):
        raise TypeError(
            f"sampling is {plan.sampling!r}; worst cases are known where records are drawn independently or batches have a "
            "constant size, as of PoissonSampling, FixedSizeSampling and FullBatch. Audit a fit with another sampler by "
            "audit_fit, on neighbours of your own."
        )


def _method(plan: PrivacyPlan, method: str, dim: int, loss_share: float) -> DPSVI | DPSGLD:
    choice("method", method, _METHODS)
    # At the origin the canary would have no loss; far from it, a large one of a known sign.
    start = np.full(dim, _FAR * max(1.0, plan.clipping.start) if loss_share else 0.0, np.float32)
    begin = init_to_value(values={"theta": start})
    if method == "DPSVI":
        guide = AutoDelta(pulled, init_loc_fn=begin)
        return DPSVI(pulled, guide, numpyro.optim.SGD(plan.rate), plan=plan, loss_share=loss_share)
    # The largest step that still fits the release's noise.
    size = (2 * plan.rate / (plan.clipping.start * plan.noise_multiplier)) ** 2
    step_size = (size, 1.0, 0.0)
    return DPSGLD(pulled, plan=plan, step_size=step_size, init_loc_fn=begin, loss_share=loss_share)


def log_ratio(plan: PrivacyPlan, released: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Log-likelihood ratio of each noisy gradient of the worst case: with the canary against without it."""
    _refuse_unknown_sampler(plan)
    q, norm = plan.rate, plan.clipping.start
    if plan.sampling.constant_size:
        full = plan.sampling.capacity(plan.num_records) * norm
        present, absent = ((1 - q, -full), (q, 2 * norm - full)), ((1.0, -full),)
    elif plan.relation is Relation.REPLACE_ONE:
        present, absent = ((1 - q, 0.0), (q, norm)), ((1 - q, 0.0), (q, -norm))
    else:
        present, absent = ((1 - q, 0.0), (q, norm)), ((1.0, 0.0),)
    # The counts have their share of the release, so the noise on the gradient is a little more.
    stddev = plan.noise_multiplier * norm / math.sqrt(1 - plan.clipping.count_share)
    top, bottom = (_log_density(mixture, released, stddev) for mixture in (present, absent))
    return top - bottom


def _log_density(mixture: Any, x: np.ndarray, stddev: float) -> np.ndarray:
    parts = [np.log(weight) + stats.norm.logpdf(x, mean, stddev) for weight, mean in mixture if weight > 0]
    return np.asarray(special.logsumexp(parts, axis=0))


# --- one run: many canaries, each included by its own coin, and guesses about the coins ----


Scored = Callable[[int, Bool[np.ndarray, " canary"]], Float[np.ndarray, " canary"]]


def audit_one_run(
    run: Scored,
    num_canaries: int,
    *,
    claim: Claim | float,
    delta: float,
    guesses: int | None = None,
    confidence: float = 0.99,
    seed: int = 0,
    target: str = "one run",
) -> Verdict:
    """Compute a lower bound on ε from a single run, for fits that are too expensive to repeat thousands of times.

    A fair coin decides whether each canary is in the table. After the run the attacker guesses "in" for the half of `guesses`
    with the highest scores and "out" for the half with the lowest, and abstains on the others; Theorem 5.2 of the reference
    bounds the number of correct guesses.

    Guarantee: the lower bound exceeds the program's ε at `delta` with probability at most 1 - confidence, if the scores depend
    on the canaries' coins only through the program's releases. It is looser than many runs: it does not bound the best attack.

    Args:
        run: Function from a seed, for the program's own key, and the Boolean membership of each canary to one score per canary,
            higher if it seems to be in. `canary_fit` makes one for a plan; for your own model, use the alignment of each
            canary's gradient with the released ones.
        num_canaries: m.
        claim: A plan or profile, or the ε at `delta`; for records added or removed.
        delta: The δ to audit at. It enters the bound multiplied by m.
        guesses: Number of guesses, chosen beforehand; None: a fifth of the canaries, and at least ten.
        confidence: Such as 0.99.
        seed: Any integer; coins and run follow from it.
        target: Description of the audited program.

    Raises:
        TypeError, ValueError: Arguments that do not make an audit, or invalid scores.

    Reference:
        Steinke, Nasr and Jagielski, Privacy auditing with one (1) training run, NeurIPS 2023, Algorithm 1 and Theorem 5.2.
    """
    check_options(claim, delta, 20, confidence)
    integer("num_canaries", num_canaries, least=10, hint="A thousand are needed to show an epsilon of 3.")
    guesses = min(num_canaries, max(10, num_canaries // 5)) if guesses is None else guesses
    integer("guesses", guesses, least=2, most=num_canaries)
    relation = getattr(claim, "relation", Relation.ADD_OR_REMOVE_ONE)
    if relation is not Relation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            f"The claim is for {relation_name(relation.name, 'record')}, but present and absent canaries differ by a record "
            "added or removed. Pass a claim under Relation.ADD_OR_REMOVE_ONE (--relation add-or-remove-one)."
        )
    coins, own = np.random.SeedSequence(abs(int(seed))).spawn(2)
    included = np.random.default_rng(coins).random(num_canaries) < 0.5
    scores = np.asarray(run(int(own.generate_state(1)[0]), included), np.float64)
    if scores.shape != (num_canaries,) or np.isnan(scores).any():
        raise ValueError(
            f"run returned scores of shape {scores.shape}; it must return one number for each of {num_canaries} canaries."
        )
    order = np.argsort(scores, kind="stable")
    low, high = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    correct = int(included[high].sum() + (~included[low]).sum())
    return Verdict(
        target=target,
        epsilon_lower=one_run_epsilon(num_canaries, guesses, correct, delta, confidence),
        claimed_epsilon=claimed_epsilon(claim, delta),
        delta=delta,
        confidence=confidence,
        runs=1,
        relation=relation.name,
        score="the canaries' own",
        evidence={"canaries": num_canaries, "guesses": guesses, "right": correct},
    )
