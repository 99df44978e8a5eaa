"""Draw the two pictures of docs/architecture.md from the code.

`docs/storeys.svg` shows the four storeys from the ground up, with the modules and phrases that the
docstring of each storey's `__init__.py` lists. `docs/fit-path.svg` shows the files through which a
small fit runs, in the order of their first call under `sys.setprofile`, each with the first
sentence of its docstring, or with the phrase in `PHRASES` where that is too long.

    python tools/draw_house.py          write both
    python tools/draw_house.py --check  exit with 1 if the committed pictures differ

The pictures have a background of their own, so that they can be read on any page, and follow a dark
colour scheme except in print. The widths of words are estimated for a wide font (DejaVu), so that
other fonts fit, too.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = REPOSITORY / "src" / "discreet"
STOREYS = ("privacy", "methods", "tabular", "interfaces")
GROUND = {
    "_garbage": "imports and traces leave cycles alone",
    "_dp_accounting": "its events, without its accountants",
    "_jax": "all uses of JAX's internals",
    "_numpyro": "all uses of NumPyro's internals",
    "_validate": "checks of arguments",
    "storage": "files, whole or not at all",
}

# The file whose first call begins a part of a fit, and what happens there.
PARTS = {
    "methods/inference/_dpsvi.py": ("Check", "Refuse wrong input, find the model's structure."),
    "privacy/report/_facts.py": ("State", "Compute what the whole plan costs."),
    "methods/inference/_trace.py": ("Prove", "Trace the loop, then interpret its jaxpr."),
    "privacy/act.py": ("Act", "Debit, then run the loop that was proved."),
    "methods/inference/_result.py": ("Report", "Releases and their statement."),
}

# What follows the files of a part: the compiled loop calls none.
NOTES = {
    "Act": "A step of the compiled loop draws a batch, sums clipped gradients, adds noise, updates. "
    "Only the noisy sum leaves it."
}

# For files of a fit's path whose docstring starts with more than `LONGEST` characters.
LONGEST = 34
PHRASES = {
    "methods/inference/_dpsvi.py": "run, and the order of all below",
    "methods/inference/_processes.py": "several processes agree on the fit",
    "methods/inference/_proof.py": "the proof of the fit",
    "privacy/random/_keys.py": "the secret key, and what it is for",
    "methods/inference/_records.py": "which arguments are records",
    "methods/inference/_saved.py": "the folder of a resumable fit",
    "privacy/random/_claims.py": "one key, one noise",
    "privacy/sampling/_interface.py": "the law of a batch, and its event",
    "privacy/sampling/_poisson.py": "Poisson samples",
    "privacy/sampling/_draws.py": "batch sizes and uniform subsets",
    "methods/inference/_elbo.py": "the ELBO, with a term per record",
    "privacy/random/_prng.py": "ChaCha20 as a JAX PRNG",
    "privacy/random/_chacha.py": "the keystream of RFC 8439",
    "methods/inference/_optimizers.py": "the optimizer, and its digest",
    "methods/inference/_start.py": "where the fit starts",
    "methods/inference/_programs.py": "model, guide and their arguments",
    "methods/inference/_structure.py": "latents and plates, by tracing",
    "methods/inference/_autoguides.py": "guides, set up without records",
    "methods/inference/_tables_outside.py": "refuse tables in the model's code",
    "methods/inference/_point_guide.py": "the guide at one point",
    "methods/inference/_couplings.py": "refuse couplings between records",
    "privacy/mechanisms/_integers.py": "the grid of the noise",
    "privacy/plan.py": "public numbers, their event and ε",
    "methods/inference/_step.py": "batch, clipped sum, noise, update",
    "methods/inference/_support.py": "refuse impossible records",
    "privacy/report/_facts.py": "the facts of the statement",
    "privacy/clipping.py": "the rule for the clipping norm",
    "privacy/gradients/_contract.py": "what gradient engines guarantee",
    "privacy/report/_make.py": "a statement from a plan",
    "privacy/mechanisms/_batches.py": "a secret batch, as a primitive",
    "privacy/mechanisms/_engines.py": "the clipped sum, as a primitive",
    "privacy/mechanisms/_noise.py": "noise, as a primitive",
    "privacy/mechanisms/_kinds.py": "the mechanisms as objects",
    "privacy/accounting/_profile.py": "δ for every ε, and calibration",
    "privacy/accounting/_events.py": "from an event to dominating pairs",
    "privacy/accounting/_compose.py": "composition of all steps",
    "privacy/accounting/_pairs.py": "what one use of a mechanism costs",
    "privacy/accounting/_filter.py": "a cap for all fits together",
    "privacy/accounting/_renyi.py": "divergences that always add up",
    "privacy/accounting/_relation.py": "what neighbouring tables are",
    "privacy/accounting/_risk.py": "one person's risk, in words",
    "methods/inference/_trace.py": "the iterates that will be kept",
    "privacy/verify/_certify.py": "from a function to a certificate",
    "privacy/verify/_programs.py": "tracing, fingerprints, compiling",
    "privacy/verify/_symbols.py": "parameters that stay open",
    "privacy/verify/_refusals.py": "what no proof covers",
    "privacy/verify/_bounds.py": "of what bounds are made",
    "privacy/verify/_keyring.py": "keys: secret, used, derived",
    "privacy/verify/_arithmetic.py": "public numbers as XLA has them",
    "privacy/verify/_public.py": "the rule of public operands",
    "privacy/verify/_precision.py": "what number types keep",
    "privacy/verify/_rows.py": "how operands meet",
    "privacy/verify/_scan.py": "loops with sums that grow",
    "privacy/verify/_rules_keys.py": "rules for keys",
    "privacy/verify/_rules_noise.py": "rules for mechanisms",
    "privacy/verify/_claims.py": "beside the declared event",
    "privacy/verify/recognize/_schedules.py": "noise that changes by iteration",
    "privacy/verify/recognize/_counters.py": "integers that count iterations",
    "privacy/verify/recognize/_slices.py": "rows taken by number",
    "privacy/verify/_events.py": "from the record to the event",
    "methods/inference/_loop.py": "the loop, traced as it will run",
    "methods/inference/_draws.py": "the random bits of a batch",
    "privacy/gradients/_bookkeeping.py": "clipped sums by book-keeping",
    "privacy/gradients/_rows.py": "lengths and scales of rows",
    "privacy/gradients/_uses.py": "where parameters meet a record",
    "privacy/gradients/_layers.py": "the layers that are supported",
    "privacy/gradients/_views.py": "weights as parts of a leaf",
    "privacy/gradients/_norms.py": "the norm of one record's gradient",
    "privacy/gradients/_sums.py": "sums, the same to the bit",
    "privacy/gradients/_layer.py": "the interface of layers",
    "privacy/random/_discrete.py": "discrete Gaussian noise",
    "privacy/random/_tables.py": "the noise's law, as a table",
    "privacy/verify/_interpreter.py": "the walk through the loop's jaxpr",
    "privacy/verify/_errors.py": "refusals, with their source line",
    "privacy/verify/_domain.py": "abstract values of variables",
    "privacy/verify/_control.py": "calls, branches, loops",
    "privacy/verify/_rules_markers.py": "rules for the markers",
    "privacy/act.py": "claim the key, debit, run, state",
    "privacy/ledger.py": "the table's budget, on the disk",
    "methods/inference/_checkpoint.py": "checkpoints of the fit",
    "methods/inference/_result.py": "what a fit returns",
    "methods/inference/_forms.py": "a fit as a file",
    "privacy/report/_words.py": "the statement, as a text",
}


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def modules(storey: str) -> list[tuple[str, str]]:
    """Modules of a storey in reading order, with their phrases, from its page."""
    return re.findall(
        r"^    (\w+)  +(\S.*)$", docstring(SOURCES / storey / "__init__.py"), re.MULTILINE
    )


def phrase(file: str) -> str:
    """What a file does, in a few words."""
    if file in PHRASES:
        return PHRASES[file]
    first = docstring(SOURCES / file).partition("\n")[0].rstrip(".").replace("`", "")
    if len(first) > LONGEST:
        raise ValueError(
            f"The docstring of {file} starts with {len(first)} characters: give it a phrase in PHRASES."
        )
    return first[:1].lower() + first[1:]


def first_calls(act: Callable[[], Any]) -> list[str]:
    """Files of discreet in the order in which their functions are first called, imports aside."""
    found: dict[str, None] = {}
    importing = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal importing
        del argument
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(SOURCES)):
            return
        if code.co_name == "<module>":
            importing += 1 if event == "call" else -1
        elif not importing:
            found.setdefault(Path(code.co_filename).relative_to(SOURCES).as_posix())

    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(None)
    return list(found)


def path_of_a_fit() -> list[str]:
    """The files that `DPSVI.run` calls up to its statement, without the ground. Only the first fit of a process has them all."""
    sys.path.insert(0, str(SOURCES.parent))
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.autoguide import AutoNormal

    import discreet as dp

    def model(x: Any, y: Any = None) -> None:
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    plan = dp.PrivacyPlan.calibrate(
        epsilon=8.0,
        delta=1e-6,
        num_records=2_000,
        num_steps=3,
        sampling=dp.PoissonSampling(rate=0.1),
        clipping_norm=1.0,
    )
    svi = dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.02), plan=plan)
    key = dp.random.key()
    x = jnp.ones((2_000, 2))
    y = jnp.ones(2_000)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit is of no use
        ledger = dp.Ledger.create(
            Path(folder) / "survey.ledger", dataset="survey", epsilon=10.0, delta=1e-5
        )
        called = first_calls(
            lambda: str(svi.run(key, x, y, ledger=ledger, progress_bar=False).statement)
        )
    return [file for file in called if "/" in file]


SANS = "-apple-system, BlinkMacSystemFont, Helvetica, Arial, sans-serif"  # those of the site
MONO = "SFMono-Regular, Consolas, Menlo, monospace"
# Of a storey, and of the ground: a strong colour and a tint, on white and on black.
COLOURS = {
    "ground": ("#5f6b73", "#eceff1", "#a7b4bc", "#2a3136"),
    "privacy": ("#00695c", "#dff1ee", "#5fc9b8", "#17352f"),
    "methods": ("#2f5597", "#e3eaf6", "#8fb2ee", "#1e2c45"),
    "tabular": ("#99570a", "#faeedc", "#e2ae6a", "#3b2c17"),
    "interfaces": ("#74418f", "#f1e7f6", "#cda3e3", "#33223d"),
}
WIDTH = 960
MARGIN = 20


def style() -> str:
    """Colours by class, in light and dark. Print is light."""
    light = "".join(
        f".{name} .strong {{ fill: {strong} }} .{name} .tint {{ fill: {tint} }} "
        for name, (strong, tint, _, _) in COLOURS.items()
    )
    dark = "".join(
        f".{name} .strong {{ fill: {strong} }} .{name} .tint {{ fill: {tint} }} "
        for name, (_, _, strong, tint) in COLOURS.items()
    )
    return "\n".join(
        [
            "<style>",
            f"text {{ font-family: {SANS}; fill: #1d262b }} .soft {{ fill: #4d5b63 }}",
            f".code {{ font-family: {MONO} }} .bold {{ font-weight: 700 }} .end {{ text-anchor: end }}",
            ".paper, .room { fill: #fff } .bar { fill: #eef1f3 } .line { fill: none; stroke: #7b8a92; stroke-width: 1.5 }",
            light,
            "@media screen and (prefers-color-scheme: dark) {",
            "text { fill: #e6ebee } .soft { fill: #b3bfc6 } .paper, .room { fill: #15191c } .bar { fill: #2a3136 }",
            dark,
            "}",
            "</style>",
        ]
    )


def width_of(text: str, size: float, *, code: bool = False, bold: bool = False) -> float:
    """An upper estimate of a text's width."""
    return len(text) * size * (0.61 if code else 0.63 if bold else 0.575)


def wrapped(text: str, size: float, width: float) -> list[str]:
    return textwrap.wrap(text, int(width / width_of("x", size)), break_long_words=False)


class Drawing:
    """Lines of an SVG. Each text states its room, and words that may be wider than that are an error."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.lines: list[str] = []

    def text(
        self, x: float, y: float, words: str, size: float, room: float, look: str = ""
    ) -> None:
        kinds = look.split()
        if width_of(words, size, code="code" in kinds, bold="bold" in kinds) > room:
            raise ValueError(f"'{words}' is wider than its {room:.0f} units: shorten it.")
        kind = f' class="{look}"' if look else ""
        self.lines.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{kind}>{escape(words, quote=False)}</text>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, look: str, radius: float = 6
    ) -> None:
        self.lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{look}"/>'
        )

    def add(self, line: str) -> None:
        self.lines.append(line)

    def enclose(
        self, start: int, kind: str, x: float, y: float, width: float, height: float
    ) -> None:
        """Put a box of a kind behind all that was drawn from a line on."""
        later = self.lines[start:]
        del self.lines[start:]
        self.add(f'<g class="{kind}">')
        self.box(x, y, width, height, "tint")
        self.lines += [*later, "</g>"]

    def svg(self, height: float) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
            f'aria-label="{escape(self.title)}">'
        )
        paper = f'<rect width="{WIDTH}" height="{height:g}" rx="8" class="paper"/>'
        return "\n".join(
            [
                head,
                f"<title>{escape(self.title)}</title>",
                style(),
                paper,
                *self.lines,
                "</svg>",
                "",
            ]
        )


def even_rows(rooms: list[tuple[str, str]], most: int = 4) -> list[list[tuple[str, str]]]:
    """Rows of nearly the same number of modules, in order."""
    count = -(-len(rooms) // most)
    cuts = [-(-len(rooms) * i // count) for i in range(count + 1)]
    return [rooms[a:b] for a, b in pairwise(cuts)]


def storeys() -> str:
    """The first picture: storeys from the ground up, modules in reading order."""
    drawing = Drawing(
        "The four storeys of discreet, from the ground up, with their modules in reading order"
    )
    inner = WIDTH - 2 * MARGIN - 44  # beside it there is an arrow
    gap = 7
    number = sum(len(modules(storey)) for storey in STOREYS)
    y = MARGIN
    for storey in (*reversed(STOREYS), "ground"):
        on_ground = storey == "ground"
        rooms = list(GROUND.items()) if on_ground else modules(storey)
        title = (
            ""
            if on_ground
            else docstring(SOURCES / storey / "__init__.py").partition("\n")[0].rstrip(".")
        )
        title = title.removeprefix(f"{storey.capitalize()}: ")
        number -= len(rooms)
        start = len(drawing.lines)
        top = y + (gap if on_ground else 38)
        if not on_ground:
            drawing.text(MARGIN + 14, y + 26, storey, 17, 130, "code bold strong")
            drawing.text(MARGIN + 134, y + 25, title[:1].upper() + title[1:], 12, inner - 140)
        at = number
        for row in even_rows(rooms):
            width = (inner - (len(row) + 1) * gap) / len(row)
            inside = [
                (name, wrapped(words.replace("`", ""), 12, width - 18)) for name, words in row
            ]
            height = 29 + 15 * max(len(lines) for _, lines in inside)
            for i, (name, lines) in enumerate(inside):
                x = MARGIN + gap + i * (width + gap)
                drawing.box(x, top, width, height, "room", 4)
                drawing.text(x + 9, top + 19, name, 13.5, width - 40, "code bold strong")
                if not on_ground:
                    at += 1
                    drawing.text(x + width - 9, top + 18, str(at), 11, 18, "soft end")
                for k, line in enumerate(lines):
                    drawing.text(x + 9, top + 36 + 15 * k, line, 12, width - 12, "soft")
            top += height + gap
        drawing.enclose(start, storey, MARGIN, y, inner, top - y)
        y = top + 6
    y -= 6
    x = WIDTH - MARGIN - 30
    drawing.add(f'<path class="line" d="M{x:g} {MARGIN + 6} V{y - 4:g} m-6 -10 l6 10 l6 -10"/>')
    drawing.add(
        f'<text transform="translate({x + 14:g} {(MARGIN + y) / 2:g}) rotate(90)" font-size="12.5" text-anchor="middle" '
        'class="soft">A module imports only what stands below it, or before it in its storey.</text>'
    )
    return drawing.svg(y + MARGIN)


def parts_of(files: list[str]) -> list[tuple[str, str, list[str]]]:
    """Parts of a fit: title, what happens there, files."""
    found: list[tuple[str, str, list[str]]] = []
    for file in files:
        if file in PARTS:
            found.append((*PARTS[file], []))
        if not found:
            raise ValueError(f"A fit starts in {file}: give PARTS this file.")
        found[-1][2].append(file)
    if [title for title, _, _ in found] != [title for title, _ in PARTS.values()]:
        raise ValueError("A fit goes through the files of PARTS in another order now.")
    return found


def fit_path(files: list[str]) -> str:
    """The second picture: the files of a fit in the order of their first call, by parts and storeys."""
    drawing = Drawing("The files that a fit runs through, in the order of their first call")
    lanes = {"methods": 9, "privacy": 26}
    column = (WIDTH - 3 * MARGIN) / 2
    step = 20
    for k, (storey, words) in enumerate(
        (("methods", "methods: how to fit"), ("privacy", "privacy: what ε rests on"))
    ):
        x = MARGIN + 180 * k
        drawing.add(
            f'<g class="{storey}"><circle cx="{x + lanes["methods"]}" cy="{MARGIN + 6}" r="5" class="strong"/></g>'
        )
        drawing.text(x + 22, MARGIN + 10.5, words, 12, 170)
    parts = parts_of(files)
    # The first column has the parts up to the middle of the files.
    so_far = list(accumulate(len(of_part) for _, _, of_part in parts))
    first = 1 + next(i for i, count in enumerate(so_far) if 2 * count >= len(files))
    bottom = 0.0
    number = 0
    for x, here in ((MARGIN, parts[:first]), (2 * MARGIN + column, parts[first:])):
        y = MARGIN + 32
        for title, words, of_part in here:
            number += 1
            drawing.box(x, y, column, 27, "bar", 4)
            drawing.text(x + 10, y + 18.5, f"{number}  {title}", 13.5, 90, "bold")
            drawing.text(x + 104, y + 18, words, 12, column - 106, "soft")
            y += 27 + 18
            spots = [
                (x + lanes[file.partition("/")[0]], y + step * i - 4)
                for i, file in enumerate(of_part)
            ]
            drawing.add(
                '<path class="line" d="M' + " L".join(f"{a:g} {b:g}" for a, b in spots) + '"/>'
            )
            for file, (a, b) in zip(of_part, spots, strict=True):
                storey, _, name = file.removesuffix(".py").partition("/")
                drawing.add(
                    f'<g class="{storey}"><circle cx="{a:g}" cy="{b:g}" r="5" class="strong"/>'
                )
                size = min(11.5, 11.5 * 182 / width_of(name, 11.5, code=True))
                drawing.text(x + 40, b + 4, name, size, 182.5, "code strong")
                drawing.add("</g>")
                drawing.text(x + 223, b + 4, phrase(file), 11.5, column - 223)
            y += step * len(of_part)
            for line in wrapped(NOTES.get(title, ""), 11.5, column - 40):
                drawing.text(x + 40, y, line, 11.5, column - 40, "soft")
                y += 17
            y += 4
        bottom = max(bottom, y)
    return drawing.svg(bottom + MARGIN - 16)


DRAWN = {
    "docs/storeys.svg": storeys,
    "docs/fit-path.svg": lambda: fit_path(path_of_a_fit()),
}


if __name__ == "__main__":
    drawn = {name: draw() for name, draw in DRAWN.items()}
    if "--check" in sys.argv:
        old = [
            name
            for name, svg in drawn.items()
            if (REPOSITORY / name).read_text(encoding="utf-8") != svg
        ]
        sys.exit(
            f"The code gives another {' and '.join(old)} now: python tools/draw_house.py"
            if old
            else 0
        )
    for name, svg in drawn.items():
        (REPOSITORY / name).write_text(svg, encoding="utf-8")
