import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import SVI, Trace_ELBO

import discreet as dp
from discreet.tabular.models import MixtureOfProducts
from discreet.tabular.models._distributions import LevelsMixture, PersonsMixture
from discreet.tabular.tables import schema_from_bounds

# They compile for seconds and compute for milliseconds.
pytestmark = pytest.mark.usefixtures("quick_compilation")

SCHEMA = schema_from_bounds("age=0:8,smoker=no|yes,region=a|b|c")
SIZES = (4, 2, 3)


@pytest.fixture(scope="module")
def twin() -> MixtureOfProducts:
    return MixtureOfProducts(SCHEMA, components=2, slices=4)


@pytest.fixture(scope="module")
def records(twin) -> np.ndarray:
    """Two groups: the young smoke in a or b, the old do not and live in c."""
    rng = np.random.default_rng(1)
    old = rng.random(4_000) < 0.3
    age = np.where(old, rng.uniform(6, 8, 4_000), rng.uniform(0, 4, 4_000))
    smoker = np.where(rng.random(4_000) < np.where(old, 0.05, 0.9), "yes", "no")
    region = np.where(old, "c", np.where(rng.random(4_000) < 0.5, "a", "b"))
    return twin.encode({"age": age, "smoker": smoker, "region": region})


def mixture_of(seed: int = 0, components: int = 3):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(components, sum(SIZES)))
    return LevelsMixture(jnp.array(rng.normal(size=components)), jnp.array(logits), SIZES)


def test_density_is_the_sum_over_components_of_the_products_of_shares() -> None:
    mixture = mixture_of()
    weights = np.asarray(jax.nn.softmax(mixture.component))
    blocks = [
        np.asarray(jax.nn.softmax(b, axis=1)) for b in jnp.split(mixture.logits, [4, 6], axis=1)
    ]
    everything = np.stack(
        np.meshgrid(*(np.arange(size) for size in SIZES), indexing="ij"), axis=-1
    ).reshape(-1, 3)
    by_hand = [
        sum(
            w * np.prod([b[k, x] for b, x in zip(blocks, row, strict=True)])
            for k, w in enumerate(weights)
        )
        for row in everything
    ]
    np.testing.assert_allclose(np.exp(mixture.log_prob(everything)), by_hand, rtol=1e-5)
    assert sum(by_hand) == pytest.approx(1)


@pytest.mark.exhaustive
def test_samples_follow_the_density() -> None:
    mixture = mixture_of()
    drawn = np.asarray(mixture.sample(jax.random.key(2), (20_000,)))
    assert drawn.shape == (20_000, 3)
    for row in ((0, 0, 0), (3, 1, 2), (1, 0, 2)):
        share, expected = (
            np.mean((drawn == row).all(axis=1)),
            float(np.exp(mixture.log_prob(np.array(row)))),
        )
        # Five standard errors: a false alarm in two million.
        assert abs(share - expected) < 5 * np.sqrt(expected / 20_000)


def test_no_record_moves_the_gradient_by_more_than_the_columns_allow() -> None:
    mixture = mixture_of()

    def loss(component, base, deviations, row):
        return LevelsMixture(component, base + deviations, SIZES).log_prob(row)

    # A level that does not exist counts as none.
    rows = jnp.array([[0, 0, 0], [3, 1, 2], [2, 1, 0], [99, -1, 7]])
    gradients = jax.vmap(jax.grad(loss, (0, 1, 2)), (None, None, None, 0))(
        20 * mixture.component, jnp.zeros(sum(SIZES)), 20 * mixture.logits, rows
    )
    norms = jnp.sqrt(sum(jnp.sum(jnp.square(g.reshape(len(rows), -1)), axis=1) for g in gradients))
    assert float(norms.max()) <= MixtureOfProducts(SCHEMA).gradient_bound
    # The bound is no idle one: a row against all odds comes near it.
    assert float(norms.max()) > 0.6 * MixtureOfProducts(SCHEMA).gradient_bound


@pytest.mark.exhaustive
def test_a_fit_without_privacy_finds_the_groups(twin, records) -> None:
    fit = SVI(twin.model, twin.guide(), numpyro.optim.Adam(0.05), Trace_ELBO()).run(
        jax.random.key(0), 400, jnp.asarray(records), progress_bar=False
    )
    latents = {
        name.removesuffix("_auto_loc"): np.asarray(v)
        for name, v in fit.params.items()
        if name.endswith("loc")
    }
    shares = np.sort(np.asarray(jax.nn.softmax(latents["component"])))
    # Five standard errors of a share of 4,000, and what the priors and the guide add.
    np.testing.assert_allclose(shares, [0.3, 0.7], atol=0.06)
    drawn = twin.levels.encode(twin.draw(latents, 4_000, np.random.default_rng(0)))
    for column, size in enumerate(SIZES):
        distance = np.abs(
            np.bincount(drawn[:, column], minlength=size)
            - np.bincount(records[:, column], minlength=size)
        )
        assert distance.sum() / 8_000 < 0.05
    # Age goes with smoking, as a single product would not have it.
    old = drawn[:, 0] == 3
    assert np.mean(drawn[old, 1]) < 0.2 < 0.7 < np.mean(drawn[~old, 1])


def test_rows_follow_the_latents_that_they_are_drawn_from(twin) -> None:
    latents = {
        "component": np.log([0.25, 0.75]),
        "base": np.zeros(9),
        "deviations": np.array(
            [[0, 0, -99, -99, 0, -99, 0, 0, 0], [-99, -99, 0, 0, -99, 0, 0, 0, 0.0]]
        ),
    }
    levels = twin.levels.encode(twin.draw(latents, 10_000, np.random.default_rng(0)))
    first = levels[:, 0] < 2
    # Five standard errors.
    assert np.mean(first) == pytest.approx(0.25, abs=5 * 0.0044)
    np.testing.assert_array_equal(first, levels[:, 1] == 0)
    # Shuffled: the order of the rows says nothing of the component.
    assert abs(np.mean(np.flatnonzero(first)) - 5_000) < 5 * 10_000 / np.sqrt(12 * 2_500)


@pytest.mark.exhaustive
def test_a_private_fit_is_proved_and_gives_twins(twin, records) -> None:
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.05),
        clipping_norm=1.0,
        noise_multiplier=1.5,
        num_steps=60,
        num_records=4_000,
    )
    dpsvi = dp.DPSVI(
        twin.model, twin.guide(), numpyro.optim.Adam(0.1), plan=plan, placeholder=twin.placeholder
    )
    result = dpsvi.run(dp.random.key(5), records, progress_bar=False)
    assert result.statement.epsilon < 5
    twins = dp.synthetic.synthesize(jax.random.key(0), result, twin, num_twins=3)
    assert [len(table) for table in twins] == [4_000] * 3
    assert twins[0].column_names == ["age", "smoker", "region"]
    # Each from a draw of its own, and the key decides.
    assert not twins[0].equals(twins[1])
    again = dp.synthetic.synthesize(jax.random.key(0), result, twin, num_twins=3)
    assert all(a.equals(b) for a, b in zip(twins, again, strict=True))
    short = dp.synthetic.synthesize(jax.random.key(0), result, twin, num_twins=1, num_records=7)
    assert len(short) == 1
    assert len(short[0]) == 7


def test_components_start_apart_and_the_start_is_public(twin) -> None:
    def start(**options):
        with numpyro.handlers.seed(rng_seed=0):
            guide = twin.guide(**options)
            guide(jnp.zeros((1, 3), jnp.int32))
            return np.asarray(guide._init_locs["deviations"])

    assert np.abs(start()[0] - start()[1]).min() > 1e-3
    np.testing.assert_array_equal(start(), start())
    assert not np.array_equal(start(), start(seed=1))


def test_wrong_options_are_refused() -> None:
    for components in (0, 2.0, True):
        with pytest.raises(ValueError, match="components"):
            MixtureOfProducts(SCHEMA, components=components)
    with pytest.raises(ValueError, match="slices"):
        MixtureOfProducts(SCHEMA, slices=1)


# --- records that are persons with several rows ---------------------------------------------


VISITS = dataclasses.replace(
    schema_from_bounds("smoker=no|yes,region=a|b|c"), person="id", max_rows=2
)


def persons_of(seed: int = 0) -> PersonsMixture:
    rng = np.random.default_rng(seed)
    return PersonsMixture(
        jnp.array(rng.normal(size=3)), jnp.array(rng.normal(size=(3, 7))), (2, 3, 2)
    )


def test_the_rows_of_a_person_share_a_component() -> None:
    mixture = persons_of()
    weights = np.asarray(jax.nn.softmax(mixture.component))
    smoker, region, number = (
        np.asarray(jax.nn.softmax(b, axis=1)) for b in jnp.split(mixture.logits, [2, 5], axis=1)
    )
    rows = list(itertools.product(range(2), range(3)))
    total = 0.0
    for first, second in itertools.product(rows, [(-1, -1), *rows]):
        there = [first] if second[0] < 0 else [first, second]
        by_hand = sum(
            weights[k]
            * number[k, len(there) - 1]
            * np.prod([smoker[k, a] * region[k, b] for a, b in there])
            for k in range(3)
        )
        assert float(np.exp(mixture.log_prob(np.array([first, second])))) == pytest.approx(
            by_hand, rel=1e-5
        )
        total += by_hand
    assert total == pytest.approx(1)
    drawn = np.asarray(mixture.sample(jax.random.key(2), (20_000,)))
    assert drawn.shape == (20_000, 2, 2)
    # Five standard errors.
    assert np.mean(drawn[:, 1, 0] < 0) == pytest.approx(float(weights @ number[:, 0]), abs=0.018)


def test_no_person_moves_the_gradient_by_more_than_the_columns_and_rows_allow() -> None:
    mixture = persons_of()

    def loss(component, base, deviations, person):
        return PersonsMixture(component, base + deviations, mixture.sizes).log_prob(person)

    people = jnp.array(list(itertools.product(range(2), range(3), [-1, 0, 1], range(3)))).reshape(
        -1, 2, 2
    )
    gradients = jax.vmap(jax.grad(loss, (0, 1, 2)), (None, None, None, 0))(
        20 * mixture.component, jnp.zeros(7), 20 * mixture.logits, people
    )
    norms = jnp.sqrt(
        sum(jnp.sum(jnp.square(g.reshape(len(people), -1)), axis=1) for g in gradients)
    )
    assert 0.5 < float(norms.max()) / MixtureOfProducts(VISITS).gradient_bound <= 1
    # The last level of a row that is not there is of no account.
    absent = people.at[:, 1].set(jnp.array([-1, 2]))
    np.testing.assert_array_equal(
        mixture.log_prob(absent), mixture.log_prob(absent.at[:, 1, 1].set(-1))
    )


def test_twins_are_persons_with_rows() -> None:
    twin = MixtureOfProducts(VISITS, components=2)
    far = -99.0
    latents = {
        "component": np.log([0.25, 0.75]),
        "base": np.zeros(7),
        # The first component: smokers with one row; the second: others with two.
        "deviations": np.array([[far, 0, 0, 0, 0, 0, far], [0, far, 0, 0, 0, far, 0]]),
    }
    table = twin.draw(latents, 4_000, np.random.default_rng(0))
    assert table.column_names == ["smoker", "region", "id"]
    records = twin.encode(table)
    assert records.shape == (4_000, 2, 2)
    first = records[:, 0, 0] == 1
    # Five standard errors.
    assert np.mean(first) == pytest.approx(0.25, abs=5 * 0.0069)
    assert (records[first, 1] == -1).all()
    assert (records[~first, :, 0] == 0).all()
    assert twin.placeholder[0].shape == (1, 2, 2)
    # Whoever is in a draw of their own is nobody of another draw.
    other = twin.draw(latents, 10, np.random.default_rng(1))
    assert not set(other["id"].to_pylist()) & set(table["id"].to_pylist())


@pytest.mark.exhaustive
def test_a_private_fit_of_persons_is_proved() -> None:
    twin = MixtureOfProducts(VISITS, components=2)
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.5),
        clipping_norm=1.0,
        noise_multiplier=1.5,
        num_steps=3,
        num_records=40,
    )
    dpsvi = dp.DPSVI(
        twin.model, twin.guide(), numpyro.optim.Adam(0.1), plan=plan, placeholder=twin.placeholder
    )
    records = np.stack(
        [np.asarray(persons_of().sample(jax.random.key(i))) for i in range(40)]
    ).astype(np.int32)
    result = dpsvi.run(dp.random.key(5), records, progress_bar=False, person="id", max_rows=2)
    assert result.statement.unit.brief.startswith("one person with up to 2 rows")
    assert (
        len(dp.synthetic.synthesize(jax.random.key(0), result, twin, num_twins=1, num_records=7)[0])
        >= 7
    )
