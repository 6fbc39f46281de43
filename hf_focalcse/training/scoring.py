"""Scores of the dev tasks while a run trains, by the code of ``run_eval.py``, and what the scoring costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

from ..errors import UserError, suggest
from ..evaluation import PairSet, evaluate_sts
from ..objectives.pairs import gather_rows
from ..runs.scores import Results, ScoreKey, headlines
from .baseline import Before, score_before
from .callbacks import COST_LIMIT, DevCost, measure_pairs, measure_views
from .memory import refusing_out_of_memory

logger = logging.get_logger(__name__)


class Scorer:
    """Scores the encoder of a trainer on its dev tasks; several ranks share the sentences.

    before: what they gave before the first step.
    """

    def __init__(self, trainer: Any, dev: list[Any]):
        self.trainer, self.dev = trainer, dev
        self.before = Before()
        self.cost = DevCost()
        self._warned = False

    @property
    def baseline(self) -> dict[str, float]:
        """The scores that gains are measured against: of the encoder as published, where that is known."""
        return self.before.baseline.scores if self.before.baseline else {}

    def score(self) -> dict[str, float]:
        """{score: value x 100} of the dev tasks."""
        return self.results().scores

    def results(self) -> Results:
        """The scores of the dev tasks with what a paired test of them needs."""
        trainer = self.trainer
        progress = trainer.is_world_process_zero() and not trainer.args.disable_tqdm
        size = f"--per_device_eval_batch_size {trainer.args.per_device_eval_batch_size}"
        with (
            self.cost.scoring(),
            refusing_out_of_memory(lambda: f"out of memory while scoring the dev set with {size}; lower it"),
        ):
            return evaluate_sts(SimpleNamespace(encode=self.encode), self.dev, progress=progress)

    def score_baseline(self) -> dict[str, float]:
        """Score the encoder before the first step: as published and, where the run pools otherwise, as it starts.

        Raises:
            UserError: the dev tasks do not give the score that is to choose the best checkpoint.
        """
        self.before = score_before(self.trainer.encoder, self.results) if self.dev else Before()
        metric = str(self.trainer.args.metric_for_best_model)
        if self.trainer.args.load_best_model_at_end and metric not in self.baseline:
            raise UserError(
                f"metric_for_best_model is {metric!r}{suggest(metric, self.baseline)}; the dev set gives: "
                f"{', '.join(_without_subsets(self.baseline))}"
            )
        return self.baseline

    def metrics(self, prefix: str) -> dict[str, float]:
        """The scores for a log line, without those of subsets, and with what was gained over the baseline."""
        scores = self.score()
        found = {f"{prefix}_{name}": scores[name] for name in _without_subsets(scores)}
        for name, value in headlines(scores).items():
            if name in self.baseline:
                found[f"{prefix}_{ScoreKey.parse(name).gain}"] = value - self.baseline[name]
        return found

    def spent(self, prefix: str) -> dict[str, float]:
        """What the newest scoring took, and all of them of the run; warns once where that is more than its share."""
        cost, step, every = self.cost, self.trainer.state.global_step, self.trainer.state.eval_steps
        found = {f"{prefix}_seconds": round(cost.last, 3)}
        share = cost.share(step)
        if share is None:
            return found
        enough = cost.enough(step)
        expected = cost.expected(step, every) if self._by_steps() else share
        if enough is not None and expected is not None and expected > COST_LIMIT and not self._warned:
            self._warned = True
            logger.warning(
                "scoring the dev set takes %.1f s, %.0f %% of the run; --eval_steps %d would hold it at %.0f %%",
                *(cost.last, 100 * expected, enough, 100 * COST_LIMIT),
            )
        return found | {f"{prefix}_share_of_run": round(share, 4)}

    def expected(self) -> dict[str, float]:
        """The share of the run that scoring is going to take, until the first scoring within the run tells it."""
        step, every = self.trainer.state.global_step, self.trainer.state.eval_steps
        if not (self.dev and self._by_steps()) or step >= every:
            return {}
        expected = self.cost.expected(step, every)
        return {} if expected is None else {"eval_share_expected": round(expected, 4)}

    def _by_steps(self) -> bool:
        return self.trainer.args.eval_strategy == IntervalStrategy.STEPS

    def measure(self) -> dict[str, float]:
        """Alignment and uniformity of a fixed sample: of the first dev task of graded pairs, else of training text."""
        labelled = next((task for task in self.dev if isinstance(task, PairSet)), None)
        if labelled is not None:
            return measure_pairs(labelled, self.encode)
        trainer = self.trainer
        return measure_views(trainer.encoder, trainer.train_dataset, trainer.collate_views, trainer.args.device)

    def encode(self, texts: list[str]) -> np.ndarray:
        """N sentences -> (N, D), as they will be embedded."""
        args = self.trainer.args
        encode = partial(self.trainer.encoder.encode, batch_size=args.per_device_eval_batch_size)
        return encode(texts) if args.world_size == 1 else self._encode_shared(encode, texts)

    def _encode_shared(self, encode: Callable[[list[str]], np.ndarray], texts: list[str]) -> np.ndarray:
        """N sentences -> (N, D), every W-th by this rank, the same bits on all.

        Short shares are filled up: all ranks run as many forward passes, which are collective under FSDP2 and ZeRO-3.
        """
        args = self.trainer.args
        ranks = args.world_size
        share = texts[args.process_index :: ranks]
        share += texts[:1] * (-(-len(texts) // ranks) - len(share))
        own = torch.from_numpy(encode(share)).to(args.device)
        everyone = gather_rows(own, [len(share)] * ranks).cpu()  # (W * n, D), rank by rank
        return everyone.unflatten(0, (ranks, -1)).transpose(0, 1).flatten(0, 1)[: len(texts)].contiguous().numpy()


def _without_subsets(scores: dict[str, float]) -> list[str]:
    return [name for name in scores if not ScoreKey.parse(name).is_of_a_subset]
