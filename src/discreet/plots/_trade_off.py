"""The privacy guarantee as a curve."""

from __future__ import annotations

from typing import Any

import numpy as np

from discreet.plots._figure import tidy


def draw_trade_off(axes: Any, profile: Any) -> None:
    """What the best attacker can tell of one person's record, against guessing.

    Args:
        axes: matplotlib axes.
        profile: `PrivacyPlan.profile()`.
    """
    wrong = np.linspace(0, 1, 101)
    found = [profile.true_positive_rate(float(rate)) for rate in wrong]
    axes.fill_between(wrong, wrong, found, color="0.9", linewidth=0)
    axes.plot(wrong, found, color="black", label="best attacker")
    axes.plot(wrong, wrong, ":", color="0.4", label="guessing")
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate", title="What the best attacker can tell")
    axes.legend(frameon=False)
    tidy(axes)
