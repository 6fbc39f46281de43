"""The share of a run that scoring takes, with a clock that is set by hand."""

import pytest

from hf_focalcse.training.callbacks import DevCost


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_shares_of_a_run_by_hand():
    clock = Clock()
    cost = DevCost(clock)

    def score(seconds):
        with cost.scoring():
            clock.now += seconds

    score(8)  # before training: known, but no part of the run
    assert (cost.last, cost.share(0), cost.of_step(0), cost.expected(0, 10), cost.enough(0)) == (
        8,
        None,
        None,
        None,
        None,
    )
    clock.now += 100  # the first step warms up
    cost.begin(1)
    cost.begin(2)
    assert cost.share(1) is None
    clock.now += 18  # steps 2 to 10: 2 s each
    assert cost.of_step(10) == 2
    assert cost.expected(10, 10) == pytest.approx(8 / 28)
    score(2)
    assert cost.share(10) == pytest.approx(2 / 20) and cost.of_step(10) == 2
    assert cost.expected(10, 10) == pytest.approx(2 / 22)
    assert cost.enough(10) == 19  # 19 steps of 2 s and 2 s of scoring: exactly 5 %
    assert cost.expected(10, 19) == pytest.approx(0.05)
    clock.now += 20
    score(3)
    assert cost.share(20) == pytest.approx(5 / 43) and cost.last == 3 and cost.of_step(20) == 2


def test_a_second_run_counts_anew():
    clock = Clock()
    cost = DevCost(clock)
    cost.begin(1)
    with cost.scoring():
        clock.now += 5
    cost.restart()
    cost.begin(7)
    clock.now += 3
    assert cost.share(8) == 0 and cost.of_step(8) == 3
