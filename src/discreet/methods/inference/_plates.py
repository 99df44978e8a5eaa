"""Plates of records, whole or not.

`WholePlates` runs a model or guide on the rows that it is given, whatever sizes its plates declare:
on artificial rows while a program is being looked at, on one record at a time while it is fitted.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from numpyro.distributions import ImproperUniform, biject_to
from numpyro.primitives import Messenger

from discreet._numpyro import open_plates, scale_and_mask, scan_wrapper
from discreet.methods.inference._records import Message, PlateSizes, Program


class WholePlates(Messenger):
    """Makes plates cover the rows they are given, in order, instead of a random subsample.

    The size that a model declares stays visible in `sizes`; the scale factor that NumPyro
    derives from it is undone by `Programs.trace`.
    """

    def __init__(
        self,
        fn: Program,
        names: frozenset[str] | None,
        rows: int,
        *,
        num_records: int | None = None,
        sizes: PlateSizes | None = None,
    ) -> None:
        """Wrap `fn`; `names` None means every plate (used while they are being found).

        With `num_records`, a plate of that size is taken for a record plate, whatever batches it
        declares.
        """
        super().__init__(fn)
        self.names = names
        self.rows = rows
        self.num_records = num_records
        self.sizes: PlateSizes = {} if sizes is None else sizes

    def process_message(self, msg: dict[str, Any]) -> None:
        """Set the indices of a plate; let `numpyro.subsample` pass on the rows that it is given."""
        if msg["type"] == "subsample":
            self._pass_on(msg)
        elif msg["type"] == "control_flow" and msg["fn"] is scan_wrapper:
            # NumPyro hides what happens in a loop's body from the handlers around the loop.
            body, *rest = msg["args"]
            inside = WholePlates(
                body, self.names, self.rows, num_records=self.num_records, sizes=self.sizes
            )
            msg["args"] = (inside, *rest)
        elif msg["type"] == "plate":
            size, rows = msg["args"]
            if self.num_records == size:
                # A batch size that the program declares says nothing here: the plan draws the
                # batches.
                rows = self.rows
            self.sizes[msg["name"]] = (size, rows)
            if self.names is None:
                rows = size if rows is None else min(size, rows)
            elif msg["name"] in self.names:
                rows = self.rows
            else:
                return
            msg["args"] = (size, rows)
            msg["value"] = jnp.arange(rows)

    def _pass_on(self, msg: dict[str, Any]) -> None:
        """Rows of a record plate are the ones that the plate covers: there is nothing left to take from them.

        The plate would compare their number with the size that the model declares.
        """
        plates = open_plates()
        covered = self.names
        if covered is None:
            covered = {
                name for name, sizes in self.sizes.items() if sizes == (self.num_records, self.rows)
            }
        mine = [x for x in plates if x.name in covered]
        event_dim = msg["kwargs"].get("event_dim")
        shape = jnp.shape(msg["value"])
        if (
            not mine
            or event_dim is None
            or any(x.size != x.subsample_size for x in plates if x not in mine)
        ):
            return
        if all(
            len(shape) >= event_dim - x.dim and shape[x.dim - event_dim] == self.rows for x in mine
        ):
            msg["kwargs"] = {**msg["kwargs"], "event_dim": None}


def value_of_improper(site: Message) -> Any:
    """A value for a latent whose improper prior has no sampler; None, which leaves it alone, for every other site."""
    if site["type"] != "sample" or site["value"] is not None:
        return None
    base = site["fn"]
    while hasattr(base, "base_dist"):
        base = base.base_dist
    if not isinstance(base, ImproperUniform):
        return None
    transform = biject_to(site["fn"].support)
    shape = site["kwargs"].get("sample_shape", ()) + transform.inverse_shape(site["fn"].shape())
    return transform(jnp.zeros(shape))


def log_density(site: Message) -> Any:
    """The log density of a site's value, with a term for each of its distribution's batch."""
    options = [site["intermediates"]] if site["intermediates"] else []
    return scale_and_mask(site["fn"].log_prob(site["value"], *options), scale=site["scale"])
