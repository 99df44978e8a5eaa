"""A refusal is read by somebody who never saw the checker: the way to the leak, in order, with the text of each line."""

import linecache

import jax
import jax.numpy as jnp
import pytest

import discreet as dp

from . import test_suite_refused as refused
from .programs import C, certify, clipped_sum, gradients, noisy


def error_of(step) -> dp.PrivacyError:
    with pytest.raises(dp.PrivacyError) as caught:
        certify(step)
    return caught.value


def texts(error: dp.PrivacyError) -> list[str]:
    """The chain without files and line numbers."""
    return [line.partition("): ")[2] or line for line in error.chain]


RETURNED = 'return jnp.square(jax.nn.relu(x @ w["a"]) + w["b"] - y)'
CLIPPED = "return dp.sum_records(dp.clip_records(gradients(w, xs, ys), norm), mask)"
NOISED = "return dp.gaussian_mechanism(key, tree, stddev)"


@pytest.mark.parametrize(
    ("step", "lines"),
    [
        (refused.mask_returned, ["argument 3, mask (the mask)"]),
        (
            refused.no_noise,
            [
                "argument 1, xs (the records)",
                RETURNED,
                CLIPPED,
                "return clipped_sum(w, xs, ys, mask)",
            ],
        ),
        (
            refused.mean_over_the_realised_number,
            [
                "argument 1, xs (the records)",
                RETURNED,
                CLIPPED,
                "s = clipped_sum(w, xs, ys, mask)",
                "return noisy(key, jax.tree.map(lambda x: x / mask.sum(), s), Z * C / 20)",
                NOISED,
                "return noisy(key, jax.tree.map(lambda x: x / mask.sum(), s), Z * C / 20)",
            ],
        ),
        (
            refused.key_used_twice,
            [
                NOISED,
                "w = noisy(key, clipped_sum(w, xs, ys, mask), Z * C)",
                "return noisy(key, clipped_sum(w, xs, ys, mask), Z * C)",
            ],
        ),
        (
            refused.key_drawn_from_and_split,
            ["shift = jax.random.normal(key)", "own, _ = jax.random.split(key)"],
        ),
        (refused.debug_print, ['jax.debug.print("{}", xs)']),
        (
            refused.unguarded_nan,
            [
                "argument 1, xs (the records)",
                "return noisy(key, jnp.where(mask[:, None], jnp.clip(xs, -1.0, 1.0), 0.0).sum(0), 10.0)",
                NOISED,
                "return noisy(key, jnp.where(mask[:, None], jnp.clip(xs, -1.0, 1.0), 0.0).sum(0), 10.0)",
            ],
        ),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_chain(step, lines):
    assert texts(error_of(step)) == lines


@pytest.mark.parametrize("name", [case.id for case in refused.REFUSED[::6]])
def test_places_are_right(name):
    for line in error_of(getattr(refused, name)).chain:
        if line.startswith("argument"):
            continue
        place, _, text = line.partition("): ")
        file, number = place.split(" (")[0].rsplit(":", 1)
        assert linecache.getline(file, int(number)).strip() == text
        assert "<locals>" not in place


def test_a_call_within_a_compiled_function_is_traced_to_who_called_it():
    """JAX keeps one copy of what `double` computes, which knows no caller."""

    @jax.jit
    def double(x):
        return 2.0 * x

    def step(w, xs, ys, mask, key):
        first = double(xs.sum(0))
        return first, noisy(key, double(clipped_sum(w, xs, ys, mask)["a"]), 2 * C)

    assert texts(error_of(step))[-2:] == ["return 2.0 * x", "first = double(xs.sum(0))"]


@pytest.mark.parametrize(
    ("step", "remedy"),
    [
        (refused.no_clip, "dp.clip_records"),
        (refused.no_noise, "add noise"),
        (refused.norms_returned, "no value of a single record"),
        (refused.centred, "from that record alone"),
        (refused.mean_over_the_realised_number, "expected number of records"),
        (refused.a_count_that_wraps_around, "float32"),
        (refused.a_mask_out_of_step, "its own element of the mask"),
        (refused.a_sum_handed_on, "within one iteration"),
        (refused.another_primitive_of_that_name, "JAX's own functions"),
        (refused.private_cond, "public or released values only"),
        (refused.sum_in_bfloat16, "float32"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_remedy_is_that_of_the_case(step, remedy):
    assert remedy in error_of(step).remedy


def test_outputs_are_called_as_one_would_take_them_from_the_result():
    def step(w, xs, ys, mask, key):
        return {"kept": noisy(key, clipped_sum(w, xs, ys, mask), C)}, [mask.sum()]

    error = error_of(step)
    assert error.output == "result[1][0]"
    assert str(error).startswith("No proof of privacy: output result[1][0] leaks. It is a sum")


def test_clipping_too_early_is_called_so():
    def step(w, xs, ys, mask, key):
        return noisy(key, dp.sum_records(gradients(w, dp.clip_records(xs, C), ys), mask), C)

    rule = error_of(step).rule
    assert "clipped, but then passed to dot_general" in rule
    assert "programs.py:19 (loss)" in rule


def test_messages_name_files_from_here(monkeypatch, tmp_path):
    folder = refused.__file__.rsplit("/", 1)[0]
    monkeypatch.chdir(folder)
    assert f"\n    -> {refused.__file__.rsplit('/', 1)[1]}:" in str(error_of(refused.no_noise))
    monkeypatch.chdir(tmp_path)
    assert f"\n    -> {refused.__file__}:" in str(error_of(refused.no_noise))


def test_a_returned_key_names_where_it_was_used():
    error = error_of(refused.key_returned)
    assert "used for gaussian_mechanism" in error.rule
    assert texts(error)[-1].startswith("return noisy(key")


def test_a_program_that_needs_values_while_it_is_traced():
    def step(w, xs, ys, mask, key):
        for _ in range(int(mask.sum())):
            xs = xs + 1
        return jnp.asarray(xs)

    error = error_of(step)
    assert texts(error) == ["for _ in range(int(mask.sum())):"]
    assert "jax.lax.scan" in error.remedy
