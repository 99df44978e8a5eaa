"""What a private Newton fit of a model is good for, from its releases and the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from discreet.methods.newton._algebra import is_settled
from discreet.privacy.report import COEFFICIENTS, LEARNED, NOT_USABLE, PREDICTION, counted, listed

NEARER = "Scale columns and priors so that latents are about 1, or give init a start that is nearer"
LOST = 30.0  # `lack` of a fit that is still under way
MISSING = 0.01  # share of the records that do not count, beyond which the fit is not that of all
NOISY = 3.0
CUT = 0.1
"""Intervals of a fit for its coefficients: at most so much more noise than sampling, and so many records clipped."""
FITS = 0.5  # least curvature over the gradients' second moment; where the model is right, they are the same
UNSEEN = 0.12  # share of the gradients that may have been clipped behind the noise, in a fit for its coefficients
UNSEEN_FAR = 0.01
MOST_UNSEEN_FAR = 0.02
"""The same where records far out decide some latents, which are then named; and where they decide most of them."""


@dataclasses.dataclass(frozen=True)
class Signs:
    """What the releases show of a fit.

    Attributes:
        ratio: Standard deviation of the releases' noise over that of sampling.
        moved: Distance of the estimate from where the last gradients were taken, over its own
            spread.
        lack: By how many standard deviations the last gradients miss what the curvature says.
        fits: The least curvature over the gradients' second moment.
        clipped: Share of the records whose gradient was clipped.
        unseen: Share of the records that may have been, behind the noise.
        missing: Share of the records without a finite gradient.
        names: Of the latents' coordinates; first of those that records touch.
        learned: For each coordinate the share of the prior's variance that is gone.
        moved_most: Coordinates whose variance is mostly that of long gradients, of those that
            records touch.
        far_out: Coordinates that records far out decide, of the same.
        blurred: Those of scales, which the errors of all others make larger.
        faint: Coordinates in whose variance such directions prevail as records say little about.
        sloped: Whether gradients were released that the noise does not explain, along directions
            that are said to be flat.
        nearer: What brings the start nearer.
    """

    ratio: float
    moved: float
    lack: float
    fits: float
    clipped: float
    unseen: float
    missing: float
    names: Sequence[str]
    learned: Float[np.ndarray, " latent"]
    moved_most: Bool[np.ndarray, " touched"]
    far_out: Bool[np.ndarray, " touched"]
    blurred: Bool[np.ndarray, " touched"]
    faint: Bool[np.ndarray, " touched"]
    sloped: bool = False
    nearer: str = NEARER

    def called(self, which: Bool[np.ndarray, " touched"]) -> str:
        """Some coordinates, in words."""
        return listed([name for name, chosen in zip(self.names, which, strict=False) if chosen])


def verdict(signs: Signs) -> tuple[str, str]:
    """The verdict on the use of a fit, and the reason."""
    use, reason = _of_all(signs)
    if signs.missing <= MISSING:
        return use, reason
    others = (
        f"{100 * signs.missing:.0f} % of the records count as nothing: the model has no finite value there, as where a cell is "
        "missing. The fit is that of the others"
    )
    return (
        NOT_USABLE if use == NOT_USABLE else PREDICTION,
        f"{others}. {reason[0].upper()}{reason[1:]}",
    )


def _of_all(signs: Signs) -> tuple[str, str]:
    """The same if all records count."""
    hidden = int((signs.learned < LEARNED).sum())
    size = len(signs.learned)
    if signs.sloped:
        return NOT_USABLE, (
            "the likelihood changes along directions that flat names, so what records say along these was left out, and the "
            "intervals are wrong. Name directions in which no record's likelihood changes"
        )
    if signs.lack > LOST:
        return NOT_USABLE, (
            f"the fit has not arrived: the gradients do not agree with the curvature. {signs.nearer}. What few records have, as "
            "a rare class, the noise may hide"
        )
    if hidden == size:
        return NOT_USABLE, (
            "the noise hides what the records say, and intervals are the prior's. A larger epsilon, more records or fewer "
            "latents help"
        )
    if not is_settled(signs.moved, signs.lack):
        return PREDICTION, (
            "the gradients do not agree with the curvature that was measured, so intervals may be too narrow. Several modes, or "
            f"a start far away, do that. {signs.nearer}"
        )
    if signs.clipped > CUT:
        return (
            PREDICTION,
            f"{100 * signs.clipped:.0f} % of the gradients were clipped, so intervals may miss",
        )
    if signs.unseen > UNSEEN:
        return PREDICTION, (
            f"the noise may hide that up to {100 * min(signs.unseen, 1):.0f} % of the gradients were clipped, so single "
            "intervals may miss by far. A larger epsilon or more records help"
        )
    if signs.ratio > NOISY:
        return (
            PREDICTION,
            f"the noise makes intervals about {signs.ratio:.2g} times as wide as without it",
        )
    least = [
        signs.names[place] for place in sorted(range(size), key=signs.learned.__getitem__)[:hidden]
    ]
    if hidden > size / 2:
        return (
            PREDICTION,
            f"of {counted(size, 'coordinate')} the prior decides {hidden}: {listed(least)}",
        )
    if signs.fits < FITS:
        return PREDICTION, (
            f"gradients vary about {1 / signs.fits:.2g} times as much as the model says: it is wrong, as where residuals have "
            "longer tails or counts scatter more, or a few records decide. Intervals are wider for it, but may miss where long "
            "gradients are clipped, most of all those of scales. A likelihood with longer tails, such as StudentT, helps"
        )
    far_out = ""
    if signs.far_out.any():
        far_out = (
            f"records far out decide {signs.called(signs.far_out)}: the noise may hide that up to {100 * signs.unseen:.1f} % are "
            "there, and then these intervals miss"
        )
    if signs.far_out.mean() > 0.5 and signs.unseen > MOST_UNSEEN_FAR:
        return (
            PREDICTION,
            f"{far_out}. A larger epsilon, more records, or a likelihood with longer tails help",
        )
    reason = (
        "the intervals include the noise and that of sampling. Records with long gradients count less: where the model is wrong, "
        "that moves the estimates"
    )
    if signs.moved_most.any():
        reason += f", most of all {signs.called(signs.moved_most)}"
    if hidden:
        reason += f"; the prior decides {listed(least)}"
    if far_out:
        reason += f"; {far_out}"
    if signs.blurred.any():
        reason += (
            f"; the errors of {counted(size, 'coordinate')} add up in the residuals, so the intervals of "
            f"{signs.called(signs.blurred)} may miss"
        )
    if signs.faint.any():
        some = "some combination of " if signs.faint.sum() > 1 else ""
        reason += (
            f". What records seem to say of {some}{signs.called(signs.faint)} may be noise. Where columns hardly differ from "
            "each other, as one and its square, centre and scale them by public numbers"
        )
    return COEFFICIENTS, reason
