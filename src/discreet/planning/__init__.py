"""A dry run: fits of invented tables, to choose a plan before any record is read. Nothing here takes a table."""

from discreet.planning._dry_run import DryRun, Row, TableScores, Verdict, dry_run
from discreet.planning._invent import Grid, Setting, default_grid

__all__ = [
    "DryRun",
    "Grid",
    "Row",
    "Setting",
    "TableScores",
    "Verdict",
    "default_grid",
    "dry_run",
]
