"""Records with variational parameters of their own: they are fitted, they stay, and they cost nothing."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import discreet as dp
from discreet import mechanisms
from discreet.methods.inference._step import PrivateStep
from discreet.privacy.accounting import Relation
from discreet.privacy.gradients import Channels, ReferenceEngine
from discreet.privacy.sampling import Batch

N, D = 120, 3
SCALE = 0.5
WEIGHTS = np.array([1.5, -1.0, 0.5])
ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def table(seed=0, n=N):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, 1)) * WEIGHTS + SCALE * rng.normal(size=(n, D))).astype(np.float32)


def model(x):
    """A factor analysis: one hidden number a record."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
    with numpyro.plate("rows", len(x)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("x", dist.Normal(z[:, None] * w, SCALE).to_event(1), obs=x)


def marginal(x):
    """The same without the hidden numbers."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
    covariance = jnp.outer(w, w) + SCALE**2 * jnp.eye(D)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("x", dist.MultivariateNormal(jnp.zeros(D), covariance), obs=x)


START = numpyro.infer.init_to_value(values={"w": np.array([1.0, -0.5, 0.1])})
shared = AutoDelta(handlers.block(model, hide=["z"]), init_loc_fn=START)


def guide(x):
    shared(x)
    with numpyro.plate("rows", len(x)):
        loc = numpyro.param("loc", jnp.zeros(len(x)))
        scale = numpyro.param("scale", jnp.full(len(x), 0.5), constraint=dist.constraints.positive)
        numpyro.sample("z", dist.Normal(loc, scale))


def make(
    guide=guide,
    *,
    sampling=None,
    relation=ADD,
    noise=1.0,
    norm=1.0,
    steps=20,
    model=model,
    **options,
):
    plan = dp.PrivacyPlan(
        sampling=sampling or dp.PoissonSampling(0.2),
        clipping_norm=norm,
        noise_multiplier=noise,
        num_steps=steps,
        num_records=N,
        relation=relation,
    )
    options = {
        "local": "private",
        "local_optim": numpyro.optim.Adam(0.1),
        "loss_share": 0.0,
        **options,
    }
    return dp.DPSVI(model, guide, numpyro.optim.Adam(0.02), plan=plan, **options)


@pytest.mark.exhaustive
def test_it_is_expectation_maximisation():
    """With hardly any noise or clipping, the weights are those that the model without hidden numbers has at its mode."""
    x = table()
    plain = dp.DPSVI(
        marginal,
        AutoDelta(marginal, init_loc_fn=START),
        numpyro.optim.Adam(0.02),
        plan=make(sampling=dp.FullBatch(), noise=1e-6, norm=1e6, steps=600).plan,
    )
    expected = plain.run(dp.random.key(1), x, progress_bar=False).params["w_auto_loc"]
    options = {"sampling": dp.FullBatch(), "noise": 1e-6, "norm": 1e6, "steps": 2000}
    found = (
        make(**options, local_optim=numpyro.optim.Adam(0.01))
        .run(dp.random.key(1), x, progress_bar=False)
        .params
    )
    assert set(found) == {"w_auto_loc"}
    np.testing.assert_allclose(found["w_auto_loc"], expected, atol=0.04)
    # Records that never look at themselves explain nothing, and the weights shrink.
    options["steps"] = 500
    still = (
        make(**options, local_optim=numpyro.optim.SGD(0.0))
        .run(dp.random.key(1), x, progress_bar=False)
        .params
    )
    assert np.linalg.norm(still["w_auto_loc"]) < 0.5 * np.linalg.norm(expected)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("sampling", [dp.PoissonSampling(0.2), dp.FullBatch()])
def test_the_fit_is_proved_at_the_price_of_its_plan(sampling, relation):
    dpsvi = make(sampling=sampling, relation=relation)
    certificate = dpsvi.certify(table())
    certificate.check(dpsvi.plan)
    assert certificate.epsilon(1e-5) == pytest.approx(dpsvi.plan.epsilon(1e-5), rel=1e-4)


def memories(dpsvi, *tables):
    """Return the memory of the records after each step, for each of the tables, with one key."""
    held: list = []
    move = PrivateStep.move

    def watched(step, state, *rest):
        state, *others = move(step, state, *rest)
        jax.debug.callback(
            lambda *rows: held.append([np.asarray(row) for row in rows]), *state.memory
        )
        return state, *others

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateStep, "move", watched)
        for x in tables:
            dpsvi.run(dp.random.key(3), x, progress_bar=False, require_proof=False)
            jax.effects_barrier()
    steps = dpsvi.plan.num_steps
    return [held[i : i + steps] for i in range(0, len(held), steps)]


def test_a_record_changes_no_memory_but_its_own():
    """One step, for what follows depends on all through the release."""
    x = table()
    others = [x.copy() for _ in range(2)]
    others[0][7], others[1][7] = 5.0, np.nan
    dpsvi = make(
        sampling=dp.FullBatch(), relation=REPLACE, steps=1, local_optim=numpyro.optim.SGD(0.1)
    )
    (before,), *afters = memories(dpsvi, x, *others)
    assert len(np.unique(before[1])) > N / 2
    for (after,) in afters:
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(np.delete(a, 7, 0), np.delete(b, 7, 0))
            assert np.all(np.isfinite(b))
        assert any(np.any(a[7] != b[7]) for a, b in zip(before, after, strict=True))
    # A record without a finite gradient keeps what it had.
    assert [float(x[7]) for x in afters[1][0][:2]] == [0.0, 0.0]


def test_records_keep_up_by_themselves():
    """Adam moves by its learning rate at most in an update, and what is shared moves on in each step."""
    ((after,),) = memories(make(sampling=dp.FullBatch(), steps=1), table())
    assert np.max(np.abs(after[1])) > 5 * 0.1


def test_only_records_of_the_batch_remember():
    """Rows of padding stand for some record or other, which must not move."""
    x = jnp.asarray(table())
    drawn, padding = jnp.array([3, 50, 90]), jnp.array([5, 3])
    batch = Batch(jnp.concatenate([drawn, padding]), jnp.array([True, True, True, False, False]))

    def count(_, row, own, key):
        return [own[0] + 1.0]

    (after,) = mechanisms.update_rows(count, (), [x], [jnp.zeros(N)], batch, dp.random.key(0))
    np.testing.assert_array_equal(np.flatnonzero(after), drawn)
    (steps,) = memories(make(sampling=dp.PoissonSampling(0.1), steps=6, local_updates=1), x)
    counts = np.stack([memory[0] for memory in steps])
    assert counts.shape == (6, N)
    # Adam counts a record's updates: each step adds one or none, and the batches differ.
    assert set(np.unique(np.diff(counts, axis=0))) == {0, 1}
    assert len({tuple(row) for row in np.diff(counts, axis=0)}) == 5
    assert 0 < counts[-1].mean() < 6 * 0.3


@pytest.mark.parametrize(
    "auto",
    [None, AutoNormal, pytest.param(AutoDelta, marks=pytest.mark.exhaustive)],
    ids=["written", "AutoNormal", "AutoDelta"],
)
def test_nothing_of_it_leaves(auto, tmp_path):
    """With an AutoGuide nobody asks for the memory; it is there all the same."""
    dpsvi = make(steps=3) if auto is None else make(auto(model), steps=3, local=None)
    result = dpsvi.run(dp.random.key(), table(), progress_bar=False)
    mine = {"w_auto_loc", "w_auto_scale"} if auto is AutoNormal else {"w_auto_loc"}
    assert set(result.params) == set(result.last_params) == mine
    assert result.trace.iterates.shape == (3, D * len(mine))
    kept, saved = pickle.loads(pickle.dumps(result)), dp.load_result(result.save(tmp_path / "fit"))
    assert set(saved.params) == mine
    for held in (result.params, vars(kept), vars(saved)):
        assert N not in {n for x in jax.tree.leaves(held) for n in np.shape(x)}
    again = dp.load_result(tmp_path / "fit", model, guide if auto is None else auto(model))
    for each in (result, again):
        assert set(each.posterior(dp.random.key(), 3)) == {"w"}
    for word in ("auto_loc", "auto_scale", "z_auto"):
        assert word not in str(result.statement)
    assert any("stayed beside the data" in note for note in result.statement.notes)


def program(sampling, what):
    """One step with a memory, released in some way."""

    def step(keys, x, memory, theta):
        tables = jax.tree.map(jnp.asarray, sampling.prepare(len(x)))
        batch = mechanisms.draw_batch(sampling.drawing(len(x)), keys[0], tables)
        if what == "all rows":
            batch = Batch(jnp.arange(len(x)), jnp.ones(len(x), bool))
        leak = jnp.sum(x) if what == "others" else theta
        memory = mechanisms.update_rows(
            lambda theta, row, own, key: [own[0] + theta * row[0]],
            leak,
            [x],
            [memory],
            batch,
            keys[1],
        )
        if what == "raw":
            return memory
        if what == "noise alone":
            return dp.gaussian_mechanism(keys[2], memory, 1.0)
        if what == "key twice":
            memory = mechanisms.update_rows(
                lambda theta, row, own, key: [own[0] * theta], theta, [x], memory, batch, keys[1]
            )
        rows = dp.clip_records(memory, 1.0)
        return dp.gaussian_mechanism(keys[2], jax.tree.map(lambda r: jnp.sum(r, 0), rows), 2.0)

    return step


def certify(what, sampling, relation):
    keys = jax.eval_shape(lambda key: jax.random.split(key, 3), dp.random.key())
    shape = jax.ShapeDtypeStruct((N, 2), jnp.float32)
    return dp.certify(
        program(sampling, what),
        keys,
        shape,
        jnp.zeros((N, 2)),
        jnp.ones(()),
        records=(1,),
        relation=relation,
    )


def test_what_is_remembered_is_as_private_as_a_record():
    certificate = certify("clipped", dp.PoissonSampling(0.1), REPLACE)
    assert certificate.epsilon(1e-5) == pytest.approx(
        certify("clipped", dp.FullBatch(), REPLACE).epsilon(1e-5)
    )
    for what, why in (
        ("raw", "values for each record"),
        ("noise alone", "clip|row"),
        ("others", "depends on others"),
        ("key twice", "used"),
        ("all rows", "not those of a sample"),
    ):
        with pytest.raises(dp.PrivacyError, match=why):
            certify(what, dp.PoissonSampling(0.1), REPLACE)


def test_batches_of_a_fixed_size_have_no_memory():
    """The memory of other records would reveal who was drawn."""
    with pytest.raises(ValueError, match="FixedSizeSampling is refused"):
        make(sampling=dp.FixedSizeSampling(8), relation=REPLACE)
    with pytest.raises(dp.PrivacyError, match="fixed size"):
        certify("clipped", dp.FixedSizeSampling(8), REPLACE)

    def both(keys, x, memory):
        sampling = dp.PoissonSampling(0.1)
        tables = jax.tree.map(jnp.asarray, sampling.prepare(len(x)))
        batch = mechanisms.draw_batch(sampling.drawing(len(x)), keys[0], tables)
        (memory,) = mechanisms.update_rows(
            lambda _, row, own, key: [own[0] + row[0]], (), [x], [memory], batch, keys[1]
        )
        rows = dp.clip_records(dp.subsample_without_replacement(keys[2], memory, 8), 1.0)
        return dp.gaussian_mechanism(keys[3], jnp.sum(rows, 0), 2.0)

    keys = jax.eval_shape(lambda key: jax.random.split(key, 4), dp.random.key())
    shape = jax.ShapeDtypeStruct((N, 2), jnp.float32)
    with pytest.raises(dp.PrivacyError, match="keep state of"):
        dp.certify(both, keys, shape, jnp.zeros((N, 2)), records=(1,), relation=REPLACE)


@pytest.mark.parametrize("told", [False, True])
def test_a_sample_is_fresh_when_it_is_released_from(told):
    """The memory of a sample may have been released before; then the sample hides nobody."""

    def twice(keys, x, memory):
        sampling = dp.PoissonSampling(0.1)
        tables = jax.tree.map(jnp.asarray, sampling.prepare(len(x)))
        batch = mechanisms.draw_batch(sampling.drawing(len(x)), keys[0], tables)
        records = Loss.of_first(keys[1])
        total, _ = mechanisms.clipped_sum(*records, [x], batch, (keys[1], keys[2]), 1.0, Channels())
        (memory,) = mechanisms.update_rows(
            lambda _, row, own, key: [own[0] + 1.0], (), [x], [memory], batch, keys[3]
        )
        who = jnp.sum(dp.clip_records(memory, 1.0), 0)
        first = dp.gaussian_mechanism(keys[4], who, 2.0) if told else 0.0
        return (
            first,
            mechanisms.release(keys[5], total, 2.0),
            dp.gaussian_mechanism(keys[6], who, 2.0),
        )

    keys = jax.eval_shape(lambda key: jax.random.split(key, 7), dp.random.key())
    shape = jax.ShapeDtypeStruct((N, 2), jnp.float32)
    if told:
        with pytest.raises(dp.PrivacyError, match="may have been released since"):
            dp.certify(twice, keys, shape, jnp.zeros((N, 2)), records=(1,), relation=REPLACE)
    else:
        assert (
            dp.certify(
                twice, keys, shape, jnp.zeros((N, 2)), records=(1,), relation=REPLACE
            ).epsilon(1e-5)
            < 10
        )


class Loss:
    """The loss of a record without draws, as `clipped_sum` takes it."""

    requests = ()

    @classmethod
    def of_first(cls, key):
        del key
        return ReferenceEngine(), cls(), jnp.zeros(2)

    def make(self, key, num_rows):
        del key, num_rows
        return [], jnp.array(True)

    def loss(self, parameters, record, key, bits):
        del key, bits
        return jnp.sum(parameters * record[0])


def reading(x):
    """The weights' guide looks at what belongs to the records."""
    with numpyro.plate("rows", len(x)):
        loc = numpyro.param("loc", jnp.zeros(len(x)))
        numpyro.sample("z", dist.Normal(loc, 1.0))
    scale = numpyro.param("weight", jnp.ones(D))
    numpyro.sample("w", dist.Normal(scale + jnp.sum(loc), 1.0).to_event(1))


def square(x):
    shared(x)
    with numpyro.plate("rows", len(x)):
        both = numpyro.param("both", jnp.zeros((len(x), len(x))))
        numpyro.sample("z", dist.Normal(both[0], 1.0))


def alone(x):
    numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("z", dist.Normal(numpyro.param("loc", jnp.zeros(len(x))), 1.0))


def shares(x):
    shared(x)
    with numpyro.plate("rows", len(x)):
        part = numpyro.param("part", jnp.ones(len(x)) / len(x), constraint=dist.constraints.simplex)
        numpyro.sample("z", dist.Normal(part, 1.0))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"guide": shares}, "'part' joins the records"),
        ({"local": "public"}, "one of 'private'"),
        ({"local_updates": 0}, "at least 1"),
        ({"local_updates": 0, "local": None}, "at least 1"),
        ({"perturb": "parameters"}, "has no private memory"),
        ({"local": None}, 'local="private"'),
        ({"guide": reading}, "'loc'"),
        ({"guide": square}, "one axis"),
        ({"guide": alone}, "Only records have parameters"),
    ],
)
def test_refused(options, says):
    with pytest.raises(ValueError, match=says):
        make(**options).run(dp.random.key(), table(), progress_bar=False)


@pytest.mark.essential
def test_what_cannot_tell_whose_rows_it_has_is_refused():
    dpsvi = make()
    with pytest.raises(ValueError, match="cannot assign them to rows"):
        dpsvi.init(dp.random.key(), table())
    with pytest.raises(ValueError, match="each record has its own"):
        dpsvi.run(dp.random.key(), table(), init_params={"loc": np.zeros(1)}, progress_bar=False)
    dpsvi.certify(table())
    state = dpsvi._init(dp.random.key(), _records(), None)
    assert "memory" not in repr(state)
    with pytest.raises(TypeError, match="key"):
        pickle.dumps(state)
    with pytest.raises(ValueError, match="cannot assign them to rows"):
        dpsvi.update(state, table(n=5))
    with pytest.raises(ValueError, match="cannot assign them to rows"):
        dpsvi.evaluate(state, table(), non_private=True)


def _records():
    from discreet.methods.inference._records import take_apart

    return take_apart((table(),), {})
