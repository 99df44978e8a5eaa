"""docs/strangers.md has the table of NumPyro's examples; the models of this folder, which name the examples, stand behind it."""

import re
from pathlib import Path

HERE = Path(__file__).parent
# What the tests here refuse, each by its words.
REFUSED = {
    "baseball.not_pooled",
    "prodlda",
    "bayesian_imputation",
    "bayesian_cuped.cuped_model",
    "gp",
    "dais_demo",
    "nnx_example",
    "german_credit",
}
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5}


def rows():
    text = (HERE.parent.parent / "docs" / "strangers.md").read_text()
    return re.findall(r"^\| (`.*?) \| (taken|refused) \|", text, re.MULTILINE), text


def number(examples):
    """Count the models that a cell of the table names: `a`, `b` (two), or `a` (`b`, `c`), whose `a` is the file."""
    file = re.match(r"`\w+` \(`", examples)
    return (
        len(re.findall("`[^`]+`", examples))
        - bool(file)
        + sum(NUMBERS[x] - 1 for x in re.findall(r"\((\w+)\)", examples))
    )


def test_at_most_twelve_are_refused():
    table, text = rows()
    refused = [examples for examples, outcome in table if outcome == "refused"]
    assert sum(number(x) for x in refused) == 9
    assert "Nine are refused" in text
    assert sum(number(x) for x, _ in table) > 50
    assert set(re.findall("`([^`]+)`", " ".join(refused))) == REFUSED


def test_each_row_has_a_model():
    programs = "".join(
        path.read_text() for path in HERE.glob("test_*.py") if path != Path(__file__)
    )
    for examples, _ in rows()[0]:
        names = [name.split(".")[-1] for name in re.findall("`([^`]+)`", examples)]
        assert any(re.search(rf"`[\w.]*{re.escape(name)}", programs) for name in names), examples
