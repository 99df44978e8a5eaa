"""The proved training runs at small size, is what the plan says, and is the program that JAX would compile unproved."""

import dataclasses
import importlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discreet as dp
from discreet.privacy.verify import _programs

SHAPES = jax.ShapeDtypeStruct((400, 784), jnp.float32), jax.ShapeDtypeStruct((400,), jnp.int32)


@pytest.fixture
def example(repository, monkeypatch):
    """The example as a module."""
    monkeypatch.syspath_prepend(str(repository / "examples"))
    return importlib.import_module("verified_mnist")


@pytest.fixture
def training(example):
    """A plan for 400 records, its training, and the shapes of what it takes."""
    plan = example.Settings(num_steps=3).plan(3.0, 400)
    shapes = jax.eval_shape(example.arguments_of, dp.random.key(0), *SHAPES)
    return plan, example.training(plan, 1e-2), shapes


@pytest.mark.exhaustive
def test_it_learns_and_says_what_it_spent(table, repository):
    folder = table("t10k-images-idx3-ubyte.gz").parent
    command = [
        sys.executable,
        repository / "examples" / "verified_mnist.py",
        folder,
        "--quick",
        "--seed",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "at delta 8.33: above 1" in done.stdout
    assert (
        "SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.03125"
        in done.stdout
    )
    assert "reproducible, not private" in done.stdout


def test_it_asks_politely_for_absent_data(repository, tmp_path):
    command = [sys.executable, repository / "examples" / "verified_mnist.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "No table" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_has_the_weights_of_the_walkthrough(example):
    assert sum(np.prod(shape) for shape in example.SIZES.values()) == 31_810


def test_the_proved_event_is_the_plans(example, training):
    plan, train, shapes = training
    certificate = example.certify(train, plan, shapes)
    assert certificate.epsilon(example.DELTA) == pytest.approx(
        plan.epsilon(example.DELTA), rel=1e-3
    )


@pytest.mark.parametrize("change", ["noise", "steps"])
def test_a_training_that_spends_more_than_the_plan_gets_no_certificate(example, training, change):
    plan, _, shapes = training
    cheaper = {
        "noise": {"noise_multiplier": plan.noise_multiplier * 0.9},
        "steps": {"num_steps": 4},
    }[change]
    train = example.training(dataclasses.replace(plan, **cheaper), 1e-2)
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        example.certify(train, plan, shapes)


def test_the_proved_program_is_lowered_to_what_jit_makes_of_the_unproved_one(example, training):
    """So that a certificate costs nothing when it runs."""
    plan, train, shapes = training
    certificate = example.certify(train, plan, shapes)
    texts = [
        jax.jit(train).lower(*shapes).as_text(),
        _programs.runner_for(certificate._program).run.lower(*jax.tree.leaves(shapes)).as_text(),
    ]
    bodies = [re.sub(r'@jit_\w+|jax.result_info = "[^"]*"', "", text) for text in texts]
    assert bodies[0] == bodies[1]
