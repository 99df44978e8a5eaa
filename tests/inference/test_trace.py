import numpy as np
import pytest

from discreet.inference import Trace
from discreet.inference._trace import TraceRecorder


def trace_of(iterates):
    return Trace(np.arange(1, len(iterates) + 1), np.asarray(iterates, np.float32))


def test_a_trace_that_only_fluctuates_has_converged():
    assert trace_of(np.random.default_rng(0).normal(size=(500, 20))).converged_from == 0.1


def test_a_trace_that_travels_has_not():
    time = np.arange(500)[:, None]
    travelling = trace_of(0.1 * time + np.random.default_rng(0).normal(size=(500, 20)))
    assert travelling.converged_from is None
    # Then the last tenth is averaged, close to where it has got to.
    assert travelling.average().mean() == pytest.approx(0.1 * 475, abs=1)


def test_the_tail_is_found_and_averaging_it_takes_the_noise_away():
    rng = np.random.default_rng(0)
    path = 100 * np.exp(-np.arange(1000) / 60)[:, None] + rng.normal(size=(1000, 30))
    trace = trace_of(path)
    assert trace.converged_from is not None
    assert 0.1 < trace.converged_from < 0.6
    assert np.abs(trace.average()).mean() < 0.2 * np.abs(path[-1]).mean()


def test_iterates_that_resemble_the_last_one_are_no_drift():
    """An optimizer's iterates are autocorrelated, and a regression through them all would take that for a trend."""
    rng = np.random.default_rng(1)
    path = np.zeros((4000, 20))
    for i in range(1, 4000):
        path[i] = 0.97 * path[i - 1] + rng.normal(size=20)
    assert trace_of(path).converged_from is not None


def test_coordinates_that_never_move_are_no_obstacle():
    iterates = np.random.default_rng(0).normal(size=(200, 2))
    iterates[:, 1] = 3.0
    assert trace_of(iterates).converged_from is not None
    assert trace_of(iterates).average()[1] == 3.0


def test_of_few_iterates_the_last_one_is_taken():
    assert trace_of([[1.0], [2.0], [7.0]]).average() == [7.0]


def test_the_recorder_stays_within_its_budget():
    recorder = TraceRecorder(dim=1000, num_steps=10_000, max_bytes=400_000)
    assert not recorder.every_step
    for step in range(1, 10_001):
        if recorder.steps_until_due(step) == recorder.interval:
            recorder.extend(step, np.full((1, 1000), step, np.float32))
    kept = recorder.finish()
    assert kept.iterates.nbytes <= 400_000
    assert kept.steps[-1] == 10_000
    np.testing.assert_array_equal(kept.iterates[:, 0], kept.steps)


def test_a_small_trace_keeps_every_step():
    assert TraceRecorder(dim=100, num_steps=2000).every_step
