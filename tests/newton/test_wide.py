"""With many columns for so few records the noise hides most of a matrix: intervals hold, and are not wider than they need be."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_digits

from benchmarks.public_tables import exact
from discreet.methods.newton import ModelPlan, NewtonPlan, fit_invented, fit_invented_model
from discreet.methods.newton._algebra import gathered, hard, lowered, soft, spectrum
from discreet.methods.newton._blocks import Blocks
from discreet.methods.newton._own import _Fit

COLUMNS, RECORDS = 30, 5_000


def table(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Correlated columns, a target, the truth, and the standard errors of its weights without privacy."""
    rng = np.random.default_rng(seed)
    places = np.arange(COLUMNS)
    root = np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(places, places)))
    x = np.clip(rng.standard_normal((RECORDS, COLUMNS)) @ root.T / 3, -1, 1)
    truth = np.append(0.3, 4.5 / np.sqrt(COLUMNS) * rng.standard_normal(COLUMNS))
    chances = expit(truth[0] + x @ truth[1:])
    ones = np.column_stack([np.ones(RECORDS), x])
    errors = np.sqrt(np.diag(np.linalg.inv((ones.T * chances * (1 - chances)) @ ones)))
    return x, (rng.random(RECORDS) < chances).astype(float), truth, errors[1:]


def wide(x: Any, y: Any) -> None:
    start = numpyro.sample("start", dist.Normal(0, 5))
    weights = numpyro.sample("weights", dist.Normal(0, 7.5).expand([COLUMNS]).to_event(1))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=start + x @ weights), obs=y)


def rare_levels(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ten numbers and ten levels of 0.2 to 2 %, with weights drawn from the prior."""
    rng = np.random.default_rng(seed)
    numbers = np.clip(rng.standard_normal((RECORDS, 10)) / 3, -1, 1)
    levels = rng.random((RECORDS, 10)) < np.geomspace(0.002, 0.02, 10)
    x = np.column_stack([numbers, levels])
    weights = rng.standard_normal(20) * PRIOR
    return x, (rng.random(RECORDS) < expit(0.3 + x @ weights)).astype(float), weights


PRIOR = np.repeat([2.5, 2.5], 10)


def rare(x: Any, y: Any) -> None:
    start = numpyro.sample("start", dist.Normal(0, 5))
    weights = numpyro.sample("weights", dist.Normal(0, PRIOR).to_event(1))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=start + x @ weights), obs=y)


def test_the_noise_hides_rare_levels_and_their_intervals_hold() -> None:
    """Seven tables at ε = 0.3. With the last curvature shrunk as the maps are, 0.65 held: what is hidden looked known."""
    held = []
    for seed in range(7):
        x, y, truth = rare_levels(seed)
        plan = ModelPlan.calibrate(epsilon=0.3, delta=1e-6, num_records=RECORDS)
        found = fit_invented_model(
            rare, (x.astype(np.float32), y.astype(np.float32)), plan, seed=seed
        )
        low, high = found.interval["weights"]
        held.append(((low < truth) & (truth < high))[10:])
    assert np.mean(held) >= 0.8


def test_intervals_of_a_model_are_not_wider_than_they_need_be() -> None:
    """Four tables: 40 times as wide as the exact where noise shaped the map and the error of the curvature fed itself."""
    held, width = [], []
    for seed in range(4):
        x, y, truth, errors = table(seed)
        plan = ModelPlan.calibrate(epsilon=1.0, delta=1e-6, num_records=RECORDS)
        found = fit_invented_model(
            wide, (x.astype(np.float32), y.astype(np.float32)), plan, seed=seed
        )
        low, high = found.interval["weights"]
        held.append((low < truth[1:]) & (truth[1:] < high))
        width.append(np.mean(found.draws["weights"].std(axis=0) / errors))
    assert np.mean(held) >= 0.9
    assert np.mean(width) < 14


def noisy(matrix: np.ndarray, sigma: float) -> np.ndarray:
    return matrix + sigma * np.random.default_rng(0).standard_normal(matrix.shape)


def test_noise_does_not_shape_a_matrix() -> None:
    # The noise alone has eigenvalues up to 155.
    values, _ = spectrum(noisy(100 * np.eye(30), 20.0), 20.0, 5.0, shrinkage=hard)
    assert 70 < values.min() <= values.max() < 130


def test_noise_does_not_make_curvature() -> None:
    """The trace of a wide matrix is known well; without the noise's negative eigenvalues it was 1.8 times as large."""
    fit = object.__new__(_Fit)
    fit.size, fit.blocks = 80, Blocks(80)
    raw = noisy(100 * np.eye(80), 100.0)
    trace = np.trace(raw)
    for shrinkage in (soft, hard):
        kept = fit._positive((raw + raw.T) / 2, 100.0, shrinkage)
        assert np.trace(kept) < 1.001 * trace
        assert np.linalg.eigvalsh(kept).min() > 0


def test_values_are_lowered_to_their_sum_and_no_further_than_the_least() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 40):
        values = 3 * rng.standard_normal(size)
        for total in (0.1 * size, 0.5 * size, 30.0 * size):
            found = lowered(values, 0.1, total)
            assert found.min() >= 0.1
            np.testing.assert_allclose(found.sum(), min(np.maximum(values, 0.1).sum(), total))
            above = found > 0.1
            assert np.ptp((values - found)[above]) < 1e-12 if above.any() else True


def test_what_stands_out_of_the_noise_is_kept() -> None:
    vectors = np.linalg.qr(np.random.default_rng(1).standard_normal((30, 30)))[0]
    true = np.geomspace(10, 1_000, 30)
    values, found = spectrum(noisy((vectors * true) @ vectors.T, 0.5), 0.5, 1.0, shrinkage=hard)
    np.testing.assert_allclose(values, true, rtol=0.1)
    np.testing.assert_allclose((found * values) @ found.T, (vectors * true) @ vectors.T, atol=3)


def test_steps_take_hidden_curvatures_for_their_mean_and_intervals_do_not() -> None:
    """Of 64 pixels and 1,797 images the noise hides most of the curvature, and many pixels are alike.

    With one estimate for both, either the log loss is 0.42 to 0.45 (now 0.34, exact 0.27), or 0.75
    to 0.83 of the intervals hold the exact mean (now 0.94 to 0.95).
    """
    x, y = load_digits(return_X_y=True)
    x = (x / 8 - 1).astype(np.float32)
    table = SimpleNamespace(x=x, y=(y >= 5).astype(float), levels=np.zeros(64, bool))
    mean, _ = exact(table, "binary")  # pyright: ignore[reportArgumentType]
    plan = NewtonPlan.calibrate(
        epsilon=1.0, delta=1e-6, family="binary", num_features=64, num_records=len(x)
    )
    for seed in range(2):
        found = fit_invented(x, table.y, plan, seed=seed, levels=table.levels)
        held = np.abs(found.mean - mean) < 1.645 * np.sqrt(np.diag(found.covariance))
        assert held.mean() > 0.88
        chances = expit(found.predictive[:, :1] + found.predictive[:, 1:] @ x.T).mean(axis=0)
        assert -np.mean(np.log(np.where(table.y > 0.5, chances, 1 - chances))) < 0.38


def test_eigenvalues_become_what_the_matrix_has_in_their_directions() -> None:
    """The noise alone has eigenvalues up to 760, and the matrix such from 10 to 1,000."""
    size = 80
    sigma = 60.0
    vectors = np.linalg.qr(np.random.default_rng(1).standard_normal((size, size)))[0]
    matrix = (vectors * np.geomspace(10, 1_000, size)) @ vectors.T
    raw = noisy(matrix, sigma)
    values, found = np.linalg.eigh((raw + raw.T) / 2)
    own = np.einsum("ij,ik,kj->j", found, matrix, found)

    def error(others: np.ndarray) -> float:
        return float(np.sqrt(np.mean((others - own) ** 2)))

    others = min(error(change(values, sigma)) for change in (soft, hard))
    assert error(gathered(values, sigma)) < 0.6 * min(error(values), others)


def test_eigenvalues_of_noise_become_their_mean() -> None:
    raw = noisy(100 * np.eye(40), 20.0)
    values = np.linalg.eigvalsh((raw + raw.T) / 2)
    assert np.ptp(values) > 200
    np.testing.assert_allclose(gathered(values, 20.0), values.mean(), atol=20)
    np.testing.assert_allclose(gathered(values, 1e-9), values)
    np.testing.assert_allclose(gathered(np.full(3, 5.0), 1.0), 5.0)


def test_both_curvatures_make_the_intervals_of_many_columns() -> None:
    """Four tables of 20 columns and 2,000 records: 4.5 times as wide as the exact by the second curvature alone, now 2.3."""
    held, width = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        common = rng.standard_normal((2_000, 1))
        x = np.clip((0.5 * common + rng.standard_normal((2_000, 20))) / 3.5, -1, 1)
        truth = np.append(-0.5, rng.normal(0, 0.9, 20))
        y = (rng.random(2_000) < expit(truth[0] + x @ truth[1:])).astype(float)
        plan = NewtonPlan.calibrate(
            epsilon=1.0, delta=1e-6, family="binary", num_features=20, num_records=2_000
        )
        found = fit_invented(x, y, plan, seed=seed, levels=np.zeros(20, bool))
        own = np.sqrt(np.diag(found.covariance))
        ones = np.column_stack([np.ones(2_000), x])
        chances = expit(ones @ truth)
        errors = np.sqrt(np.diag(np.linalg.inv((ones.T * chances * (1 - chances)) @ ones)))
        held.append(np.abs(found.mean - truth) < 1.645 * own)
        width.append(np.median(own / errors))
    assert np.mean(held) > 0.9
    assert np.mean(width) < 3.2


def test_where_the_noise_hides_all_intervals_are_nearly_the_priors() -> None:
    """Of 398 tumours at ε = 0.01, 0.73 of 60 intervals held the exact mean, now 0.88: a floor passed for curvature."""
    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(axis=0)) / (4 * x.std(axis=0)))[:398, :4].clip(-1, 1).astype(np.float32)
    table = SimpleNamespace(x=x, y=y[:398].astype(float), levels=np.zeros(4, bool))
    mean, _ = exact(table, "binary")  # pyright: ignore[reportArgumentType]
    plan = NewtonPlan.calibrate(
        epsilon=0.01, delta=1e-3, family="binary", num_features=4, num_records=398
    )
    held = []
    for seed in range(12):
        found = fit_invented(x, table.y, plan, seed=seed, levels=table.levels)
        own = np.sqrt(np.diag(found.covariance))
        held.append(np.abs(found.mean - mean) < 1.645 * own)
    assert np.mean(held) > 0.82
