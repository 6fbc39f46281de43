"""Scores of the dev tasks while a run trains, by the code of ``run_eval.py``, and what the scoring costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction
from transformers.trainer_utils import IntervalStrategy, denumpify_detensorize
from transformers.utils import logging

from ..errors import UserError, suggest
from ..evaluation import PairSet, Results, evaluate_sts
from ..evaluation.identity import sizes_of_encoder
from ..objectives.pairs import gather_rows
from ..runs.scores import ScoreKey, headlines
from .baseline import Before, departures, score_before
from .callbacks import COST_LIMIT, DevCost, measure_pairs, measure_views
from .memory import refusing_out_of_memory

logger = logging.get_logger(__name__)


class Scorer:
    """Scores the encoder of a trainer on its dev tasks; several ranks share the sentences.

    before: what the dev tasks gave before the first step.

    Args:
        compute_metrics: called with an `EvalPrediction` of each set of labelled pairs: their cosines as
            ``predictions`` (N,), the scores that people gave them as ``label_ids`` (N,). What it returns is logged
            under its own names, or under ``task/split/name`` where there are several sets.

    Raises:
        UserError: compute_metrics is given, and no dev task has labelled pairs.
    """

    def __init__(self, trainer: Any, dev: list[Any], compute_metrics: Callable[[EvalPrediction], Any] | None = None):
        self.trainer, self.dev, self.compute_metrics = trainer, dev, compute_metrics
        self.before = Before()
        self.cost = DevCost()
        self._warned = False
        self.labelled = [task for task in dev if isinstance(task, PairSet)]
        if compute_metrics is not None and dev and not self.labelled:
            raise UserError(
                "compute_metrics is called with the cosines and the scores of labelled pairs, and eval_dataset has "
                "none; leave it out, or give pairs with sentence1, sentence2 and score"
            )

    @property
    def baseline(self) -> dict[str, float]:
        """The scores that gains are measured against: of the encoder as published, where that is known."""
        return self.before.baseline.scores if self.before.baseline else {}

    def score(self) -> dict[str, float]:
        """{score: value x 100} of the dev tasks."""
        return self.results(self.dev).scores

    def results(self, tasks: list[Any]) -> Results:
        """What the encoder as it is now scores on ``tasks``."""
        trainer = self.trainer
        progress = trainer.is_world_process_zero() and not trainer.args.disable_tqdm
        size = f"--per_device_eval_batch_size {trainer.args.per_device_eval_batch_size}"
        with (
            self.cost.scoring(),
            refusing_out_of_memory(lambda: f"out of memory while scoring the dev set with {size}; lower it"),
        ):
            return evaluate_sts(
                SimpleNamespace(encode=self.encode), tasks, progress=progress, sizes=sizes_of_encoder(trainer.encoder)
            )

    def score_baseline(self) -> dict[str, float]:
        """Score the encoder before the first step: as published and, where the run pools otherwise, as it starts.

        Raises:
            UserError: the dev tasks do not give the score that is to choose the best checkpoint.
        """
        self.before = score_before(self.trainer.encoder, lambda: self.results(self.dev)) if self.dev else Before()
        if self.before.baseline and self.trainer.args.load_best_model_at_end:
            self.require_metric([*_without_subsets(self.baseline), *self.computed(self.before.baseline)])
        return self.baseline

    def begin(self) -> None:
        """Before a run: score the encoder unless that was done, and where no command line has said that it is trained
        with another pooling or prompt than it was published with, say so."""
        if self.dev and self.before.baseline is None:
            self.score_baseline()
        if self.trainer.record is None and self.trainer.is_world_process_zero():
            for said in departures(self.trainer.encoder):
                logger.warning("%s", said)

    def require_metric(self, names: Iterable[str]) -> None:
        """Raise UserError unless the score that is to choose the best checkpoint is one of ``names``."""
        metric, given = str(self.trainer.args.metric_for_best_model), list(names)
        if metric not in given:
            raise UserError(
                f"metric_for_best_model is {metric!r}{suggest(metric, given)}; the dev set gives: {', '.join(given)}"
            )

    def metrics(self, prefix: str, tasks: list[Any]) -> dict[str, float]:
        """The scores for a log line, without those of subsets, and with what was gained over the baseline."""
        results = self.results(tasks)
        scores = results.scores
        found = {f"{prefix}_{name}": scores[name] for name in _without_subsets(scores)}
        for name, value in headlines(scores).items():
            if name in self.baseline:
                found[f"{prefix}_{ScoreKey.parse(name).gain}"] = value - self.baseline[name]
        return found | {f"{prefix}_{name}": value for name, value in self.computed(results).items()}

    def computed(self, results: Results) -> dict[str, float]:
        """What ``compute_metrics`` makes of the cosines and scores of each set of labelled pairs.

        Raises:
            UserError: it does not return a mapping of numbers.
        """
        found: dict[str, float] = {}
        if self.compute_metrics is None:
            return found
        for key, (gold, cosines) in results.pairs.items():
            made = self.compute_metrics(EvalPrediction(predictions=cosines, label_ids=gold))
            if not isinstance(made, Mapping):
                raise UserError(
                    f"compute_metrics returned {type(made).__name__} {repr(made)[:60]}; it must return a dict of "
                    "names and numbers"
                )
            start = f"{key}/" if len(results.pairs) > 1 else ""
            found |= {f"{start}{name}": value for name, value in denumpify_detensorize(dict(made)).items()}
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
            short = enough > self.trainer.state.max_steps
            logger.warning(
                "scoring the dev set takes %.1f s, %.0f %% of the run; %s",
                *(cost.last, 100 * expected),
                "the run is too short for less"
                if short
                else f"--eval_steps {enough} would hold it at {100 * COST_LIMIT:g} %",
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
        if self.labelled:
            return measure_pairs(self.labelled[0], self.encode)
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
