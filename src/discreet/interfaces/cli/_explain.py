"""`discreet explain`: what an ε and a statement mean, in words."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.interfaces.cli._options import AsJson
from discreet.interfaces.cli._report import read_json
from discreet.interfaces.cli._terminal import refusing, say, say_json, say_lines

PRIORS = (0.01, 0.1, 0.5)


EXPLAINED = (
    "epsilon",
    "delta",
    "relation",
    "meaning",
    "attack_power",
    "posterior_beliefs",
    "gaussian_mu",
    "warnings",
)


FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05, 0.1)


# (ε, δ) says nothing of the probability that the privacy loss exceeds ε, only that it exceeds ε +
# margin seldom.
MARGIN = 0.1


LARGE_DELTA = 1e-3


@refusing
def explain(
    statement: Annotated[
        Path | None,
        typer.Argument(
            help="A statement.json that a fit wrote, or its folder.", show_default=False
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="An ε, instead of a statement.")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ that belongs to it.")] = None,
    num_records: Annotated[
        int | None, typer.Option(help="Number of records in the table, to judge δ.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain what ε and δ mean for one person in the table.

    For a fit: `discreet explain discreet-fit/statement.json`

    For two numbers: `discreet explain --epsilon 1 --delta 1e-6 --num-records 50000`
    """
    if statement is not None:
        if epsilon is not None or delta is not None:
            raise ValueError("give a statement or --epsilon and --delta, not both")
        _explain_statement(read_statement(statement), as_json)
        return
    if epsilon is None or delta is None:
        raise ValueError("nothing to explain: give a statement.json, or --epsilon and --delta")
    facts = meaning(epsilon, delta, num_records)
    if as_json:
        say_json("explain", facts)
    else:
        _print(facts)


def _explain_statement(content: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(
            "explain", {name: content[name] for name in ("is_private", "violations", *EXPLAINED)}
        )
        return
    say(f"{content['method']}, for {content['unit']}. {content['relation_in_words']}")
    say()
    if not content["is_private"]:
        say(f"NOT PRIVATE AS RUN: {' '.join(content['violations'] or [content['randomness']])}")
        say("The following would hold for a correct run.")
        say()
    say_lines(content["meaning"])


def read_statement(path: Path) -> dict[str, Any]:
    """The content of a statement file, or of the one in a fit's folder."""
    path = path / "statement.json" if path.is_dir() else path
    content = read_json(path, "give the statement.json that a fit wrote")
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith(
        "discreet privacy statement"
    ):
        raise ValueError(
            f"{path} is not a discreet privacy statement: give the statement.json that a fit wrote"
        )
    needed = ("is_private", "violations", "randomness", "method", "unit", *EXPLAINED)
    lacking = [name for name in needed if name not in content]
    if lacking:
        raise ValueError(
            f"{path} lacks {', '.join(lacking)}: give the statement.json as the fit wrote it"
        )
    if content["epsilon"] is None:
        raise ValueError(
            f"{path} states no finite ε at its δ: no guarantee holds, so there is nothing to explain"
        )
    return content


def meaning(epsilon: float, delta: float, num_records: int | None) -> dict[str, Any]:
    """Bounds that follow from (ε, δ) alone, for any mechanism.

    For a test with false-positive rate α the true-positive rate is at most min(e^ε α + δ, 1 - e^-ε
    (1 - δ - α)) (Wasserman and Zhou 2010; Kairouz, Oh, Viswanath 2015). Odds and beliefs are
    bounded except with some probability only: δ ≥ E[max(0, 1 - e^(ε - L))] for the privacy loss L,
    so P(L > ε + t) ≤ δ / (1 - e^-t) for every t > 0. They are given for t = 0.1 (for δ = 0, where L
    ≤ ε always, for t = 0) with that probability beside them.

    >>> meaning(0.0, 1e-6, None)["largest_true_positive_rate"]["0.05"]
    0.050001
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"epsilon is {epsilon}: give a finite number, 0 or more")
    if not 0 <= delta < 1:
        raise ValueError(
            f"delta is {delta}: give a number from 0 to below 1, well below 1 / number of records"
        )
    if num_records is not None and num_records < 1:
        raise ValueError(
            f"--num-records is {num_records}: give the number of records in the table, at least 1"
        )
    # Beyond e^700 a float ends; the bounds are 1 long before.
    factor = math.exp(min(epsilon, 700.0))
    odds = math.exp(min(epsilon + (MARGIN if delta > 0 else 0.0), 700.0))
    failing = min(1.0, delta / -math.expm1(-MARGIN))
    warnings = []
    if epsilon > 10:
        warnings.append(
            "ε is above 10: the bound allows near certainty about one person, so it says little by itself."
        )
    elif epsilon > 3:
        warnings.append("ε is above 3: a determined attacker may learn a lot about one person.")
    if num_records is not None and delta >= 1 / num_records:
        warnings.append(
            f"δ is at least 1 / {num_records}: even a method that publishes one random record in full would satisfy it."
        )
    elif delta > LARGE_DELTA:
        warnings.append(f"δ = {delta:g} is large: it should be well below 1 / number of records.")
    return {
        "epsilon": epsilon,
        "delta": delta,
        "odds_factor": odds,
        "odds_factor_fails_with_probability": failing,
        "largest_true_positive_rate": {
            f"{alpha:g}": round(
                min(1.0, factor * alpha + delta, 1 - (1 - delta - alpha) / factor), 9
            )
            for alpha in FALSE_POSITIVE_RATES
        },
        "largest_belief": {
            f"{prior:g}": odds * prior / (odds * prior + 1 - prior) if failing < 1 else 1.0
            for prior in PRIORS
        },
        "warnings": warnings,
    }


def _print(facts: dict[str, Any]) -> None:
    failing = facts["odds_factor_fails_with_probability"]
    say(
        f"ε = {facts['epsilon']:.4g} (epsilon) and δ = {facts['delta']:g} (delta) bound the risk to one person whose data is "
        "used."
    )
    say()
    if failing < 1:
        power = "e^ε"
        seldom = "always"
        if failing > 0:
            power = f"e^(ε + {MARGIN:g})"
            seldom = f"except with probability at most {failing:.2g}"
        say(
            f"Seeing all results multiplies the odds that this person is in the table by at most {power} = "
            f"{facts['odds_factor']:.4g}, {seldom}. How far a belief can grow:"
        )
        for prior, belief in facts["largest_belief"].items():
            say(f"  {100 * float(prior):g} % before: at most {100 * belief:.3g} % afterwards")
        say()
        say("The statement of a fit gives tighter figures than these two numbers allow.")
    else:
        say("At this δ there is no bound on what someone who sees the results may believe.")
    say()
    say("The best possible test for that person's record, by false-positive rate:")
    for wrong, right in facts["largest_true_positive_rate"].items():
        say(f"  {100 * float(wrong):g} %: true-positive rate at most {100 * right:.3g} %")
    say()
    say(
        "General facts about the population can still be learned, and they may concern people whose data was not used."
    )
    for warning in facts["warnings"]:
        say()
        say(f"Warning: {warning}")
