"""Programs for a GPU, read as StableHLO without one: no call to the host, sums at full precision, the same bits.

Not run on a GPU. Models say `precision=HIGH`, so that a product of another precision is not theirs.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

import discreet as dp
from discreet import mechanisms, random
from discreet._jax import compiled
from discreet.methods.inference import _loop, _saved
from discreet.methods.inference._checkpoint import Checkpoint
from discreet.privacy.gradients import _bookkeeping, _norms

ROWS, HIGH = 4_000, lax.Precision.HIGH
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(ROWS, 6)).astype(np.float32), RNG.integers(0, 2, ROWS).astype(np.float32)
SERIES, IMAGES = (
    RNG.normal(size=(ROWS, 5, 4)).astype(np.float32),
    RNG.normal(size=(ROWS, 8, 8, 1)).astype(np.float32),
)


def normal(name, *shape):
    return numpyro.sample(name, dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))


def logistic(x, y):
    logits = jnp.matmul(x, normal("weights", x.shape[-1]), precision=HIGH)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def wide(x, y):
    """More parameters than are summed in float64."""
    hidden = jnp.tanh(jnp.matmul(x, normal("first", 6, 4_000), precision=HIGH))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(hidden.sum(-1), 1.0), obs=y)


def several(x, y):
    """A record has several rows, whose gradients add up: one way to compute their norm is by inner products."""
    hidden = jnp.tanh(jnp.matmul(x, normal("first", 4, 30), precision=HIGH))
    logits = jnp.matmul(hidden, normal("second", 30), precision=HIGH)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=logits.sum(-1)), obs=y)


def convolution(x, y):
    kernel = normal("kernel", 3, 3, 1, 2)
    numbers = ("NHWC", "HWIO", "NHWC")
    seen = lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=numbers, precision=HIGH
    )
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=seen.sum((1, 2, 3))), obs=y)


def factors(x, y):
    loading = normal("loading", 6)
    with numpyro.plate("data", len(x)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(z[:, None] * loading, 1.0).to_event(1), obs=x)
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def fit(model, **changes):
    facts = {"num_steps": 70, "num_records": ROWS, "noise_multiplier": 1.0, "clipping_norm": 1.0}
    plan = dp.PrivacyPlan(**{**facts, "sampling": dp.PoissonSampling(0.01), **changes})
    return dp.DPSVI(model, AutoNormal(model), Adam(0.01), plan=plan)


FITS = {
    "logistic": (lambda: fit(logistic), X),
    "float32 sums, noise of many values": (lambda: fit(wide), X),
    "noise in floating point": (lambda: fit(wide, mechanism=mechanisms.FLOAT_GAUSSIAN), X),
    "several rows": (lambda: fit(several), SERIES),
    "convolution": (lambda: fit(convolution), IMAGES),
    "own latents": (lambda: fit(factors, clipping_norm=dp.AdaptiveClipping()), X),
    "fixed size": (
        lambda: fit(logistic, sampling=dp.FixedSizeSampling(30), relation=dp.Relation.REPLACE_ONE),
        X,
    ),
    "Langevin": (
        lambda: dp.DPSGLD(logistic, plan=fit(logistic).plan, step_size=(1e-3, 10.0, 0.5)),
        X,
    ),
}


@pytest.fixture
def gpu(monkeypatch):
    """JAX as it is where a GPU is the default, up to compilation."""
    jax.clear_caches()
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        yield
    jax.clear_caches()


def lowered(name, platform, monkeypatch):
    """The loop of a fit, as StableHLO."""

    class Traced(Exception):
        def __init__(self, program):
            self.program = program

    class Loop:
        def __call__(self, *args):
            raise AssertionError("run without compilation")

        def lower(self, *args):
            raise Traced(chunk.trace(*args))

    chunk = _loop._chunk
    make, x = FITS[name]
    with monkeypatch.context() as patch:
        patch.setattr(_loop, "_chunk", Loop())
        with pytest.raises(Traced) as found:
            make().run(random.key(3), x, Y, progress_bar=False, require_proof=False)
    return found.value.program.lower(lowering_platforms=(platform,)).as_text()


def of_the_host(text):
    """Find the calls of a device's program to the host or to a library."""
    return re.findall(
        r"stablehlo\.custom_call @(\S+?)\(|(infeed|outfeed|stablehlo\.send|stablehlo\.recv)", text
    )


def imprecise(text):
    """Products of float32 numbers below full precision, that are not the model's."""
    products = re.findall(r"stablehlo\.(?:dot_general|convolution)[^\n]*", text)
    assert products or "HIGH" not in text
    return [x for x in products if "f32" in x and re.search(r"\bDEFAULT\b", x)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            x, marks=[] if x in ("logistic", "several rows", "Langevin") else pytest.mark.exhaustive
        )
        for x in FITS
    ],
)
@pytest.mark.usefixtures("gpu")
def test_a_fit_is_a_program_for_a_gpu_alone(name, monkeypatch):
    text = lowered(name, "cuda", monkeypatch)
    assert len(text) > 100_000
    assert not of_the_host(text)
    assert not imprecise(text)


def test_what_belongs_to_a_host_is_found(monkeypatch):
    """Noise from OpenSSL, in the same program for a CPU; and a callback in a step, which JAX lowers for no absent GPU."""
    text = lowered("noise in floating point", "cpu", monkeypatch)
    assert of_the_host(text)
    plain = _loop._one_step

    def calling(*args):
        jax.debug.callback(lambda: None)
        return plain(*args)

    with monkeypatch.context() as patch:
        patch.setattr(_loop, "_one_step", calling)
        jax.clear_caches()
        assert of_the_host(lowered("logistic", "cpu", monkeypatch))
        with pytest.raises(ValueError, match="platform"):
            lowered("logistic", "cuda", monkeypatch)
    jax.clear_caches()


@pytest.mark.parametrize("name", ["several rows", "float32 sums, noise of many values"])
@pytest.mark.usefixtures("gpu")
def test_a_product_in_low_precision_is_found(name, monkeypatch):
    for file in (_bookkeeping, _norms):
        monkeypatch.setattr(file, "HIGHEST_PRECISION", lax.Precision.DEFAULT)
    assert imprecise(lowered(name, "cuda", monkeypatch))


def test_the_program_for_a_gpu_makes_the_same_bits(gpu, monkeypatch):
    """Run here: without the kernels and the library that CPUs have, batches and noise are the same."""
    there = fit(logistic).run(random.key(3), X, Y, progress_bar=False)
    monkeypatch.undo()
    jax.clear_caches()
    here = fit(logistic).run(random.key(3), X, Y, progress_bar=False)
    np.testing.assert_array_equal(there.trace.iterates, here.trace.iterates)


def test_a_fit_that_may_go_on_is_compiled_to_the_same_bits_each_time(monkeypatch):
    """XLA for GPUs adds in any order else, and the same noise on other sums would give the difference away."""

    class Lowered:
        def compile(self, compiler_options=None):
            return compiler_options

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiled(Lowered(), repeats=True) == {"xla_gpu_deterministic_ops": True}
    assert compiled(Lowered()) is None
    # XLA knows the option.
    jax.jit(lambda x: x + 1).lower(1.0).compile(
        compiler_options={"xla_gpu_deterministic_ops": True}
    )


@pytest.mark.parametrize("folder", [True, False])
def test_a_checkpoint_asks_for_that(folder, monkeypatch, tmp_path):
    asked = []

    class Stop(Exception):
        pass

    def stopped(program, *, repeats):
        asked.append(repeats)
        raise Stop

    monkeypatch.setattr(_loop, "compiled", stopped)
    with pytest.raises(Stop):
        fit(logistic).run(
            random.key(3), X, Y, progress_bar=False, checkpoint=tmp_path if folder else None
        )
    assert asked == [folder]


def test_a_fit_goes_on_on_no_other_kind_of_processor(monkeypatch, tmp_path):
    class Crash(BaseException):
        pass

    def dying(self, *args, **options):
        keep(self, *args, **options)
        raise Crash

    keep = Checkpoint.keep
    options = {"progress_bar": False, "checkpoint": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "due", True)
        patch.setattr(Checkpoint, "keep", dying)
        with pytest.raises(Crash):
            fit(logistic).run(random.key(3), X, Y, **options)
    with monkeypatch.context() as patch:
        patch.setattr(_saved, "rounds_like", lambda: "a newer one")
        with pytest.raises(ValueError, match="another kind of processor"):
            fit(logistic).run(random.key(3), X, Y, **options)
    assert fit(logistic).run(random.key(3), X, Y, **options).steps_completed == 70


@pytest.mark.parametrize(
    "release",
    [
        lambda key, x: dp.gaussian_mechanism(key, x, 1.0),
        lambda key, x: dp.laplace_mechanism(key, x, 1.0),
        lambda key, x: dp.sum_records(dp.clip_records(jnp.outer(x, x), 1.0), x > 0),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_mechanisms_are_programs_for_a_gpu_alone(release):
    program = jax.jit(release).trace(random.key(3), jnp.arange(200_000.0)[:400])
    assert not of_the_host(program.lower(lowering_platforms=("cuda",)).as_text())
