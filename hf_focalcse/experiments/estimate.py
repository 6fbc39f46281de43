"""How long runs would take on this machine, from one encoder layer that is timed here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..data.files import read_lines
from ..encoder.devices import choose_device

SHAPES = {  # part of an encoder's name -> layers, width; the first that fits counts
    "minilm-l6": (6, 384),
    "distil": (6, 768),
    "large": (24, 1024),
    "base": (12, 768),
}
WIKI = 1_000_000  # lines of wiki1m_for_simcse.txt
ASKUBUNTU = 160_436  # titles outside its dev and test questions
SENTENCES = 29_527  # distinct ones in all splits of the seven sets
DEV = 2_900  # in the dev set of STS-B, about
TURNS = 3


@dataclass(frozen=True)
class Work:
    """What one run does. steps of batch sentences in two views; evaluations of the dev set; layers and width."""

    steps: int
    batch: int
    evaluations: int
    layers: int
    width: int

    def seconds(self) -> float:
        """Of training and its dev scores, and of the seven sets at the end; reading text is left out.

        A forward pass is a third of a step's work. Both views of a sentence are encoded.
        """
        each = self.layers * layer_seconds(self.width)
        return each * (2 * self.batch * self.steps + (self.evaluations * DEV + SENTENCES) / 3)


@cache
def layer_seconds(width: int, length: int = 32, sentences: int = 16) -> float:
    """Seconds of a sentence of ``length`` tokens in one layer, forward and backward, measured here."""
    device = choose_device(None)
    layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True).to(device)
    hidden = torch.randn(sentences, length, width, device=device)
    took = []
    for _ in range(TURNS):
        start = time.perf_counter()
        layer(hidden).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return min(took) / sentences  # the least: other programs only add to it


def work_of(asked: dict[str, Any]) -> Work | None:
    """What a planned run would do, by its settings; None for an encoder whose shape is not known."""
    name = str(asked.get("model_name_or_path")).lower()
    shape = next((shape for part, shape in SHAPES.items() if part in name), None)
    if shape is None:
        return None
    batch = int(asked["per_device_train_batch_size"]) * int(asked.get("gradient_accumulation_steps") or 1)
    steps = int(asked.get("max_steps") or -1)
    if steps < 1:
        lines = sentences_of(asked) * float(asked.get("train_fraction") or 1)
        steps = int(float(asked.get("num_train_epochs") or 3) * max(lines // batch, 1))
    every = float(asked.get("eval_steps") or 0)
    return Work(steps, batch, int(steps // every) if every >= 1 else 0, *shape)


def sentences_of(asked: dict[str, Any]) -> int:
    """Lines of the training text; of those that are not here, what is known of them."""
    file = asked.get("train_file")
    if isinstance(file, str) and Path(file).is_file():
        return len(read_lines(Path(file)))
    return ASKUBUNTU if file and "askubuntu" in str(file) else WIKI
