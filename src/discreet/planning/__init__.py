"""A dry run: fits of invented tables, to choose a plan before any record is read. Nothing here takes a table."""

from discreet.planning._dry_run import DryRun as DryRun
from discreet.planning._dry_run import LineDryRun as LineDryRun
from discreet.planning._dry_run import Row as Row
from discreet.planning._dry_run import TableScores as TableScores
from discreet.planning._dry_run import dry_run as dry_run
from discreet.planning._dry_run import dry_run_of_line as dry_run_of_line
from discreet.planning._invent import Grid as Grid
from discreet.planning._invent import Setting as Setting
from discreet.planning._invent import default_grid as default_grid
from discreet.planning._newton import NewtonDryRun as NewtonDryRun
from discreet.planning._newton import NewtonRow as NewtonRow
from discreet.planning._newton import dry_run_of_newton as dry_run_of_newton
