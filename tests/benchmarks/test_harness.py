"""Figures are what they say: ratios of programs that ran in turn."""

import pytest

from benchmarks import _results
from benchmarks._harness import (
    FULL,
    QUICK,
    TINY,
    Figure,
    Outcome,
    Program,
    Timing,
    alternate,
    quartiles,
    ratio,
)


def test_programs_take_turns_and_none_always_follows_the_same_one() -> None:
    ran: list[str] = []
    programs = [Program(name, lambda name=name: ran.append(name), 2) for name in "abc"]
    timings = alternate(programs, rounds=3)
    assert "".join(ran) == "abc" + "abc" + "bca" + "cab"
    assert [timing.name for timing in timings] == list("abc")
    assert all(len(timing.seconds) == 3 for timing in timings)


def test_a_figure_is_the_median_of_paired_ratios() -> None:
    """The second round was slow for both: a ratio of medians would say 3, and one of means 2.3."""
    figure = ratio("r", Timing("a", [2.0, 20.0, 6.0], 1), Timing("b", [1.0, 10.0, 2.0], 1))
    assert figure.value == 2.0
    assert figure.of_fastest == 2.0
    with pytest.raises(ValueError, match="in turn"):
        ratio("r", Timing("a", [1.0], 1), Timing("b", [1.0, 2.0], 1))


def test_the_parts_of_a_step_are_added_within_each_round() -> None:
    """The round that was slow for all counts as any other."""
    timings = [
        Timing("a", [1.0, 9.0, 1.0], 1),
        Timing("b", [1.0, 9.0, 1.0], 1),
        Timing("c", [1.0, 9.0, 4.0], 1),
    ]
    assert Outcome("toy", "a toy", timings).together(["a", "b"], "c") == 2.0


def test_bounds_go_both_ways() -> None:
    assert Figure("f", 1.69, bound=("<=", 1.7)).met
    assert not Figure("f", 1.71, bound=("<=", 1.7)).met
    assert Figure("f", 3.0, bound=(">=", 3.0)).met
    assert not Figure("f", 2.9, bound=(">=", 3.0)).met
    assert Figure("f", 1.0).met is None


def test_quartiles_of_one_value_are_that_value() -> None:
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def test_only_tests_shrink_a_problem() -> None:
    assert FULL.size(128, 8) == QUICK.size(128, 8) == 128
    assert TINY.size(128, 8) == 8
    assert TINY.steps(1000) == 1


def example() -> dict:
    outcome = Outcome(
        "toy", "a toy", [Timing("a", [2e-3, 2e-3], 5), Timing("b", [1e-6, 1e-6], 5, "fast")]
    )
    outcome.compare("a / b", "a", "b", ("<=", 1.7), "a and b alone", 1.5)
    outcome.compare("a / absent", "a", "absent")
    outcome.skipped["Opacus"] = "not installed"
    results = _results.new()
    _results.add(results, lambda scale: [outcome], TINY)
    return results


def test_results_say_what_was_measured_where_and_what_was_missed() -> None:
    results = example()
    text = _results.as_markdown(results)
    assert (
        "| toy | a / b | ≤ 1.70 | 1.50 | 2,000 | 2,000 to 2,000 | 2,000 | 1.00 µs | 2.00 ms | **missed** | a and b alone |"
        in text
    )
    assert "| b | 1.00 µs | 1.00 µs | fast |" in text
    assert "Skipped, Opacus: not installed." in text
    assert [figure["name"] for figure in results["workloads"]["toy"]["figures"]] == ["a / b"]
    measured = results["workloads"]["toy"]["measured"]
    assert measured["machine"]["cores"] >= 1
    assert measured["commit"] != ""
    assert {"jax", "numpyro", "discreet"} <= set(measured["versions"])


def test_tables_of_a_page_are_replaced_and_its_words_kept() -> None:
    page = "Before.\n<!-- begin: timings toy -->\nold\n<!-- end -->\nAfter.\n"
    filled = _results.fill(page, example())
    assert filled.startswith("Before.\n")
    assert filled.endswith("After.\n")
    assert "old" not in filled
    assert "| a | 2.00 ms |" in filled
    assert _results.fill(filled, example()) == filled
    with pytest.raises(KeyError):
        _results.fill("<!-- begin: timings none -->\n<!-- end -->", example())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234"),
        (100.4, "100"),
        (12.345, "12.3"),
        (1.0, "1.00"),
        (0.0123, "0.0123"),
        (0, "0"),
    ],
)
def test_three_digits(value: float, text: str) -> None:
    assert _results.number(value) == text
