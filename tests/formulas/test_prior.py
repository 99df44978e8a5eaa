"""The prior predictive of a formula: it needs no record, follows the family's prior, and is drawn."""

import numpy as np
import pytest

from discreet.tabular.formulas import prior
from discreet.tabular.tables import schema_from_bounds

SCHEMA = schema_from_bounds("ill=no|yes,age=20:60,region=a|b|c,cost=1:100")


def test_a_prior_is_in_the_units_of_its_columns_and_of_its_target() -> None:
    """gaussian: intercept and weight Normal(0, 1) on age and cost brought to [-1, 1]. 4,000 draws:
    a deviation is within 5 % of its own but for one run in 10,000.
    """
    found = prior("cost ~ age", SCHEMA, num_draws=4_000)
    width = 49.5
    at_40 = found.draws["Intercept"] + 40 * found.draws["age"]
    assert at_40.std() == pytest.approx(width, rel=0.05)
    assert found.draws["age"].std() == pytest.approx(width / 20, rel=0.05)
    effect = found.marginal_effect("age", num_values=3)
    assert effect.high[0] - effect.low[0] == pytest.approx(2 * 1.645 * width * np.sqrt(2), rel=0.2)


def test_private_newtons_prior_is_that_of_an_even_column() -> None:
    """A weight is Normal(0, (2.5 / s)^2) where s is a column's deviation, of age within its bounds 40 / sqrt(12)."""
    found = prior("ill ~ age + region", SCHEMA, family="bernoulli", num_draws=4_000)
    assert found.draws["age"].std() == pytest.approx(2.5 / (40 / np.sqrt(12)), rel=0.05)
    assert found.draws["region[b]"].std() == pytest.approx(2.5, rel=0.05)
    middle = found.draws["Intercept"] + 40 * found.draws["age"]
    middle = middle + (found.draws["region[b]"] + found.draws["region[c]"]) / 3
    assert middle.std() == pytest.approx(5.0, rel=0.05)


def test_targets_are_drawn_and_counted(tmp_path) -> None:
    figure = prior("ill ~ age", SCHEMA, family="bernoulli", num_draws=100).plot(
        tmp_path / "prior.png"
    )
    assert (tmp_path / "prior.png").stat().st_size > 5_000
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["no", "yes"]
    shares = np.stack([line.get_ydata() for line in axes.lines if len(line.get_ydata())])
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert "released" not in [text.get_text() for text in axes.get_legend().get_texts()]
    wide = prior("cost ~ age", SCHEMA, num_draws=100).plot()
    # Half of the targets are beyond the bounds: they count at the ends.
    mean = wide.axes[0].lines[-1].get_ydata()
    assert mean[0] + mean[-1] > 0.2
    assert mean.sum() == pytest.approx(1)
    counts = schema_from_bounds("visits=0..121,few=0..3,age=20:60")
    shown = prior("visits ~ age", counts, family="poisson", num_draws=100).plot()
    assert shown.axes[0].get_xticklabels()[0].get_text() == "0 to 5"
    shown = prior("few ~ age", counts, family="poisson", num_draws=100).plot()
    names = [label.get_text() for label in shown.axes[0].get_xticklabels()]
    assert names == ["0", "1", "2", "3"]


def test_targets_without_draws_are_refused() -> None:
    schema = schema_from_bounds("time=1:100,event=0|1,age=20:60")
    found = prior("Surv(time, event) ~ age", schema, family="weibull", num_draws=100)
    with pytest.raises(ValueError, match="marginal_effect"):
        found.plot()
