"""d3p's programs beside ours, with a made-up checkout for d3p: what passes, what fails with a reason, what is skipped."""

import pytest

from benchmarks import beside_d3p

TESTS = """
import unittest
import d3p.random
import numpy as np
from d3p.svi import DPSVI, full_norm

class Made(unittest.TestCase):
    def test_ours_by_its_name(self):
        self.assertEqual(DPSVI.__module__.split(".")[0], "{owner}")
        self.assertTrue(np.alltrue(np.array([True])))
    def test_helper(self):
        full_norm([3.0, 4.0])
    def test_strange(self):
        self.assertTrue({strange})
"""
EXAMPLE = (
    "import sys, d3p.svi\nprint('fitted in', sys.argv[2], 'epochs by', d3p.svi.DPSVI.__module__)"
)


@pytest.fixture
def checkout(tmp_path):
    """A function that writes a made-up clone of d3p, whose package imports or does not."""

    def write(*, imports, strange=True):
        folder = tmp_path / "clone"
        modules = dict.fromkeys(("__init__", "minibatch", "modelling", "random"), "")
        modules["svi"] = (
            "class DPSVI: pass\ndef full_norm(x): return 5.0"
            if imports
            else "import of_another_time"
        )
        modules["dputil"] = (
            "def approximate_sigma(*_): return 1.0,\napproximate_sigma_remove_relation = approximate_sigma"
        )
        files = {f"d3p/{name}.py": text for name, text in modules.items()}
        files["tests/__init__.py"] = ""
        files["tests/test_made.py"] = TESTS.format(owner="discreet", strange=strange)
        files["tests/test_examples.py"] = "raise RuntimeError('examples are run by themselves')"
        files |= {f"examples/{name}.py": EXAMPLE for name in beside_d3p.EXAMPLES}
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return write


def test_a_test_that_fails_needs_its_reason(checkout, capsys):
    clone = checkout(imports=False)
    files = sorted(clone.rglob("*"))
    assert beside_d3p.main([str(clone), "--only", "tests,examples"]) == 0
    printed = capsys.readouterr().out
    assert "d3p is skipped: it does not import" in printed
    assert "No module named 'of_another_time'" in printed
    assert "discreet: 2 of d3p's 3 tests pass" in printed
    assert "1 fail: a helper that DPSVI does not need is not here" in printed
    assert "every failure has its reason" in printed
    assert "logistic_regression, 20 epochs, discreet" in printed
    assert "fitted in 20 epochs by discreet.interfaces.compat.d3p.svi" in printed
    assert sorted(clone.rglob("*")) == files


def test_a_failure_without_a_reason_ends_with_status_1(checkout, capsys):
    assert beside_d3p.main([str(checkout(imports=False, strange=False)), "--only", "tests"]) == 1
    printed = capsys.readouterr().out
    assert (
        "Without a reason:\n  tests.test_made.Made.test_strange: AssertionError: False is not true"
        in printed
    )


def test_d3p_runs_beside_ours_where_it_imports(checkout, capsys):
    """Its `approximate_sigma` is made up; ours has the noise that fixed-size batches need."""
    assert beside_d3p.main([str(checkout(imports=True)), "--only", "tests,noise"]) == 0
    printed = capsys.readouterr().out
    assert "d3p: 2 of d3p's 3 tests pass" in printed  # its DPSVI is its own
    assert "approximate_sigma(1, 1e-5, 0.01, 1000): discreet " in printed
    assert printed.count(", d3p 1\n") == 4


def test_without_a_checkout_all_is_skipped_with_the_reason(tmp_path, capsys):
    assert beside_d3p.main([str(tmp_path)]) == 0
    assert f"Skipped: {tmp_path} has no d3p/svi.py" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        beside_d3p.main([str(tmp_path), "--only", "taste"])
