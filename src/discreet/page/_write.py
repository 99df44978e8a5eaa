"""A result to its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from discreet.ledger import Ledger
from discreet.page._bound import profile_pairs
from discreet.page._budget import budget_of
from discreet.page._course import course_of
from discreet.page._page import statement_page
from discreet.page._posterior import panels_of_draws
from discreet.page._twins import marginals_of
from discreet.plan import PrivacyPlan
from discreet.report import Statement
from discreet.storage import write_file
from discreet.tables import Schema


def write_report(
    path: Path | str,
    result: Any,
    *,
    draws: Mapping[str, Any] | None = None,
    feature_names: Sequence[str] | None = None,
    note: str = "",
    ledger: Ledger | None = None,
    twins: Sequence[Any] | None = None,
    schema: Schema | None = None,
) -> Path:
    """Write a result's statement as a page for people: one HTML file, to be handed to a data protection officer.

    What was protected and what ε means, with a trade-off curve whose points can be moved; the budget, the plan, the course of
    the fit, posterior summaries, synthetic twins, and the limits; and the statement's JSON. The file loads nothing, works without
    scripts and on paper. All that it shows is released or public, and writing it costs nothing.

    Args:
        path: The file, "report.html" say; one of that name is replaced.
        result: Of `DPSVI.run`, `DPSGLD.run` or `OnePosteriorSample.run`; or a `Statement` alone.
        draws: Posterior draws by the latent's name, `result.posterior(key, 1000)` or those of `noise_aware()`. None: the
            result's own `draws`, if it has some.
        feature_names: Names of the rows of each latent that has as many coordinates.
        note: A remark on the posterior, what its intervals leave out say.
        ledger: The table's ledger, whose history is shown.
        twins: Tables that `synthesize` made of this result, and never the table that was fitted: their columns are shown as
            they are.
        schema: The twins' public description.

    Returns:
        The path.

    Raises:
        TypeError: Something without a statement.
        ValueError: Twins without a schema, or the other way round; no draws; twins that do not fit their schema; a changed
            ledger.
        OSError: The file cannot be written.

    Example::

        result = dpsvi.run(dp.random.key(), xs, ys, ledger=ledger)
        draws = result.noise_aware().posterior(dp.random.key(), 1_000)
        dp.page.write_report("report.html", result, draws=draws, ledger=ledger)
    """
    statement = result if isinstance(result, Statement) else getattr(result, "statement", None)
    if not isinstance(statement, Statement):
        raise TypeError(f"{type(result).__name__} has no statement: pass the result of a private fit, or its statement")
    if (twins is None) != (schema is None):
        raise ValueError("twins and schema belong together: the schema says what the twins' columns are")
    drawn = draws if draws is not None else getattr(result, "draws", None)
    plan = getattr(result, "plan", None)
    return write_file(
        Path(path),
        statement_page(
            statement,
            pairs=profile_pairs(plan, statement) if isinstance(plan, PrivacyPlan) else (),
            course=course_of(result),
            panels=panels_of_draws(drawn or {}, feature_names),
            note=note,
            budget=None if ledger is None else budget_of(ledger, statement),
            marginals=None if twins is None or schema is None else marginals_of(twins, schema),
        ),
    )
