"""Errors say what, why and the remedy, instead of showing an error of JAX from inside this package."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.handlers as handlers
import optax
import pandas as pd
import pytest
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoNormal

import discreet as dp
from discreet.methods.inference import with_levels

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 300
rng = np.random.default_rng(3)
X = jnp.asarray(rng.normal(size=N), jnp.float32)
Y = jnp.asarray(rng.normal(size=N), jnp.float32)
GROUP = jnp.asarray(rng.integers(0, 6, N))


def grouped(size):
    """`ucbadmit`, `hierarchical linear regression`, `mortality`, `annotation`: the number of groups from the data."""

    def model(group, y):
        with numpyro.plate("groups", size(group)):
            a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(a[group], 1), obs=y)

    return model


def column(take):
    def model(frame, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(w * take(frame), 1), obs=y)

    return model


@pytest.mark.parametrize(
    "take",
    [
        lambda frame: frame["u"],
        lambda frame: frame[["u", "v"]].sum(1),
        lambda frame: frame.u,
        lambda frame: frame.loc[:, "u"],
        lambda frame: frame.to_numpy()[:, 0],
    ],
)
def test_a_data_frame_in_the_model(stranger, take):
    message = stranger(
        column(take), pd.DataFrame({"u": np.asarray(X), "v": np.asarray(X)}), Y
    ).refusal()
    for word in ("test_refusals.py", "arguments are arrays inside of it", 'df["x"].to_numpy()'):
        assert word in message
    assert "rows" not in message


def missing(group, y):
    """`bayesian_imputation`: which values are missing, from the data."""
    places = np.nonzero(np.isnan(y))[0]
    z = numpyro.sample("z", dist.Normal(0, 1).expand([len(places)]))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(0, 1), obs=y.at[places].set(z))


def branching(group, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    if y[0] > 0:
        w = -w
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(w, 1), obs=y)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (grouped(lambda group: len(np.unique(group))), "len(np.unique(group))"),
        (grouped(lambda group: int(np.max(group)) + 1), "int(np.max(group))"),
        (grouped(lambda group: int(jnp.max(group)) + 1), "int(jnp.max(group))"),
        (grouped(lambda group: jnp.unique(group).size), "jnp.unique(group)"),
        (grouped(lambda group: group.max().item() + 1), "group.max().item()"),
        (missing, "np.isnan(y)"),
        (branching, "if y[0] > 0"),
    ],
    ids=["unique", "max", "jax max", "jax unique", "item", "missing", "branching"],
)
def test_a_size_that_is_read_from_the_data(stranger, program, line):
    message = stranger(program, GROUP, Y).refusal()
    for word in (line, "test_refusals.py", "public number", "num_groups=6"):
        assert word in message
    assert not re.search(r"discreet/methods/inference|Tracer|traced", message)


def effects(number, group, y):
    a = numpyro.sample("a", dist.Normal(jnp.zeros(number), 1).to_event(1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(a[group], 1), obs=y)


def said(group, y):
    effects(6, group, y)


def by_unique(group, y):
    effects(len(np.unique(group)), group, y)


def by_max(group, y):
    effects(int(np.max(group)) + 1, group, y)


def by_size(group, y):
    effects(jnp.unique(group).size, group, y)


def test_a_size_that_is_said_beside_the_model(stranger):
    """The model as it is written: `group` has six levels, whatever the records hold; NumPy is as before."""
    expected, free = stranger(said, GROUP, Y).losses()
    before = np.unique, np.max, jnp.unique
    for model in (by_unique, by_max, by_size):
        program = stranger(with_levels(model, group=6), GROUP % 3, Y)
        assert program.dpsvi.get_params(program.start())["a_auto_loc"].shape == (6,)
        assert before == (np.unique, np.max, jnp.unique)
        losses, its_free = stranger(with_levels(model, group=6), GROUP, Y).losses()
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        np.testing.assert_allclose(its_free, free, rtol=1e-5)


def test_levels_of_no_argument():
    with pytest.raises(ValueError, match="'dept'"):
        with_levels(said, dept=6)
    with pytest.raises(ValueError, match="at least 1"):
        with_levels(said, group=0)
    with pytest.raises(ValueError, match="a model that is a function"):
        with_levels(NoSuper, group=6)


def test_levels_of_a_model_within_handlers(stranger):
    """`mortality`: a decorated model."""
    decorated = handlers.mask(handlers.scale(by_unique, scale=1.0), mask=True)
    assert (
        stranger(with_levels(decorated, group=6), GROUP, Y).losses()[1]
        == stranger(said, GROUP, Y).losses()[1]
    )


def a_batch_beside_its_plate(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x), subsample_size=20):
        numpyro.sample("y", dist.Normal(w * x + jnp.zeros(20), 1), obs=y)


def a_series(x, y):
    """`ar2`: the steps are the rows."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    last = y[2:][0]
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w * last, 1), obs=y)


def without_its_mask(x, y=None, mask=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w * x, 1).mask(mask.astype(bool)), obs=y)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            without_its_mask,
            ("mask.astype(bool)", "Nothing was passed for mask: pass what the model needs."),
        ),
        (a_batch_beside_its_plate, ("jnp.zeros(20)", "(2,), (20,)", "x.shape[0]")),
        (a_series, ("last = y[2:][0]", "any number of rows", "time series")),
    ],
)
def test_a_model_of_a_fixed_number_of_rows(stranger, program, words):
    message = stranger(program, X, Y).refusal()
    for word in ("does not run on a few artificial records", *words):
        assert word in message


@pytest.mark.parametrize(
    "likelihood",
    [
        lambda m: dist.Normal(m, 1),
        lambda m: dist.Bernoulli(logits=m),
        lambda m: dist.Poisson(jnp.exp(m)),
        lambda m: dist.Beta(1, jnp.exp(m)),
    ],
)
def test_a_statistic_in_the_model(stranger, likelihood):
    """Of one record the standard deviation is 0."""

    def standardised(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", likelihood(w * (x - x.mean()) / x.std()), obs=y)

    message = stranger(standardised, X, abs(Y)).refusal()
    for word in (
        "computes a statistic of its records",
        "x.std(0)",
        "public numbers",
        "dp.describe",
    ):
        assert word in message


def test_a_prior_from_the_data(stranger):
    def empirical(x, y):
        w = numpyro.sample("w", dist.Normal(0, y.std()))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(w * x, y.std()), obs=y)

    assert "computes a statistic of its records" in stranger(empirical, X, Y).refusal()


def with_rows(rows):
    """`lag`, `half`: the model leaves rows out."""

    def cut(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(rows(y))):
            numpyro.sample("y", dist.Normal(w * rows(x), 1), obs=rows(y))

    return cut


def half(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(y) // 2):
        numpyro.sample("y", dist.Normal(w * x[::2], 1), obs=y[::2])


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (half, ("no rows where few records are given", "len(y) // 2")),
        (with_rows(lambda y: y[10:]), ("no rows where few records are given", "len(rows(y))")),
        (with_rows(lambda y: y[1:]), ("'data' has size 1 for two records and 2 for three",)),
        (
            with_rows(lambda y: jnp.concatenate([y, y])),
            ("'data' has size 4 for two records and 6 for three",),
        ),
    ],
    ids=["half", "head", "lag", "twice"],
)
def test_a_model_that_leaves_rows_out(stranger, program, words):
    for options in ({}, {"placeholder": (np.zeros(1, np.float32), np.zeros(1, np.float32))}):
        message = stranger(program, X, Y, **options).refusal()
        for word in (*words, "Leave rows out before the fit", "a whole series can be one"):
            assert word in message


def mean_model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w * x, 1), obs=y)


def drawn_without_plate(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(w * x, 1).to_event(1), obs=y)


def drawn_in_any_case(x, y=None):
    mean_model(x)


def test_observations_that_are_forgotten(stranger):
    for program in (mean_model, drawn_without_plate, drawn_in_any_case):
        message = stranger(program, X).refusal()
        assert (
            "'y' is drawn, since its obs= is None or left out. Nothing was passed for y" in message
        )
        assert "obs=y)" in message
    assert "left out. Pass the observations" in stranger(drawn_in_any_case, X, Y).refusal()


def closure(x):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w * x, 1), obs=Y)


def closure_of_features(y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(w * X + y * 0, 1), obs=y)


@pytest.mark.essential
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            handlers.condition(mean_model, {"y": Y}),
            ("'y'", "(300,)", "handlers.condition", "obs=y"),
        ),
        (closure, ("'y'", "(300,)", "closure", "obs=y")),
        (closure_of_features, ("w * X", "length 300", "arguments of run")),
    ],
    ids=["condition", "obs", "features"],
)
def test_records_from_elsewhere(stranger, program, words):
    message = stranger(program, X).refusal()
    for word in words:
        assert word in message


class NoSuper(AutoNormal):
    def __init__(self, model):
        self.scale = 0.1


def test_a_guide_without_super(stranger):
    with pytest.raises(ValueError, match=r"NoSuper.*super\(\)\.__init__\(model\)"):
        stranger(mean_model, X, Y, guide=NoSuper(mean_model)).start()


def test_lbfgs():
    plan = dp.PrivacyPlan(
        sampling=dp.FullBatch(), clipping_norm=1.0, noise_multiplier=1.0, num_steps=2, num_records=N
    )
    with pytest.raises(ValueError, match=r"evaluates the loss.*first-order"):
        dp.DPSVI(mean_model, AutoNormal(mean_model), optax.lbfgs(), plan=plan)


# --- per-record latents: `baseball`, `obs_mask`
# ----------------------------------------------------


def players(hits, at_bats):
    """`baseball` (partially pooled): a skill for each player."""
    m = numpyro.sample("m", dist.Uniform(0, 1))
    kappa = numpyro.sample("kappa", dist.Exponential(1.0))
    with numpyro.plate("players", len(hits)):
        phi = numpyro.sample("phi", dist.Beta(1 + m * kappa, 1 + (1 - m) * kappa))
        numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)


HITS = jnp.asarray(rng.integers(0, 10, N))
AT_BATS = jnp.full(N, 45)


def test_an_autoguide_of_the_records_names_the_memory(stranger):
    with pytest.raises(ValueError, match=r"'phi'.*private memory.*PoissonSampling or FullBatch"):
        stranger(players, HITS, AT_BATS, perturb="parameters").start()
    with pytest.raises(ValueError, match=r"'phi'.*AutoNormal or AutoDelta"):
        stranger(players, HITS, AT_BATS, guide=AutoDiagonalNormal(players), local="private").start()


def not_pooled(hits, at_bats):
    """`baseball.not_pooled`: the players share nothing."""
    with numpyro.plate("players", len(hits)):
        phi = numpyro.sample("phi", dist.Uniform(0, 1))
        numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)


def test_records_that_share_nothing(stranger):
    assert "no latent or param site is shared" in stranger(not_pooled, HITS, AT_BATS).refusal()


def test_an_autoguide_has_a_private_memory_by_itself(stranger):
    program = stranger(players, HITS, AT_BATS)
    state = program.start()
    assert {name for name, _ in program.objective.structure.local_params} == {
        "phi_auto_loc",
        "phi_auto_scale",
    }
    assert set(program.dpsvi.get_params(state)) == {
        "m_auto_loc",
        "m_auto_scale",
        "kappa_auto_loc",
        "kappa_auto_scale",
    }
    assert program.certify()
    with pytest.raises(ValueError, match="cannot assign them to rows"):
        program.dpsvi.init(dp.random.key(2), HITS, AT_BATS)


def prints(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        jax.debug.print("{}", y[0])
        numpyro.sample("y", dist.Normal(w * x, 1), obs=y)


def test_a_model_that_prints(stranger):
    message = stranger(prints, X, Y).refusal()
    assert re.search(r"debug_print|debug_callback", message)
    assert "jax.debug.print" in message
    assert "single records" in message


def test_constants_as_long_as_the_table_that_hold_no_data(stranger):
    """As many features as records: a prior's zeros and the placeholder are no table."""
    zeros = np.zeros(20, np.float32)

    def square(x):
        w = numpyro.sample("w", dist.Normal(zeros, 1).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", dist.Normal(w, 1).to_event(1), obs=x)

    assert stranger(square, jnp.asarray(rng.normal(size=(20, 20)), jnp.float32)).start()
