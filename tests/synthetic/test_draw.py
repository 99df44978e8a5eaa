import jax
import numpy as np
import pyarrow
import pytest

from discreet.tabular.synthetic import synthesize


class Echo:
    """A model whose table shows the draw it was made from."""

    def draw(self, latents, num_records, rng):
        return pyarrow.table(
            {"theta": np.full(num_records, latents["theta"]), "noise": rng.random(num_records)}
        )


class Result:
    def posterior(self, key, num_samples):
        return {"theta": jax.random.normal(key, (num_samples,))}


def test_each_twin_has_a_draw_and_rows_of_its_own() -> None:
    twins = synthesize(jax.random.key(1), Result(), Echo(), num_twins=4, num_records=3)
    assert len({twin["theta"][0].as_py() for twin in twins}) == 4
    assert len({cell for twin in twins for cell in twin["noise"].to_pylist()}) == 12
    other = synthesize(jax.random.key(2), Result(), Echo(), num_twins=4, num_records=3)
    assert not twins[0].equals(other[0])


def test_draws_may_come_from_elsewhere() -> None:
    twins = synthesize(
        jax.random.key(1), {"theta": [1.0, 2.0, 3.0]}, Echo(), num_twins=2, num_records=1
    )
    assert [twin["theta"][0].as_py() for twin in twins] == [1.0, 2.0]


def test_rows_of_a_twin_from_several_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discreet.tabular.synthetic._draw.MOST_DRAWS", 3)
    twins = synthesize(
        jax.random.key(1), Result(), Echo(), num_twins=2, num_records=7, rows_per_draw=2
    )
    thetas = [twin["theta"].to_pylist() for twin in twins]
    assert [len(set(theta)) for theta in thetas] == [4, 4]
    assert len({*thetas[0], *thetas[1]}) == 8
    assert thetas[0][0] == thetas[0][1] != thetas[0][2]
    assert len({cell for twin in twins for cell in twin["noise"].to_pylist()}) == 14
    (given,) = synthesize(
        jax.random.key(1),
        {"theta": [1.0, 2.0]},
        Echo(),
        num_twins=1,
        num_records=2,
        rows_per_draw=1,
    )
    assert given["theta"].to_pylist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("result", "options", "words"),
    [
        (Result(), {"num_records": 5, "num_twins": 0}, "num_twins"),
        (Result(), {"num_records": 0}, "num_records"),
        (Result(), {"num_records": 5, "rows_per_draw": 0}, "rows_per_draw"),
        (
            {"theta": [1.0]},
            {"num_records": 5, "num_twins": 1, "rows_per_draw": 3},
            "fewer draws of 'theta'",
        ),
        (Result(), {}, "pass num_records"),
        ({"theta": [1.0]}, {"num_records": 5, "num_twins": 2}, "fewer draws of 'theta'"),
    ],
)
def test_wrong_input_is_refused(result, options, words) -> None:
    with pytest.raises(ValueError, match=words):
        synthesize(jax.random.key(0), result, Echo(), **options)
