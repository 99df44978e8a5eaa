"""Records that are persons with several rows: what is clipped, proved and attacked is all rows of a person together."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import pyarrow
import pytest
from numpyro.infer import init_to_feasible
from numpyro.infer.autoguide import AutoDelta

import discreet as dp
from discreet.methods.audit import audit_fit, audit_mechanism
from discreet.methods.inference import releases_of
from discreet.tabular.models import logistic_regression
from discreet.tabular.tables import Column, Kind, Schema, encode

ROWS, CLIP, OTHERS, DELTA = 5, 2.0, 6, 1e-3
SCHEMA = Schema(
    columns=(
        Column(name="age", kind=Kind.REAL, bounds=(0, 100)),
        Column(name="sick", kind=Kind.BINARY, categories=("no", "yes")),
    ),
    target="sick",
    person="id",
    max_rows=ROWS,
)


def table(canary: bool) -> pyarrow.Table:
    """Persons with one row each, whose gradients are in the middle; and perhaps one with nine rows that all pull one way."""
    ids = [f"p{i}" for i in range(OTHERS)] + ["canary"] * 9 * canary
    sick = ["no", "yes"] * (OTHERS // 2) + ["yes"] * 9 * canary
    return pyarrow.table({"age": [50.0] * OTHERS + [100.0] * 9 * canary, "sick": sick, "id": ids})


def arrays(canary: bool) -> tuple[np.ndarray, ...]:
    return encode(table(canary), SCHEMA).arrays


def fit_of(noise_multiplier: float) -> dp.DPSVI:
    plan = dp.PrivacyPlan(
        sampling=dp.FullBatch(),
        clipping_norm=CLIP,
        noise_multiplier=noise_multiplier,
        num_steps=1,
        num_records=OTHERS + 1,
        target_delta=DELTA,
    )
    guide = AutoDelta(logistic_regression, init_loc_fn=init_to_feasible)
    return dp.DPSVI(logistic_regression, guide, numpyro.optim.Adam(0.1), plan=plan)


def test_the_sum_of_a_persons_gradients_is_clipped() -> None:
    """At the origin a row's gradient of the loss is (1/2 - y) (1, x): nine rows of (1, 1) and yes count as five, these as C."""
    fit = fit_of(1e-4)
    there, gone = (
        np.asarray(releases_of(fit, *arrays(canary))(dp.random.key(3))).ravel()
        for canary in (True, False)
    )
    # The last number is the private loss.
    np.testing.assert_allclose((there - gone)[:2], -CLIP / np.sqrt(2), rtol=5e-3)


def test_an_audit_finds_a_person_and_no_more_than_was_paid() -> None:
    """The canary is a person with all rows. The same fit that takes rows for records, as a fault would, is found out."""
    fit = fit_of(1.0)
    sides = arrays(canary=True), arrays(canary=False)
    options = {"delta": DELTA, "runs": 2_000, "progress_bar": False}
    verdict = audit_fit(fit, *sides, **options)
    assert not verdict.contradicted
    assert verdict.epsilon_lower > 0.3 * verdict.claimed_epsilon
    rows = [[part[mask] for part in (x, y)] for x, y, mask in sides]
    by_row = audit_mechanism(*(releases_of(fit, *side) for side in rows), claim=fit.plan, **options)
    assert by_row.contradicted


def test_a_step_that_clips_rows_is_no_step_that_clips_persons() -> None:
    """The proof knows which axis is the persons: a sum over rows moves by as many norms as a person has rows."""

    def step(key, rows, there, mask, per_row):
        flat = (
            rows.reshape(-1, rows.shape[-1])
            if per_row
            else jnp.where(there[..., None], rows, 0).sum(axis=1)
        )
        clipped = dp.clip_records(flat, 1.0)
        clipped = clipped.reshape(rows.shape).sum(axis=1) if per_row else clipped
        return dp.gaussian_mechanism(key, dp.sum_records(clipped, mask), 3.0)

    rows, there, mask = (
        np.zeros((4, ROWS, 2), np.float32),
        np.ones((4, ROWS), bool),
        np.ones(4, bool),
    )
    args = dp.random.key(), rows, there, mask
    proved = dp.certify(functools.partial(step, per_row=False), *args, records=(1, 2), mask=3)
    assert "noise_multiplier=3.0" in str(proved.event)
    with pytest.raises(dp.PrivacyError):
        dp.certify(functools.partial(step, per_row=True), *args, records=(1, 2), mask=3)
