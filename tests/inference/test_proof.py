"""A fit proves itself before it runs, and one that does more than its plan says is refused."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet import mechanisms
from discreet.methods.inference._loop import StepKeys
from discreet.methods.inference._proof import with_proof
from discreet.privacy.accounting import Relation
from discreet.privacy.gradients import BookKeepingEngine, Channels
from discreet.privacy.random import claim
from discreet.privacy.report import make_statement
from discreet.privacy.sampling import Batch, Sampling

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 40
X = np.linspace(-1.0, 1.0, N, dtype=np.float32)
POISSON, FIXED, FULL = dp.PoissonSampling(0.2), dp.FixedSizeSampling(8), dp.FullBatch()
ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def mean_model(x):
    m = numpyro.sample("m", dist.Normal(0, 1))
    with numpyro.plate("d", len(x)):
        numpyro.sample("x", dist.Normal(m, 1), obs=x)


def local_model(x):
    w = numpyro.param("w", jnp.ones(()))
    with numpyro.plate("d", len(x)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("x", dist.Normal(w * z, 1), obs=x)


def local_guide(x):
    a = numpyro.param("a", jnp.ones(()))
    with numpyro.plate("d", len(x)):
        numpyro.sample("z", dist.Normal(a * x, 1))


def gamma_guide(x):
    """Draws by rejection: each record keeps a key of its own."""
    a = numpyro.param("a", jnp.ones(()), constraint=dist.constraints.positive)
    with numpyro.plate("d", len(x)):
        numpyro.sample("z", dist.Gamma(a + jnp.abs(x), 1))


def gamma_model(x):
    w = numpyro.param("w", jnp.ones(()))
    with numpyro.plate("d", len(x)):
        z = numpyro.sample("z", dist.Gamma(2.0, 1))
        numpyro.sample("x", dist.Normal(w * z, 1), obs=x)


def make(model=mean_model, guide=None, *, sampling=POISSON, relation=ADD, clipping=1.0, **options):
    plan = dp.PrivacyPlan(
        sampling=sampling,
        clipping_norm=clipping,
        noise_multiplier=1.7,
        num_steps=6,
        num_records=N,
        relation=relation,
    )
    return dp.DPSVI(
        model, guide or AutoNormal(model), numpyro.optim.Adam(0.1), plan=plan, **options
    )


HONEST = {
    "Poisson": {},
    "Poisson, one replaced": {"relation": REPLACE},
    "full": {"sampling": FULL},
    "full, one replaced": {"sampling": FULL, "relation": REPLACE},
    "fixed size": {"sampling": FIXED, "relation": REPLACE},
    "adaptive": {"clipping": dp.AdaptiveClipping()},
    "no loss": {"loss_share": 0.0},
    "two guide draws": {"loss": TraceMeanField_ELBO(num_particles=2)},
    "d3p's rule": {"perturb": "parameters"},
    "microbatches": {"microbatch_size": 3},
    "local latents": {"model": local_model, "guide": local_guide},
    "rejection": {"model": gamma_model, "guide": gamma_guide},
}


@pytest.mark.parametrize("name", HONEST)
def test_a_step_is_what_its_plan_says(name):
    dpsvi = make(**HONEST[name])
    certificate = dpsvi.certify(X)
    certificate.check(dpsvi.plan)
    assert certificate.relation is dpsvi.plan.relation
    assert certificate.epsilon(1e-5) == pytest.approx(dpsvi.plan.epsilon(1e-5), rel=1e-4)
    assert "released" in certificate.outputs.values()


# Every fit of every test proves itself; here it is said.
_RUN = {
    **dict.fromkeys(HONEST, pytest.mark.exhaustive),
    **dict.fromkeys(("Poisson", "adaptive", "rejection"), ()),
    "fixed size": pytest.mark.essential,
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=_RUN[name]) for name in HONEST])
def test_a_fit_is_what_its_plan_says(name):
    result = make(**HONEST[name]).run(dp.random.key(), X, progress_bar=False)
    assert any(note.startswith("Proved before it ran") for note in result.statement.notes)
    assert result.statement.is_private


def test_the_statement_of_a_fit_does_not_follow_the_number_of_records():
    """A fingerprint of the program did: whoever proved it again for N and for N - 1 records knew which of them was fitted."""
    dpsvi = make(**HONEST["Poisson"])
    stated = make_statement(dpsvi.plan, steps_completed=dpsvi.plan.num_steps, reproducible=False)
    proofs = [functools.partial(dpsvi.certify, x) for x in (X, X[:-1])]
    one, other = (with_proof(stated, dpsvi.plan, proved, required=True) for proved in proofs)
    assert one == other


def weaken(monkeypatch, wrong):
    release = mechanisms.release
    monkeypatch.setattr(
        mechanisms, "release", lambda key, total, noise, *of: wrong(release, key, total, noise, *of)
    )


WRONG = {
    "half the noise": lambda release, key, total, noise, *of: release(key, total, noise / 2, *of),
    "noise for a smaller bound": lambda release, key, total, noise, *of: release(
        key, total._replace(l2_bound=total.l2_bound / 1.02), noise, *of
    ),
    "the same noise twice": lambda release, key, total, noise, *of: jax.tree.map(
        lambda a, b: (a + b) / 2, release(key, total, noise, *of), release(key, total, noise, *of)
    ),
    "a leaf without noise": lambda release, key, total, noise, *of: release(
        key, total, noise, *of
    )._replace(gradient=jax.tree.map(lambda x: x.astype(jnp.float32), total.gradient)),
    "the loss beside": lambda release, key, total, noise, *of: release(
        key, total, noise, *of
    )._replace(loss=total.loss.astype(jnp.float32)),
    "released twice": lambda release, key, total, noise, *of: jax.tree.map(
        lambda a, b: (a + b) / 2,
        *[release(k, total, noise, *of) for k in jax.random.split(key)],
    ),
}


@pytest.mark.essential
@pytest.mark.parametrize("wrong", WRONG)
def test_a_fit_that_does_more_does_not_run(monkeypatch, wrong):
    weaken(monkeypatch, WRONG[wrong])
    key = dp.random.key()
    with pytest.raises(dp.PrivacyError, match="require_proof"):
        make().run(key, X, progress_bar=False)
    # Nothing was spent: the key is as good as new.
    claim(key)


_ASKED_FOR = {"half the noise", "the loss beside"}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] * (name not in _ASKED_FOR))
        for name in WRONG
    ],
)
def test_a_fit_that_does_more_runs_if_asked_to_and_says_so(monkeypatch, wrong):
    weaken(monkeypatch, WRONG[wrong])
    key = dp.random.key()
    with pytest.raises(dp.PrivacyError, match="require_proof"):
        make().run(key, X, progress_bar=False)
    statement = make().run(key, X, progress_bar=False, require_proof=False).statement
    assert [
        x
        for x in (*statement.warnings, *statement.violations)
        if x.startswith(("Not proved", "It ran although"))
    ]


def test_a_worse_event_is_a_violation(monkeypatch):
    weaken(monkeypatch, WRONG["half the noise"])
    statement = make().run(dp.random.key(), X, progress_bar=False, require_proof=False).statement
    assert not statement.is_private
    assert "0.85" in statement.violations[0]
    assert "1.7" in statement.violations[0]


def test_a_model_that_talks_to_the_world_does_not_run():
    def model(x):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("d", len(x)):
            jax.debug.callback(lambda m: None, m)
            numpyro.sample("x", dist.Normal(m, 1), obs=x)

    with pytest.raises(ValueError, match="prints or calls Python while it runs"):
        make(model).init(dp.random.key(), X)


class Everybody(dp.PoissonSampling):
    """A sampler that names another event than it draws."""

    def drawing(self, num_records):
        return Sampling.drawing(self, num_records)

    def draw(self, key, tables, *, num_records):
        return dp.FullBatch().draw(key, tables, num_records=num_records)


# --- the primitives themselves --------------------------------------------------------------


class Loss(NamedTuple):
    """A loss that asks for one word of random bits."""

    of: Callable[..., Any]
    requests: Any = (jax.ShapeDtypeStruct((), jnp.uint32),)

    def make(self, key, num_rows):
        return [jax.random.bits(key, (num_rows,)) for _ in self.requests], jnp.array(True)

    def loss(self, u, record, key, bits):
        del key
        return self.of(u, record, bits)


def square(u, record, bits):
    return jnp.square(record[0] + bits[0] / 4e9 - u)


def drawn_by(sampling):
    return lambda key: mechanisms.draw_batch(
        sampling.drawing(N), key, jax.tree.map(jnp.asarray, sampling.prepare(N))
    )


def program(
    keys,
    u,
    xs,
    *,
    draw=None,
    batch=lambda b: b,
    table=lambda x: x,
    loss=square,
    engine=None,
    norm=2.0,
):
    total, _ = mechanisms.clipped_sum(
        engine or BookKeepingEngine(),
        loss if isinstance(loss, Loss) else Loss(loss),
        u,
        [table(xs)],
        batch((draw or drawn_by(POISSON))(keys.sampling)),
        (keys.local, keys.record),
        norm,
        Channels(),
    )
    return mechanisms.release(keys.noise, total, 3.0).gradient


def certify(step, relation=ADD):
    keys = jax.eval_shape(StepKeys.derive, dp.random.key())
    return dp.certify(step, keys, jnp.zeros(()), X, records=2, relation=relation)


def test_the_honest_program_is_proved():
    assert repr(certify(program).event) == (
        "PoissonSampledDpEvent(sampling_probability=0.2, event=GaussianDpEvent(noise_multiplier=3.0))"
    )


def padded(sampling, num_records, padding):
    """A program that draws from a table whose last rows hold no record."""
    drawing = dataclasses.replace(sampling.drawing(num_records), padding=padding)
    tables = jax.tree.map(jnp.asarray, sampling.prepare(num_records))
    return lambda keys, u, xs: program(
        keys, u, xs, draw=lambda key: mechanisms.draw_batch(drawing, key, tables)
    )


def test_rows_without_a_record_are_in_no_batch():
    """The event is that of a draw from the records, fewer than the rows."""
    fixed = dp.FixedSizeSampling(10)
    assert (
        certify(padded(fixed, N - 3, 3), dp.Relation.REPLACE_ONE).event.source_dataset_size == N - 3
    )
    with pytest.raises(dp.PrivacyError, match="not those of a sample of the table"):
        certify(padded(fixed, N - 3, 2), dp.Relation.REPLACE_ONE)
    with pytest.raises(dp.PrivacyError, match="The sampler Everybody is not on the list"):
        certify(padded(Everybody(POISSON.rate), N - 3, 3))
    with pytest.raises(ValueError, match="needs all of their rows"):
        dataclasses.replace(POISSON.drawing(N), padding=-1)


class OtherEngine(BookKeepingEngine):
    """An engine that nobody tested."""


DISHONEST = {
    "one record fifty times": {"batch": lambda b: b._replace(indices=b.indices * 0)},
    "rows moved against their mask": {"batch": lambda b: b._replace(mask=b.mask[::-1])},
    "all rows count": {"batch": lambda b: b._replace(mask=jnp.ones_like(b.mask))},
    "a batch that was not drawn": {
        "batch": lambda b: Batch(
            jnp.arange(len(b.mask), dtype=jnp.int32), jnp.ones(len(b.mask), bool)
        )
    },
    "rows that depend on other rows": {"table": lambda x: x - x.mean()},
    "rows in another order": {"table": lambda x: jnp.sort(x)},
    "two tables' worth of rows": {"table": lambda x: jnp.concatenate([x, x])},
    "an engine that nobody tested": {"engine": OtherEngine()},
    "a sampler that names another event": {"draw": drawn_by(Everybody(POISSON.rate))},
}


@pytest.mark.parametrize("name", DISHONEST)
def test_other_operands_are_refused(name):
    with pytest.raises(dp.PrivacyError):
        certify(lambda keys, u, xs: program(keys, u, xs, **DISHONEST[name]))


def test_a_loss_that_reads_the_table_is_refused():
    def step(keys, u, xs):
        return program(
            keys, u, xs, loss=lambda u, record, bits: jnp.square(record[0] - u) * xs.mean()
        )

    with pytest.raises(dp.PrivacyError, match="depends on others"):
        certify(step)


def test_parameters_that_read_the_table_are_refused():
    with pytest.raises(dp.PrivacyError, match="depends on others"):
        certify(lambda keys, u, xs: program(keys, u + xs[0], xs))


def test_a_clipping_norm_that_reads_the_table_is_refused():
    with pytest.raises(dp.PrivacyError, match="norm"):
        certify(lambda keys, u, xs: program(keys, u, xs, norm=jnp.max(jnp.abs(xs)) + 1.0))


@pytest.mark.parametrize("name", ["sampling", "noise", "record", "local"])
def test_a_key_serves_one_purpose(name):
    other = {"sampling": "noise", "noise": "record", "record": "local", "local": "sampling"}[name]
    with pytest.raises(dp.PrivacyError, match="twice"):
        certify(lambda keys, u, xs: program(keys._replace(**{name: getattr(keys, other)}), u, xs))


def test_bits_that_somebody_else_sees_are_refused():
    """They belong to places in the batch: who knows them sees who moved up when a record is left out."""

    class Seen(Loss):
        def make(self, key, num_rows):
            bits = jax.random.bits(key, (num_rows,))
            seen.append(bits)
            return [bits], jnp.array(True)

    seen = []

    def step(keys, u, xs):
        released = program(keys, u, xs, loss=Seen(square))
        return released, seen[-1]

    # JAX does not let them out.
    with pytest.raises((jax.errors.UnexpectedTracerError, jax.errors.TracerArrayConversionError)):
        certify(step)

    def before(keys, u, xs):
        bits = jax.random.bits(keys.local, (dp.PoissonSampling(0.2).capacity(N),))
        return program(
            keys, u, xs, loss=Loss(lambda u, record, _: jnp.square(record[0] - u), ())
        ), bits

    with pytest.raises(dp.PrivacyError, match="twice"):
        certify(before)

    class Known(Loss):
        def make(self, key, num_rows):
            return [made], jnp.array(True)

    def outside(keys, u, xs):
        nonlocal made
        made = jax.random.bits(keys.guide, (dp.PoissonSampling(0.2).capacity(N),))
        return program(keys, u, xs, loss=Known(square)), made

    made = None
    with pytest.raises(TypeError, match="closes over traced values"):
        certify(outside)


def test_batches_of_fixed_size_need_replacement():
    def step(keys, u, xs):
        return program(keys, u, xs, draw=drawn_by(FIXED))

    with pytest.raises(dp.PrivacyError, match="fixed size"):
        certify(step)
    assert "SampledWithoutReplacement" in repr(certify(step, REPLACE).event)


@pytest.mark.parametrize("leak", ["indices", "mask"])
def test_a_batch_is_not_published(leak):
    def step(keys, u, xs):
        seen = []
        program(keys, u, xs, batch=lambda b: (seen.append(b), b)[1])
        return getattr(seen[0], leak)

    with pytest.raises(dp.PrivacyError, match=r"in the sample|values for each record"):
        certify(step)


def test_a_mask_of_the_table_is_not_understood():
    """Rows that the table's mask drops would still be drawn."""
    keys = jax.eval_shape(StepKeys.derive, dp.random.key())
    with pytest.raises(dp.PrivacyError):
        dp.certify(
            lambda keys, u, xs, mask: program(keys, u, xs),
            keys,
            jnp.zeros(()),
            X,
            np.ones(N, bool),
            records=2,
            mask=3,
        )


def test_a_proof_is_of_the_precision_that_runs():
    """The same records and shapes in 64-bit mode are another program, with numbers of other types in its state."""
    dpsvi, records = make(), jnp.asarray(X)
    proved = dpsvi.certify(records)
    assert dpsvi.certify(records) is proved
    with jax.enable_x64(True):
        assert dpsvi.certify(records).fingerprint != proved.fingerprint
    assert dpsvi.certify(records) is proved
