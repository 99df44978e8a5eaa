"""Records beyond memory: 100 million over four processes of this machine, each of which maps its own shards.

python -m benchmarks.shards [--quick]

Makes a table of 3.2 GB in a temporary folder, and a small one; starts the processes; and prints how
long each took to its first step, the memory of its own that it had at most (RssAnon, not the pages
of the files), and the processor time of a step from either table, with the same expected batch.
`--quick` is the same with 400,000 records over two processes.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS, BATCH = 7, 1_000
FULL, QUICK = (100_000_000, 4, 2_000), (400_000, 2, 200)  # records, processes, steps


def make(folder: Path, records: int, shards: int) -> None:
    """A folder as `convert` writes it, of random features and a target that follows the first."""
    from discreet.tabular.tables import _convert, _shards, schema_from_bounds

    bounds = ",".join([*(f"x{i}=-1:1" for i in range(COLUMNS)), "y=0|1"])
    layout = _convert.Layout(schema_from_bounds(bounds, target="y"))
    rng = np.random.default_rng(0)
    with (
        tempfile.TemporaryFile(dir=folder.parent) as features,
        tempfile.TemporaryFile(dir=folder.parent) as targets,
    ):
        for first in range(0, records, 1_000_000):
            x = 2 * rng.random((min(1_000_000, records - first), COLUMNS), np.float32) - 1
            features.write(x.data)
            targets.write(
                (rng.random(len(x), np.float32) < 0.5 + 0.4 * x[:, 0]).astype(np.float32).data
            )
        features.flush()
        targets.flush()
        x = np.memmap(features, np.float32, "r", 0, (records, COLUMNS))
        y = np.memmap(targets, np.float32, "r", 0, (records,))
        folder.mkdir()
        report = _convert.Report(_convert.OutOfBounds.REFUSE)
        lengths = _shards.write_shards(folder, {"x": x, "y": y}, shards)
        _shards.write_index(folder, {"x": x, "y": y}, _convert._facts(layout, report), lengths)


def own_memory() -> int:
    """Bytes in memory that are of no file."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(
        "/proc/self/status says nothing of RssAnon: memory is measured on Linux only."
    )


def child(folder: Path, address: str, number: int, count: int, steps: int) -> None:
    """One of the processes: its figures are in a file of the folder."""
    began, most = time.time(), [0]

    def watch() -> None:
        while True:
            most[0] = max(most[0], own_memory())
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address, count, number, heartbeat_timeout_seconds=60, shutdown_timeout_seconds=60
    )
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.optim import Adam

    import discreet as dp
    from benchmarks import logistic
    from discreet.methods.inference import _loop
    from discreet.tabular.tables import open_records

    mesh = jax.make_mesh((jax.device_count(),), ("records",))
    # of each compiled call: when it ended, steps, processor time
    made: list[tuple[float, int, float]] = []

    def timed(program: Any) -> Any:
        def run(*args: Any) -> Any:
            started = time.process_time()
            found = jax.block_until_ready(program(*args))
            made.append((time.time(), int(args[-1]), time.process_time() - started))
            return found

        return run

    compiled = _loop.compiled
    _loop.compiled = lambda *args, **options: timed(compiled(*args, **options))
    found: dict[str, Any] = {}
    for name in ("large", "small", "large", "small"):
        made.clear()
        started, before = time.time(), time.process_time()
        records = open_records(folder / name, mesh=mesh)
        plan = dp.PrivacyPlan(
            sampling=dp.PoissonSampling(BATCH / records.num_records),
            clipping_norm=1.0,
            noise_multiplier=2.0,
            num_steps=steps,
            num_records=records.num_records,
        )
        model = functools.partial(logistic.model, N=records.num_records)
        dpsvi = dp.DPSVI(model, AutoNormal(model), Adam(0.01), plan=plan)
        result = dpsvi.run(dp.random.key(), *records.arrays, progress_bar=False, mesh=mesh)
        facts = found.setdefault(name, {"step": []})
        later = made[1:] or made
        facts["step"].append(sum(x[2] for x in later) / sum(x[1] for x in later))
        facts.setdefault("start", made[0][0] - (began if name == "large" else started))
        facts.setdefault(
            "start_processor", made[0][2] + time.process_time() - before - sum(x[2] for x in made)
        )
        facts["released"] = {name: np.asarray(x).tolist() for name, x in result.params.items()}
    found["own_memory"] = most[0]
    (folder / f"{number}.json").write_text(json.dumps(found), encoding="utf-8")


def main(quick: bool = False) -> list[dict[str, Any]]:
    """Make the tables, run the processes, print a line for each and return what they found."""
    records, count, steps = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.time()
        make(folder / "large", records, 4 * count)
        make(folder / "small", 100 * BATCH, 4 * count)
        size = sum(x.stat().st_size for x in (folder / "large").iterdir())
        print(
            f"{records:,} records, {size / 1e9:.3g} GB, made in {time.time() - began:.0f} s",
            flush=True,
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, "-m", "benchmarks.shards", "child", name, address]
        words = [[*command, str(number), str(count), str(steps)] for number in range(count)]
        children = [subprocess.Popen(x, env={**os.environ, "JAX_PLATFORMS": "cpu"}) for x in words]
        if statuses := [x for x in [child.wait() for child in children] if x]:
            raise RuntimeError(f"A process ended with {statuses[0]}.")
        found = [
            json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
            for number in range(count)
        ]
    for number, facts in enumerate(found):
        large, small = (statistics.median(facts[x]["step"]) for x in ("large", "small"))
        print(
            f"process {number}: first step after {facts['large']['start']:.1f} s ({facts['large']['start_processor']:.1f} s of "
            f"processor time; small table {facts['small']['start_processor']:.1f} s), memory of its own at most "
            f"{facts['own_memory'] / 2**20:.0f} MiB, a step {1e3 * large:.3g} ms, from the small table {1e3 * small:.3g} ms",
            flush=True,
        )
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
    else:
        main("--quick" in sys.argv[1:])
