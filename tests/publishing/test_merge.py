"""Cards merged by hand: what each side changed is there afterwards."""

import pytest

from hf_focalcse.publishing.merge import merge_cards, merge_lines, merge_metadata, split_card

BASE = "---\nlicense: mit\ntags:\n- a\n---\n# Name\n\nScore 1\n\n## Limits\n\nNone.\n"


def test_one_side_changed():
    new = BASE.replace("Score 1", "Score 2")
    assert merge_cards(BASE, BASE, new) == (new, [])
    assert merge_cards(BASE, new, BASE) == (new, [])
    assert merge_cards(None, "", new) == (new, []) and merge_cards(None, new, new) == (new, [])


def test_both_changed_different_lines():
    theirs = (
        BASE.replace("None.", "Written by hand.")
        .replace("- a\n", "- a\n- mine\n")
        .replace("license: mit", "license: apache-2.0")
    )
    ours = BASE.replace("Score 1", "Score 2").replace("- a\n", "- a\n- new\n")
    merged, given_way = merge_cards(BASE, theirs, ours)
    assert given_way == []
    metadata, text = split_card(merged)
    assert metadata == {"license": "apache-2.0", "tags": ["a", "mine", "new"]}
    assert text == "# Name\n\nScore 2\n\n## Limits\n\nWritten by hand.\n"
    assert merge_cards(ours, merged, ours) == (merged, [])  # once more, nothing new


def test_the_hand_wins_the_same_line_and_it_is_said():
    merged, given_way = merge_cards(BASE, BASE.replace("Score 1", "My score"), BASE.replace("Score 1", "Score 2"))
    assert "My score" in merged and "Score 2" not in merged and given_way == ["Score 2"]


def test_without_a_base_what_is_there_is_kept_below():
    merged, _ = merge_cards(None, "---\nlicense: gpl\n---\n# Theirs\n\nText.\n", BASE)
    metadata, text = split_card(merged)
    assert metadata == {"license": "gpl", "tags": ["a"]}
    assert text.startswith("# Name") and text.endswith("## Earlier card\n\n# Theirs\n\nText.\n")
    assert merge_cards(BASE, merged, BASE) == (merged, [])


def test_results_measured_anew_replace_and_others_stay():
    def entry(kind: str, value: float) -> dict:
        return {"dataset": {"type": kind, "split": "test"}, "metrics": [{"type": "cosine_spearman", "value": value}]}

    def index(*results: dict) -> dict:
        return {"model-index": [{"name": "x", "results": list(results)}]}

    merged = merge_metadata(index(entry("a", 1)), index(entry("a", 1), entry("hand", 9)), index(entry("a", 2)))
    assert merged == index(entry("a", 2), entry("hand", 9))


def test_keys_taken_out():
    assert merge_metadata({"a": 1, "b": 2}, {"b": 2}, {"a": 1}) == {}  # a by hand, b no longer generated
    assert merge_metadata({"a": 1}, {}, {"a": 2}) == {"a": 2}


@pytest.mark.parametrize("count", range(40))
def test_lines_against_a_slow_twin(count):
    """Random edits at disjoint places: the merge is all of them applied to the base."""
    import random

    dice = random.Random(count)
    base = [f"line {i}" for i in range(30)]
    places = dice.sample(range(0, 30, 3), 6)  # two lines apart, so that no change touches another
    edits = {place: dice.choice(["change", "delete", "insert"]) for place in places}

    def apply(chosen: set[int]) -> list[str]:
        lines = []
        for i, line in enumerate(base):
            kind = edits.get(i) if i in chosen else None
            lines += {"change": [f"new {i}"], "delete": [], "insert": [line, f"more {i}"], None: [line]}[kind]
        return lines

    mine, yours = set(places[:3]), set(places[3:])
    assert merge_lines(base, apply(yours), apply(mine)) == (apply(mine | yours), [])


def test_broken_metadata():
    with pytest.raises(ValueError, match="not a mapping"):
        split_card("---\n- a\n---\n")
    with pytest.raises(ValueError, match="expected"):
        split_card("---\nlicense: [\n---\n")
    assert split_card("no metadata\n") == ({}, "no metadata\n")
