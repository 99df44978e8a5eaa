"""UAI 2017, Section 4.1, Figures 1 to 3, on Adult: private logistic regression, its accountants and its settings.

    python examples/paper/uai_adult.py [--quick] [--out docs/papers]

The same as on Abalone, on a larger table; the noise, q and C of Figures 2 and 3 are those of the
authors' code.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import _figures_2017
import _tables
import numpy as np
from _dpvi_2017 import DPVI
from _experiment import Rows, experiment
from _figures_2017 import Settings

FULL = Settings(
    sigmas=(0.74, 1.54, 3.2, 6.7, 20.1),  # within the published range, exp(-0.3) to exp(3)
    rate=0.005,
    num_steps=2000,
    norm=75.0,
    grid_sigmas=(0.4, 1.2, 2.0),
    rates=(0.001, 0.003, 0.005),
    rates_norm=50.0,
    norms=(10.0, 55.0, 100.0),
    norms_rate=0.001,
    langevin_multipliers=(1.5, 5.0, 20.0, 80.0),
    langevin_steps=400,
    langevin_step_size=5e-5,
    newton_epsilons=(0.01, 0.03, 0.1, 0.3, 1.0),
    newton_bound=1.0,
    has_intercept=True,
    seed=3,
    non_private_steps=300,
    non_private_rate=0.1,
)
QUICK = dataclasses.replace(
    FULL,
    rules=(DPVI,),
    sigmas=(1.54, 20.1),
    rates=(),
    grid_sigmas=(0.4,),
    norms=(10.0,),
    langevin_multipliers=(20.0,),
    newton_epsilons=(1.0,),
    runs=2,
    non_private_steps=100,
)


def run(settings: Settings) -> Rows:
    """All fits to the whole table, its first 80 % to learn from, as in the paper; an intercept among the 50 columns."""
    parts = _tables.adult(_tables.find("adult.csv.gz"))
    x = np.concatenate(parts[0::2])
    y = np.concatenate(parts[1::2])
    cut = int(0.8 * len(x))
    return _figures_2017.run((x[:cut], y[:cut], x[cut:], y[cut:]), settings)


def draw(rows: Rows) -> Any:
    """The three figures."""
    return _figures_2017.draw(rows, "Adult")


def check(rows: Rows, quick: bool) -> None:
    """The paper's findings."""
    # The commoner class alone is right for 0.761 of the people.
    assert rows[-1]["mean"] > 0.835, rows[-1]
    _figures_2017.check(rows, quick, near=0.015, far=0.01)


if __name__ == "__main__":
    experiment(__file__, __doc__, full=FULL, quick=QUICK, run=run, draw=draw, check=check)
