"""Adding a sampler takes a class and a line in `SAMPLERS`; nothing else in the library refers to it."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from dp_accounting import PoissonSampledDpEvent
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.privacy.sampling import SAMPLERS, Batch, OpenPoisson, PoissonSampling, Sampling

NUM_RECORDS = 60


@dataclasses.dataclass(frozen=True)
class ThinnedSampling(Sampling):
    """Batches in two rounds: a record passes each coin on its own, so it enters with the product of both rates.

    The second draw thins the first by masking rows; both are Poisson samples, and their slacks add
    up.
    """

    option: ClassVar[str] = "thinned"
    independent: ClassVar[bool] = True

    first: float
    second: float

    @property
    def _rounds(self):
        return PoissonSampling(self.first), PoissonSampling(self.second)

    def _event(self, mechanism, num_records):
        return PoissonSampledDpEvent(self.first * self.second, mechanism)

    def rate_for(self, num_records):
        return self.first * self.second

    def slack_per_step(self, num_records):
        return sum(x.slack_per_step(num_records) for x in self._rounds)

    def capacity(self, num_records):
        return num_records

    def prepare(self, num_records):
        return [x.prepare(num_records) for x in self._rounds]

    def draw(self, key, tables, *, num_records):
        both = jnp.ones(num_records, bool)
        for sampling, own, each in zip(self._rounds, tables, jax.random.split(key), strict=True):
            batch = sampling.draw(each, own, num_records=num_records)
            both &= jnp.zeros(num_records, bool).at[batch.indices].max(batch.mask)
        rows = jnp.nonzero(both, size=num_records, fill_value=0)[0].astype(jnp.int32)
        return Batch(rows, jnp.arange(num_records) < both.sum())

    def in_words(self, num_records, noun="record"):
        return f"each record passes two coins, of {self.first:g} and of {self.second:g}"

    @classmethod
    def from_options(cls, *, rate, batch_size, num_records):
        return cls(rate, 0.5)


@dataclasses.dataclass(frozen=True)
class ReplaceOnlyThinned(ThinnedSampling):
    """The same, for one relation."""

    option: ClassVar[str] = "replace-only"
    relations: ClassVar[frozenset] = frozenset({dp.Relation.REPLACE_ONE})


def model(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def fit(sampling, **options):
    plan = dp.PrivacyPlan(
        sampling=sampling,
        clipping_norm=1.0,
        noise_multiplier=2.0,
        num_steps=5,
        num_records=NUM_RECORDS,
    )
    dpsvi = dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.05), plan=plan)
    return plan, dpsvi.run(
        dp.random.key(1), jnp.linspace(-1.0, 1.0, NUM_RECORDS), progress_bar=False, **options
    )


@pytest.fixture
def listed():
    SAMPLERS.extend([ThinnedSampling, ReplaceOnlyThinned])
    yield
    del SAMPLERS[-2:]


def test_it_fits_is_proved_stated_saved_and_loaded(listed, tmp_path):
    sampling = ThinnedSampling(0.8, 0.5)
    plan, result = fit(sampling)
    assert plan.epsilon(1e-5) <= dp.PrivacyPlan(
        sampling=PoissonSampling(0.4),
        clipping_norm=1.0,
        noise_multiplier=2.0,
        num_steps=5,
        num_records=NUM_RECORDS,
    ).epsilon(1e-5) * (1 + 1e-6)
    assert any("Proved before it ran" in note for note in result.statement.notes)
    assert "each record passes two coins, of 0.8 and of 0.5" in str(result.statement)
    assert (
        plan.slack
        == 5 * (sampling.slack_per_step(NUM_RECORDS) + plan.mechanism.slack)
        > 5 * plan.mechanism.slack
    )
    again = dp.load_result(result.save(tmp_path / "fit"))
    assert again.plan.sampling == sampling


@pytest.mark.essential
def test_one_that_is_not_listed_is_refused_for_that_reason():
    with pytest.raises(
        dp.PrivacyError, match=r"The sampler ThinnedSampling is not on the list"
    ) as error:
        fit(ThinnedSampling(0.9, 0.5))
    assert "discreet.sampling.SAMPLERS" in error.value.remedy


@pytest.mark.essential
def test_a_class_derived_from_a_listed_one_is_not_listed():
    class Mine(PoissonSampling):
        def drawing(self, num_records):
            return Sampling.drawing(self, num_records)

    with pytest.raises(dp.PrivacyError, match="The sampler Mine is not on the list"):
        fit(Mine(0.4))


@pytest.mark.essential
def test_a_drawing_derived_from_that_of_open_rates_is_not_listed():
    """It may say a law that is not its own."""

    class Mine(OpenPoisson):
        def draw(self, key, tables):
            return PoissonSampling(0.4).drawing(self.num_records).draw(key, tables)

        def law(self, tables):
            return PoissonSampling(0.01)

    class Drawn(PoissonSampling):
        def drawing(self, num_records):
            return Mine(num_records, num_records)

    with pytest.raises(dp.PrivacyError, match="is not on the list"):
        fit(Drawn(0.4))


def test_a_relation_without_accounting_is_refused(listed):
    with pytest.raises(ValueError, match="no sound accounting for one record added or removed"):
        fit(ReplaceOnlyThinned(0.8, 0.5))


def test_the_command_line_finds_it_by_its_option(listed):
    found = next(x for x in SAMPLERS if x.option == "thinned")
    assert found.from_options(rate=0.5, batch_size=None, num_records=10) == ThinnedSampling(
        0.5, 0.5
    )
    assert found.usual_relation() is dp.Relation.ADD_OR_REMOVE_ONE
