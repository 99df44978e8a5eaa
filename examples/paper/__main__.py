"""Run the papers' experiments one after another, and say how each went.

    python examples/paper --quick                 # all of them, at a size for CI
    python examples/paper vae samplers            # these two in full, into docs/papers/

Each is a process of its own, as if it had been started by hand.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main() -> int:
    """Run, and return 1 if an experiment failed."""
    names = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"some of {', '.join(names)} (all)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small size: seconds instead of minutes"
    )
    parser.add_argument(
        "--out", type=Path, help="folder of results (docs/papers, or paper-results with --quick)"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(
            f"no experiment is called {sorted(unknown)[0]!r}; there are {', '.join(names)}"
        )
    out = arguments.out or (
        Path("paper-results") if arguments.quick else FOLDER.parents[1] / "docs" / "papers"
    )
    outcomes = {}
    for name in arguments.names or names:
        print(f"--- {name}", flush=True)
        started = time.perf_counter()
        command = [
            sys.executable,
            FOLDER / f"{name}.py",
            "--out",
            out,
            *["--quick"] * arguments.quick,
        ]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(done.stderr)
        # Tables of people are not in the repository.
        absent = (
            done.returncode == 1 and "No table" in done.stderr and "Traceback" not in done.stderr
        )
        outcome = "ok" if done.returncode == 0 else "no data, left out" if absent else "FAILED"
        outcomes[name] = f"{outcome:<18} {time.perf_counter() - started:6.0f} s"
    width = max(map(len, outcomes))
    print(f"--- results in {out}")
    print("\n".join(f"{name:<{width}}  {outcome}" for name, outcome in outcomes.items()))
    return int(any("FAILED" in outcome for outcome in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
