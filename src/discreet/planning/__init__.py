"""A dry run: fits of invented tables, to choose a plan before any record is read. Nothing here takes a table."""

from discreet.planning._dry_run import DryRun, LineDryRun, Row, TableScores, Verdict, dry_run, dry_run_of_line
from discreet.planning._invent import Grid, Setting, default_grid

__all__ = [
    "DryRun",
    "Grid",
    "LineDryRun",
    "Row",
    "Setting",
    "TableScores",
    "Verdict",
    "default_grid",
    "dry_run",
    "dry_run_of_line",
]
