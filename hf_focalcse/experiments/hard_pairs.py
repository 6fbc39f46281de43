"""Labelled pairs that people rated low and an encoder finds similar, before and after training (section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.terminal import shown
from ..encoder.devices import choose_device
from ..encoder.loading import load_model
from ..encoder.packaged import resolve_model
from ..evaluation import load_tasks, read_tasks
from ..evaluation.metrics import cosine
from ..evaluation.pair_sets import PairSet
from ..evaluation.tasks import Pair
from ..runs.folder import Run
from ..runs.tables import Table
from .page import Finding, Part

EXAMPLE = ("This is a very unusual request.", "I think it's fine to ask this question.")  # of section 5.1
PUBLISHED = 0.64  # its cosine there, "by the pre-trained BERT base model"
LOW = 0.2  # of the range of the scores, up to which a pair counts as rated low
TOP = 10
WIDTH = 80  # characters of a text in a table


def read_pairs(file: str | None, sts_dir: str | None) -> PairSet:
    """Labelled pairs of a file or, without one, the training pairs of STS-B.

    Raises:
        UserError: the pairs cannot be read.
    """
    found = read_tasks(file) if file else load_tasks(["STSBenchmark/train"], sts_dir)
    return next(task for task in found if isinstance(task, PairSet))


def rated_low(pairs: PairSet) -> list[Pair]:
    """Pairs in the lowest fifth of the range of the scores, of texts that are not equal."""
    gold = [pair.score for pair in pairs.pairs]
    bound = min(gold) + LOW * (max(gold) - min(gold))
    return [p for p in pairs.pairs if p.score <= bound and p.sentence1 != p.sentence2]


@torch.no_grad()
def cosines(model: Any, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """(P,) of the two texts of each pair."""
    first, second = (np.asarray(model.encode([pair[side] for pair in pairs])) for side in (0, 1))
    return cosine(first, second)


def hard_table(encoders: Mapping[str, Any], pairs: PairSet, top: int = TOP) -> tuple[Table, dict[str, float]]:
    """The hardest pairs by the first encoder with the cosines of all of them, and the mean cosine of each over the
    low pairs."""
    low = rated_low(pairs)
    texts = [(pair.sentence1, pair.sentence2) for pair in low]
    found = {name: cosines(model, [*texts, EXAMPLE]) for name, model in encoders.items()}
    first = next(iter(found.values()))[:-1]
    hardest = np.argsort(-first, kind="stable")[:top]
    rows = [
        [f"{low[i].score:g}", *(f"{of[i]:.3f}" for of in found.values()), *(shown(text, WIDTH) for text in texts[i])]
        for i in hardest
    ]
    rows.append(["paper", *(f"{of[-1]:.3f}" for of in found.values()), *EXAMPLE])
    caption = (
        f"Of {len(low):,} pairs of {pairs.key} in the lowest fifth of the ratings, the most similar by the cosine "
        f"{next(iter(found))}; last, the paper's example (there {PUBLISHED})."
    )
    header = ["rated", *(f"cosine, {name}" for name in found), "one text", "the other"]
    return Table(header, rows, caption=caption), {name: float(of[:-1].mean()) for name, of in found.items()}


def hard_negatives(trained: Mapping[str, Path], source: tuple[str | None, str | None]) -> Iterator[Part]:
    """The table and a sentence for runs, before training and after it."""
    run = Run.read(next(iter(trained.values())))
    start = str(run.record.model["name_or_path"])
    place = resolve_model(start, None)
    before = load_model(place.path, pooler="cls_before_pooler" if run.record.model["pooler"] == "cls" else None)
    device = choose_device(None)
    encoders = {"before": before.to(device)}
    encoders |= {label: load_model(str(folder)).to(device) for label, folder in trained.items()}
    table, means = hard_table(encoders, read_pairs(*source))
    change = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    yield Finding(f"Mean cosine of all pairs that are rated low: {change}. One seed, so this is no test.")
    yield table
