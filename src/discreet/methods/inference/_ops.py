"""One posterior sample: a draw from a tempered posterior is private by itself, if it is exact.

The log-likelihood of one record is bounded, and the posterior tempered so that one draw is
epsilon-differentially private. Draws are exact for some models (`_exact`); elsewhere NUTS chains
stand in for them, and nothing but their last states comes out.

`_tempering` bounds the log density as computed, `_chains` runs the chains.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from discreet._jax import one_release
from discreet._validate import integer, is_real, positive, real
from discreet.methods.inference._chains import Diagnostics, diagnose, run_chains
from discreet.methods.inference._dpsvi import explain_steps
from discreet.methods.inference._elbo import Objective
from discreet.methods.inference._exact import MOST_EXACT, SPACING, ExactSampler
from discreet.methods.inference._points import objective_of_points
from discreet.methods.inference._records import (
    Program,
    Records,
    check_public,
    refuse_tables,
    take_apart,
)
from discreet.methods.inference._support import refuse_outside_support
from discreet.methods.inference._tempering import (
    MOST_RECORDS,
    DrawsPlan,
    TemperedPosterior,
    Tempering,
    project_records,
)
from discreet.methods.inference_data import to_arviz
from discreet.privacy import random
from discreet.privacy.accounting import Relation, neighbours
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.released import KEPT_NOWHERE, Released
from discreet.privacy.report import Statement, Unit, make_release_statement

_INEXACT = (
    "The distance between the sampler and the posterior. ε holds for exact draws; these are the last states of Markov chains "
    "(NumPyro's NUTS), whose law is only near the posterior. Who grants a total variation TV between the two, for every table, "
    "has in addition δ = (1 + e^ε) × the number of draws × TV (OPSResult.delta_granting). Diagnostics of the chains cannot show "
    "a TV as small as a δ should be.",
    "The granularity of floating-point numbers: ε includes the rounding of the log density, but the chains move by "
    "rounded steps, in 64 bits, and a draw is released in 32. Which numbers can come out at all may say something about the "
    "records.",
    "The time that the chains take, which depends on the records.",
)
_NEAR = "ε is for exact draws of the posterior. These are the last states of Markov chains, which are only near it."
_EXACT = (
    "The time that the draws take: the number of trials of rejection sampling depends on the records. It has no limit: whether "
    "the draws end while somebody waits depends on them, too.",
)
_MOST_TRIALS = 1e7


def state_draws(
    ops: OnePosteriorSample, num_records: int, reproducible: bool, unit: Unit
) -> Statement:
    """The statement of all draws of a OnePosteriorSample."""
    tempering = ops.plan.tempering
    replace = not neighbours(ops.relation).hides_membership
    public = [
        "the model, with all numbers written into it",
        f"shapes and dtypes of a single {unit.noun}'s arrays",
    ]
    if replace:
        public.append(f"the number of {unit.noun}s, N = {num_records}")
    public += ["the bound on log-likelihoods, the power, and all settings of the sampler"]
    public += [f"the argument {name}" for name in ops.static_kwargs]
    facts: dict[str, Any] = {
        "log_likelihood_low": tempering.low,
        "log_likelihood_high": tempering.high,
    }
    if ops.lipschitz is not None and ops.radius is not None:
        facts |= {"lipschitz": float(ops.lipschitz), "radius": float(ops.radius)}
    facts |= {
        "power": tempering.power,
        "epsilon_per_draw": tempering.epsilon,
        "num_draws": ops.num_draws,
    }
    if ops.exact:
        facts["exact"] = True
    else:
        facts |= {
            "num_chains": ops.num_chains,
            "num_warmup": ops.num_warmup,
            "num_samples": ops.num_samples,
        }
    if replace:
        facts["num_records"] = num_records
    return make_release_statement(
        ops.plan.event(),
        ops.relation,
        unit=unit,
        method="one posterior sample",
        mechanism=_mechanism(ops, unit.noun),
        plan=facts,
        num_releases=ops.num_draws,
        reproducible=reproducible,
        released=[
            f"{ops.num_draws} draw{'s' if ops.num_draws > 1 else ''} of the model's latents, and nothing else"
        ],
        public=public,
        not_covered=_EXACT if ops.exact else _INEXACT,
        cautions=[] if ops.exact else [_NEAR],
        exact=ops.exact,
    )


def _mechanism(ops: OnePosteriorSample, noun: str) -> str:
    tempering = ops.plan.tempering
    replace = not neighbours(ops.relation).hides_membership
    low = f"{tempering.low:.6g}"
    high = f"{tempering.high:.6g}"
    if tempering.centered:
        what = (
            f"Each {noun}'s real numbers were projected onto the ball of radius {ops.radius:g}. The difference between its "
            f"log-likelihood and that of a {noun} of zeros was clipped to [{low}, {high}] nats: for a log-likelihood that is "
            f"{ops.lipschitz:g}-Lipschitz in the {noun}, which is the user's claim, this changes nothing, and where the claim is "
            "false the bound holds all the same"
        )
    else:
        what = f"Each {noun}'s log-likelihood was clipped to [{low}, {high}] nats; one that is NaN counted as {low}"
    through = ("twice: " if replace else "") + "directly and through the normalising constant"
    times = "2 × " if replace else ""
    several = f", {ops.num_draws} times" if ops.num_draws > 1 else ""
    if ops.exact:
        how = (
            f"{several}. The draw is exact, so no approximation is in ε: it was made by rejection from a proved envelope, on a "
            f"grid of {SPACING:.3g} of the prior's standard deviations, up to 16 of them, and ε includes all rounding."
        )
    else:
        how = f"{several}, each from a chain of its own." if several else "."
    return (
        f"{what}. The sum was multiplied by {tempering.power:.6g} and added to the exact log prior density. A {noun} moves the "
        f"log density of the result {through}, by at most {times}{tempering.power:.6g} × {tempering.high - tempering.low:.6g} = "
        f"{tempering.epsilon:.6g} together. No noise was added: what is released is one draw of that distribution{how}"
    )


@dataclasses.dataclass(frozen=True)
class OPSResult(Released, what="draws of a posterior", parts=(Tempering,)):
    """The outcome of `OnePosteriorSample.run`. The draws are covered by `statement`; it holds no key.

    Attributes:
        draws: For each latent its values, constrained, with the draws along the leading axis.
        plan: The plan of all draws.
        statement: The privacy statement: a pure epsilon, of exact draws.
        non_private_diagnostics: What the chains say about themselves; None for exact draws. **Not
            private**: it is charged nowhere, shown nowhere, and not pickled (then it is None).
            Whether to publish the draws must not depend on it.
    """

    draws: dict[str, Any]
    plan: DrawsPlan
    statement: Statement
    non_private_diagnostics: Diagnostics | None = dataclasses.field(
        default=None, repr=False, compare=False, metadata=KEPT_NOWHERE
    )

    @property
    def num_draws(self) -> int:
        """The number of released draws."""
        return len(next(iter(self.draws.values())))

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, Array]:
        """Some of the released draws, without repetition, in random order; post-processing, free of budget.

        Args:
            key: Any JAX key.
            num_samples: At most `num_draws`.

        Returns:
            As `draws`, for NumPyro's `Predictive`.

        Raises:
            ValueError: More than were released, or fewer than 1.
        """
        if not 1 <= num_samples <= self.num_draws:
            raise ValueError(
                f"num_samples is {num_samples}, but {self.num_draws} draw(s) were released, and there is no fitted guide to draw "
                "more from: each further draw of the posterior costs as much epsilon as the first. Run OnePosteriorSample with "
                "a larger num_draws, or fit by DPSVI, whose posterior draws are free."
            )
        secret = random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR)
        chosen = jax.random.permutation(secret, self.num_draws)[:num_samples]
        return {name: jnp.asarray(value)[chosen] for name, value in self.draws.items()}

    def to_arviz(self, **names: Any) -> Any:
        """All released draws for ArviZ, in their order, with the statement; nothing of the diagnostics.

        Args:
            names: feature_names, coords and dims of `discreet.inference_data.to_arviz`.

        Returns:
            As `discreet.inference_data.to_arviz`.
        """
        return to_arviz(self.draws, statement=self.statement, **names)

    def delta_granting(self, total_variation: float) -> float:
        """The delta that has to be added if each draw's law is within `total_variation` of the posterior's.

        The guarantee is for exact draws. Who grants that the chains are this close, for every
        table, has (epsilon, delta) with delta = (1 + e^epsilon) * num_draws * total_variation,
        epsilon being that of all draws: once the distance from what ran to the exact draws of this
        table, and once, times e^epsilon, back from those of the neighbouring one.

        Args:
            total_variation: Between 0 and 1. It cannot be read off the chains: diagnostics see some
                hundredths at best.

        Returns:
            delta, at most 1.

        Raises:
            ValueError: total_variation is no number between 0 and 1.
        """
        real("total_variation", total_variation, 0.0, 1.0, hint="It is a distance, such as 1e-8.")
        slack = min(1.0, self.num_draws * total_variation)
        return min(1.0, (1 + math.exp(min(self.statement.epsilon, 700.0))) * slack * (1 + 1e-12))

    def __repr__(self) -> str:
        """Short repr without arrays."""
        return f"OPSResult({self.num_draws} draw(s) of {', '.join(self.draws)}, {self.statement.brief})"

    def __getstate__(self) -> dict[str, Any]:
        """Without the diagnostics, which are not private."""
        return {
            **self.__dict__,
            "draws": {n: np.asarray(x) for n, x in self.draws.items()},
            "non_private_diagnostics": None,
        }


Bound = float | tuple[float, float]
_NO_PLATE = 2**31 - 1
_RANGE = 1e-6, 1e9
# As many as accounting sums up in closed form.
_MOST_DRAWS = 1000


class OnePosteriorSample:
    """Releases draws from a posterior whose likelihood is bounded and tempered: pure epsilon, without any noise.

    Guarantee: each draw is (epsilon, 0)-private for the relation, and `num_draws` of them
    (num_draws * epsilon, 0), **if they are exact draws** of the posterior described below. With
    `exact` they are. Else they come from Markov chains, which are close to it at best;
    `OPSResult.delta_granting` says what a distance costs. No diagnostic can show a distance as
    small as a delta should be.

    Each record's log-likelihood is clipped to [-B, B] and their sum multiplied by min(1, epsilon /
    4B); the prior is exact. Under REPLACE_ONE a record then moves the log density by at most power
    * 2B directly and by as much again through the normalising constant, 4B power together. Under
    ADD_OR_REMOVE_ONE it is 2B power, and the power min(1, epsilon / 2B). A record whose
    log-likelihood is NaN counts as -B, a constant.

    With `lipschitz` and `radius` instead of a bound: each record's real numbers, all arrays
    together, are projected onto the ball of that radius R; what is clipped, to [-L R, L R], is the
    difference between the record's log-likelihood and that of the record of zeros. Where the
    log-likelihood is L-Lipschitz in the record this clips nothing, and where the claim is false it
    still holds the 4 L R of the theorem. REPLACE_ONE only.

    The draw that is released is the last state of a chain of its own: after the warm-up, when
    nothing adapts any more, each transition can only bring its law nearer to the posterior, and a
    state picked from along the chain is further off on average.

    Exact draws are made by rejection from a proved envelope, for models with at most 12 latent
    numbers whose priors are normal, and whose records have one Bernoulli or Normal observation
    each, with a predictor that is linear in the latents. Trials go on until one is accepted, so the
    time depends on the records. It is the shorter the lower the lower bound, the smaller epsilon
    and the fewer the records; where their number is public, it is refused if as many artificial
    records need 10^7 trials a draw. Interrupting it releases nothing, and what was debited stays
    debited.

    Args:
        model: A NumPyro model with proper priors and observations in a plate of the records'
            length. Latents inside that plate, `param` sites and discrete latents are refused.
        log_likelihood_bound: B in nats, or a pair (low, high) to clip to, which has the width high
            - low instead of 2B. For discrete observations, whose log-likelihood is never above 0,
            (-B, 0) costs half of B.
        epsilon: Epsilon of each draw, between 1e-5 and 500. Less is spent if power 1 already costs
            less.
        lipschitz: L, in nats per unit of distance between records.
        radius: R, in the records' units.
        num_draws: Number of draws released, each from a chain of its own. Their costs add up.
        relation: The neighbouring relation.
        exact: Make exact draws, or refuse the model. The chains' settings are then not used.
        num_warmup: Transitions of each chain that adapt the sampler.
        num_samples: Transitions of each chain after that.
        num_chains: At least 2; more are run where there are more draws.
        num_records: Public number of records, where a plate of the model declares it. None: under
            REPLACE_ONE the table's.
        placeholder: An artificial record, as for DPSVI.
        static_kwargs: Public keyword arguments of the model.

    Raises:
        ValueError, TypeError: An argument that cannot be used.

    Reference:
        Wang, Fienberg, Smola, "Privacy for free", ICML 2015 (one posterior sample, 4B and 4LR);
        Dimitrakakis et al., "Robust and private Bayesian inference", ALT 2014.

    Example:
        >>> import numpyro, numpyro.distributions as dist, discreet as dp
        >>> def model(y):
        ...     rate = numpyro.sample("rate", dist.Beta(1, 1))
        ...     with numpyro.plate("data", y.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(rate), obs=y)
        >>> ops = dp.OnePosteriorSample(model, log_likelihood_bound=(-5.0, 0.0), epsilon=1.0)
        >>> round(ops.plan.tempering.power, 4), round(ops.epsilon, 4)
        (0.1, 1.0)
    """

    def __init__(
        self,
        model: Program,
        *,
        epsilon: float,
        log_likelihood_bound: Bound | None = None,
        lipschitz: float | None = None,
        radius: float | None = None,
        num_draws: int = 1,
        relation: Relation = Relation.REPLACE_ONE,
        exact: bool = False,
        num_warmup: int = 1000,
        num_samples: int = 1000,
        num_chains: int = 4,
        num_records: int | None = None,
        placeholder: Sequence[Any] | None = None,
        **static_kwargs: Any,
    ) -> None:
        low, high = _limits(log_likelihood_bound, lipschitz, radius, relation)
        real(
            "epsilon",
            positive("epsilon", epsilon, hint="1 is a common choice."),
            1e-5,
            500.0,
            hint="Above 10 it promises little.",
        )
        self.num_draws = integer("num_draws", num_draws)
        self.num_warmup = integer("num_warmup", num_warmup)
        self.num_samples = integer("num_samples", num_samples, 10)
        self.num_chains = max(integer("num_chains", num_chains, 2), self.num_draws)
        if num_draws > _MOST_DRAWS:
            raise ValueError(
                f"num_draws is {num_draws}; of more than {_MOST_DRAWS:,} draws no pure epsilon is computed, and so many are "
                "hardly worth their price. Release fewer, or fit by DPSVI, whose posterior draws are free."
            )
        check_public(static_kwargs)
        self.model = model
        self.exact = exact
        self.lipschitz = lipschitz
        self.radius = radius
        self.num_records = num_records
        self.placeholder = placeholder
        self.static_kwargs = static_kwargs
        tempering = Tempering.for_epsilon(
            epsilon, low, high, centered=lipschitz is not None, relation=relation
        )
        self.plan = DrawsPlan(tempering, self.num_draws)
        # What cannot be accounted for is refused here.
        self.plan.event()

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.plan.relation

    @property
    def epsilon(self) -> float:
        """Pure epsilon of all draws together, if they are exact."""
        return self.plan.epsilon

    @one_release
    def run(
        self,
        rng_key: PRNGKeyArray,
        *args: Any,
        progress_bar: bool = True,
        ledger: Ledger | None = None,
        person: str | None = None,
        max_rows: int = 1,
        **kwargs: Any,
    ) -> OPSResult:
        """Draw, or run the chains on the records and release the last states of `num_draws` of them.

        All else that the chains know (starting points, steps, step sizes, the other states) stays
        inside, but for `OPSResult.non_private_diagnostics`. Ctrl-C releases nothing.

        Args:
            rng_key: `discreet.random.key()`; all that the chains draw follows from it.
            args: The model's arguments: arrays hold records along their leading axis.
            progress_bar: Show NumPyro's, without its figures on the sampler.
            ledger: The table's budget, debited before the chains run: what NumPyro compiles on the
                way is paid for.
            person: The column that identifies persons, if a record is a person and not a row; for
                the statement.
            max_rows: The most rows of a person that a record holds; for the statement.
            kwargs: As args.

        Returns:
            The draws and their statement.

        Raises:
            ValueError, TypeError: Wrong input, before any budget is spent.
        """
        key = random.check_key(rng_key)
        records = take_apart(args, kwargs, programs=(self.model,))
        if not neighbours(self.relation).hides_membership and self.num_records not in (
            None,
            records.size,
        ):
            raise ValueError(
                f"The arrays hold {records.size} records, but num_records is {self.num_records}, a public number for one "
                "record replaced. Make them agree, or leave num_records out."
            )
        if records.size > MOST_RECORDS:
            raise ValueError(
                f"There are {records.size:,} records; sums are exact up to {MOST_RECORDS:,}. Fit by DPSVI."
            )
        refuse_tables(jax.tree.leaves(self.static_kwargs), [records.size])
        random.check_unused(key)
        with explain_steps(args):
            objective, psi = self._objective(key, records)
        sampler = self._exact_sampler(objective, psi, records.size) if self.exact else None
        unit = Unit(person, max_rows)
        statement = state_draws(self, records.size, random.is_reproducible(key), unit)
        act = Act(self.plan, key, statement, ledger=ledger)
        leaves = (
            list(records.leaves)
            if self.radius is None
            else project_records(records.leaves, self.radius)
        )
        refuse_outside_support(objective, psi, [(leaves, None)])
        act.begin()
        # The draws' randomness is what hides the records, as noise is elsewhere.
        secret = random.subkey(key, random.Purpose.NOISE)
        if sampler is not None:
            drawn = sampler.draw(self.plan.tempering, leaves, secret, self.num_draws)
            return OPSResult(_values(objective, drawn, self.num_draws), self.plan, act.statement)
        chains = run_chains(
            TemperedPosterior(objective, self.plan.tempering),
            jax.eval_shape(lambda: psi),
            leaves,
            secret,
            num_chains=self.num_chains,
            num_warmup=self.num_warmup,
            num_samples=self.num_samples,
            progress_bar=progress_bar,
        )
        last = {name: x[: self.num_draws, -1] for name, x in chains.states.items()}
        return OPSResult(
            _values(objective, last, self.num_draws), self.plan, act.statement, diagnose(chains)
        )

    def _exact_sampler(self, objective: Objective, psi: Any, num_records: int) -> ExactSampler:
        """The sampler of exact draws, from public numbers."""
        tempering = self.plan.tempering
        sampler = ExactSampler.of(objective, psi, tempering)
        hidden = neighbours(self.relation).hides_membership
        public = self.num_records if hidden else num_records
        if num_records > MOST_EXACT:
            raise ValueError(
                f"There are too many records; exact draws are made of {MOST_EXACT:,} at most."
            )
        trials = 0.0 if public is None else sampler.expected_trials(public, tempering)
        if trials > _MOST_TRIALS:
            raise ValueError(
                f"exact=True would be hopeless: for {public:,} artificial records with features of length 1 a draw takes about "
                f"{trials:.0e} trials. Use a log_likelihood_bound with a lower end (its cube against epsilon times the number of "
                "records is what counts), a smaller epsilon, or Markov chains."
            )
        return sampler

    def _objective(self, key: PRNGKeyArray, records: Records) -> tuple[Objective, dict[str, Any]]:
        """The model taken apart, with a point guide; none of it sees a record's values."""
        # Where no check may show the number of records, one that no plate declares stands in.
        known = _NO_PLATE if neighbours(self.relation).hides_membership else records.size
        num_records = known if self.num_records is None else self.num_records
        made_of = {
            "model": self.model,
            "placeholder": self.placeholder,
            "static": self.static_kwargs,
        }
        return objective_of_points(records, key, num_records=num_records, **made_of)


def _limits(
    bound: Bound | None, lipschitz: float | None, radius: float | None, relation: Relation
) -> tuple[float, float]:
    """The clipping bounds of a record's log-likelihood, in nats."""
    hidden = neighbours(relation).hides_membership
    if (bound is None) == (lipschitz is None) or (lipschitz is None) != (radius is None):
        raise ValueError(
            "OnePosteriorSample needs either log_likelihood_bound=B, or lipschitz=L together with radius=R: what one record "
            "can do must be bounded in one way."
        )
    if lipschitz is not None and radius is not None:
        if hidden:
            raise ValueError(
                "The Lipschitz version bounds the difference between two records' log-likelihoods, not one record's own, so "
                "it holds for one record replaced only. Use Relation.REPLACE_ONE, or log_likelihood_bound."
            )
        bound = real("lipschitz", lipschitz, *_RANGE) * real("radius", radius, *_RANGE)
    if isinstance(bound, tuple):
        # They are used in 32 bits, which far from zero may not tell them apart.
        apart = (
            float(np.float32(bound[1]) - np.float32(bound[0]))
            if len(bound) == 2 and all(map(is_real, bound))
            else math.nan
        )
        if not 1e-6 <= apart <= 1e9:
            raise ValueError(
                f"log_likelihood_bound is {bound!r}; a pair holds two finite numbers (low, high) in nats, between 1e-6 and 1e9 "
                "apart as 32-bit numbers."
            )
        return float(bound[0]), float(bound[1])
    assert bound is not None
    high = real(
        "log_likelihood_bound" if lipschitz is None else "lipschitz * radius", bound, *_RANGE
    )
    return -high, high


def _values(
    objective: Objective, psi: Mapping[str, np.ndarray], num_draws: int
) -> dict[str, np.ndarray]:
    """The latents' values, constrained, at each row of unconstrained parameters."""

    def one(row: Mapping[str, Array]) -> dict[str, Array]:
        # The point guide draws nothing.
        values = objective.draw_posterior(objective.constrain(row), jax.random.key(0), 1)
        return {name: x[0] for name, x in values.items()}

    rows = [one({name: jnp.asarray(x[i]) for name, x in psi.items()}) for i in range(num_draws)]
    return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
