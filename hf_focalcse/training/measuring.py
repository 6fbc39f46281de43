"""Alignment and uniformity of a fixed sample every so many steps of training, whatever its seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback

from ..errors import UserError
from ..evaluation.metrics import alignment, uniformity

PAIRS, POSITIVES = 256, 128  # of the sample at most: those whose sentences are spread, those that belong together
SENTENCES = 256  # of the sample of training text


class Measuring(TrainerCallback):
    """Logs what ``measure`` gives before the first step and after every ``steps`` steps."""

    def __init__(self, steps: int, measure: Callable[[], dict[str, float]], log: Callable[[dict[str, float]], None]):
        if steps < 1:
            raise UserError(f"measure_steps is {steps}; it must be at least 1, or left out to measure nothing")
        self.steps, self.measure, self.log = steps, measure, log

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:  # a resumed run has logged it
            self.log(self.measure())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.steps == 0:
            self.log(self.measure())


def measure_pairs(task: Any, encode: Callable[[list[str]], np.ndarray]) -> dict[str, float]:
    """Of pairs of a labelled set, embedded as for its scores: at most 768 sentences, where STS-B dev has 3,000.

    Positives are the pairs that evaluation calls so; where it calls none so, the fifth that was rated highest.
    """
    draw = np.random.default_rng(0)
    above = task.aligned_above
    positive = task.scores > above if above is not None else task.scores >= np.quantile(task.scores, 0.8)
    any_pair, together = (
        [task.pairs[i] for i in sorted(draw.permutation(rows)[:most])]
        for rows, most in ((np.arange(len(task.pairs)), PAIRS), (np.flatnonzero(positive), POSITIVES))
    )
    vectors = encode([text for pair in any_pair + together for text in (pair.sentence1, pair.sentence2)])
    spread, close = vectors[: 2 * len(any_pair)], vectors[2 * len(any_pair) :]
    found = {"measured_pairs/uniformity": uniformity(spread)}
    return found | ({"measured_pairs/alignment": alignment(close[::2], close[1::2])} if together else {})


def measure_views(
    model: Any, dataset: Any, collate: Callable[[list[Any]], dict[str, Tensor]], device: torch.device
) -> dict[str, float]:
    """Of two views of training sentences, as the loss sees them (with dropout and projection), without labels.

    Dropout is drawn from a seed of its own: training goes on as if nothing had been measured.
    """
    rows = sorted(np.random.default_rng(0).permutation(len(dataset))[:SENTENCES].tolist())
    batch = collate([dataset[i] for i in rows])
    was_training = model.training
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        model.train()
        views = model(batch["input_ids"].to(device), batch["attention_mask"].to(device))  # (B, V, D)
    model.train(was_training)
    first, second = views[:, :2].float().cpu().numpy().swapaxes(0, 1)
    return {"measured_views/alignment": alignment(first, second), "measured_views/uniformity": uniformity(first)}
