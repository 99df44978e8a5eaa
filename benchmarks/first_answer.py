"""A first answer: from a fresh process to the coefficients of a logistic regression, in seconds of the processor.

python -m benchmarks.first_answer [--plot FILE]

5,000 rows and four columns in a CSV file.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._command import main
from benchmarks._harness import Figure, Outcome, Scale, Timing, quartiles
from benchmarks._results import duration

ROOT = Path(__file__).resolve().parents[1]
ROWS = 5_000
_READ = """
import numpy as np
table = np.genfromtxt("people.csv", delimiter=",", names=True)
x = np.stack([table[name] for name in "abcd"], axis=1)
y = table["ill"]
"""
_PROGRAMS = {
    "discreet, estimator": """
from discreet.tabular.estimators import LogisticRegression
print(LogisticRegression(epsilon=1.0, bounds=(-1, 1)).fit(x, y).coef_)
""",
    "diffprivlib": """
from diffprivlib.models import LogisticRegression
print(LogisticRegression(epsilon=1.0, data_norm=2.0).fit(x, y).coef_)
""",
    "scikit-learn, not private": """
from sklearn.linear_model import LogisticRegression
print(LogisticRegression().fit(x, y).coef_)
""",
    "NumPyro, not private": """
import jax
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

def model(x, y):
    weights = numpyro.sample("weights", dist.Normal(0, 2.5).expand([4]).to_event(1))
    with numpyro.plate("people", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

guide = AutoNormal(model)
svi = SVI(model, guide, numpyro.optim.Adam(0.02), Trace_ELBO())
print(guide.median(svi.run(jax.random.key(0), 2_000, x, y, progress_bar=False).params))
""",
}
IMPORTS = "part: discreet's imports, and reading"
_PROGRAMS[IMPORTS] = "from discreet.tabular.estimators import LogisticRegression"
COMMAND = "discreet, command line"
AGAIN = "discreet, command line, programs kept"
_BOUNDS = {"discreet, estimator": 4.0, COMMAND: 5.0, AGAIN: 3.5}


def measure(scale: Scale) -> list[Outcome]:
    """Each in fresh processes, in turn."""
    outcome = Outcome("first-answer", f"first answer of a fresh process, {ROWS:,} rows, 4 columns")
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _write(place / "people.csv", scale.size(ROWS, 500))
        programs = {
            name: [sys.executable, "-W", "ignore", "-c", _READ + program]
            for name, program in _PROGRAMS.items()
        }
        programs[COMMAND] = _command_line(place)
        if scale.tiny:
            programs = {"scikit-learn, not private": programs["scikit-learn, not private"]}
        else:
            programs[AGAIN] = _command_line(place, place / "kept")
        for number in range(1 if scale.tiny else min(scale.rounds, 3)):
            for name, command in programs.items():
                if name in outcome.skipped:
                    continue
                if name == AGAIN and number == 0:
                    _spent(command, place)
                spent, said = _spent(command, place)
                if spent is None:
                    outcome.skipped[name] = said
                else:
                    seconds.setdefault(name, []).append(spent)
    for name, found in seconds.items():
        outcome.timings.append(Timing(name, found, 1, "processor time"))
        if name == IMPORTS:
            continue
        low, middle, high = quartiles(found)
        limit = None
        reason = ""
        if name in _BOUNDS:
            limit = "<=", _BOUNDS[name]
            imports = quartiles(seconds[IMPORTS])[1]
            reason = (
                f"{duration(1e6 * imports)} of imports and reading, then the fit and its programs"
            )
        figure = Figure(name, middle, "s", limit, low, high, reason=reason, ours=middle)
        outcome.figures.append(figure)
    return [outcome]


def _write(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, 4))
    ill = rng.random(rows) < 1 / (1 + np.exp(-x @ [2.0, -1.0, 0.5, 0.0]))
    table = np.column_stack([x, ill])
    np.savetxt(path, table, "%.4f,%.4f,%.4f,%.4f,%d", header="a,b,c,d,ill", comments="")


def _command_line(place: Path, cache: Path | None = None) -> list[str]:
    bounds = ",".join([*(f"{name}=-1:1" for name in "abcd"), "ill=0|1"])
    fit = [
        "fit",
        "--data",
        "people.csv",
        "--bounds",
        bounds,
        "--target",
        "ill",
        "--person",
        "each row",
    ]
    more = ["--model", "logistic", "--epsilon", "1", "--out", str(place / "fit"), "--overwrite"]
    kept = [] if cache is None else ["--compilation-cache", str(cache)]
    return [sys.executable, "-m", "discreet", *kept, *fit, *more]


def _spent(command: list[str], place: Path) -> tuple[float | None, str]:
    """Processor time of a process and of those that it starts; None and what it said if it failed."""
    settings = {
        name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")
    }
    paths = [str(ROOT / "src"), settings.get("PYTHONPATH", "")]
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=place, env=settings, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        last = (done.stderr.strip() or "no words").splitlines()[-1]
        return None, f"exit status {done.returncode}: {last}"
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ""


def plot(workload: dict[str, Any], path: Path) -> None:
    """Draw the seconds as bars, as SVG or PNG by the file's ending."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    seconds = {timing["name"]: timing["median_us"] / 1e6 for timing in workload["timings"]}
    seconds.pop(IMPORTS, None)
    names = sorted(seconds, key=seconds.__getitem__, reverse=True)
    with plt.rc_context({"svg.hashsalt": "discreet", "svg.fonttype": "none", "font.size": 10}):
        figure, axes = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
        colours = ["C0" if name.startswith("discreet") else "C7" for name in names]
        bars = axes.barh(names, [seconds[name] for name in names], color=colours)
        axes.bar_label(bars, fmt="%.1f s", padding=3)
        axes.margins(x=0.12)
        axes.set_xlabel("seconds of the processor, from a fresh process to the coefficients")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


if __name__ == "__main__":
    main(measure, __doc__, plot=plot)
