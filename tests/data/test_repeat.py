"""Word repetition: the golden values, what is drawn, and that it is drawn anew each time."""

import numpy as np
import pytest
from golden import case_of
from tiny import SENTENCES, tiny_tokenizer

from hf_focalcse.data.views import Repeat, View, Views, repeated

ROWS = [{"text": f"{sentence} {sentence}"} for sentence in SENTENCES]


@pytest.mark.parametrize("number", range(3))
def test_golden_values(shared, number):
    inputs, settings, expected = case_of(shared, "esimcse", number)
    ids = inputs["token_ids"].tolist()
    assert repeated(ids, inputs["repeat_positions"].tolist()) == expected["repeated_ids"]
    assert Repeat(rate=settings["repetition_rate"]).limit(len(ids)) == expected["count_limit_exclusive"]


def views(seed=0):
    return Views(tiny_tokenizer(), 32, [View(), Repeat(rate=0.5)], seed)


def test_only_view_two_is_longer_and_special_tokens_are_never_repeated():
    batch = views()(ROWS)
    longer = 0
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        one, two = (of[kept.bool()].tolist() for of, kept in zip(ids, mask, strict=True))
        assert two.count(2) == two.count(3) == 1 and [two[0], two[-1]] == [2, 3]
        assert [token for i, token in enumerate(two) if i == 0 or token != two[i - 1]] == [
            token for i, token in enumerate(one) if i == 0 or token != one[i - 1]
        ]
        assert len(one) <= len(two) <= len(one) + min(9, len(one) // 2 - 1)
        longer += len(two) > len(one)
    assert longer > len(ROWS) / 2


def test_the_same_in_a_resumed_run_and_another_in_another_order_or_run():
    one, again = views()(ROWS)["input_ids"], views()(ROWS)["input_ids"]
    assert one.equal(again)
    assert not views(1)(ROWS)["input_ids"].equal(one)
    assert not views()(ROWS[::-1])["input_ids"].flip(0).equal(one)


def test_the_number_is_drawn_below_its_limit():
    draws, view = np.random.default_rng(0), Repeat(rate=0.32)
    counts = {len(view.places(14, draws)) for _ in range(200)}
    assert counts == {0, 1, 2, 3}  # int(0.32 * 14) = 4
    assert view.places(3, draws) == [] and view.places(2, draws) == []
    assert {len(view.places(60, draws)) for _ in range(300)} == set(range(10))
    assert view.longest(32) == 41 and view.longest(5) == 5
