"""One posterior sample: a draw of a bounded, tempered posterior is private by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.handlers as handlers
from dp_accounting import DpEvent, SelfComposedDpEvent
from jax.core import Tracer
from jaxtyping import Array, PRNGKeyArray

from discreet import random
from discreet.accounting import Relation, pure_event
from discreet.inference._chains import diagnose, run_chains
from discreet.inference._checks import explain_steps
from discreet.inference._keys import check_unused, claim, init_keys
from discreet.inference._objective import Objective
from discreet.inference._ops_result import OPSResult
from discreet.inference._ops_terms import state_draws
from discreet.inference._plates import Program, WholePlates, value_of_improper
from discreet.inference._point import PointGuide
from discreet.inference._records import Records, check_public, refuse_tables, take_apart
from discreet.inference._setup import choose_placeholder, initial_parameters, loss_at_start
from discreet.inference._structure import Structure, find_structure
from discreet.inference._tempered import TemperedPosterior, Tempering, project_records
from discreet.ledger import Ledger, Spending

Bound = float | tuple[float, float]
_NO_PLATE = 2**31 - 1
# As many as accounting sums up in closed form.
_MOST_DRAWS = 1000


class OnePosteriorSample:
    """Releases draws from a posterior whose likelihood is bounded and tempered: pure epsilon, without any noise.

    Guarantee: each draw is (epsilon, 0)-private for the relation, and `num_draws` of them (num_draws * epsilon, 0), **if they are
    exact draws** of the posterior described below. They come from Markov chains, which are close to it at best;
    `OPSResult.delta_granting` says what a distance costs. No diagnostic can show a distance as small as a delta should be.

    Each record's log-likelihood is clipped to [-B, B] and their sum multiplied by min(1, epsilon / 4B); the prior is exact.
    Under REPLACE_ONE a record then moves the log density by at most power * 2B directly and by as much again through the
    normalising constant, 4B power together. Under ADD_OR_REMOVE_ONE it is 2B power, and the power min(1, epsilon / 2B). A
    record whose log-likelihood is NaN counts as -B, a constant.

    With `lipschitz` and `radius` instead of a bound: each record's real numbers, all arrays together, are projected onto the
    ball of that radius R; what is clipped, to [-L R, L R], is the difference between the record's log-likelihood and that of
    the record of zeros. Where the log-likelihood is L-Lipschitz in the record this clips nothing, and where the claim is
    false it still holds the 4 L R of the theorem. REPLACE_ONE only.

    The draw that is released is the last state of a chain of its own: after the warm-up, when nothing adapts any more, each
    transition can only bring its law nearer to the posterior, and a state picked from along the chain is further off on average.

    Args:
        model: a NumPyro model with proper priors and observations in a plate of the records' length. Latents inside that
            plate, `param` sites and discrete latents are refused.
        log_likelihood_bound: B in nats, or a pair (low, high) to clip to, which has the width high - low instead of 2B. For
            discrete observations, whose log-likelihood is never above 0, (-B, 0) costs half of B.
        epsilon: of each draw, between 1e-9 and 500. What is spent is less where even power 1 is within it.
        lipschitz: L, in nats per unit of distance between records.
        radius: R, in the records' units.
        num_draws: number of draws released, each from a chain of its own. Their costs add up.
        relation: which tables are neighbours.
        num_warmup: transitions of each chain that adapt the sampler.
        num_samples: transitions of each chain after that.
        num_chains: at least 2; more are run where there are more draws.
        num_records: public number of records, where a plate of the model declares it. None: under REPLACE_ONE the table's.
        placeholder: a made-up record, as for DPSVI.
        nuts_options: further options of NumPyro's NUTS, such as `max_tree_depth`.
        static_kwargs: public keyword arguments of the model.

    Raises:
        ValueError, TypeError: an argument that cannot be used.

    Reference:
        Wang, Fienberg, Smola, "Privacy for free", ICML 2015 (one posterior sample, 4B and 4LR); Dimitrakakis et al.,
        "Robust and private Bayesian inference", ALT 2014.

    Example:
        >>> import numpyro, numpyro.distributions as dist, discreet as dp
        >>> def model(y):
        ...     rate = numpyro.sample("rate", dist.Beta(1, 1))
        ...     with numpyro.plate("data", y.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(rate), obs=y)
        >>> ops = dp.OnePosteriorSample(model, log_likelihood_bound=(-5.0, 0.0), epsilon=1.0)
        >>> round(ops.power, 4), round(ops.epsilon, 4)
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
        num_warmup: int = 1000,
        num_samples: int = 1000,
        num_chains: int = 4,
        num_records: int | None = None,
        placeholder: Sequence[Any] | None = None,
        nuts_options: Mapping[str, Any] | None = None,
        **static_kwargs: Any,
    ) -> None:
        """See the class."""
        low, high = _limits(log_likelihood_bound, lipschitz, radius, relation)
        if not _is_finite(epsilon):
            raise ValueError(f"epsilon is {epsilon!r}; it must be a finite number above 0. 1 is a common choice.")
        pure_event(epsilon)
        for name, value, least in (
            ("num_draws", num_draws, 1),
            ("num_warmup", num_warmup, 1),
            ("num_samples", num_samples, 10),
            ("num_chains", num_chains, 2),
        ):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}.")
        if num_draws > _MOST_DRAWS:
            raise ValueError(
                f"num_draws is {num_draws}; of more than {_MOST_DRAWS:,} draws no pure epsilon is computed, and so many are "
                "hardly worth their price. Release fewer, or fit by DPSVI, whose posterior draws are free."
            )
        check_public(static_kwargs)
        self.model = model
        self.lipschitz, self.radius = lipschitz, radius
        self.num_draws = int(num_draws)
        self.num_warmup, self.num_samples = int(num_warmup), int(num_samples)
        self.num_chains = max(int(num_chains), self.num_draws)
        self.num_records = num_records
        self.placeholder = placeholder
        self.nuts_options = dict(nuts_options or {})
        self.static_kwargs = static_kwargs
        self.tempering = Tempering.for_epsilon(epsilon, low, high, centered=lipschitz is not None, relation=relation)
        # What cannot be accounted for is refused here.
        self.event()

    @property
    def relation(self) -> Relation:
        """Which tables are neighbours."""
        return self.tempering.relation

    @property
    def power(self) -> float:
        """What the bounded log-likelihood is multiplied by."""
        return self.tempering.power

    @property
    def epsilon(self) -> float:
        """Pure epsilon of all draws together, if they are exact."""
        return self.num_draws * self.tempering.epsilon

    @property
    def slack(self) -> float:
        """Probability of leaving the event: 0."""
        return 0.0

    def event(self) -> DpEvent:
        """The event of all draws, derived from the bound, the power and the number of draws."""
        return SelfComposedDpEvent(pure_event(self.tempering.epsilon), self.num_draws)

    def run(
        self, rng_key: PRNGKeyArray, *args: Any, progress_bar: bool = True, ledger: Ledger | None = None, **kwargs: Any
    ) -> OPSResult:
        """Run the chains on the records and release the last states of `num_draws` of them.

        All else that the chains know (starting points, steps, step sizes, the other states) stays inside, but for
        `OPSResult.non_private_diagnostics`. Ctrl-C releases nothing.

        Args:
            rng_key: `discreet.random.key()`; all that the chains draw follows from it.
            args: the model's arguments: arrays hold records along their leading axis.
            progress_bar: show NumPyro's, without its figures on the sampler.
            ledger: the table's budget, debited before the chains run: what NumPyro compiles on the way is paid for.
            kwargs: likewise.

        Returns:
            The draws and their statement.

        Raises:
            ValueError, TypeError: wrong input, before any budget is spent.
        """
        key = random.check_key(rng_key)
        if isinstance(key, Tracer):
            raise TypeError("run works outside of JAX's transformations; call it without jit, vmap or scan.")
        records = take_apart(args, kwargs)
        self._check_length(records.size)
        refuse_tables(jax.tree.leaves(self.static_kwargs), [records.size])
        check_unused(key)
        with explain_steps(args):
            objective, psi = self._objective(key, records)
        spending = Spending(ledger, self, state_draws(self, records.size, random.is_reproducible(key)))
        leaves = list(records.leaves) if self.radius is None else project_records(records.leaves, self.radius)
        spending()
        claim(key)
        chains = run_chains(
            TemperedPosterior(objective, self.tempering),
            jax.eval_shape(lambda: psi),
            leaves,
            # The chains' randomness is what hides the records, as noise is elsewhere.
            random.subkey(key, random.Purpose.NOISE),
            num_chains=self.num_chains,
            num_warmup=self.num_warmup,
            num_samples=self.num_samples,
            nuts_options=self.nuts_options,
            progress_bar=progress_bar,
        )
        last = {name: x[: self.num_draws, -1] for name, x in chains.states.items()}
        return OPSResult(_values(objective, last, self.num_draws), spending.stated(), diagnose(chains))

    def _check_length(self, size: int) -> None:
        if self.relation is Relation.REPLACE_ONE and self.num_records not in (None, size):
            raise ValueError(
                f"The arrays hold {size} records, but num_records is {self.num_records}, and {self.relation.name} makes the "
                "number public. Make them agree, or leave num_records out."
            )

    def _objective(self, key: PRNGKeyArray, records: Records) -> tuple[Objective, dict[str, Any]]:
        """The model taken apart, with a point guide; none of it sees a record's values."""
        static, guide = self.static_kwargs, PointGuide(self.model)
        # Under ADD_OR_REMOVE_ONE no check may show the number of records: then one that no plate declares stands in.
        known = records.size if self.relation is Relation.REPLACE_ONE else _NO_PLATE
        num_records = known if self.num_records is None else self.num_records
        structure_key, values_key, start_key = init_keys(key)
        made_up = choose_placeholder(self.model, records, self.placeholder, structure_key, static, num_records)
        structure = find_structure(self.model, guide, records, made_up, structure_key, static, num_records)
        if structure.has_model_params:
            raise ValueError(
                "The model has a param site, which has no prior, so there is no posterior to draw it from. Make it a sample "
                "site with a proper prior, or fit the model by DPSVI."
            )
        self._check_priors(records, made_up, structure)
        psi, _, transforms = initial_parameters(
            self.model, guide, records, made_up, structure, values_key, static, None
        )
        objective = Objective(
            model=self.model,
            guide=guide,
            records=records._replace(leaves=records.shapes(records.size)),
            placeholder=tuple(made_up),
            static=static,
            structure=structure,
            transforms=transforms,
            mean_field=False,
            num_particles=1,
        ).with_dependencies(psi, start_key)
        if objective.uses_key:
            raise ValueError(
                "A record's log-likelihood is random (the model draws numbers beside its sites, as dropout does), so it has "
                "no posterior density to sample. Make what is drawn a latent site outside the record plate, or leave it out."
            )
        refuse_tables([*jax.tree.leaves(static), *objective.held], [records.size])
        loss_at_start(objective, psi, start_key)
        return objective, psi

    def _check_priors(self, records: Records, made_up: list[Array], structure: Structure) -> None:
        """A bounded likelihood leaves an improper prior improper: there would be no posterior."""
        improper: list[str] = []

        def watch(site: Mapping[str, Any]) -> Any:
            value = value_of_improper(site)
            if value is not None:
                improper.append(site["name"])
            return value

        def look(rows: list[Array]) -> None:
            args, kwargs = records.rebuild(rows)
            program = handlers.substitute(self.model, substitute_fn=watch)
            with handlers.seed(rng_seed=0):
                WholePlates(program, structure.record_plates, 1)(*args, **kwargs, **self.static_kwargs)

        jax.eval_shape(look, made_up)
        if improper:
            raise ValueError(
                f"The prior of {improper[0]!r} is improper. A clipped likelihood is bounded from below, so the posterior "
                "would not be a distribution. Give it a proper prior, however wide."
            )


def _limits(
    bound: Bound | None, lipschitz: float | None, radius: float | None, relation: Relation
) -> tuple[float, float]:
    """What a record's log-likelihood is clipped to, in nats.

    Raises:
        ValueError, TypeError: not exactly one of the two versions, or numbers that cannot be used.
    """
    if relation not in (Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE):
        raise TypeError(f"relation is {relation!r}; pass Relation.REPLACE_ONE or Relation.ADD_OR_REMOVE_ONE.")
    if (bound is None) == (lipschitz is None) or (lipschitz is None) != (radius is None):
        raise ValueError(
            "OnePosteriorSample needs either log_likelihood_bound=B, or lipschitz=L together with radius=R: what one record "
            "can do must be bounded in one way."
        )
    if lipschitz is not None and radius is not None:
        if relation is not Relation.REPLACE_ONE:
            raise ValueError(
                "The Lipschitz version bounds the difference between two records' log-likelihoods, not one record's own, so "
                "it holds under REPLACE_ONE only. Use that relation, or log_likelihood_bound."
            )
        _check_positive("lipschitz", lipschitz)
        _check_positive("radius", radius)
        bound = lipschitz * radius
    if isinstance(bound, tuple):
        # They are used in 32 bits, which far from zero may not tell them apart.
        apart = (
            float(np.float32(bound[1]) - np.float32(bound[0]))
            if len(bound) == 2 and all(_is_finite(x) for x in bound)
            else math.nan
        )
        if not 1e-6 <= apart <= 1e9:
            raise ValueError(
                f"log_likelihood_bound is {bound!r}; a pair holds two finite numbers (low, high) in nats, between 1e-6 and 1e9 "
                "apart as 32-bit numbers."
            )
        return float(bound[0]), float(bound[1])
    assert bound is not None
    _check_positive("log_likelihood_bound" if lipschitz is None else "lipschitz * radius", bound)
    return -float(bound), float(bound)


def _check_positive(name: str, value: Any) -> None:
    if not _is_finite(value) or not 1e-6 <= value <= 1e9:
        raise ValueError(f"{name} is {value!r}; it must be a finite number from 1e-6 to 1e9.")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def _values(objective: Objective, psi: Mapping[str, np.ndarray], num_draws: int) -> dict[str, np.ndarray]:
    """The latents' values, constrained, at each row of unconstrained parameters."""

    def one(row: Mapping[str, Array]) -> dict[str, Array]:
        # The point guide draws nothing.
        values = objective.draw_posterior(objective.constrain(row), jax.random.key(0), 1)
        return {name: x[0] for name, x in values.items()}

    rows = [one({name: jnp.asarray(x[i]) for name, x in psi.items()}) for i in range(num_draws)]
    return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
