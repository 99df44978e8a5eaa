"""How docstrings are read for the reference: their doctests are code, whether a heading says so or not."""

import re
from typing import Any

import griffe

# A doctest that stands at the margin, up to the next empty line.
BARE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


def with_examples(text: str) -> str:
    """The docstring with each doctest under "Examples:", the name that griffe knows."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    return BARE.sub(
        lambda found: "Examples:\n" + re.sub(r"^", "    ", found[0], flags=re.MULTILINE), text
    )


class Examples(griffe.Extension):
    """Reads docstrings as `with_examples` writes them."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Look at the docstring of one class, function or module."""
        del others
        if obj.docstring:
            obj.docstring.value = with_examples(obj.docstring.value)
