"""Fits over processes with four devices in all. `test_processes.py` starts this file in each, with the parts to run.

What a process found is in FOLDER/PART-NUMBER.json, which it writes as it goes.
"""

import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.sharding import NamedSharding, PartitionSpec
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

import discreet as dp
from discreet import random
from discreet.methods.inference import _dpsvi, _loop, _saved
from discreet.methods.inference._checkpoint import Checkpoint
from discreet.methods.inference._forms import kinds
from discreet.methods.inference._saved import FILE
from discreet.methods.newton import ModelPlan, NewtonPlan, fit_newton
from discreet.methods.newton._saved import SavedReleases
from discreet.privacy.random import _claims
from discreet.storage import read_archive
from discreet.tabular.tables import _convert, _shards, open_records, schema_from_bounds

X = np.random.default_rng(0).normal(0.5, 1.0, (41, 3)).astype(np.float32)
X[5] = np.nan
SECRET = lambda: random.key_from_words(np.arange(8, dtype=np.uint32), reproducible=False)  # noqa: E731
STEPS = 12


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


def wide(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


def factors(y):
    loading = numpyro.sample("loading", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(z[:, None] * loading, 1.0).to_event(1), obs=y)


def plan(**changes):
    facts = {
        "num_steps": STEPS,
        "num_records": len(X),
        "noise_multiplier": 1.0,
        "clipping_norm": 1.0,
    }
    return dp.PrivacyPlan(**{**facts, "sampling": dp.PoissonSampling(0.5), **changes})


def make(model=model, **changes):
    local = {"local_updates": 2} if model is factors else {}
    return dp.DPSVI(model, AutoNormal(model), Adam(0.05), plan=plan(**changes), **local)


def newton_plan(epsilon=1.0, noise=1.0):
    plan = NewtonPlan.calibrate(
        epsilon=epsilon, delta=1e-4, family="binary", num_features=3, num_records=len(X)
    )
    return dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * noise)


def by_newton(key, x, plan=None, **options):
    y = np.arange(len(x)) % 2
    return fit_newton(key, np.clip(np.nan_to_num(x), -1, 1), y, plan or newton_plan(), **options)


def regression(key, x, **options):
    result = by_newton(key, x, **options)
    return result.mean, result.covariance


def of_a_model(key, x, **options):
    plan = ModelPlan.calibrate(epsilon=1.0, num_records=len(x))
    result = dp.DPNewton(model, plan=plan).run(key, x, progress_bar=False, **options)
    return result.estimate["mean"], result.posterior(random.key(5), 20)["mean"]


NEWTON = {"regression": regression, "model": of_a_model}
FITS = {
    "own latents": lambda: make(factors, rate_schedule=lambda t: 0.5 / (1 + t % 3)),
    "Langevin": lambda: dp.DPSGLD(model, plan=plan(), step_size=(1e-3, 10.0, 0.5)),
}


def write_shards(folder):
    """The first 40 rows in four shards; for each process a folder with its own two of them."""
    layout = _convert.Layout(schema_from_bounds("a=-9:9,b=-9:9,c=-9:9"))
    facts = _convert._facts(layout, _convert.Report(_convert.OutOfBounds.REFUSE))
    (folder / "shards").mkdir()
    lengths = _shards.write_shards(folder / "shards", {"x": X[:40]}, 4)
    _shards.write_index(folder / "shards", {"x": X[:40]}, facts, lengths)
    for number, others in enumerate([("x-02", "x-03"), ("x-00", "x-01")]):
        mine = folder / f"shards-{number}"
        shutil.copytree(folder / "shards", mine)
        for name in others:
            (mine / name).unlink()


class Part:
    """A part of the test that each process runs, and what it finds."""

    def __init__(self, port, number, folder, name, count):
        jax.config.update("jax_disable_most_optimizations", True)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            count,
            number,
            heartbeat_timeout_seconds=10,
            shutdown_timeout_seconds=20,
        )
        self.number, self.count, self.folder = number, count, Path(folder)
        self.mesh = jax.make_mesh((jax.device_count(),), ("records",))
        self.file, self.found = self.folder / f"{name}-{number}.json", {}

    def note(self, name, value):
        self.found[name] = value
        self.file.write_text(json.dumps(self.found))

    def run(self, fit, key, x=X, **options):
        return fit.run(key, x, progress_bar=False, **{"mesh": self.mesh, **options})

    def same_on_all(self):
        for name, fit in FITS.items():
            result = self.run(fit(), dp.random.key(3))
            self.note(
                name,
                [result.trace.iterates.tolist(), result.losses.tolist(), str(result.statement)],
            )
        # Each has its own rows alone; and a secret key each, of which one is used.
        along = NamedSharding(self.mesh, PartitionSpec("records"))
        rows = X[20 * self.number : 20 * (self.number + 1)]
        whole = jax.make_array_from_process_local_data(along, rows)
        budget = self.folder / "ledger"
        if self.number == 0:
            dp.Ledger.create(budget, dataset="d", epsilon=100.0, delta=1e-3)
        ledger = dp.Ledger(budget) if self.number == 0 else None
        result = self.run(make(num_records=40), dp.random.key(), whole, ledger=ledger)
        self.note("secret", [result.trace.iterates.tolist(), str(result.statement)])
        result = self.run(make(num_records=40), dp.random.key(3), whole)
        self.note("rows of its own", result.trace.iterates.tolist())
        records = open_records(self.folder / f"shards-{self.number}", mesh=self.mesh)
        result = self.run(
            make(num_records=40), dp.random.key(3), records.x, checkpoint=self.folder / "in-shards"
        )
        self.note("in shards", result.trace.iterates.tolist())

    def few_on_all(self):
        """Three records on each device, and none on the last one."""
        budget, few = self.folder / "ledger", make(num_records=9)
        result = self.run(few, dp.random.key(3), X[:9], keep_gradients=True)
        self.note("seed", [result.trace.iterates.tolist(), result.trace.gradients.tolist()])
        if self.number == 0:
            dp.Ledger.create(budget, dataset="d", epsilon=100.0, delta=1e-3)
        ledger = dp.Ledger(budget) if self.number == 0 else None
        result = self.run(few, dp.random.key(), X[:9], keep_gradients=True, ledger=ledger)
        self.note("secret", [result.trace.iterates.tolist(), str(result.statement)])
        self.note(
            "certificate", repr(few.certify(X[:9], mesh=self.mesh, keep_gradients=True).event)
        )

    def refusals(self):
        """Before anything is spent, and named in both."""
        from test_processes import refusals as ways_through

        self.note("without a mesh", ways_through(dp.random.key()))
        odd = self.number == 1
        budget = self.folder / "second"
        if not odd:
            dp.Ledger.create(budget, dataset="d", epsilon=0.1, delta=1e-3)
        ledger = None if odd else dp.Ledger(budget)

        def refused(name, fit, key=None, x=X, **options):
            said = ""
            try:
                self.run(fit, dp.random.key(3) if key is None else key, x, **options)
            except (ValueError, TypeError, RuntimeError) as error:
                said = f"{type(error).__name__}: {error}"
            self.note(name, said)

        refused("plan", make(noise_multiplier=2.0 if odd else 1.0))
        refused("seed", make(), dp.random.key(4 if odd else 3))
        refused("secret and seed", make(), dp.random.key(3) if odd else dp.random.key())
        refused("data", make(), x=X + np.float32(odd))
        refused("rows", make(), x=X[odd:])
        refused("options", make(), delta=1e-6 if odd else 1e-5)
        refused("model", make(wide if odd else model))
        refused("mesh", make(), mesh=jax.sharding.Mesh(np.roll(jax.devices(), odd), ("records",)))
        refused(
            "part of a mesh",
            make(),
            mesh=jax.sharding.Mesh(np.array(jax.local_devices()), ("records",)),
        )
        refused("an argument", make(), delta=7.0 if odd else 1e-5)
        refused("checkpoint", make(), checkpoint=self.folder / "elsewhere" if odd else None)
        refused("budget", make(), dp.random.key(), ledger=ledger)
        records = open_records(self.folder / f"shards-{self.number}", mesh=self.mesh)
        refused("in shards elsewhere", make(num_records=40), x=X[:40] if odd else records.x)
        if odd:
            shard = self.folder / "shards-1" / "x-03"
            shard.write_bytes(bytes(shard.stat().st_size))
        refused("shard", make(num_records=40), x=records.x)
        kept = _dpsvi.versions
        if odd:
            _dpsvi.versions = lambda: "discreet 0.1"
        refused("versions", make())
        _dpsvi.versions = kept
        # A planted fault: each process draws its own noise, which is found when the fit ends.
        kept, _saved.random.key_from_words = (
            _saved.random.key_from_words,
            lambda *_, **__: dp.random.key(self.number),
        )
        refused("key per process", make(), dp.random.key())
        _saved.random.key_from_words = kept

    def interrupted(self):
        """Ctrl-C in the second process alone; then SIGTERM, in a fit with a checkpoint."""
        extend, after = _loop.TraceRecorder.extend, [9]
        for name, sent in {"stopped": signal.SIGINT, "terminated": signal.SIGTERM}.items():

            def pressed(recorder, step, *rows, sent=sent):
                extend(recorder, step, *rows)
                if self.number == 1 and step in after:
                    os.kill(os.getpid(), sent)

            _loop.TraceRecorder.extend = pressed
            folder = self.folder / name if name == "terminated" else None
            result = self.run(make(num_steps=100_000), dp.random.key(3), checkpoint=folder)
            _loop.TraceRecorder.extend = extend
            self.note(name, [result.steps_completed, result.trace.iterates[-1].tolist()])
            if folder is not None and self.number == 0:
                kept = read_archive(folder / FILE, _saved._WHAT, _saved._VERSION, kinds())
                self.note("kept", [kept["done"], np.asarray(kept["trace"].iterates)[-1].tolist()])

    def dies(self):
        """The second process is killed behind its second checkpoint."""
        self.note("dies", True)
        keep, count = Checkpoint.keep, iter(range(100))

        def dying(*args, **options):
            keep(*args, **options)
            if self.number == 1 and next(count) == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        _loop._SECONDS_A_CHUNK, Checkpoint.due, Checkpoint.keep = 0.0, True, dying
        self.fit_with_checkpoint()

    def fit_with_checkpoint(self, **changes):
        first = self.number == 0
        budget = self.folder / "third"
        if first and not budget.exists():
            dp.Ledger.create(budget, dataset="d", epsilon=100.0, delta=1e-3)
        options = (
            {"checkpoint": self.folder / "checkpoint", "ledger": dp.Ledger(budget)} if first else {}
        )
        result = self.run(make(factors, **changes), SECRET(), **options)
        self.note("resumed", [result.trace.iterates.tolist(), str(result.statement)])

    def newton(self):
        """Private Newton of a regression and of a model, what differs, and the death of one process behind the third release."""
        for name, fit in NEWTON.items():
            self.note(name, [x.tolist() for x in fit(random.key(3), X, mesh=self.mesh)])
        first = self.number == 0
        if first:
            dp.Ledger.create(self.folder / "fourth", dataset="d", epsilon=1.5, delta=1e-3)
        ledger = dp.Ledger(self.folder / "fourth") if first else None
        plan = newton_plan(noise=1.0 if first else 2.0)
        rows = X + np.float32(not first)
        for name, options in {
            "plan": {"plan": plan},
            "data": {"x": rows},
            "mesh": {"mesh": jax.sharding.Mesh(np.array(jax.local_devices()), ("records",))},
            "names": {"names": ["a", "b", "c"] if first else ["a"]},
            "budget": {"ledger": ledger, "plan": newton_plan(epsilon=2.0)},
        }.items():
            try:
                by_newton(random.key(), **{"x": X, "mesh": self.mesh, **options})
            except (ValueError, TypeError) as error:
                self.note(name, f"{type(error).__name__}: {error}")
        self.dies_behind(3)
        self.newton_with_checkpoint()

    def dies_behind(self, releases):
        make, made = SavedReleases.release, iter(range(releases + 1))

        def dying(*args):
            found = make(*args)
            if self.number == 1 and next(made) == releases:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        SavedReleases.release = dying

    def newton_with_checkpoint(self):
        first = self.number == 0
        options = {"checkpoint": self.folder / "newton"} if first else {}
        if first:
            options["ledger"] = dp.Ledger(self.folder / "fourth")
        result = by_newton(SECRET(), X, mesh=self.mesh, **options)
        self.note("resumed", [result.mean.tolist(), str(result.statement)])

    def newton_goes_on(self):
        self.newton_with_checkpoint()
        _claims._used.clear()
        result = by_newton(SECRET(), X, mesh=self.mesh, **self.apart())
        self.note("never stopped", result.mean.tolist())

    def apart(self):
        return {"checkpoint": self.folder / "newton-whole"} if self.number == 0 else {}

    def goes_on(self):
        self.fit_with_checkpoint()
        options = {"checkpoint": self.folder / "checkpoint"} if self.number == 0 else {}
        for name, data in {"another mesh": X, "other data": X[::-1].copy()}.items():
            devices = np.array(jax.devices())[:: -1 if name == "another mesh" else 1]
            try:
                self.run(
                    make(factors),
                    dp.random.key(),
                    data,
                    mesh=jax.sharding.Mesh(devices, ("records",)),
                    **options,
                )
            except ValueError as error:
                self.note(name, str(error))
        _claims._used.clear()  # the same noise once more, for the same states
        result = self.run(make(factors), SECRET())
        self.note("never stopped", result.trace.iterates.tolist())

    # --- Each stage of a run ---

    def act(self, stage, what):
        """Do something when this process first comes to a stage."""
        owner, name = STAGES[stage]
        kept, first = getattr(owner, name), iter([True])

        def planted(*args, **options):
            if next(first, False):
                self.note(stage, time.time())
                what()
            return kept(*args, **options)

        setattr(owner, name, planted)
        return lambda: setattr(owner, name, kept)

    def fails(self):
        """The second process does what it is told, where it is told: by raising an error that nobody foresees, or by dying."""
        what, stage, victim = os.environ["FAILS"].split(",")
        actions = {
            "raises": lambda: {}["planted"],
            "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
        }
        if self.number == int(victim) and stage in STAGES:
            self.act(stage, actions[what])
        self.note("began", time.time())
        if self.number == int(victim) and stage == "before the run":
            actions[what]()
        self.run(make(), dp.random.key(3))
        if self.number == int(victim) and stage == "after the run":
            actions[what]()
        self.run(make(), dp.random.key(4))

    def refuses(self):
        """The second process fails where all learn of it, and all go on."""
        for stage in FORESEEN:
            undo = self.act(stage, lambda: {}["planted"]) if self.number == 1 else lambda: None
            try:
                self.run(make(), dp.random.key())
            except (ValueError, KeyError) as error:
                self.note(stage, f"{type(error).__name__}: {error}")
            undo()

    def sleeps(self):
        """One process after the other sleeps at a stage of its own."""
        self.note("rested", self.run(make(), dp.random.key(3)).trace.iterates.tolist())
        for turn, stage in enumerate(STAGES):
            if turn % self.count == self.number:
                self.act(stage, lambda: time.sleep(1.5))
        self.note(
            "slept",
            self.run(
                make(), dp.random.key(3), checkpoint=self.folder / "slow"
            ).trace.iterates.tolist(),
        )

    def killed(self):
        """The process that is told dies so many seconds after its first step, or after its start."""
        victim, since, seconds = os.environ["KILL"].split(",")
        timer = threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL))
        if self.number == int(victim) and since == "start":
            timer.start()
        elif self.number == int(victim):
            self.act("a step", timer.start)
        _loop._SECONDS_A_CHUNK, Checkpoint.due = 0.0, True
        long = {"num_steps": 400, "noise_multiplier": 20.0}
        self.fit_with_checkpoint(**long)
        timer.cancel()
        if int(victim) == self.count:
            _claims._used.clear()  # the same noise once more, for the same states
            _loop._SECONDS_A_CHUNK, Checkpoint.due = 0.25, False
            self.note(
                "never stopped",
                self.run(make(factors, **long), SECRET()).trace.iterates.tolist(),
            )


STAGES = {
    "checks": (_dpsvi, "take_apart"),
    "hash of the records": (Checkpoint, "digest"),
    "proof": (_dpsvi, "certify_fit"),
    "compiling": (_loop, "compiled"),
    "debit": (Checkpoint, "begin"),
    "a step": (_loop.TraceRecorder, "extend"),
    "a checkpoint": (Checkpoint, "keep"),
    "the result": (_dpsvi, "result_of"),
}
FORESEEN = ("checks", "proof", "compiling", "debit")


def main():
    name = sys.argv[4]
    part = Part(sys.argv[1], int(sys.argv[2]), sys.argv[3], name, int(sys.argv[5]))
    for each in name.split("+"):
        getattr(part, each)()
