"""The report of an engine on a model: how it sums each leaf, and at what cost."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class LeafReport:
    """One leaf of what is differentiated.

    Attributes:
        name: Its path in the tree.
        shape: Its shape.
        way: "outer", "gram" or "formed" (see `_norms`), "per record" (its gradient is formed for
            every record), or "unused" (the loss does not depend on it).
        flops: Floating-point operations for one record's norm, beyond forward and backward pass.
        bytes: Held for one record on its account.
    """

    name: str
    shape: tuple[int, ...]
    way: str
    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class EngineReport:
    """The algorithm of a clipped sum, leaf by leaf. `str` gives the table.

    Attributes:
        leaves: A line for each leaf.
        num_rows: Rows of a batch.
        microbatch_size: Rows that are worked on at once.
    """

    leaves: tuple[LeafReport, ...]
    num_rows: int
    microbatch_size: int

    def __str__(self) -> str:
        """The table."""
        header = ("leaf", "shape", "way", "flops/record", "bytes/record")
        rows = [(x.name, str(x.shape), x.way, f"{x.flops:,}", f"{x.bytes:,}") for x in self.leaves]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [_line(header, widths), _line(tuple("-" * w for w in widths), widths)]
        lines += [_line(row, widths) for row in rows]
        together = sum(x.bytes for x in self.leaves) * self.microbatch_size
        size = sum(math.prod(x.shape) for x in self.leaves)
        lines.append(
            f"{self.microbatch_size:,} of {self.num_rows:,} rows at once: {_bytes(together)} for the norms of all leaves; "
            f"per-record gradients would take {_bytes(4 * size * self.microbatch_size)}."
        )
        return "\n".join(lines)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    texts = [
        x.ljust(w) if i < 3 else x.rjust(w)
        for i, (x, w) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(texts).rstrip()


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.3g} {unit}"
