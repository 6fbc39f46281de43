"""`FocalCSETrainer`: transformers' Trainer with a contrastive `compute_loss` and STS evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

from .data import ViewCollator
from .errors import UserError, suggest
from .evaluation import evaluate_sts
from .losses import ContrastiveLoss, missing_reference
from .pairs import describe_pairs, make_pairs, reference_losses
from .reference import FrozenReference, Stopwatch
from .training_args import FocalCSETrainingArguments

logger = logging.get_logger(__name__)

HARD_MARGIN = 0.3  # 1 - m above which a negative is called hard, for losses without an m of their own
COLLAPSED_COSINE = 0.98  # mean cosine of random sentences above which all vectors point one way


class FocalCSETrainer(Trainer):
    """Trains a ``…ForFocalCL`` encoder with a contrastive loss on two views of each sentence.

    Args:
        loss: a loss of `build_loss`.
        train_dataset: items with a ``text``; see `read_sentences`.
        dev: labelled tasks for `evaluate_sts`, or None to train without; they are scored every ``eval_steps``.
        max_seq_length: tokens kept of a training sentence.
        mask_duplicates: equal texts in a batch are no negatives of each other; None leaves it to the loss.
        reference: a frozen encoder of `load_model` for the losses that compare with one.

    Raises:
        UserError: a reference is missing or not used, every dropout rate is 0 (both views would be equal) and there is
            no augmentation, there are fewer than two sentences a batch, or the metric that is to choose the best
            checkpoint is none of the dev tasks'.
    """

    model: Any
    loss_is_scaled_for_ga = False  # compute_loss gives a mean: the division by accumulation steps is Trainer's

    def __init__(
        self,
        model: Any,
        args: FocalCSETrainingArguments,
        loss: ContrastiveLoss,
        train_dataset: Any,
        dev: Sequence[Any] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        max_seq_length: int = 32,
        mask_duplicates: bool | None = None,
        reference: Any = None,
        **kwargs: Any,
    ):
        self.loss = loss
        self.dev = list(dev or [])
        self.mask_duplicates = loss.mask_duplicates if mask_duplicates is None else mask_duplicates
        self.alarms: list[str] = []
        self.baseline: dict[str, float] = {}
        self._observed: dict[str, float] = {}
        self._collapsed_before = self._alone_before = False
        self.reference = choose_reference(loss, reference, max_seq_length)
        self.step_time, self.reference_time = Stopwatch(), Stopwatch()
        require_dropout(model)
        if args.per_device_train_batch_size < 2:
            raise UserError(
                f"per_device_train_batch_size is {args.per_device_train_batch_size}; a sentence needs at least one "
                "other in its batch as a negative, so give 2 or more (64 is usual)"
            )
        choose_by_dev(args, self.dev)
        tokenizer = processing_class or model.tokenizer
        collator = kwargs.pop("data_collator", None) or ViewCollator(tokenizer, max_seq_length)
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=self.dev or None,
            processing_class=tokenizer,
            data_collator=collator if self.reference is None else self.reference.collate(collator),
            **kwargs,
        )
        self.model_accepts_loss_kwargs = False  # before 5.24 this, not the class attribute, decides the division

    # ---- the step

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Views (B, V, L) -> embeddings (B, V, D) -> pairs -> loss, a mean over the anchors."""
        text_ids = inputs["text_ids"] if self.mask_duplicates else None
        embeddings = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])  # (B, V, D)
        pairs = make_pairs(embeddings, text_ids, self._refer(inputs), seed=self._step_seed())
        loss = self.loss(pairs)
        if self._logs_next():
            m = getattr(self.loss, "m", None)
            self._observed = describe_pairs(pairs, HARD_MARGIN if m is None else m)
            self._observed |= reference_losses(self.loss, len(pairs.candidates), embeddings.shape[-1])
            if pairs.reference is not None:
                alike = pairs.reference[pairs.negative_mask()] >= getattr(self.loss, "phi", 1.0)
                self._observed["reference_alike_share"] = alike.float().mean().item()
        return (loss, embeddings) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """As in transformers, timed where a reference takes a share of it."""
        if self.reference is None:
            return super().training_step(*args, **kwargs)
        with self.step_time:
            return super().training_step(*args, **kwargs)

    def _refer(self, inputs: dict[str, Tensor]) -> Tensor | None:
        """Vectors of the frozen reference, (B, D')."""
        if self.reference is None:
            return None
        with self.accelerator.autocast(), self.reference_time:
            return self.reference.encode(inputs, next(self.model.parameters()))

    def _step_seed(self) -> int:
        """Another one each step, the same on all processes and again when the run is resumed."""
        return self.args.seed * 2**32 + self.state.global_step

    def reference_cost(self) -> dict[str, float]:
        """Seconds per batch that the reference takes, and its share of forward and backward; empty without one."""
        if self.reference is None or not self.step_time.laps:
            return {}
        own, step = self.reference_time.seconds(), self.step_time.seconds()
        return {"reference_seconds_per_batch": own / self.reference_time.laps, "reference_share_of_step": own / step}

    def _logs_next(self) -> bool:
        step = self.state.global_step + 1
        return step == 1 or step % max(int(self.state.logging_steps), 1) == 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs = logs | self._observed | self.reference_cost()
            self._watch(logs)
            self._observed = {}
        super().log(logs, start_time)

    def _watch(self, logs: dict[str, float]) -> None:
        """Raise the alarm when the run collapses, stop it when the loss is no number."""
        if not math.isfinite(logs["loss"]):
            raise UserError(
                f"the loss is {logs['loss']} at step {self.state.global_step}; lower --learning_rate, raise "
                "--temperature, or use --bf16 in place of --fp16"
            )
        collapsed = logs.get("negative_cosine_mean", 0.0) > COLLAPSED_COSINE
        if collapsed and self._collapsed_before:
            self.alarm(
                f"collapse at step {self.state.global_step}: the mean cosine of different sentences is "
                f"{logs['negative_cosine_mean']:.3f}; the loss is {logs['loss']:.2f}, {logs['loss_if_collapsed']:.2f} "
                "would be a full collapse; lower --learning_rate or raise --dropout"
            )
        self._collapsed_before = collapsed
        if logs.get("negatives_per_anchor_mean") == 0 and not self._alone_before:
            self._alone_before = True
            self.alarm(
                f"step {self.state.global_step}: no sentence of the batch has a negative, since all texts are equal; "
                "nothing is learnt from it"
            )

    def alarm(self, message: str) -> None:
        """Say it loudly and keep it for run.json and the model card."""
        self.alarms.append(message)
        logger.warning("ALARM: %s", message)

    # ---- evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Scores of the dev tasks, x 100, as ``eval_task/split/aggregation/metric``; without those of subsets."""
        scores = self.score()
        metrics = {f"{metric_key_prefix}_{name}": v for name, v in scores.items() if "/subset:" not in name}
        for name, value in scores.items():
            if name.endswith("/all/spearman") and name in self.baseline:
                metrics[f"{metric_key_prefix}_{name}/gain"] = value - self.baseline[name]
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def score(self) -> dict[str, float]:
        """Scores of the dev tasks by the same code path as ``run_eval.py``."""
        encoder = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        encoder = SimpleNamespace(encode=partial(encoder.encode, batch_size=self.args.per_device_eval_batch_size))
        return evaluate_sts(encoder, self.dev, progress=not self.args.disable_tqdm).scores

    def score_baseline(self) -> dict[str, float]:
        """Score the encoder as it is before the first step; later scores are logged with their gain over it."""
        self.baseline = self.score() if self.dev else {}
        metric = str(self.args.metric_for_best_model)
        if self.args.load_best_model_at_end and metric not in self.baseline:
            raise UserError(
                f"metric_for_best_model is {metric!r}{suggest(metric, self.baseline)}; the dev set gives: "
                f"{', '.join(name for name in self.baseline if '/subset:' not in name)}"
            )
        return self.baseline

    # ---- checkpoints of encoders whose projection lies in a side file

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self.accelerator.unwrap_model(self.model).load_head(self.state.best_model_checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self.accelerator.unwrap_model(model or self.model).load_head(resume_from_checkpoint)


def choose_by_dev(args: FocalCSETrainingArguments, dev: list[Any]) -> None:
    """Let the dev tasks choose the best checkpoint; without any, nothing is scored and the last one is kept.

    Raises:
        UserError: the metric asked for is none of theirs.
    """
    if not dev:
        args.eval_strategy, args.load_best_model_at_end, args.metric_for_best_model = IntervalStrategy.NO, False, None
        return
    default = f"{dev[0].key}/all/spearman"
    metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
    if metric == "loss":  # what TrainingArguments puts where nothing was asked for; evaluation gives no loss
        metric = default
    if not any(metric.startswith(f"{task.key}/") for task in dev):
        raise UserError(f"metric_for_best_model is {metric!r}, but the dev set gives {default!r}")
        args.greater_is_better = True
    if metric.endswith(("/alignment", "/uniformity")):
        args.greater_is_better = False
    args.metric_for_best_model = metric


def choose_reference(loss: ContrastiveLoss, reference: Any, max_seq_length: int) -> FrozenReference | None:
    """The frozen encoder of a loss that needs one.

    Raises:
        UserError: it is missing, or the loss does not look at it.
    """
    if loss.needs_reference and reference is None:
        raise missing_reference(loss.name)
    if reference is not None and not loss.needs_reference:
        raise UserError(f"loss {loss} looks at no reference model, but one is given; leave --reference_model out")
    return None if reference is None else FrozenReference(reference, max_seq_length)


def require_dropout(model: Any) -> None:
    """Log the dropout that makes two views of a sentence differ.

    Raises:
        UserError: all rates are 0 and no augmentation makes them differ either.
    """
    rates = model.dropout_rates()
    logger.info("dropout of the encoder: %s", ", ".join(f"{k}={v}" for k, v in rates.items()))
    if not any(rates.values()) and not model.augmented:
        raise UserError(
            f"every dropout rate of this {model.config.model_type} encoder is 0 ({', '.join(rates)}), so both views "
            "of a sentence would be equal and nothing could be learnt; give --dropout 0.1, or an --augmentation "
            "such as token_shuffle"
        )
