"""d3p's name for ADADP."""

import functools

from numpyro.optim import _NumPyroOptim, optax_to_numpyro

from discreet.optimizers import adadp


class ADADP(_NumPyroOptim):
    """`discreet.optimizers.adadp` as a NumPyro optimizer, under d3p's name and with its arguments.

    d3p's own cuts the factor between two learning rates to 0.9 and 1.1 whatever `alpha_min` and `alpha_max` say, and does not
    scale the error where a parameter is below -1. Here the two bounds hold, and the scale is max(1, |x|).

    Args:
        step_size: the first learning rate; a number.
        tol: tolerance of the error.
        stability_check: whether steps above the tolerance are taken back.
        alpha_min: least factor between two learning rates.
        alpha_max: largest such factor.

    Raises:
        ValueError: a number out of range.

    >>> ADADP(1e-2).get_params(ADADP(1e-2).init({"x": 1.0}))
    {'x': 1.0}
    """

    def __init__(
        self,
        step_size: float = 1e-3,
        tol: float = 1.0,
        stability_check: bool = True,
        alpha_min: float = 0.9,
        alpha_max: float = 1.1,
    ) -> None:
        wrapped = optax_to_numpyro(
            adadp(
                step_size,
                tolerance=tol,
                min_factor=alpha_min,
                max_factor=alpha_max,
                stability_check=stability_check,
            )
        )
        # It has no use for the loss, which d3p's programs do not hand over.
        update = functools.partial(wrapped.update_fn, value=None)
        super().__init__(lambda: (wrapped.init_fn, update, wrapped.get_params_fn))
