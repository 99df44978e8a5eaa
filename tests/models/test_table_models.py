"""The models of whole tables beside the mixture of products, whose tests are in test_products.py."""

import datetime

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

from discreet.models import FactorAnalysis, GaussianMixture, Scores, TableVAE
from discreet.models._tables import LevelsProduct
from discreet.tables import Column, DataError, Kind, Missing, Schema, schema_from_bounds

# They compile for seconds and compute for milliseconds.
pytestmark = pytest.mark.usefixtures("quick_compilation")

NUMBERS = Schema(
    columns=(
        Column(name="height", kind=Kind.REAL, bounds=(100.0, 220.0)),
        Column(name="visits", kind=Kind.COUNT, bounds=(3, 9)),
        Column(name="born", kind=Kind.DATE, bounds=(datetime.date(1950, 1, 1), datetime.date(1950, 12, 31))),
    )
)
MIXED = schema_from_bounds("age=0:8,smoker=no|yes,region=a|b|c")
MODELS = {
    "mixture": GaussianMixture(NUMBERS, components=2),
    "factors": FactorAnalysis(NUMBERS, factors=2),
    "vae": TableVAE(MIXED, code=2, hidden=8, slices=4),
}


def drawn_latents(model, scale: float = 1.0) -> dict:
    """One draw of the latents from the prior; those on the whole line scaled."""
    with numpyro.handlers.seed(rng_seed=3):
        trace = numpyro.handlers.trace(model.model).get_trace(jnp.asarray(model.placeholder[0]))
    return {
        name: np.asarray(site["value"]) * scale
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"] and name != "z"
    }


def within(table, schema: Schema) -> bool:
    """Return True if the schema allows each cell, and it has its column's type."""
    for column in schema.columns:
        cells = table[column.name].to_pylist()
        low, high = column.bounds or (None, None)
        if not all(low <= cell <= high if column.bounds else cell in column.categories for cell in cells):
            return False
    return True


# --- scores -------------------------------------------------------------------------------


def test_scores_by_hand_and_back() -> None:
    day = datetime.date(1950, 7, 2)  # the 183rd of 365 days, in the middle
    table = {"height": [100.0, 160.0, 220.0], "visits": [3, 6, 9], "born": [day] * 3}
    scores = Scores(NUMBERS).encode(table)
    assert scores.dtype == np.float32
    # Counts take the middle of their slot of seven: 0.001 + 0.998 / 14 below the first.
    np.testing.assert_allclose(scores[:, 0], [-3.0902, 0, 3.0902], atol=1e-3)
    np.testing.assert_allclose(scores[:, 1], [-1.4590, 0, 1.4590], atol=1e-3)
    np.testing.assert_allclose(scores[:, 2], 0, atol=1e-6)
    # A record has the scores that it has alone.
    for i in range(3):
        alone = Scores(NUMBERS).encode({name: cells[i : i + 1] for name, cells in table.items()})
        np.testing.assert_array_equal(alone[0], scores[i])
    back = Scores(NUMBERS).decode(scores)
    np.testing.assert_allclose(back["height"].to_pylist(), table["height"], atol=1e-4)
    assert back["visits"].to_pylist() == table["visits"]
    assert back["born"].to_pylist() == table["born"]
    assert [str(field.type) for field in back.schema] == ["double", "int64", "date32[day]"]


def test_every_whole_number_comes_back() -> None:
    column = Column(name="n", kind=Kind.COUNT, bounds=(0, 50_000))
    scores = Scores(Schema(columns=(column,)))
    values = np.arange(50_001)
    back = np.asarray(scores.decode(scores.encode({"n": values}).astype(np.float64))["n"])
    # Single precision keeps a place to within one of 50,000.
    assert np.abs(back - values).max() <= 1


def test_a_score_of_any_size_is_a_cell_within_its_bounds() -> None:
    wild = np.random.default_rng(0).normal(size=(1_000, 3)) * np.array([0.1, 3.0, 1e6])
    assert within(Scores(NUMBERS).decode(wild), NUMBERS)
    with pytest.raises(ValueError, match="not finite"):
        Scores(NUMBERS).decode(np.full((1, 3), np.nan))


def test_scores_are_for_numbers_and_a_bad_cell_is_not_shown() -> None:
    with pytest.raises(DataError, match=r"'smoker' \(binary\) has categories: this model is for numbers only"):
        GaussianMixture(MIXED)
    missing = Column(name="x", kind=Kind.REAL, bounds=(0.0, 1.0), missing=Missing.INDICATOR)
    with pytest.raises(DataError, match="has missing cells"):
        FactorAnalysis(Schema(columns=(missing,)))
    good = {"height": [150.0], "visits": [4], "born": [datetime.date(1950, 2, 2)]}
    for changes, words in (
        ({"height": [987_654.0]}, "outside its public bounds"),
        ({"height": [None]}, "has missing cells"),
        ({"visits": [4.987]}, "not whole"),
        ({"height": []}, "different lengths"),
    ):
        with pytest.raises(DataError, match=words) as caught:
            Scores(NUMBERS).encode({**good, **changes})
        assert "987" not in str(caught.value)
    clipped = Scores(NUMBERS).encode({**good, "height": [987_654.0]}, out_of_bounds="clip")
    assert clipped[0, 0] == pytest.approx(3.09, abs=0.01)


# --- models -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["vae", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("mixture", "factors"))]
)
def test_twins_from_the_prior_are_tables_of_the_schema(name) -> None:
    model = MODELS[name]
    for scale in (1.0, 100.0):
        table = model.draw(drawn_latents(model, scale), 500, np.random.default_rng(0))
        assert table.num_rows == 500
        assert table.column_names == [column.name for column in model.schema.columns]
        assert within(table, model.schema)
    same = model.draw(drawn_latents(model, scale), 500, np.random.default_rng(0))
    assert same.equals(table)
    records = model.encode(table)
    assert records.shape == (500, 3)


def test_rows_of_the_mixture_follow_their_latents() -> None:
    latents = {
        "component": np.log([0.25, 0.75]),
        "means": np.array([[-1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]),
        "scales": np.full((2, 3), 0.2),
    }
    model = MODELS["mixture"]
    scores = model.encode(model.draw(latents, 20_000, np.random.default_rng(0)))
    first = scores[:, 0] < 0
    # Five standard errors; the tails overlap by less than 0.001.
    assert np.mean(first) == pytest.approx(0.25, abs=5 * 0.0031 + 0.001)
    assert np.mean(scores[first, 0]) == pytest.approx(-1, abs=5 * 0.3 / np.sqrt(5_000) + 0.01)
    assert np.std(scores[first, 0]) == pytest.approx(0.3, abs=5 * 0.3 / np.sqrt(10_000) + 0.01)
    assert np.mean(scores[first, 1]) > 0.9


def test_rows_of_a_factor_analysis_have_its_covariance() -> None:
    loadings = np.array([[0.8, 0.0], [0.5, 0.3], [0.0, -0.6]])
    latents = {"centre": np.array([0.2, 0.0, -0.2]), "loadings": loadings, "own": np.full(3, 0.4)}
    schema = schema_from_bounds("a=0:1,b=0:1,c=0:1")
    model = FactorAnalysis(schema, factors=2)
    scores = model.encode(model.draw(latents, 40_000, np.random.default_rng(0)))
    # Five standard errors of a covariance (below 1.4 / 200), and 0.02 for the tails that the bounds cut off.
    np.testing.assert_allclose(np.cov(scores.T), loadings @ loadings.T + 0.25 * np.eye(3), atol=0.055)
    np.testing.assert_allclose(scores.mean(axis=0), latents["centre"], atol=0.03)


def test_levels_of_a_row_are_independent_given_its_code() -> None:
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(6,)))
    product = LevelsProduct(logits, (4, 2))
    first, second = (np.asarray(jax.nn.softmax(block)) for block in jnp.split(logits, [4]))
    rows = np.stack(np.meshgrid(np.arange(4), np.arange(2), indexing="ij"), axis=-1).reshape(-1, 2)
    np.testing.assert_allclose(np.exp(product.log_prob(rows)), np.outer(first, second).ravel(), rtol=1e-5)


def test_rows_of_the_decoder_follow_its_logits() -> None:
    model = MODELS["vae"]
    base = np.log([0.1, 0.2, 0.3, 0.4, 0.25, 0.75, 0.2, 0.2, 0.6]).astype(np.float32)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in model._shapes.items()}
    levels = model.encode(model.draw({**zeros, "base": base}, 20_000, np.random.default_rng(0)))
    for column, shares in enumerate(([0.1, 0.2, 0.3, 0.4], [0.25, 0.75], [0.2, 0.2, 0.6])):
        found = np.bincount(levels[:, column], minlength=len(shares)) / len(levels)
        np.testing.assert_allclose(found, shares, atol=5 * 0.0036)  # five standard errors


@pytest.mark.exhaustive
def test_starts_are_public_and_apart() -> None:
    def start(model, **options):
        guide = model.guide(**options)
        with numpyro.handlers.seed(rng_seed=0):
            guide(jnp.asarray(model.placeholder[0]))
        return np.asarray(guide._init_locs["means"])

    mixture = MODELS["mixture"]
    assert np.abs(np.diff(start(mixture), axis=0)).min() > 1e-3
    np.testing.assert_array_equal(start(mixture), start(mixture, seed=0))
    assert not np.array_equal(start(mixture), start(mixture, seed=1))


def test_wrong_options_are_refused() -> None:
    for wrong in (0, 2.0, True):
        with pytest.raises(ValueError, match="components"):
            GaussianMixture(NUMBERS, components=wrong)
        with pytest.raises(ValueError, match="factors"):
            FactorAnalysis(NUMBERS, factors=wrong)
        with pytest.raises(ValueError, match="hidden"):
            TableVAE(MIXED, hidden=wrong)
    with pytest.raises(ValueError, match="slices"):
        TableVAE(MIXED, slices=1)
