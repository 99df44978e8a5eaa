"""A defensible (epsilon, delta) for somebody who has no figure of their own yet."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Suggestion:
    """A target to calibrate for, and the reason. Made by `suggest`."""

    epsilon: float
    delta: float
    why: str

    def __str__(self) -> str:
        return f"epsilon = {self.epsilon:g}, delta = {self.delta:g}. {self.why}"


def suggest(*, num_records: int) -> Suggestion:
    """Proposes epsilon and delta for a table.

    epsilon = 1, whatever the table: it is a promise to a person, and what that is worth does not depend on how many others there
    are. delta = 1/(10 N) rounded down to one digit, and never above 1e-5.

    Args:
        num_records: number of records N. It is taken as public: pass a rounded figure if the exact one is a secret.

    Returns:
        The proposal with its reason in words.

    Raises:
        ValueError: num_records is not a whole number of at least 1.

    Example:
        >>> suggest(num_records=32_561).delta
        3e-06
    """
    if isinstance(num_records, bool) or not isinstance(num_records, int) or num_records < 1:
        raise ValueError(
            f"num_records is {num_records!r}; it is the public number of records, a whole number of at least 1."
        )
    share = 1 / (10 * num_records)
    exponent = math.floor(math.log10(share) + 1e-9)
    delta = min(1e-5, float(f"{math.floor(share / 10.0**exponent + 1e-9):d}e{exponent:d}"))
    why = (
        "epsilon = 1 keeps the odds of anything said about a person within a factor of e = 2.72 of what they would be without "
        "their record: an attacker who accuses 1 % of the innocent finds at most 2.72 % of the guilty. "
        f"delta is at most a tenth of 1 / {num_records:,}, so that a method which publishes a random record in the clear "
        "could not pass, and at most 1e-5. Below epsilon = 0.1 even a strong attacker learns next to nothing; above 3 the "
        "promise is weak, "
        "and above 10 it says little. "
        "The number of records is treated as public."
    )
    if num_records < 1000:
        why += (
            f" With {num_records:,} records the noise may be large next to what they say together; a simple model, full "
            "batches and public bounds help more than a larger epsilon."
        )
    return Suggestion(epsilon=1.0, delta=delta, why=why)
