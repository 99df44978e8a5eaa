"""Criticism of a fitted regression by what was released of its table already: `check`, which costs nothing more.

Files, in reading order: `_figures` (what is compared), `_tilt` (how features go together),
`_replicates` (tables that the fit expects), `_check` (p-values, words).
"""

from discreet.tabular.criticism._check import Check as Check, check as check
