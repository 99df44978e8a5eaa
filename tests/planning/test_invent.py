"""Invented tables: features within public bounds, truths from the prior, observations from the model."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow
import pytest

from discreet.tabular.models import (
    linear_regression,
    logistic_regression,
    multinomial_regression,
    poisson_regression,
)
from discreet.tabular.planning._invent import Inventor, template_of
from discreet.tabular.tables import Schema, encode, schema_from_bounds

SCHEMA = schema_from_bounds("age=17:90,dose=0:5,sick=no|yes", target="sick")
SEVERAL = Schema(columns=SCHEMA.columns, target="sick", person="id", max_rows=4)


def test_persons_of_several_rows_are_invented_with_their_padding() -> None:
    template = template_of(SEVERAL)
    x, y, mask = template.draw(np.random.default_rng(0), 500)
    assert (x.shape, y.shape, mask.shape) == ((500, 4, 2), (500, 4), (500, 4))
    assert not x[~mask].any()
    counts = mask.sum(axis=1)
    assert set(counts) == {1, 2, 3, 4}
    assert (mask == (np.arange(4) < counts[:, None])).all()
    # The model sets padding to zero, so that what it observes is no longer the argument itself.
    inventor = Inventor(logistic_regression, template, ("intercept", "weights"), jax.random.key(0))
    assert inventor.observed == {"y": 1}
    _, y, mask = inventor.table(1.0, 300, 100, seed=1).rows
    assert not y[~mask].any()
    assert 0.1 < y[mask].mean() < 0.9


def test_a_target_that_the_model_converts_is_found() -> None:
    """A multinomial regression was refused: it observes the classes as integers."""
    template = template_of(schema_from_bounds("age=17:90,region=n|s|e", target="region"))
    inventor = Inventor(
        multinomial_regression(3), template, ("intercept", "weights"), jax.random.key(0)
    )
    assert inventor.observed == {"y": 1}


def test_of_persons_an_argument_that_is_observed_otherwise_is_refused() -> None:
    def model(x: Any, y: Any, mask: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1))
        with (
            numpyro.plate("persons", x.shape[0], dim=-2),
            numpyro.plate("rows", x.shape[1], dim=-1),
        ):
            numpyro.sample(
                "y", dist.Normal(w * x[..., 0], 1.0).mask(mask), obs=jnp.where(mask, 2 * y, 0.0)
            )

    with pytest.raises(ValueError, match="none of its arguments as they are"):
        Inventor(model, template_of(SEVERAL), ("w",), jax.random.key(0))


def test_a_dry_run_loads_no_reader_of_tables() -> None:
    code = (
        "import sys, discreet.tabular.planning; "
        "print({'pyarrow', 'pandas', 'discreet.tabular.tables._read'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_invented_features_look_as_encoded_ones() -> None:
    schema = schema_from_bounds(
        "age=17:90,visits=0:9,region=n|s|e,born=1900-01-01:2000-01-01,smoker=no|yes,w=0:2",
        target="w",
    )
    x, y = template_of(schema).draw(np.random.default_rng(0), 500)
    cells = {
        "age": [17.0, 90.0],
        "visits": [0.0, 9.0],
        "region": ["n", "s"],
        "born": pyarrow.array(["1900-01-01", "2000-01-01"]).cast(pyarrow.date32()),
        "smoker": ["no", "yes"],
        "w": [0.0, 2.0],
    }
    encoded = encode(pyarrow.table(cells), schema)
    assert x.shape[1:] == encoded.x.shape[1:]
    assert x.dtype == encoded.x.dtype == np.float32
    assert encoded.y is not None
    assert y.shape[1:] == encoded.y.shape[1:]
    for column, name in enumerate(encoded.feature_names):
        numbers = np.unique(x[:, column])
        if "=" in name:
            assert set(numbers) <= {0.0, 1.0}
        else:
            assert -1 <= numbers.min() < numbers.max() <= 1
    assert (x[:, 2:5].sum(axis=1) == 1).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("model", "target", "low", "high"),
    [(linear_regression, "t=-5:5", -1.0, 1.0), (poisson_regression, "t=0:20", 0.0, 20.0)],
)
def test_invented_targets_mostly_keep_to_their_bounds(
    quick_compilation, model, target: str, low: float, high: float
) -> None:
    from discreet.tabular.tables import Kind

    kind = Kind.COUNT if low == 0 else Kind.REAL
    schema = schema_from_bounds(f"a=0:1,b=0:1,{target}", target="t", target_kind=kind)
    latents = ("intercept", "weights", "sigma")[: 3 if low < 0 else 2]
    inventor = Inventor(model, template_of(schema), latents, jax.random.key(0))
    assert inventor.observed == {"y": 1}
    table = inventor.table(0.25, 800, 200, seed=3)
    y = np.concatenate([table.rows[1], table.held_out[1]])
    assert y.shape == (1_000,)
    # Of the prior's truths many would have most targets outside; 2 % are tolerated.
    assert np.mean((y < low) | (y > high)) < 0.05
    assert y.std() > 0.02 * (high - low)
    assert table.truth["weights"].shape == (2,)


def test_invented_columns_are_correlated_and_some_are_narrow() -> None:
    """As measurements of one body are, within public bounds that allow for outliers: such tables are hard to fit."""
    template = template_of(schema_from_bounds("a=0:1,b=0:1"))
    tables = [template.draw(np.random.default_rng(seed), 500)[0] for seed in range(100)]
    # Independent columns have correlations of 0.04 on average; of columns without narrow ones a
    # twenty-fifth is below 0.18.
    assert np.mean([abs(np.corrcoef(x.T)[0, 1]) for x in tables]) > 0.15
    assert np.mean([x.std(axis=0) < 0.18 for x in tables]) > 0.1


def test_what_cannot_be_invented_is_refused() -> None:
    def computed(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(w * x[:, 0], 1), obs=2 * y)

    def improper(x, y):
        w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(w * x[:, 0], 1), obs=y)

    shapes = jax.ShapeDtypeStruct((9, 2), jnp.float32), jax.ShapeDtypeStruct((9,), jnp.float32)
    for model, match in ((computed, "none of its arguments as they are"), (improper, "improper")):
        with pytest.raises(ValueError, match=match):
            Inventor(model, template_of(shapes), ("w",), jax.random.key(0))
