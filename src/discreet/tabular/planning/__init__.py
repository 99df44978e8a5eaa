"""A dry run: fits of invented tables, which show what an epsilon buys before any record is read. Nothing here takes a table.

Files, in reading order: `_invent` (tables), `_trials` (their fits), `_dry_run`.
"""

from discreet.tabular.planning._dry_run import (
    DryRun as DryRun,
    DryRunRow as DryRunRow,
    dry_run as dry_run,
)
