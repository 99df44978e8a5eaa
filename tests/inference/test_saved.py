"""A result in a file: the same to the bit, the same draws, and refused where it does not fit."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from tests.methods import same

import discreet as dp
from discreet.methods.inference import Trace, _forms, _result
from discreet.privacy.report import make_statement
from discreet.storage import read_archive
from discreet.tabular.models import defaults_for, logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")


def model(xs, y=None, *, scale=1.0):
    w = numpyro.sample("w", dist.Normal(0, scale).expand([xs["x"].shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", xs["x"].shape[0]):
        numpyro.sample("y", dist.Normal(xs["x"] @ w, sigma), obs=y)


def other(xs, y=None, *, scale=1.0):
    v = numpyro.sample("v", dist.Normal(0, scale).expand([xs["x"].shape[1]]).to_event(1))
    with numpyro.plate("data", xs["x"].shape[0]):
        numpyro.sample("y", dist.Normal(xs["x"] @ v, 1.0), obs=y)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Make up a result with a guide; that of a real fit is in test_run.py."""
    rng, names = (
        np.random.default_rng(0),
        ("w_auto_loc", "w_auto_scale", "sigma_auto_loc", "sigma_auto_scale"),
    )
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.2),
        clipping_norm=dp.AdaptiveClipping(initial=0.5),
        noise_multiplier=3.0,
        num_steps=60,
        num_records=200,
        relation=dp.Relation.ADD_OR_REMOVE_ONE,
    )
    params = {
        name: rng.uniform(0.1, 1, (2,) if name[0] == "w" else ()).astype(np.float32)
        for name in names
    }
    iterates = rng.normal(size=(60, 6)).astype(np.float32)
    gradients = np.concatenate([iterates[:1], iterates[:-1]]) + rng.normal(size=(60, 6)).astype(
        np.float32
    )
    statement = make_statement(plan, steps_completed=60, reproducible=False).with_notes("a note\n")
    # An epsilon that does not exist must come back, too.
    point = dataclasses.replace(statement.figures.profile[-1], epsilon=float("inf"))
    arrays = {"x": _result.ArrayForm((2,), "float32")}, _result.ArrayForm((), "float32")
    fit = dp.DPSVIResult(
        params=params,
        last_params={name: np.asarray(value + 1) for name, value in params.items()},
        losses=np.array([1.5, np.nan]),
        clipping_norms=rng.uniform(0.5, 1, 60),
        shares=np.zeros((60, 2)),
        trace=Trace(np.arange(60), iterates, gradients),
        statement=dataclasses.replace(
            statement,
            figures=dataclasses.replace(
                statement.figures, profile=(*statement.figures.profile[:-1], point)
            ),
        ),
        plan=plan,
        steps_completed=60,
        _form=_result.Form((arrays, {}), ("w", "sigma"), keeps_local=False),
    )
    path = fit.save(tmp_path_factory.mktemp("fit") / "fit")
    return dp.load_result(path, model, AutoNormal(model), scale=2.0)


@pytest.fixture
def path(result, tmp_path):
    return result.save(tmp_path / "fit.discreet")


def test_the_verdict_says_what_a_fit_is_not_for(result):
    still = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    for iterates, said in (
        (still, False),
        (0.1 * still + 20 * (1 - np.exp(-np.arange(60, dtype=np.float32) / 20))[:, None], True),
        (still[:15], False),
    ):
        shown = dataclasses.replace(result, trace=Trace(np.arange(len(iterates)), iterates))
        judged = dataclasses.replace(shown, statement=_result._judged(result.statement, shown, 3))
        assert shown.converged is (None if len(iterates) < 20 else not said)
        assert judged.statement.use == dp.report.PREDICTION
        assert ("had not converged" in judged.statement.use_reason) == said
        assert (
            "of the gradients were shortened. Do not read single coefficients"
            in judged.statement.use_reason
        )
        assert ("had not converged" in judged._repr_html_()) == said
        assert "for prediction" in repr(judged)
    clipped = dataclasses.replace(result, shares=np.full((60, 2), [0.5, 1.0]))
    assert _result._judged(result.statement, clipped, 3).use == dp.report.NOT_USABLE
    assert (
        "50.0 % (± 0) of the gradients were shortened"
        in _result._judged(result.statement, clipped, 3).use_reason
    )


@pytest.mark.parametrize(
    ("rule", "last", "remedy"),
    [
        (1.0, 1.0, "Leave the clipping norm out"),
        (dp.AdaptiveClipping(), 990.0, "C stood at its largest value, 1000"),
        (dp.AdaptiveClipping(), 3.0, "after 2 steps: plan more"),
    ],
)
def test_what_lets_a_fit_shorten_fewer_gradients(result, rule, last, remedy):
    plan = dataclasses.replace(result.plan, clipping_norm=rule)
    assert remedy in _result._longer(plan, np.array([0.1, last], np.float32))


@pytest.mark.parametrize("size", [1e-5, 1.0])
def test_a_fit_that_goes_on_at_its_speed_is_not_usable(result, size):
    """As with a learning rate of 1e-5, where parameters stay near their start, and with 100 steps where 1,000 are needed."""
    rng = np.random.default_rng(0)
    path = size * (np.arange(60)[:, None] + rng.normal(size=(60, 6)))
    found = dataclasses.replace(result, trace=Trace(np.arange(60), path.astype(np.float32)))
    judged = _result._judged(result.statement, found, 3)
    assert judged.use == dp.report.NOT_USABLE
    assert "% of their change came in the second half of the fit" in judged.use_reason


@pytest.mark.parametrize(
    ("records", "parameters", "few"), [(753, 8, False), (601, 9, True), (601, 100, False)]
)
def test_records_that_are_too_few_for_the_parameters_make_a_fit_not_usable(
    records, parameters, few
):
    """By public numbers: fits of 753 people and 8 parameters predicted at epsilon 1, some of 601 and 9 did not."""
    plan = defaults_for(logistic_regression).plan(epsilon=1.0, num_records=records)
    assert bool(_result.too_few(plan, parameters)) == few


def test_a_fit_of_too_few_records_says_so(result):
    plan = defaults_for(logistic_regression).plan(epsilon=1.0, num_records=601)
    judged = _result._judged(result.statement, dataclasses.replace(result, plan=plan), 9)
    assert judged.use == dp.report.NOT_USABLE
    assert "601 records are too few for 9 parameters" in judged.use_reason


def test_what_is_said_against_the_use_of_a_fit_is_a_warning(result):
    """Where warnings are errors, the error has the fit, which is paid for."""

    def judged(shares):
        found = dataclasses.replace(result, shares=np.full((60, 2), shares))
        return dataclasses.replace(found, statement=_result._judged(result.statement, found, 3))

    for shares, words in (
        ([0.5, 1.0], "Not usable: 50.0 %"),
        ([0.0, 0.5], "records did not count"),
    ):
        with pytest.warns(dp.inference.UseWarning, match=words):
            _result.warn_of_use(judged(shares), result.statement)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _result.warn_of_use(judged([0.0, 1.0]), result.statement)
        with pytest.raises(dp.inference.UseWarning) as error:
            _result.warn_of_use(judged([0.5, 1.0]), result.statement)
    assert error.value.partial_result.clipped.value == 0.5


def test_a_loaded_result_is_the_saved_one(result, path):
    for loaded in (dp.load_result(path), dp.load_result(dp.load_result(path).save(path))):
        assert loaded.statement.to_json() == result.statement.to_json()
        assert str(loaded.statement) == str(result.statement)
        assert repr(loaded) == repr(result)
        # Without the guide, its parameters.
        assert str(loaded).splitlines()[1].split()[0] == "sigma_auto_loc"
        assert same(loaded, result)


def test_the_same_key_gives_the_same_draws(result, path):
    loaded = dp.load_result(path, model, AutoNormal(model), scale=2.0)
    key = jax.random.key(1)
    # noise_aware refuses an adaptive one
    fixed = dataclasses.replace(result.plan, clipping_norm=9.0)
    pair = [dataclasses.replace(x, plan=fixed) for x in (result, loaded)]
    for ours, theirs in [
        (result, loaded),
        [x.noise_aware(start=0.3) for x in pair],
        [x.noise_aware("trace", start=0.3) for x in pair],
    ]:
        a, b = ours.posterior(key, 7), theirs.posterior(key, 7)
        assert set(a) == set(b) == {"w", "sigma"}
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_the_file_holds_what_the_result_shows_and_the_shapes_of_records(result, path):
    saved = read_archive(path, dp.DPSVIResult.what, 1, dp.DPSVIResult._kinds())
    fields = {field.name for field in dataclasses.fields(result)}
    assert set(saved) == fields - {"_objective"}
    assert saved["_form"] == _result.Form(
        (({"x": _result.ArrayForm((2,), "float32")}, _result.ArrayForm((), "float32")), {}),
        ("w", "sigma"),
        False,
    )


@pytest.mark.essential
def test_without_a_guide_draws_are_refused(path):
    loaded = dp.load_result(path)
    with pytest.raises(ValueError, match="loaded without one"):
        loaded.posterior(jax.random.key(1), 3)
    with pytest.raises(ValueError, match="loaded without one"):
        loaded.noise_aware()
    with pytest.raises(ValueError, match="give both"):
        dp.load_result(path, model)


def test_another_model_or_guide_is_refused(result, path):
    with pytest.raises(
        ValueError,
        match="of a fit of the global latents w, sigma, and this model has the global latents v",
    ):
        dp.load_result(path, other, AutoNormal(other))
    with pytest.raises(
        ValueError,
        match=r"param site 'sigma_auto_loc' is float32 of shape .. in the file, and absent in",
    ):
        dp.load_result(path, model, AutoMultivariateNormal(model))
    wider = dataclasses.replace(
        result, params={**result.params, "w_auto_scale": np.ones(3, np.float32)}
    )
    with pytest.raises(ValueError, match=r"'w_auto_scale' is float32 of shape .3,."):
        dp.load_result(wider.save(path), model, AutoNormal(model))


@pytest.mark.essential
def test_what_a_file_cannot_hold(result, path):
    before = path.read_bytes()
    with pytest.raises(TypeError, match="params/w is a set"):
        dataclasses.replace(result, params={"w": {1}}).save(path)
    assert path.read_bytes() == before
    strange = dataclasses.replace(result._form, arguments=None)
    unknown = dataclasses.replace(result, _form=strange).save(path)
    with pytest.raises(ValueError, match="nested in objects"):
        dp.load_result(unknown, model, AutoNormal(model), scale=2.0)
    assert not _forms.is_plain(((jnp.zeros(2),), {}))
