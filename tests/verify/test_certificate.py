"""The contents of a certificate, and that it runs what it proves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

import discreet as dp
from discreet import gradients, mechanisms
from discreet.privacy.accounting import profile
from discreet.privacy.verify import Given
from discreet.privacy.verify._programs import fingerprint

from .programs import KEY, C, M, N, W, X, Y, certify, clipped_sum, noisy

Z = 1.5


def step(w, xs, ys, mask, key):
    first, rest = jax.random.split(key)
    released = noisy(first, clipped_sum(w, xs, ys, mask), Z * C)
    return {
        "w": jax.tree.map(lambda a, b: a - 0.1 * b, w, released),
        "size": jnp.ones(2),
        "key": rest,
    }


@pytest.fixture(scope="module")
def certificate():
    return certify(step)


def test_it_runs_the_program(certificate):
    ours, theirs = certificate(W, X, Y, M, KEY), jax.jit(step)(W, X, Y, M, KEY)
    jax.tree.map(np.testing.assert_array_equal, ours["w"], theirs["w"])
    assert ours["key"] == theirs["key"]
    assert certificate.outputs == {
        "result['key']": "public",
        "result['size']": "public",
        "result['w']['a']": "released",
        "result['w']['b']": "released",
    }


def test_it_runs_no_other_program(certificate):
    with pytest.raises(TypeError, match="another program"):
        certificate(W, X[:5], Y[:5], M[:5], KEY)
    with pytest.raises(TypeError, match="structure"):
        certificate(W, X, Y, M)
    with pytest.raises(TypeError, match="another program"):
        certificate(W, X, Y, M, jax.random.key(0))


def test_its_price_is_that_of_its_event(certificate):
    priced = profile(GaussianDpEvent(Z), dp.Relation.ADD_OR_REMOVE_ONE)
    assert certificate.epsilon(1e-5) == pytest.approx(priced.epsilon(1e-5))
    assert certificate.delta(1.0) == pytest.approx(float(priced.delta(1.0)))


def test_it_says_what_it_rests_on(certificate):
    text = str(certificate)
    for part in (
        "one record added or removed",
        "GaussianDpEvent",
        "released",
        "keys passed in are secret",
        "jax",
        "reproducible",
    ):
        assert part in text
    assert certificate.fingerprint == certify(step).fingerprint
    assert certificate.fingerprint != certify(lambda *a: step(*a)["w"]).fingerprint
    secret = dp.certify(step, W, X, Y, M, dp.random.key(), records=(1, 2), mask=3)
    assert not any("reproducible" in x for x in secret.assumptions)


def summed(total, rows=N, dtype=np.float32):
    """A certificate for noise of 3 C on a sum of so many clipped rows."""

    def release(key, x, mask):
        return dp.gaussian_mechanism(key, total(dp.clip_records(x, 2.0), mask), 6.0)

    shapes = jax.ShapeDtypeStruct((rows, 3), dtype), jax.ShapeDtypeStruct((rows,), bool)
    return dp.certify(release, KEY, *shapes, records=1, mask=2)


def test_the_noise_of_a_step_pays_for_the_rounding_of_no_sum():
    """Public mechanisms add 2**-11 of their noise for it; the markers that a step may map do not."""

    def release(key, x, mask):
        total = dp.sum_records(dp.clip_records(x, 2.0), mask)
        return mechanisms.add_noise(mechanisms.GAUSSIAN, key, total, 6.0, "release", multiplier=3.0)

    shapes = jax.ShapeDtypeStruct((4_000, 3), np.float32), jax.ShapeDtypeStruct((4_000,), bool)
    found = dp.certify(release, KEY, *shapes, records=1, mask=2).event.noise_multiplier
    assert found == pytest.approx(
        3.0 / (1 + gradients.rounding_of_records(4_000, np.float32)), rel=1e-9
    )
    assert found < 3.0
    # A map replaces the marker by what it computes, of which nothing is known.
    with pytest.raises(dp.PrivacyError):
        dp.certify(
            jax.vmap(release),
            jax.random.split(KEY, 1),
            *(x.update(shape=(1, *x.shape)) for x in shapes),
            records=1,
        )


def in_halves(x, mask):
    return dp.sum_records(x[:4], mask[:4]) + dp.sum_records(x[4:], mask[4:])


@pytest.mark.parametrize(
    ("total", "covered"),
    [
        (dp.sum_records, True),
        (
            lambda x, mask: (
                jnp.concatenate([dp.sum_records(x, mask)[:2], dp.sum_records(x, mask)[2:]]).T
            ),
            True,
        ),
        (
            lambda x, mask: dp.sum_records(jnp.where(mask[:, None], 0.25 * x, 0.0), mask) / 0.25,
            True,
        ),
        (in_halves, True),
        (lambda x, mask: dp.sum_records(jnp.abs(x), mask), True),
        (lambda x, mask: jnp.abs(dp.sum_records(x, mask)), True),
        (lambda x, mask: jnp.sum(jnp.where(mask[:, None], x, 0.0), 0), False),
        (lambda x, mask: mask.astype(jnp.float32) @ x, False),
        (lambda x, mask: dp.sum_records(x, mask) + 1.0, False),
        (lambda x, mask: dp.sum_records(jnp.tanh(x), mask), False),
        (
            lambda x, mask: jax.lax.fori_loop(
                0, 1, lambda i, s: s + dp.sum_records(x, mask), jnp.zeros(3)
            ),
            False,
        ),
    ],
)
def test_it_says_which_sums_it_takes_for_exact(total, covered):
    said = [text for text in summed(total).assumptions if "sums released at" in text]
    assert len(said) == (0 if covered else 1)
    assert covered or "test_certificate.py" in said[0]


def test_the_rounding_of_a_sum_of_many_rows_is_in_the_event():
    """The noise does not cover the rounding of the result to float32, so the event does."""
    assert summed(dp.sum_records, 4_000).event == GaussianDpEvent(3.0)
    for rows in (100_000, 1_000_000):
        large = summed(dp.sum_records, rows)
        share = gradients.rounding_of_records(rows, np.float32)
        assert large.event.noise_multiplier == pytest.approx(
            3.0 * (1 + 2**-11) / (1 + share), rel=1e-9
        )
        assert any("many rows are summed in float32" in text for text in large.notes)
        assert summed(lambda x, mask: jnp.abs(dp.sum_records(x, mask)), rows).event == large.event
    with jax.enable_x64(True):
        assert summed(dp.sum_records, 2**26, np.float64).event == GaussianDpEvent(3.0)
    # A mean is rounded once more than its sum.
    mean = summed(lambda x, mask: dp.sum_records(x, mask) / 4, 100_000).event.noise_multiplier / 4
    assert mean < 0.995 * summed(dp.sum_records, 100_000).event.noise_multiplier


def test_many_arrays_of_one_output_are_one_line(certificate):
    outputs = {f"result['state'][{i}]": "released" for i in range(40)} | {
        "result['state'][40]": "public",
        "result['losses']": "released",
    }
    said = str(dataclasses.replace(certificate, outputs=outputs)).splitlines()
    assert [line.strip() for line in said if "output" in line] == [
        "output result['state'] (40 arrays): released",
        "output result['state'][40]: public",
        "output result['losses']: released",
    ]


def test_the_fingerprint_is_the_same_in_a_terminal(certificate, monkeypatch):
    """JAX prints programs in colour there."""
    monkeypatch.setattr("jax._src.pretty_printer.CAN_USE_COLOR", True)
    assert "\x1b[" in str(certificate._program.jaxpr)
    assert fingerprint(certificate._program) == certificate.fingerprint


def test_the_fingerprint_follows_the_keys_in_a_program():
    """A checkpoint went on with a guide that captured another key: the same noise hid sums at other draws."""

    def of(key):
        moved = lambda xs, w: w + jax.random.normal(key)  # noqa: E731
        return dp.certify(moved, X, jnp.ones(3), records=0).fingerprint

    assert of(jax.random.key(0)) == of(jax.random.key(0))
    assert (
        len(
            {of(jax.random.key(0)), of(jax.random.key(1)), of(dp.random.key()), of(dp.random.key())}
        )
        == 4
    )


def test_shapes_are_enough():
    shapes = jax.eval_shape(lambda: (W, X, Y, M, KEY))
    assert dp.certify(step, *shapes, records=(1, 2), mask=3).event == GaussianDpEvent(Z)


def test_a_plan_may_be_expected():
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(rate=1.0),
        clipping_norm=C,
        noise_multiplier=Z,
        num_steps=1,
        num_records=N,
    )
    certify(step, expect=plan)
    with pytest.raises(TypeError, match="DpEvent"):
        certify(step, expect=1.5)


def test_a_plan_for_other_neighbours_is_no_claim_of_this_proof():
    plan = dp.PrivacyPlan(
        sampling=dp.FullBatch(),
        clipping_norm=C,
        noise_multiplier=Z,
        num_steps=1,
        num_records=N,
        relation=dp.Relation.REPLACE_ONE,
    )
    certify(step, relation=dp.Relation.REPLACE_ONE, expect=plan)
    with pytest.raises(dp.PrivacyError, match="speaks of one record replaced"):
        certify(step, expect=plan)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"records": 7, "mask": 3}, "positions among"),
        ({"records": (1, 3), "mask": 3}, "positions among"),
        ({"records": (1, 2), "mask": 2}, "positions among"),
        ({"records": (0, 1), "mask": 3}, "rows|needs|need"),
        ({"records": (1, 3), "mask": 2}, "one truth value per row"),
        ({"records": 4}, "leading axis|keys"),
    ],
)
def test_wrong_positions(options, says):
    with pytest.raises(ValueError, match=says):
        dp.certify(step, W, X, Y, M, KEY, **options)


def test_a_step_without_data_costs_nothing():
    event = dp.certify(lambda xs, w: w * 2.0, X, jnp.ones(3), records=0).event
    assert profile(event, dp.Relation.ADD_OR_REMOVE_ONE).epsilon(0.0) == 0.0


def test_other_values_are_proved_by_themselves_in_the_same_program():
    def release(key, scale, xs):
        return dp.gaussian_mechanism(key, dp.clip_records(xs, 1.0).sum(0), scale)

    rows = jax.ShapeDtypeStruct((10, 2), jnp.float32)
    first = dp.certify(
        release, KEY, Given(jnp.float32(4.0)), rows, records=2, relation=dp.Relation.REPLACE_ONE
    )
    other = first.given(KEY, Given(jnp.float32(1.0)), rows)
    assert (first.event, other.event) == (GaussianDpEvent(4.0), GaussianDpEvent(1.0))
    assert first.fingerprint != other.fingerprint
    with pytest.raises(dp.PrivacyError):
        first.given(KEY, Given(jnp.float32(0.0)), rows)
    for args in ((KEY, jnp.float32(1.0), rows), (KEY, Given(jnp.ones(2)), rows)):
        with pytest.raises(TypeError, match="another kind"):
            first.given(*args)
    with pytest.raises(ValueError, match="the certificate is for"):
        other(KEY, jnp.float32(2.0), jnp.ones((10, 2)))


def test_other_values_are_proved_as_if_they_were_the_first():
    """Whatever was proved before: the part of the program that reads no value is walked through once."""

    def release(key, scale, xs, ys):
        first, second, third = jax.random.split(key, 3)
        total = dp.clip_records(xs, 1.0).sum(0)
        before = dp.gaussian_mechanism(first, total, 3.0)
        others = dp.gaussian_mechanism(second, total + dp.clip_records(ys, 1.0).sum(0), scale)
        return before, others, dp.laplace_mechanism(third, dp.clip_records(ys, 1.0).sum(0), scale)

    rows = jax.ShapeDtypeStruct((10, 1), jnp.float32)

    def arguments(scale):
        return KEY, Given(jnp.float32(scale)), rows, rows

    def facts(certificate):
        return [
            getattr(certificate, name)
            for name in ("event", "slack", "assumptions", "notes", "outputs", "fingerprint")
        ]

    options = {"records": (2, 3), "relation": dp.Relation.REPLACE_ONE}
    first = dp.certify(release, *arguments(2.0), **options)
    known = facts(first)
    for scale in (5.0, 3e5, 5.0, 2.0):
        assert facts(first.given(*arguments(scale))) == facts(
            dp.certify(release, *arguments(scale), **options)
        )
    assert facts(first) == known
    assert facts(first.given(*arguments(5.0)).given(*arguments(2.0))) == known


def test_what_was_traced_with_64_bits_runs_with_64_bits():
    """Outside of `enable_x64` JAX would truncate the numbers that the certificate speaks of."""

    def step(xs, mask, key):
        rows = dp.clip_records(xs.astype(jnp.float64), 1.0)
        return (1e3 * dp.gaussian_mechanism(key, dp.sum_records(rows, mask), 1e-9)).astype(
            jnp.float32
        )

    rows = np.sin(np.arange(3000.0, dtype=np.float32)).reshape(-1, 3)
    arguments = rows, np.ones(len(rows), bool), KEY
    with jax.enable_x64(True):
        within = dp.certify(step, *arguments, records=0, mask=1)(*arguments)
        certificate = dp.certify(step, *arguments, records=0, mask=1)
    assert np.array_equal(certificate(*arguments), within)


def test_one_key_in_two_places_is_refused():
    """Their noise would be the same, and its difference none."""

    def step(xs, mask, key, others):
        s = dp.sum_records(dp.clip_records(xs, C), mask)
        return [noisy(k, s, Z * C) for k in (key, *others)]

    keys = jax.random.split(KEY, 4)
    certificate = dp.certify(step, X, M, KEY, keys[:2], records=0, mask=1)
    certificate(X, M, KEY, keys[:2])
    jax.jit(certificate)(X, M, KEY, keys[:2])
    for key, others in ((keys[0], keys[:2]), (KEY, keys[jnp.array([2, 2])])):
        with pytest.raises(ValueError, match="Two keys are equal"):
            certificate(X, M, key, others)
