"""d3p's own programs beside ours: each runs as it is, by d3p and by discreet's interface of d3p's names.

    python -m benchmarks.beside_d3p CHECKOUT [--python PYTHON] [--only tests,noise,examples]
    [--epochs 20]

CHECKOUT is a clone of github.com/DPBayes/d3p. PYTHON is an interpreter with what d3p needs, for the
side of d3p; without it this one is tried, and if d3p does not import there, its side is skipped
with the reason. d3p 8c978db runs on Python 3.11 with

    pip install jax==0.4.13 jaxlib==0.4.13 numpyro==0.11.0 'numpy<1.26' 'scipy<1.12'
    'jax-chacha-prng<2' 'fourier-accountant<1'

A side is a temporary folder with copies of d3p's tests and examples, and beside them a package
`d3p`: a copy of d3p's, or a file that gives our modules its names. Each test that fails on our side
needs a reason in `REASONS`, which says by what error it is known: a test that fails without one, or
by another error, ends the program with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

PARTS = ("tests", "noise", "examples")
OURS = "discreet"
THEIRS = "d3p"
EXAMPLES = ("simple_gaussian_posterior", "logistic_regression", "gaussian_mixture_model")

# Of a failing test's name and error; the first that is found counts.
# Of d3p 8c978db's 191 tests 59 fail: 22, 16, 8, 6, 4, 2 and 1 by these reasons, in their order.
REASONS = {
    r"full_norm|(clip|normalize)_gradient|unvectorize_shape|sample_from_array|map_over_secondary_dims|get_epsilon_R": (
        "a helper that DPSVI does not need is not here"
    ),
    r"DPSVIState|_gradients'|observation_scale": "underscored methods and the fields of the state are discreet's own",
    r"with_replacement=True has no accountant here": "no accountant here is for batches with replacement",
    r"test_poisson_batchify_(oversize|max_batch_size)\w+: AssertionError": "Poisson batches are never truncated",
    r"PRNGKey dtype|key<chacha20>": "the test reads a key as numbers; ours are JAX's typed keys",
    r"out of bounds for uint16": "NumPy 2 refuses the test's own arithmetic",
    r"DebugRNGSuiteTests.test_uniform: AssertionError": "JAX draws other numbers from the test's seed than in 2023",
}

# Our modules by d3p's names. A name that d3p's tests import and that is not here refuses where it
# is called, so that the other tests of the file run. NumPy 2 has no `alltrue`, which the tests use.
NAMES = """
import sys
import jax.numpy, numpy
from discreet.interfaces.compat import d3p

def absent(name):
    def refuse(*args, **kwargs):
        raise NotImplementedError(f"{{name}} is not here")
    return refuse

for module, name in {imported!r}:
    place = sys.modules.get(f"{{d3p.__name__}}.{{module}}")
    if place is not None and not hasattr(place, name):
        setattr(place, name, absent(name))
for name, module in list(sys.modules.items()):
    if name == d3p.__name__ or name.startswith(f"{{d3p.__name__}}."):
        sys.modules["d3p" + name.removeprefix(d3p.__name__)] = module
for library in (numpy, jax.numpy):
    if not hasattr(library, "alltrue"):
        library.alltrue = library.all
"""

# For any Python that d3p runs on: every test's name with its error, which is empty for one that
# passed.
RUN_TESTS = """
import json, sys, unittest
class Kept(unittest.TestResult):
    found = {}
    def addSuccess(self, test): self.found[test.id()] = ""
    def addFailure(self, test, error): self.found[test.id()] = f"{error[0].__name__}: {error[1]}"
    addError = addFailure
    def addSkip(self, test, reason): pass
def each(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite): yield from each(test)
        else: yield test
result = Kept()
for test in each(unittest.defaultTestLoader.discover("tests", top_level_dir=".")):
    if "test_examples" not in test.id(): test(result)
json.dump(result.found, open(sys.argv[1], "w"))
"""

# q, steps: the noise multiplier for epsilon = 1, delta = 1e-5.
COMPUTE_NOISE = """
import json, sys
import d3p.dputil
found = {}
for q, steps in ((0.01, 1000), (0.001, 10000)):
    for name in ("approximate_sigma", "approximate_sigma_remove_relation"):
        found[f"{name}(1, 1e-5, {q}, {steps})"] = float(getattr(d3p.dputil, name)(1.0, 1e-5, q, steps)[0])
json.dump(found, open(sys.argv[1], "w"))
"""


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; the exit status is 1 if a test fails on our side without a reason, or an example fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a clone of github.com/DPBayes/d3p")
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter that has what d3p needs (this one)"
    )
    parser.add_argument("--only", default=",".join(PARTS), help="some of %(default)s")
    parser.add_argument(
        "--epochs", type=int, default=20, help="of each example, 10 or more (%(default)s)"
    )
    options = parser.parse_args(arguments)
    asked = options.only.split(",")
    if unknown := sorted(set(asked) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    missing = [
        name
        for name in ("d3p/svi.py", "tests", "examples")
        if not (options.checkout / name).exists()
    ]
    if missing:
        print(
            f"Skipped: {options.checkout} has no {missing[0]}. Pass a clone of github.com/DPBayes/d3p."
        )
        return 0
    with tempfile.TemporaryDirectory() as folder:
        sides = {OURS: our_side(options.checkout, Path(folder, OURS))}
        theirs, reason = their_side(options.checkout, Path(folder, THEIRS), options.python)
        if theirs is None:
            print(f"{THEIRS} is skipped: it does not import in {options.python} ({reason}).")
        else:
            sides[THEIRS] = theirs
        failed = 0
        if "tests" in asked:
            failed += compare_tests({name: side.answer(RUN_TESTS) for name, side in sides.items()})
        if "noise" in asked:
            compare_noise({name: side.answer(COMPUTE_NOISE) for name, side in sides.items()})
        if "examples" in asked:
            failed += sum(run_example(name, sides, options.epochs) for name in EXAMPLES)
    return int(failed > 0)


class Side:
    """A folder in which d3p's programs run, and the interpreter that runs them."""

    def __init__(self, folder: Path, python: str, *paths: Path) -> None:
        self.folder = folder
        self.python = python
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, *paths)))}
        # An example's subprocess would find another interpreter by the name of `python`.
        self.environment["PATH"] = f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}"

    def run(self, *arguments: Any) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        command = [self.python, *map(str, arguments)]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )

    def answer(self, program: str) -> dict[str, Any]:
        """What a program writes into the file that it is given."""
        answered = self.folder / "answer.json"
        answered.unlink(missing_ok=True)
        done = self.run("-c", program, answered)
        if not answered.exists():
            raise RuntimeError(f"{self.python} stopped: {last_line(done.stderr)}")
        return json.loads(answered.read_text())


def last_line(text: str) -> str:
    """The last line that has words, which is a traceback's error."""
    return next(
        (line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message"
    )


def our_side(checkout: Path, folder: Path) -> Side:
    """d3p's programs, on our modules by its names."""
    import discreet

    for part in ("tests", "examples"):
        shutil.copytree(checkout / part, folder / part)
    (folder / "d3p").mkdir()
    imported = set()
    for path in sorted((checkout / "tests").glob("*.py")):
        for module, names in re.findall(
            r"^from d3p\.(\w+) import (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            imported |= {(module, name) for name in re.findall(r"\w+", names)}
    (folder / "d3p" / "__init__.py").write_text(NAMES.format(imported=sorted(imported)))
    return Side(folder, sys.executable, Path(discreet.__file__).parents[1])


def their_side(checkout: Path, folder: Path, python: str) -> tuple[Side | None, str]:
    """d3p's programs on a copy of d3p; or None, and why it does not import."""
    for part in ("d3p", "tests", "examples"):
        shutil.copytree(checkout / part, folder / part)
    side = Side(folder, python)
    done = side.run("-c", "import d3p.svi, d3p.dputil, d3p.minibatch, d3p.modelling")
    return (side, "") if done.returncode == 0 else (None, last_line(done.stderr))


def compare_tests(found: dict[str, dict[str, str]]) -> int:
    """Print how many of d3p's tests pass on each side, and why others fail on ours; return how many have no reason."""
    for name, outcomes in found.items():
        print(
            f"{name}: {sum(not error for error in outcomes.values())} of d3p's {len(outcomes)} tests pass"
        )
    reasons: Counter[str] = Counter()
    unexplained = []
    for test, error in found[OURS].items():
        if not error:
            continue
        known = next(
            (
                reason
                for pattern, reason in REASONS.items()
                if re.search(pattern, f"{test}: {error}")
            ),
            None,
        )
        reasons.update([known] if known else [])
        unexplained += [] if known else [f"  {test}: {last_line(error)}"]
    for reason, count in reasons.most_common():
        print(f"  {count:3} fail: {reason}")
    print(
        "\n".join(
            ["Without a reason:", *unexplained]
            if unexplained
            else ["  every failure has its reason"]
        )
    )
    return len(unexplained)


def compare_noise(found: dict[str, dict[str, float]]) -> None:
    """Print the noise that each side calibrates: ours is larger where d3p's formula is no bound."""
    for call, sigma in found[OURS].items():
        others = [f", {name} {values[call]:.4g}" for name, values in found.items() if name != OURS]
        print(f"{call}: {OURS} {sigma:.4g}{''.join(others)}")


def run_example(name: str, sides: dict[str, Side], epochs: int) -> int:
    """Run an example of d3p's on each side, print time and last lines; return whether it failed on ours."""
    failed = 0
    for side, place in sides.items():
        started = time.perf_counter()
        done = place.run(Path("examples", f"{name}.py"), "-n", epochs)
        seconds = time.perf_counter() - started
        print(
            f"{name}, {epochs} epochs, {side}: {seconds:.0f} s, exit status {done.returncode}",
            flush=True,
        )
        lines = [line for line in done.stdout.splitlines() if line.strip()][-6:]
        print(
            "\n".join(
                f"    {line}"
                for line in (lines if done.returncode == 0 else [last_line(done.stderr)])
            )
        )
        failed += done.returncode != 0 and side == OURS
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
