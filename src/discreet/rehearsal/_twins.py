"""What the mixture of products takes, for tables invented from it."""

from __future__ import annotations

import numpy as np

from discreet.models import MixtureOfProducts
from discreet.rehearsal._invent import Template, refuse_inferred


def template_of_twin(twin: MixtureOfProducts) -> Template:
    """A row of levels a record; all of them are the model's to invent."""
    refuse_inferred(twin.schema)

    def draw(rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        levels = [rng.integers(size, size=rows) for size in twin.levels.sizes]
        return [np.stack(levels, axis=1).astype(np.int32)]

    return Template(draw, (None,), (False,))
