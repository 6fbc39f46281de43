"""`FocalCSETrainer`: transformers' Trainer with an objective in the place of a loss and the STS as its evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from torch import Tensor
from transformers import EvalPrediction, PreTrainedTokenizerBase, TrainingArguments
from transformers.trainer_utils import PredictionOutput, speed_metrics

from ..compat import train_dataloader_by
from ..data.given import texts_of
from ..data.views import PADDING_ID, Views, as_collator, blank_row
from ..errors import UserError
from ..losses import ContrastiveLoss
from ..objectives import Contrastive, Objective
from ..objectives.reference import Stopwatch
from ..runs.record import RunRecord
from .alarms import Alarms, far_settings, untrained_token, without_range
from .args import decide, take_arguments
from .callbacks import Measuring, StartOfTraining, StopSignals
from .checkpoints import read_without_code
from .checks import check_compiled, check_lora, check_measuring, check_model, check_optimizers, choose_objective
from .engines import check_engine, engine_of
from .given import check_amount, choose_tasks, fingerprint, take_dev, take_sentences
from .identity import given_facts, identity_of_run
from .memory import refusing_out_of_memory
from .refusing import plain_errors_of_workers, refuse_ignore_keys, refuse_parameters, word
from .sampling import Padded, PaddedSampler
from .scoring import Scorer
from .sized import SizedTrainer
from .watching import FirstSteps


class FocalCSETrainer(SizedTrainer):
    """Trains a ``…ForFocalCL`` encoder by an objective: by default a contrastive loss on two views of each sentence.

    Parameters that are not named below are Trainer's; what of Trainer has no meaning here is refused (`refusing.py`).

    Args:
        model: an encoder of `load_model`, or its name or folder.
        args: `FocalCSETrainingArguments`, None for their defaults, or plain `TrainingArguments`.
        loss: of `build_loss`, or its name, for the default objective; None is focal.
        train_dataset: sentences, see `take_rows`: a data set, a list, the path of a file, or of `read_sentences`.
        dev, eval_dataset: labelled tasks to score every ``eval_steps``, see `take_tasks`; two names for one thing.
        max_seq_length: tokens kept of a training sentence.
        mask_duplicates: equal texts are left out of each other's negatives; None leaves it to the loss.
        reference: a frozen encoder of `load_model`, or its name, for the losses that compare with one.
        negatives: "global", those of all processes, or "local".
        objective: an `Objective` in the place of loss, mask_duplicates, reference and negatives.
        allow_resume_mismatch: resume from a checkpoint of a run that differs from this one.
        measure_steps: log alignment and uniformity of a fixed sample every so many steps.
        compute_metrics: called with the cosines and the scores of labelled pairs, see `Scorer`.
        model_init: makes the encoder, or gives its name, anew for each run.

    Raises:
        UserError: a reference is missing or not used, every dropout rate is 0 (both views would be equal) and there is
            no augmentation, torch_compile meets a cutoff, there are fewer than two sentences a batch, the dev tasks
            do not give the metric that is to choose the best checkpoint, processes and engine are not those that
            were asked for, or something given cannot be used.
    """

    model: Any
    args: Any
    train_dataset: Any
    loss_is_scaled_for_ga = False  # compute_loss gives a mean: the division by accumulation steps is Trainer's

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        loss: ContrastiveLoss | str | None = None,
        train_dataset: Any = None,
        dev: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        max_seq_length: int = 32,
        mask_duplicates: bool | None = None,
        reference: Any = None,
        negatives: str = "global",
        allow_resume_mismatch: bool = False,
        measure_steps: int | None = None,
        objective: Objective | None = None,
        eval_dataset: Any = None,
        data_collator: Callable[[Any], dict[str, Tensor]] | None = None,
        model_init: Callable[..., Any] | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        **further: Any,
    ):
        refuse_parameters(further, FocalCSETrainer)
        self.began = time.monotonic()  # a command line puts its own beginning here
        self.args = args = take_arguments(args)
        chosen = (loss, mask_duplicates, reference, negatives, max_seq_length, train_dataset)
        self.objective = choose_objective(objective, *chosen)
        self.allow_resume_mismatch = allow_resume_mismatch
        self.dev = take_dev(dev, eval_dataset)
        self.alarms = Alarms()
        self.scorer = Scorer(self, self.dev, compute_metrics)
        self.record: RunRecord | None = None  # where a command line started the run; else made when it is finished
        self.finished = False  # whether the record is that of a run that has ended
        self.asked: dict[str, Any] = {}  # a command line puts the options here that make the run what it is
        self._identity: dict[str, Any] = {}
        self.step_time = Stopwatch()
        self._micro = (-1, 0)  # global step, batches seen in it
        self._observed: dict[str, float] = {}
        self._hub_token = args.hub_token
        model = self.first_model(model, model_init)
        optimizers = check_optimizers(optimizers, optimizer_cls_and_kwargs, model, model_init)
        self.given = given_facts(optimizers, optimizer_cls_and_kwargs)
        args = decide(args, self.dev, compute_metrics is not None)
        tokenizer = processing_class or model.tokenizer
        given = data_collator or self.train_objective.collator(tokenizer, max_seq_length, args.seed)
        if isinstance(given, Views):
            given.prompted(model.prompt, model.template)
        self.collate_views = as_collator(given, max_seq_length)
        self.max_seq_length = self.collate_views.max_seq_length
        self.prepare_model(model, args)
        super().__init__(
            model=model,
            args=args,
            train_dataset=take_sentences(train_dataset, self.collate_views, tokenizer, args),
            eval_dataset=self.dev or None,
            processing_class=tokenizer,
            data_collator=self.train_objective.collate(self.collate_views),
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )
        self.model_init = model_init  # Trainer takes it only where no model is given, and makes that without asking
        self.model_accepts_loss_kwargs = False  # before 5.24 this, not the class attribute, decides the division
        self.pads = args.world_size > 1 and not args.dataloader_drop_last
        check_compiled(model, self.accelerator)
        check_engine(args, self.accelerator, self.train_objective)
        check_lora(model, engine_of(self.accelerator))
        self.stop_signals = StopSignals()
        self.add_callback(StartOfTraining(self))
        self.add_callback(self.stop_signals)
        self.add_callback(FirstSteps(self.alarms, self._sharded))
        if measure_steps is not None:
            check_measuring(measure_steps, self.train_dataset, self.scorer.labelled)
            self.add_callback(Measuring(measure_steps, self.scorer.measure, self.log))

    def prepare_model(self, model: Any, args: Any) -> None:
        check_model(model, args, comparing=self.loss is not None)
        self.train_objective.attach(model, lambda: self.accelerator.autocast())
        self.carried = self.train_objective.has_state()
        model.carry(self.train_objective if self.carried else None)

    @property
    def loss(self) -> Any:
        """The loss that the objective computes over pairs; None where it has none."""
        return self.train_objective.criterion

    @property
    def baseline(self) -> dict[str, float]:
        """The dev scores before the first step."""
        return self.scorer.baseline

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
        loss, pairs = model(batch=batch) if self.carried else self.train_objective(model, batch)
        if pairs is not None and self._logs_next():
            self._observed = self.train_objective.diagnostics(pairs)
        return (loss, pairs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """As in transformers, timed where the objective's work beside the model takes a share of it."""
        if self.train_objective.side_time is None:
            return super().training_step(*args, **kwargs)
        with self.step_time:
            return super().training_step(*args, **kwargs)

    def describe_step(self) -> str:
        """How batches go through the encoder, and which optimizer updates the weights, for the log."""
        return f"{self.encoder.describe_step()}; optimizer {word(self.args.optim)}"

    def reference_cost(self) -> dict[str, float]:
        """The time of the objective's work outside the model, and its share of a step; empty without such work."""
        return self.train_objective.cost(self.step_time)

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
        padded = Padded(self.train_dataset, blank_row(self.collate_views))
        sampler = PaddedSampler(self.train_dataset, whole, self.args.data_seed or self.args.seed)
        return train_dataloader_by(self, padded, lambda _: sampler)

    def _logs_next(self) -> bool:
        step = self.state.global_step + 1
        return step == 1 or step % max(int(self.state.logging_steps), 1) == 0

    @property
    def logs_range(self) -> bool:
        """Whether the loss that is logged is that of the pairs alone, so that its range is known."""
        return type(self.train_objective) is Contrastive and not self.carried

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs = logs | self._observed | self.reference_cost() | self.scorer.expected()
            seen = logs if self.logs_range else without_range(logs)
            self.alarms.watch(seen, self.state.global_step, self.state.max_steps)
            self._observed = {}
        super().log(logs, start_time)

    # ---- evaluation

    def evaluate(  # type: ignore[override]
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Scores of the dev tasks, x 100, as ``eval_task/split/aggregation/metric``; without those of subsets.

        ``eval_seconds`` is what scoring took, ``eval_share_of_run`` what all scorings took of the run so far.

        eval_dataset: other tasks to score in place of the dev tasks, see `take_tasks`; or the name of one of these.
        """
        refuse_ignore_keys(ignore_keys)
        tasks = self.dev if eval_dataset is None else choose_tasks(eval_dataset, self.dev)
        if not tasks:
            raise UserError("there is nothing to score: the trainer has no eval_dataset; give one to evaluate(…)")
        metrics = self.scorer.metrics(metric_key_prefix, tasks)
        if eval_dataset is None and self.is_in_train:
            self.scorer.require_metric([name.removeprefix(f"{metric_key_prefix}_") for name in metrics])
        self.log(metrics | self.scorer.spent(metric_key_prefix))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(  # type: ignore[override]
        self, test_dataset: Any, ignore_keys: Any = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """The vectors of N sentences as ``predictions``, (N, D) float32, as the encoder embeds them; no ``label_ids``.

        test_dataset: a list of sentences, or a data set with a column that training would read; every row needs text.
        """
        refuse_ignore_keys(ignore_keys)
        texts, started = texts_of(test_dataset, "test_dataset"), time.time()
        vectors = self.scorer.encode(texts)
        metrics = speed_metrics(metric_key_prefix, started, num_samples=len(texts))
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, metrics)
        return PredictionOutput(predictions=vectors, label_ids=None, metrics=metrics)

    def score_baseline(self) -> dict[str, float]:
        """Score the encoder as it is before the first step; later scores are logged with their gain over it."""
        return self.scorer.score_baseline()

    # ---- the run

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> Any:
        """Trainer's, from a checkpoint that is known to be whole and of this run ("last": the last such one).

        Raises:
            UserError: no such checkpoint, a damaged one, or one of another run.
            Stopped: SIGTERM or Ctrl-C; a checkpoint was saved.
        """
        refuse_ignore_keys(ignore_keys_for_eval, "ignore_keys_for_eval")
        check_amount(self.train_dataset, self.args)
        self.begin_trial(trial)
        asked = "last" if resume_from_checkpoint is True else resume_from_checkpoint
        self.resumed_from, self._identity = None, {}
        path = self.choose_checkpoint(str(asked)) if asked else None
        if self.finished:  # trained further: another run
            self.record, self.finished = None, False
        if self.model is not None:  # else a search has scored it: between its runs there is no encoder
            self.scorer.begin()
            self.run_identity()
            self.look_at_settings()
        with self.hold_output(), self.stop_signals, read_without_code(path):
            return super().train(resume_from_checkpoint=path, trial=trial)

    @property
    def seconds(self) -> float:
        """Of this run, its earlier parts included up to the checkpoint that each was resumed from."""
        return (self.seconds_before or 0.0) + time.monotonic() - self.began

    def run_identity(self) -> dict[str, Any]:
        """What must be equal for a resumed run to equal the uninterrupted one, as it is before the first step."""
        self._identity = self._identity or identity_of_run(self) | {
            "engine": engine_of(self.accelerator),
            "data": fingerprint(self.train_dataset, self.args.dataloader_num_workers),
        }
        return self._identity

    def look_at_settings(self) -> None:
        """Raise an alarm for each setting that is far from anything published."""
        settings = self.train_objective.describe() | {
            "learning_rate": self.args.learning_rate,
            "max_seq_length": self.max_seq_length,
            "batch size of all processes": self.args.train_batch_size * self.args.world_size,
        }
        of_text = [(text, text) for text in getattr(getattr(self.train_dataset, "report", None), "alarms", ())]
        padding = untrained_token(self.encoder)
        for kind, message in [*of_text, *padding, *far_settings(settings)]:
            self.alarms.add(message, kind)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # resumed from the last step: Trainer would do one more
            self.control.should_training_stop = True
            return
        with refusing_out_of_memory(self.step_ran_out), plain_errors_of_workers():
            super()._run_epoch(*args, **kwargs)
