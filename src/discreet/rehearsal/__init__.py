"""A dry run: fits of invented tables, to choose a plan before any record is read. No place here takes a table."""

from discreet.rehearsal._grid import Grid, Setting
from discreet.rehearsal._rehearse import default_grid, rehearse
from discreet.rehearsal._result import Rehearsal, Row, TableScores
from discreet.rehearsal._verdict import Verdict

__all__ = ["Grid", "Rehearsal", "Row", "Setting", "TableScores", "Verdict", "default_grid", "rehearse"]
