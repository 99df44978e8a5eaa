"""Differences between releases of JAX are hidden, and on an untested release nothing is proved."""

import os
import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.experimental import hijax
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet import _jax

UNTRIED = ("0.10.1", _jax.UNTRIED_FROM, "1000.0", "0.10.2.dev20260101", "0.12.0rc1", "0.11.0+local")


def step(key, xs):
    return dp.gaussian_mechanism(
        key, dp.sum_records(dp.clip_records(xs, 1.0), jnp.ones(len(xs), bool)), stddev=2.0
    )


def test_the_package_asks_for_the_releases_that_were_tried(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"jax>={_jax.TRIED_FROM},<{_jax.UNTRIED_FROM}" in project["dependencies"]


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0", "0.11.2", "0.12.0", "0.12.0.1"])
def test_releases_that_were_tried(monkeypatch, version) -> None:
    monkeypatch.setattr(jax, "__version__", version)
    assert not _jax.untried_jax()


@pytest.mark.parametrize("version", UNTRIED)
def test_on_any_other_release_nothing_is_proved(monkeypatch, version) -> None:
    monkeypatch.setattr(jax, "__version__", version)
    with pytest.raises(
        dp.PrivacyError, match=rf"tested on JAX 0\.10\.2 .* this is JAX {version.replace('+', '.')}"
    ):
        dp.certify(step, dp.random.key(), jnp.ones((10, 2)), records=1)


def test_on_any_other_release_a_fit_is_refused_or_warns(monkeypatch) -> None:
    """Before anything is looked at, so that nobody meets an error from within JAX first."""

    def model(y):
        mean = numpyro.sample("mean", dist.Normal())
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    sampling = dp.PoissonSampling(rate=0.1)
    plan = dp.PrivacyPlan.calibrate(
        epsilon=1.0, delta=1e-3, num_records=100, num_steps=10, sampling=sampling, clipping_norm=1.0
    )
    dpsvi = dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.1), Trace_ELBO(), plan=plan)
    monkeypatch.setattr(jax, "__version__", "1000.0")
    with pytest.raises(dp.PrivacyError, match=r"this is JAX 1000\.0"):
        dpsvi.run(dp.random.key())
    with (
        pytest.warns(UserWarning, match=r"this is JAX 1000\.0"),
        pytest.raises(ValueError, match="No argument is an array"),
    ):
        dpsvi.init(dp.random.key())


def test_the_parts_of_a_scan() -> None:
    def loop(scale, start, xs):
        return jax.lax.scan(
            lambda c, x: ((c[0] + scale * x, -c[1]), (x, c[1], x)), (start, 3.0), xs, reverse=True
        )

    (equation,) = jax.make_jaxpr(loop)(2.0, 0.0, jnp.ones(5)).jaxpr.eqns
    scan = _jax.scan_of(equation)
    assert (scan.num_consts, scan.num_carry, scan.length, scan.reverse) == (1, 2, 5, True)
    assert [len(x) for x in scan.apart(equation.invars)] == [1, 2, 1]
    assert [len(x) for x in scan.apart(scan.body.jaxpr.invars)] == [1, 2, 1]
    total, *_ = _jax.bind(equation, [2.0, 1.0, 3.0, jnp.arange(5.0)])
    assert total == 21.0


@pytest.mark.parametrize("reduce", ["sum", "row sum", "maximum"])
def test_a_product_reads_what_was_written(reduce) -> None:
    """XLA for CPU, left alone, multiplies by what is left in memory."""
    rng = np.random.default_rng(0)
    records, sizes = rng.standard_normal((128, 4, 24)).astype(np.float32), (24, 16)
    after = {
        "sum": lambda y: (y * records[:, :, :16]).sum((1, 2)),
        "row sum": lambda y: jnp.exp(y / 9).sum(2),
        "maximum": lambda y: y.max(1),
    }[reduce]

    program = _jax.compiled(
        jax.jit(lambda records: after(records @ jnp.full(sizes, 0.1))).lower(records)
    )
    right = np.asarray(after(records @ np.full(sizes, 0.1, np.float32)))
    for size in range(8, 18):
        np.testing.assert_allclose(program(records), right, rtol=1e-3, atol=1e-4)
        np.full(2**size, 7e30, np.float32)  # left in memory


def test_constants_are_found_wherever_they_are_held() -> None:
    """Also those of a program within a program, which JAX writes down in another way since 0.11."""
    held = jnp.arange(7.0)

    def program(x):
        return jax.lax.cond(x[0] > 0, jax.jit(lambda x: x + held), lambda x: x, x)

    closed = jax.make_jaxpr(program)(jnp.ones(7))
    assert [x.shape for x in _jax.all_constants(closed)] == [(7,)]
    assert not getattr(_jax.open_program(closed.jaxpr), "consts", ())
    xs = jnp.ones((10, 7))
    certificate = dp.certify(
        lambda key, xs: step(key, jax.vmap(program)(xs)), dp.random.key(), xs, records=1
    )
    assert certificate.event == dp.certify(step, dp.random.key(), xs, records=1).event
    table = jnp.arange(14.0).reshape(2, 7)
    with pytest.raises(dp.PrivacyError, match="holds the records as a constant"):
        dp.certify(
            lambda key, xs: step(key, jax.jit(lambda x: x + table)(xs)),
            dp.random.key(),
            table,
            records=1,
        )


def test_an_operation_of_nobody_knows_whom_is_refused() -> None:
    """JAX writes some operations as objects since 0.11; one of a user's may hold records."""

    base: Any = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive  # since 0.11; before

    class SearchSorted(base):
        def __init__(self, like):
            self.in_avals, self.out_aval, self.params = (like,), like, {}
            super().__init__()

        def expand(self, x):
            return 0.0 * x

    def attack(key, xs):
        return step(key, SearchSorted(jax.typeof(xs))(xs))

    with pytest.raises(dp.PrivacyError, match="not a primitive of JAX"):
        dp.certify(attack, dp.random.key(), jnp.ones((10, 2)), records=1)


def test_programs_that_differ_in_a_constant_within_have_digests_of_their_own() -> None:
    """Compiled programs are cached by the digest: JAX prints a long array within a program as its shape alone."""

    def digest(held: np.ndarray) -> str:
        def program(x):
            return jax.lax.cond(x[0] > 0, jax.jit(lambda x: x + held), lambda x: x, x)

        return _jax.program_digest(jax.make_jaxpr(program)(jnp.ones(1_000)))

    assert digest(np.arange(1e3)) == digest(np.arange(1e3)) != digest(np.arange(1e3)[::-1].copy())


def test_a_cache_that_is_full_keeps_what_came_last() -> None:
    kept = _jax.Memo[str, int]()
    kept.most = 2
    for place, name in enumerate("abc"):
        kept[name] = place
    assert kept == {"b": 1, "c": 2}


def test_entry_points_compute_by_the_usual_rules() -> None:
    """Strict promotion stops NumPyro's programs, and a transfer guard the first array that a fit makes."""
    mixed = _jax.in_own_settings(
        lambda: float(jnp.ones(2, jnp.int8) @ jnp.ones(2, jnp.float32) + jnp.zeros(3)[0])
    )
    with jax.numpy_dtype_promotion("strict"), jax.transfer_guard("disallow"):
        assert mixed() == 2.0
    for name in ("init", "update", "run", "certify", "get_params", "posterior"):
        assert hasattr(getattr(dp.DPSVI, name), "__wrapped__"), name


@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
def test_a_process_that_was_forked_after_jax_ran_refuses_to_compute() -> None:
    """It hung. The child ends without Python's end, which would run this process's."""
    jnp.zeros(1).block_until_ready()
    child = os.fork()
    if child == 0:
        refused = 0
        for compute in (dp.random.key, lambda: _jax.one_process("a fit")):
            try:
                compute()
            except RuntimeError as error:
                refused += "multiprocessing.get_context('spawn')" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    _jax.refuse_forked()
