"""Last bits of what is released: which of two neighbouring tables was it? Against floating-point noise, and against ours.

The attacker knows both candidate sums bit for bit, sees the release, and rules a candidate out if
no value of the noise leads from it to what was released, as the machine computes it (Mironov, CCS
2012). The true candidate is never ruled out, which says that the attacker computes as the machine
does.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta

import discreet as dp
from discreet.privacy.clipping import COUNT_SHARE
from discreet.privacy.gradients._sums import LEAST_LOST
from discreet.privacy.mechanisms import (
    FLOAT_GAUSSIAN,
    GAUSSIAN,
    LAPLACE,
    Mechanism,
    _integers,
    add_noise,
    levels_for,
)
from discreet.privacy.random._tables import DESIGNS

KEY = dp.random.key(20261123)
MULTIPLIER = 3.0
LEAST_FOUND = 0.05  # of the coordinates, by one release with floating-point noise


def ruled_out_floats(out: np.ndarray, x: np.ndarray, stddev: float) -> np.ndarray:
    """Coordinates that no float32 z leads to from x, by a product and a sum with one rounding or two."""
    scale = np.float32(stddev)
    nearest = ((out.astype(np.float64) - x) / np.float64(scale)).astype(np.float32)
    z = (nearest.view(np.int32) + np.arange(-3, 4, dtype=np.int32)[:, None]).view(np.float32)
    once = (np.float64(scale) * z + x.astype(np.float64)).astype(np.float32) == out
    return ~(once | (scale * z + x == out)).any(0)


def ruled_out_integers(
    out: np.ndarray,
    x: np.ndarray,
    size: float,
    multiplier: float,
    levels: int,
    mechanism: Mechanism = GAUSSIAN,
) -> np.ndarray:
    """Coordinates that no value of the discrete noise leads to from x."""
    law = mechanism.law(levels)
    spacing, factor = _integers.grid(size, multiplier * mechanism.rounding(out.size), law)
    inner = 1 if levels == 2 else 1 + DESIGNS[3].factor
    # All values up to `reach` have a probability above 0.
    reach = np.inf if mechanism is LAPLACE else 2 * DESIGNS[levels].last * (1 + int(factor) * inner)
    # Take the one between the candidate and what was released.
    words = [np.asarray(w, np.int64) for w in _integers.rounded(jnp.asarray(x), spacing, law.words)]
    own = sum(word << 24 * i for i, word in enumerate(words))
    noise = np.round(out.astype(np.float64) / float(spacing)).astype(np.int64) - own
    parts = (
        [jnp.int32(noise)]
        if law.words == 2
        else [jnp.int32(noise & 0xFFFFFF), jnp.int32(noise >> 24)]
    )
    total = _integers.added([jnp.int32(w) for w in words], parts)
    *lower, value = (np.asarray(w, np.float32) for w in total)
    for word in reversed(lower):
        value = value * np.float32(2**24) + word
    return (value * np.float32(spacing) != out) | (np.abs(noise) > reach)


def neighbours(number: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(number)
    without = generator.standard_normal(dim).astype(np.float32)
    record = generator.standard_normal(dim)
    return without, (without + record / np.linalg.norm(record)).astype(np.float32)


@pytest.mark.essential
@pytest.mark.parametrize(
    ("mechanism", "levels"),
    [(FLOAT_GAUSSIAN, 2), (FLOAT_GAUSSIAN, 3), (GAUSSIAN, 2), (GAUSSIAN, 3), (LAPLACE, 3)],
    ids=["floats-2", "floats-3", "integers-2", "integers-3", "laplace"],
)
def test_a_release_of_a_mechanism(mechanism, levels):
    dim, releases = 50_000, 3 if mechanism is FLOAT_GAUSSIAN else 20  # 10^6 coordinates
    name = {"multiplier": MULTIPLIER, "levels": levels} if levels == 2 else {}
    most = MULTIPLIER if levels == 2 else mechanism.most_multiplier(dim)
    run = jax.jit(lambda key, x: add_noise(mechanism, key, x, MULTIPLIER, **name))
    for number in range(releases):
        false, true = neighbours(number, dim)
        out = np.asarray(run(jax.random.fold_in(KEY, number), jnp.asarray(true)))
        if mechanism is FLOAT_GAUSSIAN:
            assert ruled_out_floats(out, false, MULTIPLIER).mean() > LEAST_FOUND
            assert not ruled_out_floats(out, true, MULTIPLIER).any()
        else:
            for x in (false, true):
                assert not ruled_out_integers(out, x, MULTIPLIER, most, levels, mechanism).any()


def test_a_sum_that_is_not_rounded_to_the_grid_is_found():
    """A planted fault: integer noise on a float sum."""
    dim = 50_000
    spacing, factor = _integers.grid(MULTIPLIER, MULTIPLIER * np.sqrt(dim), GAUSSIAN.law(2))
    (noise,), _ = dp.random.discrete_gaussian(KEY, (dim,), factor)
    false, true = neighbours(0, dim)
    out = np.asarray(true + np.float32(spacing) * np.asarray(noise, np.float32))
    assert ruled_out_integers(out, false, MULTIPLIER, MULTIPLIER, 2).mean() > LEAST_FOUND


# --- the private step and whole fits
# -----------------------------------------------------------------


def model(x):
    """A record's gradient in w is w - x: with one record or two, the attacker knows every rounding of the sum."""
    w = numpyro.sample(
        "w", dist.ImproperUniform(dist.constraints.real_vector, (), event_shape=x.shape[1:])
    )
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(w, 1.0).to_event(1), obs=x)


def fit_of(mechanism, dim: int, num_steps: int) -> tuple[dp.DPSVI, jax.Array]:
    plan = dp.PrivacyPlan(
        sampling=dp.FullBatch(),
        clipping_norm=4.0,
        noise_multiplier=MULTIPLIER / 4,
        num_steps=num_steps,
        num_records=2,
        mechanism=mechanism,
    )
    guide = AutoDelta(model, init_loc_fn=numpyro.infer.init_to_value(values={"w": jnp.zeros(dim)}))
    rows = np.random.default_rng(dim).standard_normal((2, dim))
    table = jnp.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), jnp.float32)
    # Steps so small that no record is ever clipped.
    return dp.DPSVI(model, guide, numpyro.optim.SGD(2.0**-30), plan=plan, loss_share=0.0), table


def check(mechanism, gradients: np.ndarray, iterates: np.ndarray, table: np.ndarray) -> None:
    """Each gradient against the sums of one record and of both, at the iterate where it was taken."""
    dim = gradients.shape[1]
    for gradient, w in zip(gradients, iterates, strict=True):
        first, second = (w - row for row in table)
        candidates = first, first + second
        # The bound is above C, for the counts and the rounding of sums.
        joint = np.float32(4) / np.float32(np.sqrt(1 - COUNT_SHARE))
        bound = joint * np.nextafter(np.float32(1 + LEAST_LOST), np.float32(2))
        stddev = float(np.float32(MULTIPLIER / 4) * bound)
        if mechanism is FLOAT_GAUSSIAN:
            assert ruled_out_floats(gradient, candidates[0], stddev).mean() > LEAST_FOUND
            assert not ruled_out_floats(gradient, candidates[1], stddev).any()
            continue
        for x in candidates:
            # Loss and counts are three more coordinates of the release.
            levels = levels_for(MULTIPLIER / 4, dim + 3)
            allowance = MULTIPLIER / 4 * np.sqrt((dim + 3) / dim)
            assert not ruled_out_integers(gradient, x, stddev, allowance, levels).any()


@pytest.mark.parametrize("mechanism", [FLOAT_GAUSSIAN, GAUSSIAN], ids=["floats", "integers"])
def test_one_private_step(mechanism):
    dim, releases = 50_000, 2 if mechanism is FLOAT_GAUSSIAN else 20
    dpsvi, table = fit_of(mechanism, dim, 1)
    states = [dpsvi.init(jax.random.fold_in(KEY, number), table) for number in range(releases)]
    moved = [dpsvi.update(state, table)[0] for state in states]
    # From zero, by a power of two: the parameters are the release, bit for bit.
    gradients = np.stack(
        [
            -(2.0**30) * np.asarray(dpsvi.optim.get_params(x.optim_state)["w_auto_loc"])
            for x in moved
        ]
    )
    assert gradients.size >= (10**6 if mechanism is GAUSSIAN else 10**5)
    check(
        mechanism,
        gradients.astype(np.float32),
        np.zeros_like(gradients, np.float32),
        np.asarray(table),
    )


@pytest.mark.parametrize("mechanism", [FLOAT_GAUSSIAN, GAUSSIAN], ids=["floats", "integers"])
def test_a_whole_fit(mechanism):
    dim, num_steps = 2_000, 500
    dpsvi, table = fit_of(mechanism, dim, num_steps)
    trace = dpsvi.run(KEY, table, progress_bar=False, keep_gradients=True).trace
    assert trace.gradients.size == 10**6
    starts = np.concatenate([np.zeros((1, dim), np.float32), trace.iterates])[:num_steps]
    check(mechanism, trace.gradients, starts, np.asarray(table))
