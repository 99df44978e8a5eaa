"""Fits over four devices, against the same on one. `test_mesh.py` runs this file in a process that has so many."""

import dataclasses
import functools
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

import discreet as dp
from discreet.methods.audit import audit_mechanism
from discreet.methods.inference._checkpoint import Checkpoint
from discreet.methods.inference._draws import Draws
from discreet.methods.inference._step import PrivateStep
from discreet.privacy.gradients import BookKeepingEngine, Channels, _bookkeeping
from discreet.privacy.mechanisms import GAUSSIAN, Shards, _shards, clipped_sum, draw_batch, release
from discreet.privacy.sampling import Batch
from discreet.tabular.tables import convert, open_records, schema_from_bounds

pytestmark = pytest.mark.usefixtures("quick_compilation")
# of four devices; pytest imports this file elsewhere, too
MESH = jax.make_mesh((jax.device_count(),), ("records",))
KEY, SAMPLING = dp.random.key(3), dp.PoissonSampling(0.5)
X = np.random.default_rng(0).normal(0.5, 1.0, (41, 3)).astype(np.float32)
X[5] = np.nan


def loss(u, record, key):
    """The loss of one record, with random bits of its place in the batch and others of its own key."""
    (x,) = record
    own = lax.fori_loop(
        0, 2, lambda i, sum: sum + jax.random.uniform(jax.random.fold_in(key, i)), 0.0
    )
    return jnp.sum(jnp.square(u - x + jax.random.uniform(key, x.shape))) + own * jnp.sum(u)


def program(size, shards, rows):
    """A step on so many records, as a function of parameters, table, and the sampler's tables."""
    drawing = SAMPLING.drawing(size)
    if shards is not None:
        drawing = dataclasses.replace(drawing, padding=shards.rows * shards.count - size)

    def step(u, leaf, tables, where):
        keys = jax.random.split(KEY, 4)
        batch = draw_batch(drawing, keys[0], tables)
        row = jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
        draws = Draws.of(loss, u, [row], keys[2], drawing.capacity)
        assert draws.requests  # some bits belong to places in the batch
        engine, channels = BookKeepingEngine(rows), Channels(0.02, 0.01)
        total, right = clipped_sum(
            engine, draws, u, [leaf], batch, (keys[1], keys[2]), 1.0, channels, shards, where
        )
        return batch, total[:3], right, release(keys[3], total, 1.5)

    return jax.jit(step)


def one_step(size, blank, shards=None, rows=128):
    """Batch, sum, whether the bits were right, and what is released."""
    x = np.full_like(X[:size], np.nan) if blank else X[:size]
    u, leaf, tables, where = (
        jnp.zeros(3),
        jnp.asarray(x),
        jax.tree.map(jnp.asarray, SAMPLING.prepare(len(x))),
        [],
    )
    if shards is not None:
        where = shards.where(KEY)
        (leaf,), (u, tables, where) = shards.place([x], where), shards.copied((u, tables, where))
    return program(len(x), shards, rows)(u, leaf, tables, where)


on_one = functools.lru_cache(one_step)


def compare(size, *, blank=False, rows=128, drawn=False):
    """Assert that a step over four devices is that of one."""
    batch, total, right, released = on_one(size, blank=blank)
    again = one_step(size, blank, Shards.of(MESH, size, drawn=drawn), rows)
    for value in jax.tree.leaves(again):
        copies = [np.asarray(part.data) for part in value.addressable_shards]
        assert len(copies) == 4
        assert all(np.array_equal(copies[0], other) for other in copies)
    jax.tree.map(np.testing.assert_array_equal, again[0], batch)
    assert bool(right)
    assert bool(again[2])
    near = 0.0 if blank else 1e-5
    assert bool(np.any(total[0])) != blank  # if no record adds anything, what is released is noise
    for ours, theirs in zip(
        jax.tree.leaves(again[1:]), jax.tree.leaves((total, right, released)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=near, atol=near)


def test_a_step_is_that_of_one_device():
    """Shards of 11, 11, 11 and 8 records, in microbatches; of 3, 3, 3 and none; and as they are drawn. One record is NaN."""
    compare(41, rows=4)
    compare(9)
    compare(41, drawn=True)
    compare(9, drawn=True)


def test_the_noise_is_that_of_one_device_to_the_bit():
    compare(9, blank=True)


def test_a_part_longer_than_a_turn_is_worked_on_to_its_end(monkeypatch):
    """Ten of the batch's rows lie on the second device, three of them a turn; two places of the batch hold nobody."""
    monkeypatch.setattr(_shards, "TURN", 3 + _shards.SPARE)

    def count(rows, mask, carried):
        return [carried[0].at[jnp.where(mask, rows, 10)].add(1, mode="drop")]

    indices, mask = jnp.array([*range(19, 9, -1), 0, 0]), jnp.arange(12) < 10
    _, rows, mine = Shards.of(MESH, 40).rows_here(jnp.int32(10), indices, mask, [])
    (found,) = _shards.in_turns(count, rows, mine, [jnp.zeros(10)])
    np.testing.assert_array_equal(found, jnp.ones(10))


ADD, PSUM, PART, WHERE = type(GAUSSIAN).add, lax.psum, Shards.part, Shards.where


def on_each(function):
    everywhere, mesh = PartitionSpec(), Shards.of(MESH, 4).mesh
    return jax.shard_map(
        function, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False
    )


def key_per_device(self, key, leaves, *rest):
    def own(key, *x):
        other = jax.random.fold_in(key, lax.axis_index("records"))
        # The first one's is that of one device, so that only the others can show it.
        return ADD(self, jnp.where(lax.axis_index("records") == 0, key, other), [*x], *rest)

    return on_each(own)(key, *leaves)


def noise_on_each(self, key, leaves, *rest):
    def noised(key, *x):
        return [
            value + PSUM(y - value, "records")
            for value, y in zip(x, ADD(self, key, [*x], *rest), strict=True)
        ]

    return on_each(noised)(key, *leaves)


def noise_on_none(self, key, leaves, *rest):
    return [*leaves]


def twice(x, axis):
    return PSUM(x * jnp.where(lax.axis_index(axis) == 2, 2, 1), axis)


def first_rows_for_all(self, first, indices, mask):
    return PART(self, jnp.zeros_like(first), indices, mask)


def one_place_behind(self, numbers, where):
    return jnp.roll(where[0], 1)[numbers]


def cut(self, first, indices, mask):
    places, mine = PART(self, first, indices, mask)
    return places, mine & (jnp.arange(len(mine)) < 1)


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (type(GAUSSIAN), "add", key_per_device),
        (type(GAUSSIAN), "add", noise_on_each),
        (type(GAUSSIAN), "add", noise_on_none),
        (lax, "psum", twice),
        (lax, "psum", lax.pmean),
        (Shards, "part", first_rows_for_all),
        (Shards, "part", cut),
        (Shards, "at", one_place_behind),
    ],
)
def test_planted_faults_are_found(monkeypatch, owner, name, wrong):
    on_one(9, blank=False)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, wrong)
        jax.clear_caches()
        with pytest.raises(AssertionError):
            compare(9, drawn=name == "at")
    jax.clear_caches()


# --- Roundings of sums over devices ---


def pull(u, record, key):
    """Its gradient is the record."""
    del key
    (x,) = record
    return u @ x


def summed(monkeypatch, x, rows, device=None):
    """The sum of these rows of a table over four devices, as computed, and the share of C for its rounding.

    Each record is on the device that is named, or else they are cut evenly.
    """
    monkeypatch.setattr(_bookkeeping, "_FEW", 0)
    shards, (row,) = (
        Shards.of(MESH, len(x), drawn=device is not None),
        [jax.ShapeDtypeStruct(x.shape[1:], x.dtype)],
    )
    draws = Draws.of(pull, jnp.zeros(x.shape[1]), [row], KEY, len(rows))
    engine, where = (
        BookKeepingEngine(128, 1024, shuffled=True),
        [] if device is None else [shards.places(device)],
    )

    @jax.jit
    def run(u, leaf, indices, where):
        batch = Batch(indices, jnp.ones(len(indices), bool))
        total, _ = clipped_sum(
            engine, draws, u, [leaf], batch, (KEY, KEY), 1.0, Channels(), shards, where
        )
        return total.gradient, jnp.float32(total.rounding)

    (leaf,), parts = (
        shards.place([x], where),
        (jnp.zeros(x.shape[1]), jnp.asarray(rows, jnp.int32), where),
    )
    u, indices, where = shards.copied(parts)
    total, rounding = run(u, leaf, indices, where)
    return np.asarray(total, np.float64), float(rounding)


def test_a_record_that_is_in_no_batch_leaves_its_sum_alone(monkeypatch):
    """As devices are drawn, its absence moves nobody; as the table is cut evenly, last bits of others' sums move."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    x[0] *= 10.0  # longer than C
    order, device = rng.permutation(np.arange(1, 240)), rng.integers(0, 4, 240)  # all but the first
    shorter = order - 1  # the same records in the table without the first
    with_it, without = (
        summed(monkeypatch, *those)[0]
        for those in ((x, order, device), (x[1:], shorter, device[1:]))
    )
    np.testing.assert_array_equal(with_it, without)
    with_it, without = (summed(monkeypatch, *those)[0] for those in ((x, order), (x[1:], shorter)))
    assert 1e-8 <= np.linalg.norm(with_it - without) <= 1e-3
    # In the batch it changes two blocks of its own device: it is last there, or the last one takes
    # its place.
    (here, rounding), (without, _) = (
        summed(monkeypatch, *those)
        for those in ((x, [*order, 0], device), (x[1:], shorter, device[1:]))
    )
    assert 0.9 < np.linalg.norm(here - without) <= 1.0 + rounding
    assert 0.002 < rounding < 0.005
    # Where a record is replaced, an even cut moves none.
    replaced = np.concatenate([-x[:1], x[1:]])
    np.testing.assert_array_equal(
        *(summed(monkeypatch, table, order)[0] for table in (x, replaced))
    )
    (here, _), (there, _) = (summed(monkeypatch, table, [0, *order]) for table in (x, replaced))
    assert 1.9 < np.linalg.norm(here - there) <= 2.0 * (1.0 + rounding)


def test_sums_are_in_float32_under_both_relations():
    """A record more or less moves no other one to another device; nor does a record that is replaced."""
    for relation in dp.Relation.REPLACE_ONE, dp.Relation.ADD_OR_REMOVE_ONE:
        changed = plan(relation=relation, num_records=40_000, sampling=dp.PoissonSampling(0.05))
        large = dp.DPSVI(model, AutoNormal(model), Adam(0.05), plan=changed)
        assert large._of_plan(20_000, Shards.of(MESH, 40_000))["engine"].shuffled


def test_devices_are_drawn_for_each_record_alone():
    """With the same key one record more is one more on one device; there is room, and no place is given twice."""
    key = dp.random.key(7)
    places = [Shards.of(MESH, size, drawn=True) for size in (1_000, 1_001)]
    (fewer,), (more,) = (shards.where(key) for shards in places)
    few, many = fewer // places[0].rows, more // places[1].rows
    np.testing.assert_array_equal(few, many[:-1])
    assert len(set(more.tolist())) == 1_001
    for device in range(4):
        mine = more[many == device] - device * places[1].rows
        np.testing.assert_array_equal(mine, np.arange(len(mine)))
        assert 180 < len(mine) < 320  # five standard deviations
    other = Shards.of(MESH, 1_000, drawn=True).where(dp.random.key(8))[0] // places[0].rows
    assert 150 < np.sum(other == few) < 350


@pytest.mark.parametrize("planted", [False, True])
def test_an_audit_over_devices_finds_noise_on_none(monkeypatch, planted):
    """One record of nine, the last on its device, is there or is not; without noise the sum says which."""
    if planted:
        monkeypatch.setattr(type(GAUSSIAN), "add", noise_on_none)
    jax.clear_caches()
    shards = Shards.of(MESH, 9)
    draws = Draws.of(pull, jnp.zeros(2), [jax.ShapeDtypeStruct((2,), jnp.float32)], KEY, 9)
    sampling = dp.FullBatch()
    claim = plan(
        sampling=sampling, num_records=9, num_steps=1, noise_multiplier=2.0, target_delta=1e-3
    )

    def released(u, leaf, count, key):
        batch, engine = Batch(jnp.arange(9), jnp.arange(9) < count), BookKeepingEngine()
        total, _ = clipped_sum(engine, draws, u, [leaf], batch, (KEY, KEY), 0.5, Channels(), shards)
        return release(key, total, 2.0).gradient

    (leaf,), u = shards.place([np.full((9, 2), 0.5, np.float32)]), shards.copied(jnp.zeros(2))
    nine, eight = (
        jax.tree_util.Partial(released, u, leaf, shards.copied(jnp.int32(count)))
        for count in (9, 8)
    )
    verdict = audit_mechanism(nine, eight, claim=claim, delta=1e-3, runs=400, progress_bar=False)
    jax.clear_caches()
    assert verdict.contradicted == planted, verdict


# --- Fits ---


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


def coins(y):
    logits = numpyro.sample("logits", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample(
            "y", dist.Bernoulli(logits=logits).to_event(1), obs=jnp.where(y > 0.5, 1.0, 0.0)
        )


def two(x, y):
    del x
    model(y)


def factors(y):
    loading = numpyro.sample("loading", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(z[:, None] * loading, 1.0).to_event(1), obs=y)


def encoder(y):
    numpyro.sample("loading", dist.Normal(numpyro.param("loc", jnp.ones(3)), 0.1).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("z", dist.Normal(y @ numpyro.param("weights", jnp.zeros(3)), 0.5))


def plan(**changes):
    facts = {"num_steps": 12, "num_records": len(X), "noise_multiplier": 1.0, "clipping_norm": 1.0}
    return dp.PrivacyPlan(**{**facts, "sampling": dp.PoissonSampling(0.5), **changes})


FITS = {
    "an encoder, batches of fixed size": lambda: dp.DPSVI(
        factors,
        encoder,
        Adam(0.05),
        plan=plan(sampling=dp.FixedSizeSampling(15), relation=dp.Relation.REPLACE_ONE),
    ),
    "full batches, a norm that moves, the gradient in all parameters": lambda: dp.DPSVI(
        coins,
        AutoNormal(coins),
        Adam(0.05),
        plan=plan(sampling=dp.FullBatch(), clipping_norm=dp.AdaptiveClipping()),
        perturb="parameters",
    ),
    "latents of the records' own, a rate of each step": lambda: dp.DPSVI(
        factors,
        AutoNormal(factors),
        Adam(0.05),
        plan=plan(rate_schedule=lambda t: 0.5 / (1 + t % 3)),
        local_updates=3,
    ),
    "Langevin": lambda: dp.DPSGLD(model, plan=plan(), step_size=(1e-3, 10.0, 0.5)),
}


@pytest.mark.parametrize("name", FITS)
def test_a_fit_is_that_of_one_device(name):
    keep = {} if name == "Langevin" else {"keep_gradients": True}
    # of type Explicit, and Auto
    mesh = MESH if keep else jax.sharding.Mesh(np.array(jax.devices()), ("records",))
    one = FITS[name]().run(KEY, X, progress_bar=False, **keep)
    four = FITS[name]().run(KEY, X, progress_bar=False, mesh=mesh, **keep)
    if keep:
        np.testing.assert_allclose(four.trace.gradients, one.trace.gradients, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(four.trace.iterates, one.trace.iterates, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(four.losses, one.losses, rtol=1e-4, atol=1e-3)
    assert four.statement.epsilon == one.statement.epsilon
    assert [
        note for note in four.statement.notes if "4 devices (cpu), along the axis 'records'" in note
    ]


def product(y, own=False):
    """Gradients are one product of each record, whose sums are in float32 blocks."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        shift = numpyro.sample("shift", dist.Normal(0.0, 1.0)) if own else 0.0
        numpyro.sample("y", dist.Normal(y[:, 1:] @ weights + shift, 1.0), obs=y[:, 0])


def shifted(y):
    product(y, own=True)


SPARSE = {"num_records": 1000, "sampling": dp.PoissonSampling(0.1)}
NOBODY_MOVES = {
    "latents": lambda: dp.DPSVI(product, AutoNormal(product), Adam(0.05), plan=plan(**SPARSE)),
    "latents of the records' own": lambda: dp.DPSVI(
        shifted, AutoNormal(shifted), Adam(0.05), plan=plan(**SPARSE), local_updates=3
    ),
    "Langevin": lambda: dp.DPSGLD(product, plan=plan(**SPARSE), step_size=(1e-3, 10.0, 0.5)),
}


# With the fault planted the first one's parameters happen to be the same in float32.
CASES = [
    *((name, False) for name in NOBODY_MOVES),
    *((name, True) for name in list(NOBODY_MOVES)[1:]),
]


@pytest.mark.parametrize(("name", "planted"), CASES)
def test_a_record_that_is_in_no_batch_leaves_a_fit_alone(monkeypatch, name, planted):
    """The last one of 1,001, as batches are drawn from the others; a planted fault draws devices by the number of records."""
    alone, x = (
        PrivateStep.drawing,
        np.random.default_rng(0).normal(0.5, 1.0, (1001, 3)).astype(np.float32),
    )

    def of_the_others(self, sampling, leaves):
        drawing = alone(self, sampling, leaves)
        return dataclasses.replace(
            sampling.drawing(1000), padding=drawing.num_records + drawing.padding - 1000
        )

    monkeypatch.setattr(PrivateStep, "drawing", of_the_others)
    monkeypatch.setattr(_bookkeeping, "_FEW", 0)  # sums in float32, as of large models
    if planted:
        monkeypatch.setattr(
            Shards,
            "where",
            lambda self, key: WHERE(self, jax.random.fold_in(key, self.num_records)),
        )
    fits = [
        NOBODY_MOVES[name]().run(KEY, rows, progress_bar=False, mesh=MESH) for rows in (x, x[:1000])
    ]
    seen = [np.concatenate([fit.losses, fit.trace.iterates.reshape(-1)]) for fit in fits]
    assert np.array_equal(*seen, equal_nan=True) != planted  # Langevin's losses are NaN


def make():
    return dp.DPSVI(model, AutoNormal(model), Adam(0.05), plan=plan(num_records=40))


def test_the_recipe_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    names = {
        "jax": jax,
        "dp": dp,
        "dpsvi": dp.DPSVI(two, AutoNormal(two), Adam(0.05), plan=plan()),
        "x": X,
        "y": X,
    }
    exec(page.split("```python")[1].split("```")[0], names)
    assert [note for note in names["result"].statement.notes if "4 devices" in note]


def test_arrays_that_are_spread_already_one_debit_and_the_proof(tmp_path):
    """From an Explicit mesh, with that mesh around: no warning, and the same bits."""
    rows, ledger = (
        X[:40],
        dp.Ledger.create(tmp_path / "ledger", dataset="d", epsilon=100.0, delta=1e-3),
    )
    spread = jax.device_put(rows, NamedSharding(MESH, PartitionSpec("records")))
    make().run(dp.random.key(), rows, progress_bar=False, mesh=MESH, ledger=ledger)
    assert len(ledger.debits) == 1
    first = make().run(KEY, rows, progress_bar=False, mesh=MESH)
    with warnings.catch_warnings(), jax.set_mesh(MESH):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", dp.inference.UseWarning)  # of a fit of 40 rows
        second = make().run(KEY, spread, progress_bar=False, mesh=MESH)
        third = make().certify(spread, mesh=MESH)
    np.testing.assert_array_equal(first.trace.iterates, second.trace.iterates)
    assert third.event == make().certify(rows).event
    assert "Proved before it ran" in str(second.statement)


def shards_of(folder, x, shards):
    """Numbers as a folder of shards."""
    columns = pyarrow.table(dict(zip("abc", x.T, strict=True)))
    return convert(columns, schema_from_bounds("a=-9:9,b=-9:9,c=-9:9"), folder, shards=shards)


def test_a_table_in_shards_is_that_in_memory(tmp_path):
    """In the order of the shards; sums over devices round otherwise. Some of 60 are empty."""
    rows = np.delete(X, 5, axis=0)
    assert (
        shards_of(tmp_path / "4", rows, 4).x.shape
        == shards_of(tmp_path / "60", rows, 60).x.shape
        == rows.shape
    )
    for shards in 4, 60:
        memory = make().run(
            KEY, open_records(tmp_path / str(shards)).x, progress_bar=False, mesh=MESH
        )
        sharded = open_records(tmp_path / str(shards), mesh=MESH)
        options = {"progress_bar": False, "mesh": MESH, "checkpoint": tmp_path / f"saved {shards}"}
        fit = make().run(KEY, *sharded.arrays, **options)
        np.testing.assert_allclose(fit.trace.iterates, memory.trace.iterates, rtol=1e-5, atol=1e-5)
        shards_of(tmp_path / "other", rows[::-1], shards)
        with pytest.raises(ValueError, match=r"other (data|options)"):
            make().run(KEY, *open_records(tmp_path / "other", mesh=MESH).arrays, **options)
    with pytest.raises(ValueError, match="opened for a mesh"):
        make().run(KEY, *sharded.arrays)
    with pytest.raises(ValueError, match="folders of shards of other lengths"):
        make().run(KEY, open_records(tmp_path / "4", mesh=MESH).x, sharded.x, mesh=MESH)
    with pytest.raises(ValueError, match="among 3 devices"):
        open_records(
            tmp_path / "4", mesh=jax.sharding.Mesh(np.array(jax.devices()[:3]), ("records",))
        )


def test_the_recipe_for_shards(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    (recipe,) = [x.split("```")[0] for x in page.split("```python")[1:] if "open_records" in x]
    monkeypatch.chdir(tmp_path)
    shards_of(tmp_path / "survey.records", np.delete(X, 5, axis=0), 8)
    names = {"dp": dp, "dpsvi": make(), "mesh": MESH}
    exec(recipe, names)
    assert [note for note in names["result"].statement.notes if "4 devices" in note]


def test_a_damaged_shard_is_refused_before_anything_is_spent(tmp_path):
    shards_of(tmp_path / "records", np.delete(X, 5, axis=0), 4)
    sharded = open_records(tmp_path / "records", mesh=MESH)
    ledger = dp.Ledger.create(tmp_path / "ledger", dataset="d", epsilon=100.0, delta=1e-3)
    file = tmp_path / "records" / "x-02"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(ValueError, match="x-02 is not the file that the index names"):
        make().run(dp.random.key(), *sharded.arrays, mesh=MESH, ledger=ledger)
    assert not ledger.debits


def test_a_fit_goes_on_to_the_same_bits_and_on_no_other_devices(monkeypatch, tmp_path):
    class Crash(BaseException):
        pass

    def dying(self, *args, **options):
        keep(self, *args, **options)
        raise Crash

    options = {"progress_bar": False, "checkpoint": tmp_path}
    whole, keep = make().run(KEY, X[:40], progress_bar=False, mesh=MESH), Checkpoint.keep
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "due", True)
        patch.setattr(Checkpoint, "keep", dying)
        with pytest.raises(Crash):
            make().run(KEY, X[:40], mesh=MESH, **options)
    devices = np.array(jax.devices())
    for mesh in (
        None,
        *(jax.sharding.Mesh(those, ("records",)) for those in (devices[:2], devices[::-1])),
    ):
        with pytest.raises(ValueError, match="other options"):
            make().run(KEY, X[:40], mesh=mesh, **options)
    resumed = make().run(KEY, X[:40], mesh=MESH, **options)
    assert resumed.steps_completed == 12
    np.testing.assert_array_equal(resumed.trace.iterates, whole.trace.iterates)
