"""Alignment and uniformity between evaluations: their figures, and training that goes on as if not measured."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import save_tiny
from tiny_training import TEXTS, make_trainer

from hf_focalcse.data.views import Views
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import read_pairs
from hf_focalcse.training.callbacks import measure_pairs, measure_views


def unit(vector):
    return np.asarray(vector) / np.linalg.norm(vector)


def slow_uniformity(vectors):
    units = [unit(v) for v in vectors]
    terms = [math.exp(-2 * sum((units[i] - units[j]) ** 2)) for i in range(len(units)) for j in range(i)]
    return math.log(sum(terms) / len(terms))


def test_pairs_are_measured_as_by_hand(tmp_path):
    vectors = {"a": (1, 0), "b": (0, 2), "c": (3, 3), "d": (-1, 0)}
    path = tmp_path / "pairs.tsv"
    path.write_text("sentence1\tsentence2\tscore\na\tb\t5\nc\td\t1\nb\tc\t0\na\tc\t2\na\td\t3\n")
    (task,) = [read_pairs(path)]
    found = measure_pairs(task, lambda texts: np.array([vectors[text] for text in texts], dtype=float))
    # the highest fifth is the one pair a b, at a right angle: |a - b|^2 = 2
    assert found["measured_pairs/alignment"] == pytest.approx(2)
    every = [vectors[text] for pair in "ab cd bc ac ad".split() for text in pair]
    assert found["measured_pairs/uniformity"] == pytest.approx(slow_uniformity(every))
    strict = SimpleNamespace(pairs=task.pairs, scores=task.scores, aligned_above=2.5)  # a b and a d: (2 + 4) / 2
    found = measure_pairs(strict, lambda texts: np.array([vectors[text] for text in texts], dtype=float))
    assert found["measured_pairs/alignment"] == pytest.approx(3)
    strict.aligned_above = 5.0
    assert "measured_pairs/alignment" not in measure_pairs(strict, lambda texts: np.eye(len(texts)))


def test_views_differ_by_dropout_alone(tmp_path):
    model = load_model(str(save_tiny(tmp_path, "bert")), "mean", dropout=0.1)
    collate, cpu = Views(model.tokenizer, 32), torch.device("cpu")
    model.eval()
    noisy = measure_views(model, TEXTS, collate, cpu)
    assert not model.training and noisy["measured_views/alignment"] > 1e-4
    torch.rand(1)
    assert noisy == measure_views(model, TEXTS, collate, cpu)  # whatever was drawn in between
    model = load_model(str(tmp_path), "mean", dropout=0.0)
    still = measure_views(model, TEXTS, collate, cpu)
    assert still["measured_views/alignment"] == pytest.approx(0, abs=1e-9)
    vectors = model.encode([row["text"] for row in TEXTS])
    assert still["measured_views/uniformity"] == pytest.approx(slow_uniformity(vectors), abs=1e-4)


@pytest.mark.parametrize("labelled", [True, False])
def test_training_goes_on_as_if_nothing_was_measured(tmp_path, dev, labelled):
    ends = []
    for steps in (None, 2):
        folder = tmp_path / str(steps)
        trainer = make_trainer(folder, dev=dev if labelled else None, measure_steps=steps)
        trainer.train()
        ends.append(trainer.model.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    kind = "measured_pairs" if labelled else "measured_views"
    lines = [line for line in trainer.state.log_history if f"{kind}/uniformity" in line]
    assert [line["step"] for line in lines] == [0, 2, 4]
    assert all(f"{kind}/alignment" in line for line in lines)
    assert len({line[f"{kind}/uniformity"] for line in lines}) == 3


def test_no_steps_are_refused(tmp_path):
    with pytest.raises(UserError, match="measure_steps is 0; it must be at least 1"):
        make_trainer(tmp_path, measure_steps=0)
