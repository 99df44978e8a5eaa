"""The tested releases of NumPyro, and what discreet takes from it beside its documentation."""

import threading
import time
import tomllib
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta

import discreet as dp
from discreet import _numpyro
from discreet.methods.inference._records import take_apart


def test_the_package_asks_for_the_releases_that_were_tried(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"numpyro>={_numpyro.TRIED_FROM},<{_numpyro.UNTRIED_FROM}" in project["dependencies"]


def test_the_installed_release_was_tried() -> None:
    assert not _numpyro.untried_numpyro()


@pytest.mark.parametrize("version", ["0.21.9", _numpyro.UNTRIED_FROM, "1000.0", "0.22.0.dev1"])
def test_any_other_release_is_named_before_a_fit(monkeypatch, version) -> None:
    monkeypatch.setattr(numpyro, "__version__", version)
    with (
        pytest.warns(UserWarning, match=rf"tested on NumPyro 0\.22 .* this is NumPyro {version}"),
        pytest.raises(ValueError, match="No argument is an array"),
    ):
        take_apart([1.0], {})


def lifetimes(time, event) -> None:
    warnings.warn("Mine.", stacklevel=1)
    shape = numpyro.sample("shape", dist.LogNormal(0, 0.5))
    with numpyro.plate("people", len(time)):
        life = dist.Weibull(1.0, shape)
        numpyro.factor("life", jnp.where(event == 1, life.log_prob(time), -(time**shape)))


def test_no_warning_is_of_artificial_records_and_users_own_are_shown_once() -> None:
    """NumPyro's was shown for artificial lifetimes of 0, and the user's own three times: `catch_warnings` forgets which were."""
    time = np.random.default_rng(0).weibull(1.5, 1_000).astype(np.float32)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        dp.fit(
            lifetimes,
            np.minimum(time, 1.2),
            (time < 1.2).astype(np.float32),
            epsilon=4.0,
            delta=1e-6,
            progress_bar=False,
        )
    assert [str(one.message) for one in shown if one.category is not dp.inference.UseWarning] == [
        "Mine."
    ]
    with pytest.warns(UserWarning, match="Out-of-support values") as shown:
        dist.Weibull(1.0, 1.0, validate_args=True).log_prob(-1.0)
    assert shown[0].filename == __file__


def test_open_plates_are_those_around() -> None:
    assert _numpyro.open_plates() == []
    with numpyro.plate("outer", 3), numpyro.handlers.seed(rng_seed=0), numpyro.plate("inner", 2):
        assert [plate.name for plate in _numpyro.open_plates()] == ["outer", "inner"]


def test_the_search_is_numpyros_again_afterwards() -> None:
    search = _numpyro.numpyro_util.find_valid_initial_params
    with _numpyro.compiled_search():
        assert _numpyro.numpyro_util.find_valid_initial_params is not search
    assert _numpyro.numpyro_util.find_valid_initial_params is search


def model(name, meets=lambda: None):
    def program(x):
        mean = numpyro.sample(name, dist.Normal(0.0, 1.0))
        meets()
        with numpyro.plate("data", len(x)):
            numpyro.sample(f"{name} of records", dist.Normal(mean, 1.0), obs=x)

    return program


def test_the_models_of_two_threads_do_not_see_one_another():
    """The first waits for the second to be open; without the lock it would meet the second one's handlers on its way out."""
    first_open, second_open, first_done = threading.Event(), threading.Event(), threading.Event()

    def wait_for_second():
        first_open.set()
        second_open.wait(0.1)

    def wait_for_first():
        second_open.set()
        first_done.wait(0.1)

    def run(name, meets):
        seeded = numpyro.handlers.seed(model(name, meets), jax.random.key(0))
        return set(_numpyro.trace_of(seeded, np.zeros(2)))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, "a", wait_for_second)
        first_open.wait()
        second = pool.submit(run, "b", wait_for_first)
        assert first.result() == {"a", "data", "a of records"}
        first_done.set()
        assert second.result() == {"b", "data", "b of records"}


def test_fits_are_set_up_in_two_threads():
    def set_up(name):
        program = model(name, lambda: time.sleep(0.003))
        plan = dp.PrivacyPlan(
            sampling=dp.FullBatch(),
            clipping_norm=1.0,
            noise_multiplier=9.0,
            num_steps=1,
            num_records=40,
        )
        dpsvi = dp.DPSVI(program, AutoDelta(program), numpyro.optim.SGD(0.1), plan=plan)
        return set(dpsvi.get_params(dpsvi.init(dp.random.key(1), np.zeros(40, np.float32))))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(set_up, ["a", "b"])) == [{"a_auto_loc"}, {"b_auto_loc"}]
