"""Each planted fault is caught; and the code without it, under the same plan, is not accused."""

import pytest

from .planted import FAULTS, FURTHER_FAULTS

pytestmark = pytest.mark.usefixtures("quick_compilation")

# tests/inference/test_neighbours.py and test_proof.py have the others in `make test`.
ESSENTIAL = {"no noise", "clip skipped", "same noise each step"}
CASES = [
    *(
        pytest.param(
            x, marks=pytest.mark.essential if x.name in ESSENTIAL else pytest.mark.exhaustive
        )
        for x in FAULTS
    ),
    *(pytest.param(x, marks=pytest.mark.exhaustive) for x in FURTHER_FAULTS),
]


@pytest.mark.parametrize("fault", CASES, ids=lambda x: x.name)
def test_a_planted_fault_is_caught(fault, monkeypatch):
    fault.plant(monkeypatch)
    verdict = fault.audit()
    assert verdict.contradicted
    assert verdict.epsilon_lower > verdict.claimed_epsilon, verdict
    # Not by a hair: another seed would do.
    assert verdict.gap < -0.2, verdict


@pytest.mark.parametrize("fault", [*FAULTS, *FURTHER_FAULTS], ids=lambda x: x.name)
@pytest.mark.exhaustive
def test_the_code_without_the_fault_is_not_accused(fault):
    """False alarm: 1 % a case by the confidence; the seed is fixed."""
    verdict = fault.audit()
    assert not verdict.contradicted, verdict


@pytest.mark.parametrize(
    "fault",
    [x for x in FAULTS if x.name in ("clip skipped", "mean by realised size")],
    ids=lambda x: x.name,
)
@pytest.mark.exhaustive
def test_with_another_seed(fault, monkeypatch):
    fault.plant(monkeypatch)
    assert all(fault.audit(seed=seed).contradicted for seed in (1, 2, 3))


@pytest.mark.exhaustive
def test_half_the_noise_with_other_seeds(monkeypatch):
    fault = next(x for x in FAULTS if x.name == "half the noise")
    fault.plant(monkeypatch)
    assert all(fault.audit(seed=seed).gap < -0.5 for seed in range(1, 6))
