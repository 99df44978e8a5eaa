"""The terms of one posterior sample, stated before it is drawn."""

from __future__ import annotations

from typing import Any

from discreet.accounting import Relation
from discreet.report import Statement, make_pure_statement

_INEXACT = (
    "The distance between the sampler and the posterior. ε holds for exact draws; these are the last states of Markov chains "
    "(NumPyro's NUTS), whose law is only near the posterior. Who grants a total variation TV between the two, for every table, "
    "has in addition δ = (1 + e^ε) × the number of draws × TV (OPSResult.delta_granting). Diagnostics of the chains cannot show "
    "a TV as small as a δ should be.",
    "The granularity of floating-point numbers: a released draw is rounded, the log density is a 32-bit sum whose rounding "
    "depends on the records, and which numbers can come out at all may say something about them.",
    "The time that the chains take, which depends on the records.",
)


def state_draws(ops: Any, num_records: int, reproducible: bool) -> Statement:
    """The statement of all draws of a OnePosteriorSample."""
    tempering, replace = ops.tempering, ops.relation is Relation.REPLACE_ONE
    public = ["the model, with all numbers written into it", "shapes and dtypes of the record arrays"]
    if replace:
        public.append(f"the number of records, N = {num_records}")
    public += ["the bound on log-likelihoods, the power, and all settings of the sampler"]
    public += [f"the argument {name}" for name in ops.static_kwargs]
    facts: dict[str, Any] = {"log_likelihood_low": tempering.low, "log_likelihood_high": tempering.high}
    if ops.lipschitz is not None:
        facts |= {"lipschitz": float(ops.lipschitz), "radius": float(ops.radius)}
    facts |= {
        "power": tempering.power,
        "epsilon_per_draw": tempering.epsilon,
        "num_draws": ops.num_draws,
        "num_chains": ops.num_chains,
        "num_warmup": ops.num_warmup,
        "num_samples": ops.num_samples,
    }
    if replace:
        facts["num_records"] = num_records
    return make_pure_statement(
        ops.event(),
        ops.relation,
        method="one posterior sample",
        mechanism=_mechanism(ops),
        plan=facts,
        num_releases=ops.num_draws,
        reproducible=reproducible,
        released=[f"{ops.num_draws} draw{'s' if ops.num_draws > 1 else ''} of the model's latents, and nothing else"],
        public=public,
        not_covered=_INEXACT,
        warnings=[
            "ε is for exact draws of the posterior. These are the last states of Markov chains, which are only near it."
        ],
    )


def _mechanism(ops: Any) -> str:
    tempering, replace = ops.tempering, ops.relation is Relation.REPLACE_ONE
    low, high = f"{tempering.low:.6g}", f"{tempering.high:.6g}"
    if tempering.centered:
        what = (
            f"Each record's real numbers were projected onto the ball of radius {ops.radius:g}. The difference between its "
            f"log-likelihood and that of a record of zeros was clipped to [{low}, {high}] nats: for a log-likelihood that is "
            f"{ops.lipschitz:g}-Lipschitz in the record, which is the user's claim, this changes nothing, and where the claim is "
            "false the bound holds all the same"
        )
    else:
        what = f"Each record's log-likelihood was clipped to [{low}, {high}] nats; one that is NaN counted as {low}"
    through = (
        "twice: directly and through the normalising constant"
        if replace
        else "directly and through the normalising constant"
    )
    times = "2 × " if replace else ""
    return (
        f"{what}. The sum was multiplied by {tempering.power:.6g} and added to the exact log prior density. A record moves the "
        f"log density of the result {through}, by at most {times}{tempering.power:.6g} × {tempering.high - tempering.low:.6g} = "
        f"{tempering.epsilon:.6g} together. No noise was added: what is released is one draw of that distribution"
        + (f", {ops.num_draws} times, each from a chain of its own." if ops.num_draws > 1 else ".")
    )
