"""Pictures of releases and of what follows from them, readable in grey. matplotlib is loaded when one is drawn.

None of these functions is given a record. The pictures of figures that are not private are drawn where those are made, and
say so in their titles.
"""

from discreet.plots._figure import new_figure
from discreet.plots._posterior import plot_posterior
from discreet.plots._releases import coordinate_names, draw_losses, plot_releases, running_mean
from discreet.plots._shares import Shares, plot_shares
from discreet.plots._trade_off import draw_trade_off

__all__ = [
    "Shares",
    "coordinate_names",
    "draw_losses",
    "draw_trade_off",
    "new_figure",
    "plot_posterior",
    "plot_releases",
    "plot_shares",
    "running_mean",
]
