"""`FocalCSETrainer`: transformers' Trainer with an objective in the place of a loss and the STS as its evaluation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from accelerate.utils import DynamoBackend
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..compat import save_unpublished, train_dataloader_by
from ..data.views import PADDING_ID
from ..errors import UserError
from ..losses import ContrastiveLoss
from ..objectives import Objective
from ..objectives.reference import Stopwatch
from ..runs.record import RunRecord
from . import checkpoints, finish
from .alarms import Alarms
from .args import FocalCSETrainingArguments, decide
from .callbacks import Measuring, StartOfTraining, StopSignals
from .checks import check_model, choose_objective, refused_as, word
from .engines import check_engine, engine_of
from .keeping import KeepingTrainer, logger
from .memory import StepMemory, estimate_step, refusing_out_of_memory, step_ran_out
from .sampling import Padded, PaddedSampler
from .scoring import Scorer


class FocalCSETrainer(KeepingTrainer):
    """Trains a ``…ForFocalCL`` encoder by an objective: by default a contrastive loss on two views of each sentence.

    Args:
        model: an encoder of `load_model`.
        loss: a loss of `build_loss`, for the default objective.
        train_dataset: items with a ``text``; see `read_sentences`.
        dev: labelled tasks for `evaluate_sts`, or None to train without; they are scored every ``eval_steps``.
        max_seq_length: tokens kept of a training sentence.
        mask_duplicates: equal texts are left out of each other's negatives; None leaves it to the loss.
        reference: a frozen encoder of `load_model` for the losses that compare with one.
        negatives: "global", those of all processes, or "local".
        objective: an `Objective` in the place of loss, mask_duplicates, reference and negatives.
        allow_resume_mismatch: resume from a checkpoint of a run that differs from this one.
        measure_steps: log alignment and uniformity of a fixed sample every so many steps.

    Raises:
        UserError: a reference is missing or not used, every dropout rate is 0 (both views would be equal) and there is
            no augmentation, torch_compile meets a cutoff, there are fewer than two sentences a batch, the dev tasks
            do not give the metric that is to choose the best checkpoint, or processes and engine are not those that
            were asked for.
    """

    model: Any
    args: Any
    train_dataset: Any
    loss_is_scaled_for_ga = False  # compute_loss gives a mean: the division by accumulation steps is Trainer's

    def __init__(
        self,
        model: Any,
        args: FocalCSETrainingArguments,
        loss: ContrastiveLoss | None = None,
        train_dataset: Any = None,
        dev: Sequence[Any] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        max_seq_length: int = 32,
        mask_duplicates: bool | None = None,
        reference: Any = None,
        negatives: str = "global",
        allow_resume_mismatch: bool = False,
        measure_steps: int | None = None,
        objective: Objective | None = None,
        **kwargs: Any,
    ):
        self.objective = choose_objective(objective, loss, mask_duplicates, reference, negatives, max_seq_length)
        self.allow_resume_mismatch = allow_resume_mismatch
        self.began = time.monotonic()  # a command line puts its own beginning here
        self.dev = list(dev or [])
        self.alarms = Alarms()
        self.scorer = Scorer(self, self.dev)
        self.record: RunRecord | None = None  # where a command line started the run; else made when it is finished
        self.finished = False  # whether the record is that of a run that has ended
        self.asked: dict[str, Any] = {}  # a command line puts the options here that a resumed run must share
        self.step_time = Stopwatch()
        self._micro = (-1, 0)  # global step, batches seen in it
        self._observed: dict[str, float] = {}
        self._hub_token = args.hub_token
        check_model(model, args)
        if args.neftune_noise_alpha is not None:
            model.packing = False  # the noise is scaled by the length of a row, which must be a sentence
        args = decide(args, self.dev)
        tokenizer = processing_class or model.tokenizer
        collator = kwargs.pop("data_collator", None)
        collator = collator or self.objective.collator(tokenizer, max_seq_length, args.seed)
        self.collate_views = collator
        self.max_seq_length = getattr(collator, "max_seq_length", max_seq_length)
        self.objective.attach(model, lambda: self.accelerator.autocast())
        self.carried = self.objective.has_state()
        model.carry(self.objective if self.carried else None)
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=self.dev or None,
            processing_class=tokenizer,
            data_collator=self.objective.collate(collator),
            **kwargs,
        )
        self.model_accepts_loss_kwargs = False  # before 5.24 this, not the class attribute, decides the division
        self.pads = args.world_size > 1 and not args.dataloader_drop_last
        # Told by --torch_compile or by accelerate launch --dynamo_backend.
        model.compiling = self.accelerator.state.dynamo_plugin.backend != DynamoBackend.NO
        if model.compiling and model.cut:
            raise UserError(
                "--torch_compile does not go with a cutoff, which reaches into the compiled encoder; leave one of the "
                "two out, or use --augmentation token_shuffle"
            )
        check_engine(args, self.accelerator)
        self.stop_signals = StopSignals()
        self.add_callback(StartOfTraining(self))
        self.add_callback(self.stop_signals)
        if measure_steps is not None:
            self.add_callback(Measuring(measure_steps, self.scorer.measure, self.log))

    @property
    def loss(self) -> Any:
        """The loss that the objective computes over pairs; None where it has none."""
        return self.objective.criterion

    @property
    def baseline(self) -> dict[str, float]:
        """The dev scores before the first step."""
        return self.scorer.baseline

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        with refused_as(f"--optim {word(self.args.optim)}", "adamw_torch is the default"):
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        remedy = "give what it needs in --lr_scheduler_kwargs, or take linear, the default"
        with refused_as(f"--lr_scheduler_type {word(self.args.lr_scheduler_type)}", remedy):
            return super().create_scheduler(*args, **kwargs)

    # ---- the step

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        # Trainer divides the loss by the accumulation steps; transformers 5.5 has accelerate do it a second time
        self.accelerator.gradient_accumulation_steps = 1

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The objective's scalar for a batch; with ``return_outputs`` the pairs that it was computed from, too."""
        batch = {**inputs, "seed": self._step_seed()}
        if self.pads:
            batch["real"] = inputs["text_ids"] != PADDING_ID  # (B,)
        # An objective with parameters of its own runs inside the model's forward pass, where engines gather them.
        loss, pairs = model(batch=batch) if self.carried else self.objective(model, batch)
        if pairs is not None and self._logs_next():
            self._observed = self.objective.diagnostics(pairs)
        return (loss, pairs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """As in transformers, timed where the objective's work beside the model takes a share of it."""
        if self.objective.side_time is None:
            return super().training_step(*args, **kwargs)
        with self.step_time:
            return super().training_step(*args, **kwargs)

    def describe_step(self) -> str:
        """How batches go through the encoder, and which optimizer updates the weights, for the log."""
        return f"{self.encoder.describe_step()}; optimizer {word(self.args.optim)}"

    def reference_cost(self) -> dict[str, float]:
        """The time of the objective's work outside the model, and its share of a step; empty without such work."""
        return self.objective.cost(self.step_time)

    def _step_seed(self) -> int:
        """The same on all ranks and in a resumed run, another for each batch."""
        step, (before, batch) = self.state.global_step, self._micro
        self._micro = (step, batch + 1 if before == step else 0)
        return int.from_bytes(blake2b(f"{self.args.seed} {self._micro}".encode(), digest_size=7).digest(), "little")

    def get_train_dataloader(self) -> Any:
        """As Trainer's; where the last batch is kept on several ranks, it is filled up with padding, not with the
        epoch's first sentences, and each rank has as many batches as the others."""
        if not self.pads:
            return super().get_train_dataloader()
        whole = self.args.train_batch_size * self.args.world_size
        padded = Padded(self.train_dataset, getattr(self.collate_views, "blank", {"text": ""}))
        sampler = PaddedSampler(self.train_dataset, whole, self.args.data_seed or self.args.seed)
        return train_dataloader_by(self, padded, lambda _: sampler)

    def _logs_next(self) -> bool:
        step = self.state.global_step + 1
        return step == 1 or step % max(int(self.state.logging_steps), 1) == 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs = logs | self._observed | self.reference_cost() | self.scorer.expected()
            self.alarms.watch(logs, self.state.global_step)
            self._observed = {}
        super().log(logs, start_time)

    # ---- evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Scores of the dev tasks, x 100, as ``eval_task/split/aggregation/metric``; without those of subsets.

        ``eval_seconds`` is what scoring took, ``eval_share_of_run`` what all scorings took of the run so far.
        """
        metrics = self.scorer.metrics(metric_key_prefix)
        self.log(metrics | self.scorer.spent(metric_key_prefix))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def score_baseline(self) -> dict[str, float]:
        """Score the encoder as it is before the first step; later scores are logged with their gain over it."""
        return self.scorer.score_baseline()

    # ---- the run

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Trainer's, from a checkpoint that is known to be whole and of this run ("last": the last such one).

        Raises:
            UserError: no such checkpoint, a damaged one, or one of another run.
            Stopped: SIGTERM or Ctrl-C; a checkpoint was saved.
        """
        asked = "last" if resume_from_checkpoint is True else resume_from_checkpoint
        self.resumed_from = None
        path = self.choose_checkpoint(str(asked)) if asked else None
        if self.finished:  # trained further: another run
            self.record, self.finished = None, False
        with self.stop_signals:
            return super().train(resume_from_checkpoint=path, **kwargs)

    @property
    def seconds(self) -> float:
        """Of this run, its earlier parts included up to the checkpoint that each was resumed from."""
        return (self.seconds_before or 0.0) + time.monotonic() - self.began

    def run_identity(self) -> dict[str, Any]:
        """What must be equal for a resumed run to equal the uninterrupted one."""
        args = self.args
        report = getattr(self.train_dataset, "report", None)
        return self.asked | {
            "world_size": args.world_size,
            "engine": engine_of(self.accelerator),
            "per_device_train_batch_size": args.per_device_train_batch_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "seed": args.seed,
            "pooler": self.encoder.pooler_name,
            "data": report.sha256 if report is not None else len(self.train_dataset),
            **self.objective.identity(),
            "chunk_size": self.encoder.chunk_size,
        }

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # resumed from the last step: Trainer would do one more
            self.control.should_training_stop = True
            return
        with refusing_out_of_memory(self._step_ran_out):
            super()._run_epoch(*args, **kwargs)

    # ---- memory

    @property
    def views(self) -> int:
        """V, of the batches that the collator makes."""
        return int(getattr(self.collate_views, "views", 2))

    @cached_property
    def step_memory(self) -> StepMemory:
        """What a step will take, see `estimate_step`; ask before `train`, which may shard the model."""
        return estimate_step(
            self.encoder,
            self.loss,
            self.args.train_batch_size,
            self.max_seq_length,
            optimizer=word(self.args.optim),
            world_size=self.args.world_size if self.objective.negatives == "global" else 1,
            views=self.views,
            autocast=self.accelerator.autocast,
        )

    def _step_ran_out(self) -> str:
        rows = self.args.train_batch_size * self.views
        said = step_ran_out(rows, self.views, self.max_seq_length, self.encoder.chunk_size)
        kept = checkpoints.list_checkpoints(Path(str(self.args.output_dir)))
        if not kept:
            return said
        return f"{said}; {kept[-1].name} is kept: add --resume_from_checkpoint last --allow_resume_mismatch"

    def parameters_of_encoder(self) -> int:
        """Their number, without those of the objective, which is not published."""
        total = sum(p.numel() for p in self.encoder.parameters())
        return total - sum(p.numel() for p in self.objective.parameters()) * self.carried

    # ---- publishing: the export goes to the Hub, once, and never the training folder

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make no repository before there is a trained model to put into it."""
        self.push_in_progress = None

    def create_model_card(  # type: ignore[override]
        self, language: str | None = None, license: str | None = None, **drafted: Any
    ) -> None:
        """README.md of ``output_dir`` from its run.json and results.json, since Trainer's draft has no STS scores.

        Needs the weights in ``output_dir``. drafted: what Trainer's draft would say, all of which the record knows.
        """
        if not self.is_world_process_zero():
            return
        for name in (name for name, value in drafted.items() if value is not None):
            logger.warning("create_model_card: %s is left out, the card is made from the record of the run", name)
        finish.renew_card(self, language, license)

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
        if self.args.hub_model_id is None:
            raise UserError("push_to_hub needs hub_model_id, org/name, in the training arguments")
        if not blocking:
            raise UserError("push_to_hub(blocking=False) is not offered: the export is checked first; leave it out")
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        save_unpublished(self)
        if not self.is_world_process_zero():
            return None
        (Path(str(self.args.output_dir)) / "training_args.bin").unlink(missing_ok=True)
        self.create_model_card(**card)
        return finish.publish(self, commit_message, token or self._hub_token, revision, private)
