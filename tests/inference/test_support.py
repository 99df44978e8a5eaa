"""A record that the model's distributions cannot produce is refused before anything is spent; what counts is let through."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.methods.inference._elbo import Objective
from discreet.methods.inference._point_guide import PointGuide
from discreet.methods.inference._records import take_apart
from discreet.methods.inference._support import refuse_outside_support
from discreet.privacy.ledger import Ledger
from discreet.privacy.mechanisms import Shards

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROWS = 12
X = np.linspace(-1, 1, ROWS, dtype=np.float32)
BINARY, CLASSES = (X > 0).astype(np.float32), (X > 0).astype(np.int32)
ONE = np.arange(ROWS) == ROWS - 1  # the last record
TRIALS = np.full(ROWS, 5, np.int32)


def regression(likelihood):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", likelihood(w * x), obs=y)

    return model


def refusal_of(model, *records):
    """The refusal alone, at the values where a fit starts, as a function of the records."""
    taken = take_apart(records, {})
    objective, psi, _ = Objective.of(
        taken,
        dp.random.key(1),
        placeholder=[x[:1] for x in records],
        model=model,
        guide=PointGuide(model),
        static={},
        num_records=taken.size,
        look=False,
    )

    def check(*records, held=None, laid=False):
        refuse_outside_support(objective, psi, [(take_apart(records, {}).leaves, held)], laid=laid)

    return check


def logits(eta):
    return jnp.stack([eta, -eta, 0 * eta], -1)


FAMILIES = {
    "Bernoulli": (lambda eta: dist.Bernoulli(logits=eta), BINARY, "0 and 1"),
    "Categorical": (
        lambda eta: dist.Categorical(logits=logits(eta)),
        2 * CLASSES,
        "whole numbers from 0 to 2",
    ),
    "OrderedLogistic": (
        lambda eta: dist.OrderedLogistic(eta, jnp.array([-1.0, 1.0])),
        CLASSES + 1,
        "from 0 to 2",
    ),
    "Poisson": (lambda eta: dist.Poisson(jnp.exp(eta)), 3 * BINARY, "whole numbers from 0"),
    "NegativeBinomial": (
        lambda eta: dist.NegativeBinomial2(jnp.exp(eta), 1.0),
        3 * BINARY,
        "whole numbers from 0",
    ),
    "ZeroInflated": (
        lambda eta: dist.ZeroInflatedPoisson(0.2, jnp.exp(eta)),
        3 * BINARY,
        "whole numbers from 0",
    ),
    "Binomial": (lambda eta: dist.Binomial(5, logits=eta), 5 * BINARY, "whole numbers"),
    "Gamma": (lambda eta: dist.Gamma(1.0, jnp.exp(eta)), BINARY + 1, "above 0"),
    "Beta": (lambda eta: dist.Beta(1.0, jnp.exp(eta)), BINARY / 2 + 0.2, "from 0 to 1"),
    "Normal": (lambda eta: dist.Normal(eta, 1), X, "finite numbers"),
    "Truncated": (
        lambda eta: dist.TruncatedNormal(eta, 1.0, low=0.0),
        BINARY + 0.5,
        "finite numbers",
    ),
}
WRONG = {
    "Bernoulli": (2 * BINARY - 1, BINARY + 1, 100 * BINARY, np.where(ONE, 9, BINARY)),
    "Categorical": (np.where(ONE, 3, 0), np.where(ONE, -1, 0)),
    "OrderedLogistic": (BINARY + 2,),
    "Poisson": (np.where(ONE, -1, BINARY), BINARY + 0.5, np.where(ONE, np.inf, 1)),
    "NegativeBinomial": (np.where(ONE, -1, BINARY),),
    "ZeroInflated": (np.where(ONE, -1, BINARY),),
    "Binomial": (np.where(ONE, 6, BINARY),),
    "Gamma": (np.where(ONE, -1, 1.0), np.where(ONE, np.inf, 1.0)),
    "Beta": (np.where(ONE, 1.5, 0.5),),
    "Normal": (np.where(ONE, np.nan, X), np.where(ONE, -np.inf, X)),
    "Truncated": (np.where(ONE, -1, 0.5),),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_outside_the_support_are_refused(family) -> None:
    likelihood, right, words = FAMILIES[family]
    check = refusal_of(regression(likelihood), X, right)
    check(X, right)
    for wrong in WRONG[family]:
        with pytest.raises(ValueError, match="the observed site 'y'") as refused:
            check(X, np.asarray(wrong, right.dtype))
        for needle in (words, "would count as zero", "Recode", "mask"):
            assert needle in str(refused.value)


def trials_of_each(trials, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Binomial(trials, logits=w), obs=y)


def persons(x, y, mask):
    """Each record is a person with two rows, of which the mask says which exist."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0], dim=-2), numpyro.plate("rows", 2, dim=-1):
        numpyro.sample("y", dist.Bernoulli(logits=w * x).mask(mask), obs=y)


def two_sites(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("first", dist.Normal(w, 1), obs=x)
        numpyro.sample("second", dist.Bernoulli(logits=w), obs=y)


def in_batches(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0], subsample_size=4):
        numpyro.sample(
            "y", dist.Bernoulli(logits=numpyro.subsample(x, 0) * w), obs=numpyro.subsample(y, 0)
        )


def summed_out(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Bernoulli(logits=w * z + x), obs=y)


LARGE = np.where(ONE, 6, 3).astype(np.int32)
NINE = np.where(ONE, 9, BINARY).astype(np.float32)
PAIRS = np.stack([X, X], 1), np.stack([NINE, BINARY], 1)


@pytest.mark.parametrize(
    ("model", "records", "site"),
    [
        (trials_of_each, (TRIALS, LARGE), "'y'"),
        (persons, (*PAIRS, np.ones((ROWS, 2), bool)), "'y'"),
        (two_sites, (X, NINE), "'second'"),
        (in_batches, (X, NINE), "'y'"),
        (summed_out, (X, NINE), "'y'"),
        # An integer cannot be missing: such a row is no absent record.
        (
            lambda g, y: regression(lambda eta: dist.Normal(eta, 1))(g, y),
            (TRIALS, np.where(ONE, np.nan, X)),
            "'y'",
        ),
    ],
    ids=["trials", "persons", "second site", "batches", "summed out", "missing"],
)
def test_whatever_makes_value_and_support(model, records, site) -> None:
    with pytest.raises(ValueError, match=f"the observed site {site}"):
        refusal_of(model, *records)(*records)


def masked(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=w * x).mask(y != 9), obs=y)


def never(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=w * x).mask(False), obs=y)
        numpyro.sample("x", dist.Normal(w, 1), obs=x)


def up_to_a_latent(x, y):
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Uniform(0, top), obs=y)


def of_components(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    each = [dist.HalfNormal(1.0), dist.Normal(w, 1)]
    mixing = dist.Categorical(probs=jnp.array([0.5, 0.5]))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.MixtureGeneral(mixing, each, support=constraints.real), obs=y)


def soft(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=w * x, validate_args=False), obs=y)


class Missing(dist.Distribution):
    """A normal distribution that takes NaN for missing, and does not say what its support is."""

    def __init__(self, loc):
        self.loc = loc
        super().__init__(jnp.shape(loc), ())

    def log_prob(self, value):
        return jnp.where(
            jnp.isnan(value), 0.0, dist.Normal(self.loc, 1).log_prob(jnp.nan_to_num(value))
        )


def of_a_users(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", Missing(w * x), obs=y)


@pytest.mark.parametrize(
    ("model", "records"),
    [
        (masked, (X, NINE)),
        (persons, (*PAIRS, ~np.stack([ONE, ONE], 1))),
        (never, (X, NINE)),
        (up_to_a_latent, (X, BINARY + 7)),
        (of_components, (X, X)),
        (soft, (X, BINARY / 2)),
        (of_a_users, (X, np.where(ONE, np.nan, X))),
        # Nothing is known of such a record, as of one that a process adds to have as many as the
        # others.
        (two_sites, (np.where(ONE, np.nan, X), np.where(ONE, np.nan, BINARY))),
    ],
    ids=[
        "masked",
        "persons",
        "never",
        "latent support",
        "mixture",
        "soft labels",
        "users",
        "absent",
    ],
)
def test_records_that_count_are_let_through(model, records) -> None:
    refusal_of(model, *records)(*records)


GROUP = (np.arange(ROWS) % 4).astype(np.int32)


def looked_up(effect):
    def model(g, y):
        with numpyro.plate("groups", 4):
            a = numpyro.sample("a", dist.Normal(0, 1))
        # Starts at zero, where it would hide what it multiplies.
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(w * effect(a, g), 1), obs=y)

    return model


@pytest.mark.parametrize(
    "effect",
    [
        lambda a, g: a[g],
        lambda a, g: jnp.take(a, g),
        lambda a, g: jnp.where(g != 0, a[g], 0.0),
        lambda a, g: lax.cond(True, lambda i: a[i], lambda i: 2 * a[i], g),
        lambda a, g: a[0] + jnp.array([0, 1, 1, 0])[g],
    ],
    ids=["index", "take", "where", "branch", "public table"],
)
def test_a_group_that_is_none(effect) -> None:
    check = refusal_of(looked_up(effect), GROUP, X)
    check(GROUP, X)
    for wrong in (GROUP + 1, np.where(ONE, 4, GROUP), np.where(ONE, -1, GROUP)):
        with pytest.raises(
            ValueError, match=r"an index outside of the array.*test_support\.py:.*0 to n - 1"
        ):
            check(wrong.astype(np.int32), X)


@pytest.mark.parametrize(
    "effect",
    [
        lambda a, g: jnp.where(g < 4, a[g], 0.0),
        lambda a, g: (g < 4) * a[g],
        lambda a, g: a.at[g].get(mode="clip"),
        lambda a, g: a.at[g].get(mode="fill", fill_value=0.0),
        lambda a, g: jnp.append(a, 0.0)[g],
        lambda a, g: jax.nn.one_hot(g, 4) @ a,
    ],
    ids=["where", "product", "clip", "fill", "one more", "one-hot"],
)
def test_a_group_that_the_model_takes_care_of(effect) -> None:
    refusal_of(looked_up(effect), GROUP, X)(np.where(ONE, 4, GROUP).astype(np.int32), X)


def test_every_chunk_is_looked_at(monkeypatch) -> None:
    monkeypatch.setattr("discreet.methods.inference._support._MOST_ROWS", 5)
    check = refusal_of(regression(lambda eta: dist.Bernoulli(logits=eta)), X, BINARY)
    check(X, BINARY)
    for place in (4, 5, 9, 10, ROWS - 1):
        here = np.arange(ROWS) == place
        y = np.where(here, 2, BINARY).astype(np.float32)
        with pytest.raises(ValueError, match="'y'"):
            check(X, y)
        check(X, y, held=~here)


def test_over_devices_padding_is_no_record() -> None:
    """Ten rows on each device, the last of which a table that is drawn, or in files, leaves empty."""
    mesh = jax.make_mesh((1,), ("records",))
    y = jnp.where(jnp.arange(10) < 7, 1.0, 0.0)
    for shards, where in (
        (Shards(mesh, 7, 10, None), [np.arange(7)]),
        (Shards(mesh, 7, 10, (0, 4, 7)), []),
    ):
        table = shards.place([y], where)
        ((here,), held), *others = shards.parts(table, where)
        assert not others
        assert np.array_equal(here, y)
        assert held.sum() == 7
        assert list(np.flatnonzero(held)) == ([*range(7)] if where else [0, 1, 2, 3, 5, 6, 7])


def test_a_row_that_a_process_added_is_absent_whatever_its_integers() -> None:
    model, y = regression(lambda eta: dist.Normal(eta, 1)), np.where(ONE, np.nan, X)
    refusal_of(model, TRIALS, y)(TRIALS, y, laid=True)


PLAN = dp.PrivacyPlan(
    sampling=dp.PoissonSampling(0.5),
    clipping_norm=1.0,
    noise_multiplier=1.0,
    num_steps=2,
    num_records=ROWS,
)


def labels(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=w * x), obs=y)


def methods():
    dpsvi = dp.DPSVI(labels, AutoNormal(labels), numpyro.optim.Adam(0.1), plan=PLAN)
    return {
        "DPSVI": lambda key, *table, **options: dpsvi.run(
            key, *table, progress_bar=False, **options
        ),
        "DPSGLD": lambda key, *table, **options: dp.DPSGLD(
            labels, plan=PLAN, step_size=(1e-3, 10.0, 0.5)
        ).run(key, *table, progress_bar=False, **options),
        "OnePosteriorSample": lambda key, *table, **options: dp.OnePosteriorSample(
            labels, log_likelihood_bound=5.0, epsilon=1.0
        ).run(key, *table, **options),
        "DPNewton": lambda key, *table, **options: dp.DPNewton(
            labels, plan=dp.newton.ModelPlan.calibrate(epsilon=1.0, delta=1e-5, num_records=ROWS)
        ).run(key, *table, **options),
    }


@pytest.mark.parametrize("method", methods())
def test_nothing_is_spent(method, tmp_path) -> None:
    relation = (
        dp.Relation.REPLACE_ONE if method == "OnePosteriorSample" else dp.Relation.ADD_OR_REMOVE_ONE
    )
    ledger = Ledger.create(
        tmp_path / "ledger", epsilon=50.0, delta=1e-3, dataset="table", relation=relation
    )
    before = ledger.path.read_bytes()
    with pytest.raises(
        ValueError, match="'y' that its distribution cannot produce: BernoulliLogits takes 0 and 1"
    ):
        methods()[method](dp.random.key(), X, 2 * BINARY - 1, ledger=ledger)
    assert ledger.path.read_bytes() == before
