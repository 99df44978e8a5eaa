"""Handlers that let a model run on a few made-up rows: whole plates, and values for improper priors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpyro
from jax import numpy as jnp
from numpyro.contrib.control_flow.scan import scan_wrapper
from numpyro.distributions import ImproperUniform, biject_to
from numpyro.primitives import _PYRO_STACK, Messenger

Program = Callable[..., Any]


class WholePlates(Messenger):
    """Makes plates cover the rows they are given, in order, instead of a random subsample.

    The size that a model declares stays visible in `sizes`; the scale factor that NumPyro
    derives from it is undone by `unscaled`.
    """

    def __init__(self, fn: Program, names: frozenset[str] | None, rows: int, *, num_records: int | None = None) -> None:
        """Wrap `fn`; `names` None means every plate (used while they are being found).

        With `num_records`, a plate of that size is taken for a record plate, whatever batches it declares.
        """
        super().__init__(fn)
        self.names = names
        self.rows = rows
        self.num_records = num_records
        self.sizes: dict[str, tuple[int, int | None]] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        """Set the indices of a plate; let `numpyro.subsample` pass on the rows that it is given."""
        if msg["type"] == "subsample":
            self._pass_on(msg)
        elif msg["type"] == "control_flow" and msg["fn"] is scan_wrapper:
            # NumPyro hides what happens in a loop's body from the handlers around the loop.
            body, *rest = msg["args"]
            inside = WholePlates(body, self.names, self.rows, num_records=self.num_records)
            inside.sizes = self.sizes
            msg["args"] = (inside, *rest)
        elif msg["type"] == "plate":
            self._cover(msg)

    def _cover(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        size, subsample_size = msg["args"]
        if self.num_records == size:
            # A batch size that the program declares says nothing here: the plan draws the batches.
            subsample_size = self.rows
        self.sizes[name] = (size, subsample_size)
        if self.names is None:
            rows = size if subsample_size is None else min(size, subsample_size)
        elif name in self.names:
            rows = self.rows
        else:
            return
        msg["args"] = (size, rows)
        msg["value"] = jnp.arange(rows)

    def _pass_on(self, msg: dict[str, Any]) -> None:
        """Rows of a record plate are the ones that the plate covers: there is nothing left to take from them.

        The plate would compare their number with the size that the model declares.
        """
        plates = [x for x in _PYRO_STACK if isinstance(x, numpyro.plate)]
        mine = [x for x in plates if self._covers(x.name)]
        event_dim, shape = msg["kwargs"].get("event_dim"), jnp.shape(msg["value"])
        if not mine or event_dim is None or any(x.size != x.subsample_size for x in plates if x not in mine):
            return
        if all(len(shape) >= event_dim - x.dim and shape[x.dim - event_dim] == self.rows for x in mine):
            msg["kwargs"] = {**msg["kwargs"], "event_dim": None}

    def _covers(self, name: str) -> bool:
        return name in self.names if self.names is not None else self.sizes.get(name) == (self.num_records, self.rows)

    def unscaled(self, site: Mapping[str, Any]) -> Any:
        """The scale of a site without the factor size / rows of its record plates."""
        scale = 1.0 if site["scale"] is None else site["scale"]
        for frame in site["cond_indep_stack"]:
            if self.names is not None and frame.name in self.names:
                scale = scale * (frame.size / self.sizes[frame.name][0])
        return scale


class Fixed(Messenger):
    """Puts sites at one value each and hides them from every handler outside, such as an AutoGuide."""

    def __init__(self, fn: Program, values: Mapping[str, Any]) -> None:
        """Wrap `fn`; `values` are broadcast to the sites' shapes."""
        super().__init__(fn)
        self.values = values

    def process_message(self, msg: dict[str, Any]) -> None:
        """Give a site its value."""
        if msg["type"] == "sample" and msg["name"] in self.values:
            msg["value"] = jnp.broadcast_to(self.values[msg["name"]], msg["fn"].shape())
            msg["stop"] = True


def value_of_improper(site: Mapping[str, Any]) -> Any:
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
