"""`discreet explain`: what ε and δ mean for one person."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.cli._options import AsJson
from discreet.cli._terminal import refusing, say, say_json, say_lines

PRIORS = (0.01, 0.1, 0.5)
EXPLAINED = ("epsilon", "delta", "relation", "meaning", "attack_power", "posterior_beliefs", "gaussian_mu", "warnings")
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05, 0.1)
# (ε, δ) says nothing of the probability that the privacy loss exceeds ε, only that it exceeds ε + margin seldom.
MARGIN = 0.1
LARGE_DELTA = 1e-3


@refusing
def explain(
    statement: Annotated[
        Path | None, typer.Argument(help="A statement.json that a fit wrote.", show_default=False)
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="An ε, in the place of a statement.")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ that goes with it.")] = None,
    num_records: Annotated[int | None, typer.Option(help="Records in the table, to judge δ by.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what ε and δ mean for one person in the table.

    Of a fit: `discreet explain discreet-fit/statement.json`

    Of two numbers: `discreet explain --epsilon 1 --delta 1e-6 --num-records 50000`
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
        return
    _print(facts)


def _explain_statement(content: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json("explain", {name: content[name] for name in ("is_private", "violations", *EXPLAINED)})
        return
    say(f"{content['method']}, relation {content['relation']}. {content['relation_in_words']}")
    say()
    if not content["is_private"]:
        say(f"NOT PRIVATE AS RUN: {' '.join(content['violations'] or [content['randomness']])}")
        say("What follows is what a sound run would mean.")
        say()
    say_lines(content["meaning"])


def read_statement(path: Path) -> dict[str, Any]:
    """The content of a statement file.

    Raises:
        ValueError: The file cannot be read, is no statement, or states no finite ε.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path") from None
    except ValueError:
        raise ValueError(f"{path} is not JSON: give the statement.json that a fit wrote") from None
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith("discreet privacy statement"):
        raise ValueError(f"{path} is not a discreet privacy statement: give the statement.json that a fit wrote")
    lacking = [name for name in ("is_private", "violations", "randomness", "method", *EXPLAINED) if name not in content]
    if lacking:
        raise ValueError(f"{path} lacks {', '.join(lacking)}: give the statement.json as the fit wrote it")
    if content["epsilon"] is None:
        raise ValueError(f"{path} states no finite ε at its δ: no guarantee holds, so there is nothing to explain")
    return content


def meaning(epsilon: float, delta: float, num_records: int | None) -> dict[str, Any]:
    """What follows from (ε, δ) alone, for any mechanism.

    For a test with false-positive rate α the true-positive rate is at most min(e^ε α + δ, 1 - e^-ε (1 - δ - α))
    (Wasserman and Zhou 2010; Kairouz, Oh, Viswanath 2015). Odds and beliefs are bounded except with some probability only:
    δ ≥ E[max(0, 1 - e^(ε - L))] for the privacy loss L, so P(L > ε + t) ≤ δ / (1 - e^-t) for every t > 0. They are given
    for t = 0.1 (for δ = 0, where L ≤ ε always, for t = 0) with that probability beside them.

    >>> meaning(0.0, 1e-6, None)["largest_true_positive_rate"]["0.05"]
    0.050001
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"epsilon is {epsilon}: give a finite number, 0 or more")
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}: give a number from 0 to below 1, well below 1 / number of records")
    if num_records is not None and num_records < 1:
        raise ValueError(f"--num-records is {num_records}: give the number of records in the table, at least 1")
    # Beyond e^700 a float ends; the bounds are 1 long before.
    factor = math.exp(min(epsilon, 700.0))
    odds = math.exp(min(epsilon + (MARGIN if delta > 0 else 0.0), 700.0))
    failing = min(1.0, delta / -math.expm1(-MARGIN))
    warnings = []
    if epsilon > 10:
        warnings.append("ε above 10: the bound allows near certainty about one person. It says little by itself.")
    elif epsilon > 3:
        warnings.append("ε above 3: a determined attacker may learn a good deal about one person.")
    if num_records is not None and delta >= 1 / num_records:
        warnings.append(
            f"δ is at least 1 / {num_records}: even a method that publishes one random person's record whole would pass."
        )
    elif delta > LARGE_DELTA:
        warnings.append(f"δ = {delta:g} is large: it should be well below 1 / number of records.")
    return {
        "epsilon": epsilon,
        "delta": delta,
        "odds_factor": odds,
        "odds_factor_fails_with_probability": failing,
        "largest_true_positive_rate": {
            f"{alpha:g}": round(min(1.0, factor * alpha + delta, 1 - (1 - delta - alpha) / factor), 9)
            for alpha in FALSE_POSITIVE_RATES
        },
        "largest_belief": {
            f"{prior:g}": odds * prior / (odds * prior + 1 - prior) if failing < 1 else 1.0 for prior in PRIORS
        },
        "warnings": warnings,
    }


def _print(facts: dict[str, Any]) -> None:
    epsilon, delta, failing = facts["epsilon"], facts["delta"], facts["odds_factor_fails_with_probability"]
    seldom = f"except with probability {failing:.2g} at most" if failing > 0 else "always"
    say(
        f"ε = {epsilon:.4g} (epsilon) and δ = {delta:g} (delta) bound what one person risks by their record being used."
    )
    say()
    if failing < 1:
        power = f"e^(ε + {MARGIN:g})" if failing > 0 else "e^ε"
        say(
            f"What is seen multiplies the odds that they are in the table by at most {power} = "
            f"{facts['odds_factor']:.4g}, {seldom}. Somebody who suspected it, and sees all results:"
        )
        for prior, belief in facts["largest_belief"].items():
            say(f"  believed it to {100 * float(prior):g} %: may now believe it to {100 * belief:.3g} %")
        say()
        say("The statement of a fit knows more than two numbers and gives closer figures.")
    else:
        say("At this δ nothing follows about what somebody who sees the results may believe.")
    say()
    say("A test for that person's record, if it accuses wrongly in a share of cases:")
    for wrong, right in facts["largest_true_positive_rate"].items():
        say(f"  wrong in {100 * float(wrong):g} %: right in at most {100 * right:.3g} %")
    say()
    say("What is true of the population can be learned, and concern a person, whether or not they are in the table.")
    for warning in facts["warnings"]:
        say()
        say(f"Warning: {warning}")
