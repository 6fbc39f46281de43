"""`FocalCSETrainer`: transformers' Trainer with a contrastive `compute_loss` and STS evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

from .data import ViewCollator
from .errors import UserError, suggest
from .evaluation import evaluate_sts
from .losses import ContrastiveLoss
from .modeling import HEAD_FILE
from .pairs import describe_pairs, make_pairs, reference_losses
from .publishing.card import write_card
from .publishing.export import export_model
from .publishing.hub import Target, push
from .record import RUN_FILE, RunRecord, file_sha256
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

    Raises:
        UserError: every dropout rate is 0 (both views would be equal), there are fewer than two sentences a batch, or
            the metric that is to choose the best checkpoint is none of the dev tasks'.
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
        **kwargs: Any,
    ):
        self.loss = loss
        self.dev = list(dev or [])
        self.mask_duplicates = loss.mask_duplicates if mask_duplicates is None else mask_duplicates
        self.alarms: list[str] = []
        self.baseline: dict[str, float] = {}
        self._hub_token, args.hub_token = args.hub_token, None  # each checkpoint has a pickle of args
        self.record: RunRecord | None = None  # where a command line started the run; else made from what is here
        self._observed: dict[str, float] = {}
        self._collapsed_before = self._alone_before = False
        require_dropout(model)
        if args.per_device_train_batch_size < 2:
            raise UserError(
                f"per_device_train_batch_size is {args.per_device_train_batch_size}; a sentence needs at least one "
                "other in its batch as a negative, so give 2 or more (64 is usual)"
            )
        choose_by_dev(args, self.dev)
        tokenizer = processing_class or model.tokenizer
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=self.dev or None,
            processing_class=tokenizer,
            data_collator=kwargs.pop("data_collator", None) or ViewCollator(tokenizer, max_seq_length),
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
        pairs = make_pairs(embeddings, text_ids)
        loss = self.loss(pairs)
        if self._logs_next():
            self._observed = describe_pairs(pairs, getattr(self.loss, "m", HARD_MARGIN))
            self._observed |= reference_losses(self.loss, len(pairs.candidates))
        return (loss, embeddings) if return_outputs else loss

    def _logs_next(self) -> bool:
        step = self.state.global_step + 1
        return step == 1 or step % max(int(self.state.logging_steps), 1) == 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs = logs | self._observed
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

    # ---- publishing: the export goes to the Hub, once, and never the training folder

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make no repository before there is a trained model to put into it."""
        self.push_in_progress = None

    def make_record(self) -> RunRecord:
        """What run.json can say without a command line."""
        model, loss, state = self.accelerator.unwrap_model(self.model), self.loss, self.state
        dataset: Any = self.train_dataset
        report = getattr(dataset, "report", None)
        data = report.to_dict() if report else {"source": "a data set in memory", "kept": len(dataset)}
        best = None
        if state.best_metric is not None and self.args.load_best_model_at_end:
            step, metric = state.best_global_step, self.args.metric_for_best_model
            best = {"step": step, "metric": metric, "value": state.best_metric}
        return RunRecord(
            command=[],
            recipe=None,
            settings={key: value for key, value in self.args.to_dict().items() if "token" not in key},
            loss=loss.config
            | {"mask_duplicates": self.mask_duplicates}
            | {"formula": loss.formula, "paper": loss.paper, "citation": loss.citation},
            model={
                "name_or_path": model.config.name_or_path,
                "base_model": model.config.focal_cl.get("base_model"),
                "revision": None,
                "class": type(model).__name__,
                "model_type": model.config.model_type,
                "pooler": model.pooler_name,
                "projection": model.projection_use,
                "projection_file": None if model.encoder_has_pooler else HEAD_FILE,
                "dropout": model.dropout_rates(),
                "parameters": sum(p.numel() for p in model.parameters()),
                "embedding_dimensions": model.config.hidden_size,
            },
            data={"max_seq_length": getattr(self.data_collator, "max_seq_length", None), "sha256": ""} | data,
            seed=self.args.seed,
            world_size=self.args.world_size,
            log=state.log_history,
            baseline=self.baseline,
            best=best,
            alarms=self.alarms,
        )

    def create_model_card(  # type: ignore[override]
        self, language: str | None = None, license: str | None = None, **drafted: Any
    ) -> None:
        """README.md of ``output_dir`` from its run.json and results.json; Trainer's own draft knows no STS score.

        Needs the weights in ``output_dir``. drafted: what Trainer's draft would say, all of which the record knows.
        """
        if not self.is_world_process_zero():
            return
        for name in (name for name, value in drafted.items() if value is not None):
            logger.warning("create_model_card: %s is left out, the card is made from the record of the run", name)
        folder = Path(str(self.args.output_dir))
        if self.record is None or not (folder / RUN_FILE).exists():
            record = self.record or self.make_record()
            weights = file_sha256(folder / "model.safetensors")
            record.model |= {"weights_sha256": weights}
            if self.dev:
                model = self.accelerator.unwrap_model(self.model)
                pooling = {"pooler": model.pooler_name, "projection": model.projection_use}
                identity = {"name_or_path": folder.name, "max_length": model.max_length(), "weights_sha256": weights}
                results = evaluate_sts(model, self.dev, progress=False, model=pooling | identity)
                results.write(folder / "results.json")
                record.final = results.scores
            record.save(folder)
        record = RunRecord.load(folder)
        record.publication |= {k: v for k, v in (("language", language), ("license", license)) if v}
        record.save(folder)
        write_card(folder)

    def push_to_hub(  # type: ignore[override]
        self,
        commit_message: str | None = None,
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **card: Any,
    ) -> str | None:
        """Save, write the card, export ``output_dir`` to ``output_dir/hub`` and push the export; its address.

        Raises:
            UserError: no ``hub_model_id``, ``blocking=False``, or what `export_model` and `push` raise.
        """
        args = self.args
        if args.hub_model_id is None:
            raise UserError("push_to_hub needs hub_model_id, org/name, in the training arguments")
        if not blocking:
            raise UserError("push_to_hub(blocking=False) is not offered: the export is checked first; leave it out")
        self.callback_handler.on_push_begin(args, self.state, self.control)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        folder = Path(str(args.output_dir))
        (folder / "training_args.bin").unlink(missing_ok=True)
        self.create_model_card(**card)
        folder, _ = export_model(folder, publication={"repo_id": args.hub_model_id})
        private = args.hub_private_repo if private is None else private
        target = Target(
            *(args.hub_model_id, private, False, revision or args.hub_revision, commit_message),
            token=token or self._hub_token,
        )
        return push(folder, target, say=logger.warning)

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


def require_dropout(model: Any) -> None:
    """Log the dropout that makes two views of a sentence differ.

    Raises:
        UserError: all rates are 0.
    """
    rates = model.dropout_rates()
    logger.info("dropout of the encoder: %s", ", ".join(f"{k}={v}" for k, v in rates.items()))
    if not any(rates.values()):
        raise UserError(
            f"every dropout rate of this {model.config.model_type} encoder is 0 ({', '.join(rates)}), so both views "
            "of a sentence would be equal and nothing could be learnt; give --dropout 0.1"
        )
