"""`FocalCSETrainer`: transformers' Trainer with a contrastive `compute_loss` and STS evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import SeedableRandomSampler
from accelerate.utils import DynamoBackend, broadcast_object_list
from safetensors import SafetensorError
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

from ..compat import save_unpublished, train_dataloader_by
from ..data.views import PADDING_ID, Views
from ..encoder.head import HEAD_FILE
from ..errors import UserError, suggest
from ..evaluation import evaluate_sts
from ..evaluation.identity import identify
from ..losses import ContrastiveLoss, missing_reference
from ..objectives.pairs import describe_pairs, gather_rows, make_pairs, reference_losses
from ..objectives.reference import FrozenReference, Stopwatch
from ..publishing.card import write_card
from ..publishing.export import export_model
from ..publishing.hub import Target, push
from ..runs.record import RUN_FILE, RunRecord, file_sha256
from . import checkpoints
from .args import FocalCSETrainingArguments
from .checkpoints import Checkpoint, find_checkpoint
from .devcost import LIMIT, DevCost
from .engines import check_engine, check_wrapper, engine_of
from .measuring import Measuring, measure_pairs, measure_views
from .memory import StepMemory, estimate_step, refusing_out_of_memory, step_ran_out
from .stopping import StopSignals

logger = logging.get_logger(__name__)

HARD_MARGIN = 0.3  # 1 - m above which a negative is called hard, for losses without an m of their own
COLLAPSED_COSINE = 0.98  # mean cosine of random sentences above which all vectors point one way
RANK_SEED = 1_000_003  # between the dropout seeds of two ranks; Trainer seeds all alike, which gives equal masks
WRITE_ERRORS = ("inline_container", "PytorchStreamWriter", "basic_ios::clear")  # torch.save's on a full disk


def _word(choice: Any) -> str:
    """An enum of transformers as a command line gives it."""
    return str(getattr(choice, "value", choice))


@contextmanager
def _refused_as(flag: str, remedy: str) -> Iterator[None]:
    """What transformers and torch refuse within it is a mistake in ``flag``."""
    try:
        yield
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{flag} cannot be used: {' '.join(str(error).split())}; {remedy}") from error


class FocalCSETrainer(Trainer):
    """Trains a ``…ForFocalCL`` encoder with a contrastive loss on two views of each sentence.

    Args:
        loss: a loss of `build_loss`.
        train_dataset: items with a ``text``; see `read_sentences`.
        dev: labelled tasks for `evaluate_sts`, or None to train without; they are scored every ``eval_steps``.
        max_seq_length: tokens kept of a training sentence.
        mask_duplicates: equal texts in a batch are no negatives of each other; None leaves it to the loss.
        reference: a frozen encoder of `load_model` for the losses that compare with one.
        negatives: "global", those of all processes, or "local".
        allow_resume_mismatch: resume from a checkpoint of a run that differs from this one.
        measure_steps: log alignment and uniformity of a fixed sample every so many steps.

    Raises:
        UserError: a reference is missing or not used, every dropout rate is 0 (both views would be equal) and there is
            no augmentation, torch_compile meets a cutoff, there are fewer than two sentences a batch, the metric that
            is to choose the best checkpoint is none of the dev tasks', or processes and engine are not what was asked
            for.
    """

    model: Any
    args: Any
    train_dataset: Any
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
        negatives: str = "global",
        allow_resume_mismatch: bool = False,
        measure_steps: int | None = None,
        **kwargs: Any,
    ):
        self.loss = loss
        self.negatives = negatives
        self.allow_resume_mismatch = allow_resume_mismatch
        self.began = time.monotonic()  # a command line puts its own beginning here
        self.seconds_before: float | None = 0.0  # of the run up to the checkpoint that it went on from; None: unknown
        self.asked: dict[str, Any] = {}  # a command line puts the options here that a resumed run must share
        self._staging = False
        self._micro = (-1, 0)  # global step, batches seen in it
        self.dev = list(dev or [])
        self.mask_duplicates = loss.mask_duplicates if mask_duplicates is None else mask_duplicates
        self.alarms: list[str] = []
        self.baseline: dict[str, float] = {}
        self._hub_token, args.hub_token = args.hub_token, None  # each checkpoint has a pickle of args
        self.record: RunRecord | None = None  # where a command line started the run; else made from what is here
        self._observed: dict[str, float] = {}
        self._collapsed_before = self._alone_before = False
        self.reference = choose_reference(loss, reference, max_seq_length)
        self.step_time, self.reference_time = Stopwatch(), Stopwatch()
        self.dev_cost, self._dear = DevCost(), False
        require_dropout(model)
        again = args.gradient_checkpointing or getattr(args, "activation_checkpointing", False)
        if again and not model.supports_gradient_checkpointing:
            raise UserError(
                f"--activation_checkpointing: {model.config.model_type} has none; use --chunk_size 64, which takes "
                "as little memory and gives the same gradient"
            )
        model.recomputing = again
        if args.n_gpu > 1:
            raise UserError(
                f"{args.n_gpu} GPUs are visible to one process, which would split every batch between them; start "
                f"with torchrun --nproc_per_node {args.n_gpu} run_unsup.py …, or set CUDA_VISIBLE_DEVICES=0 to use one"
            )
        if args.neftune_noise_alpha is not None:
            model.packing = False  # the noise is scaled by the length of a row, which must be a sentence
        if args.per_device_train_batch_size < 2:
            raise UserError(
                f"per_device_train_batch_size is {args.per_device_train_batch_size}; a sentence needs at least one "
                "other in its batch as a negative, so give 2 or more (64 is usual)"
            )
        if args.world_size > 1 and args.data_seed is None:
            args.data_seed = args.seed  # else the order follows each rank's generator, which dropout needs for itself
        choose_by_dev(args, self.dev)
        tokenizer = processing_class or model.tokenizer
        collator = kwargs.pop("data_collator", None) or Views(tokenizer, max_seq_length)
        self._collate_views = collator
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
        self.add_callback(_StartOfTraining(self))
        self.add_callback(self.stop_signals)
        if measure_steps is not None:
            self.add_callback(Measuring(measure_steps, self.measure, self.log))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        with _refused_as(f"--optim {_word(self.args.optim)}", "adamw_torch is the default"):
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        remedy = "give what it needs in --lr_scheduler_kwargs, or take linear, the default"
        with _refused_as(f"--lr_scheduler_type {_word(self.args.lr_scheduler_type)}", remedy):
            return super().create_scheduler(*args, **kwargs)

    # ---- the step

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        # Trainer divides the loss by the accumulation steps; transformers 5.5 has accelerate do it a second time
        self.accelerator.gradient_accumulation_steps = 1

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Views (B, V, L) -> embeddings (B, V, D) -> pairs -> loss, a mean over the anchors."""
        text_ids = inputs["text_ids"] if self.mask_duplicates else None
        embeddings = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])  # (B, V, D)
        reference = self._refer(inputs)
        if self.pads:  # the last batch: all ranks run it whole (FSDP2 and ZeRO-3 count on it), then leave padding out
            real = inputs["text_ids"] != PADDING_ID
            embeddings, text_ids = embeddings[real], None if text_ids is None else text_ids[real]
            reference = None if reference is None else reference[real]
        pairs = make_pairs(embeddings, text_ids, reference, self.negatives, self._step_seed())
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

    def describe_step(self) -> str:
        """How batches go through the encoder and by what they are stepped, for the log."""
        encoder = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        return f"{encoder.describe_step()}; optimizer {getattr(self.args.optim, 'value', self.args.optim)}"

    def reference_cost(self) -> dict[str, float]:
        """Seconds per batch that the reference takes, and its share of forward and backward; empty without one."""
        if self.reference is None or not self.step_time.laps:
            return {}
        own, step = self.reference_time.seconds(), self.step_time.seconds()
        return {"reference_seconds_per_batch": own / self.reference_time.laps, "reference_share_of_step": own / step}

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
        sampler = _PaddedSampler(self.train_dataset, whole, self.args.data_seed or self.args.seed)
        return train_dataloader_by(self, _Padded(self.train_dataset), lambda _: sampler)

    def _logs_next(self) -> bool:
        step = self.state.global_step + 1
        return step == 1 or step % max(int(self.state.logging_steps), 1) == 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs = logs | self._observed | self.reference_cost() | self._expected_cost()
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
        """Scores of the dev tasks, x 100, as ``eval_task/split/aggregation/metric``; without those of subsets.

        ``eval_seconds`` is what scoring took, ``eval_share_of_run`` what all scorings took of the run so far.
        """
        with self.dev_cost.scoring():
            scores = self.score()
        metrics = {f"{metric_key_prefix}_{name}": v for name, v in scores.items() if "/subset:" not in name}
        for name, value in scores.items():
            if name.endswith("/all/spearman") and name in self.baseline:
                metrics[f"{metric_key_prefix}_{name}/gain"] = value - self.baseline[name]
        self.log(metrics | self._cost(metric_key_prefix))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _cost(self, prefix: str) -> dict[str, float]:
        """Of the scoring that has just ended; warns once where scoring takes more than its share."""
        cost, step, every = self.dev_cost, self.state.global_step, self.state.eval_steps
        found = {f"{prefix}_seconds": round(cost.last, 3)}
        share = cost.share(step)
        if share is None:
            return found
        enough = cost.enough(step)
        expected = cost.expected(step, every) if self._scores_by_steps() else share
        if enough is not None and expected is not None and expected > LIMIT and not self._dear:
            self._dear = True
            logger.warning(
                "scoring the dev set takes %.1f s, %.0f %% of the run; --eval_steps %d would hold it at %.0f %%",
                *(cost.last, 100 * expected, enough, 100 * LIMIT),
            )
        return found | {f"{prefix}_share_of_run": round(share, 4)}

    def _expected_cost(self) -> dict[str, float]:
        """The share of the run that scoring is going to take, until the first scoring within the run tells it."""
        step, every = self.state.global_step, self.state.eval_steps
        if not (self.dev and self._scores_by_steps()) or step >= every:
            return {}
        expected = self.dev_cost.expected(step, every)
        return {} if expected is None else {"eval_share_expected": round(expected, 4)}

    def _scores_by_steps(self) -> bool:
        return self.args.eval_strategy == IntervalStrategy.STEPS

    def score(self) -> dict[str, float]:
        """Scores of the dev tasks by the same code path as ``run_eval.py``; several ranks share the sentences."""
        progress = self.is_world_process_zero() and not self.args.disable_tqdm
        size = f"--per_device_eval_batch_size {self.args.per_device_eval_batch_size}"
        with refusing_out_of_memory(lambda: f"out of memory in scoring the dev set at {size}; lower it"):
            return evaluate_sts(SimpleNamespace(encode=self._encode), self.dev, progress=progress).scores

    def measure(self) -> dict[str, float]:
        """Alignment and uniformity of a fixed sample of the first dev task or, without one, of training text."""
        if self.dev:
            return measure_pairs(self.dev[0], self._encode)
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        return measure_views(model, self.train_dataset, self._collate_views, self.args.device)

    def _encode(self, texts: list[str]) -> np.ndarray:
        """N sentences -> (N, D), as they will be embedded."""
        encoder = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        encode = partial(encoder.encode, batch_size=self.args.per_device_eval_batch_size)
        return encode(texts) if self.args.world_size == 1 else self._encode_shared(encode, texts)

    def _encode_shared(self, encode: Callable[[list[str]], np.ndarray], texts: list[str]) -> np.ndarray:
        """N sentences -> (N, D), every W-th by this rank, the same bits on all.

        Short shares are filled up: all ranks run as many forwards, which are collective under FSDP2 and ZeRO-3.
        """
        ranks = self.args.world_size
        share = texts[self.args.process_index :: ranks]
        share += texts[:1] * (-(-len(texts) // ranks) - len(share))
        own = torch.from_numpy(encode(share)).to(self.args.device)
        everyone = gather_rows(own, [len(share)] * ranks).cpu()  # (W * n, D), rank by rank
        return everyone.unflatten(0, (ranks, -1)).transpose(0, 1).flatten(0, 1)[: len(texts)].contiguous().numpy()

    def score_baseline(self) -> dict[str, float]:
        """Score the encoder as it is before the first step; later scores are logged with their gain over it."""
        with self.dev_cost.scoring():
            self.baseline = self.score() if self.dev else {}
        metric = str(self.args.metric_for_best_model)
        if self.args.load_best_model_at_end and metric not in self.baseline:
            raise UserError(
                f"metric_for_best_model is {metric!r}{suggest(metric, self.baseline)}; the dev set gives: "
                f"{', '.join(name for name in self.baseline if '/subset:' not in name)}"
            )
        return self.baseline

    # ---- interrupted runs

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Trainer's, from a checkpoint that is known to be whole and of this run ("last": the last such one).

        Raises:
            UserError: no such checkpoint, a damaged one, or one of another run.
            Stopped: SIGTERM or Ctrl-C; a checkpoint was saved.
        """
        asked = "last" if resume_from_checkpoint is True else resume_from_checkpoint
        path = self._choose_checkpoint(str(asked)) if asked else None
        with self.stop_signals:
            return super().train(resume_from_checkpoint=path, **kwargs)

    def _choose_checkpoint(self, asked: str) -> str | None:
        """Rank 0 looks, all ranks get its answer."""
        answer: list[Any] = [None, None]  # what is wrong, the checkpoint
        if self.args.process_index == 0:
            try:
                answer[1] = find_checkpoint(self.args.output_dir, asked)
            except UserError as error:
                answer[0] = str(error)
        if self.args.world_size > 1:
            broadcast_object_list(answer)
        problem, checkpoint = answer
        if problem:
            raise UserError(problem)
        if checkpoint is None:
            self.alarm(f"there is no checkpoint in {self.args.output_dir} yet: training starts from the beginning")
            return None
        for note in checkpoint.notes:
            self.alarm(note)
        self._require_same_run(checkpoint)
        self.seconds_before = checkpoint.run.get("seconds")
        logger.warning("resuming from %s", checkpoint.path)
        return str(checkpoint.path)

    def _require_same_run(self, checkpoint: Checkpoint) -> None:
        differences = checkpoints.differences_of_run(checkpoint, self.run_identity())
        if differences and not self.allow_resume_mismatch:
            raise UserError(
                f"{checkpoint.path} is of another run: {'; '.join(differences)}; give the same, or "
                "--allow_resume_mismatch to go on all the same"
            )
        if differences:
            self.alarm(f"resumed from {checkpoint.path}, which is of another run: {'; '.join(differences)}")

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
            "data": report.sha256 if report is not None else len(self.train_dataset),
            "loss": self.loss.config | {"mask_duplicates": self.mask_duplicates},
            "negatives": self.negatives,
            "chunk_size": self.accelerator.unwrap_model(self.model, keep_torch_compile=False).chunk_size,
        }

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # resumed from the last step: Trainer would do one more
            self.control.should_training_stop = True
            return
        with refusing_out_of_memory(self._step_ran_out):
            super()._run_epoch(*args, **kwargs)

    # ---- memory

    @cached_property
    def step_memory(self) -> StepMemory:
        """What a step will take, see `estimate_step`; ask before `train`, which may shard the model."""
        return estimate_step(
            self.accelerator.unwrap_model(self.model, keep_torch_compile=False),
            self.loss,
            self.args.train_batch_size,
            getattr(self._collate_views, "max_seq_length", 32),
            optimizer=_word(self.args.optim),
            world_size=self.args.world_size if self.negatives == "global" else 1,
            views=getattr(self.data_collator, "views", 2),
            autocast=self.accelerator.autocast,
        )

    def _step_ran_out(self) -> str:
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        views = getattr(self.data_collator, "views", 2)
        length = getattr(self._collate_views, "max_seq_length", None)
        said = step_ran_out(self.args.train_batch_size * views, views, length, model.chunk_size)
        kept = checkpoints.list_checkpoints(Path(str(self.args.output_dir)))
        if not kept:
            return said
        return f"{said}; {kept[-1].name} is kept: add --resume_from_checkpoint last --allow_resume_mismatch"

    def _get_output_dir(self, trial: Any) -> str:
        """While a checkpoint is written: the place from which it is moved when it is whole."""
        folder = super()._get_output_dir(trial)
        return str(checkpoints.stage(folder)) if self._staging else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A checkpoint appears whole or not at all; the best and the last are never deleted."""
        folder = Path(self.args.output_dir)
        name = f"checkpoint-{self.state.global_step}"
        best_before = self.state.best_model_checkpoint
        self._staging = True
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise self._saving_failed(error) from error
        finally:
            self._staging = False
        self.state.best_model_checkpoint = (
            str(folder / name) if self.state.best_global_step == self.state.global_step else best_before
        )
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            try:
                staged = checkpoints.stage(folder) / name
                (staged / "training_args.bin").unlink(missing_ok=True)  # a pickle; run.json says the same
                self.state.save_to_json(str(staged / "trainer_state.json"))  # with the best one's final place
                run = self.run_identity() | {"seconds": round(self.seconds, 1)}
                checkpoints.publish(staged, folder / name, run, not self.args.save_only_model)
                checkpoints.rotate(folder, self.args.save_total_limit, self.state.best_model_checkpoint)
            except OSError as error:
                raise self._saving_failed(error) from error
        self.accelerator.wait_for_everyone()

    def save_whole(self, folder: Path) -> None:
        """The model for its users, written beside and then moved file by file, so that none is half written."""
        stage = checkpoints.stage(folder) / "model"
        try:
            save_unpublished(self, stage)  # else it would push before run.json is there
            if self.args.should_save:
                (stage / "training_args.bin").unlink(missing_ok=True)  # a pickle; run.json says the same
                checkpoints.publish_files(stage, folder)
                checkpoints.clear_stage(folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise self._saving_failed(error) from error

    def _saving_failed(self, error: Exception) -> Exception:
        """A UserError for a failed write, the error itself for anything else."""
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in WRITE_ERRORS):
            return error
        return checkpoints.saving_failed(error, self.args.output_dir)

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
            data={"max_seq_length": getattr(self._collate_views, "max_seq_length", None), "sha256": ""} | data,
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
                identity = identify(model, folder.name, weights)
                results = evaluate_sts(model, self.dev, progress=False, model=identity)
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
        save_unpublished(self)
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

    # ---- checkpoints of encoders whose projection lies in a side file; FSDP2 and ZeRO keep it with the rest

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            self.accelerator.unwrap_model(self.model).load_head(self.state.best_model_checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            self.accelerator.unwrap_model(model or self.model).load_head(resume_from_checkpoint)


class _StartOfTraining(TrainerCallback):
    """Checks the wrapper, which exists from now on; gives each rank dropout masks of its own; tidies up."""

    def __init__(self, trainer: FocalCSETrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        check_wrapper(self.trainer.model_wrapped, self.trainer.accelerator, args)
        if args.process_index > 0:  # a resumed run gets the states of its generators afterwards
            torch.manual_seed(args.seed + RANK_SEED * args.process_index)
        if args.should_save:
            checkpoints.clear_stage(args.output_dir)
        self.trainer.accelerator.wait_for_everyone()
        self.trainer.dev_cost.restart()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.dev_cost.begin(state.global_step)


class _Padded(Dataset):
    """A data set that goes on with empty texts after its end."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.dataset[index] if index < len(self.dataset) else {"text": ""}


class _PaddedSampler(Sampler):
    """The order of accelerate's seeded sampler, then indices past the end until batches of all ranks are whole."""

    def __init__(self, dataset: Any, whole: int, seed: int):
        self.order = SeedableRandomSampler(dataset, data_seed=seed)
        self.length = -(-len(dataset) // whole) * whole

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        yield from self.order
        yield from range(len(self.order), self.length)


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
        metric, args.greater_is_better = default, True
    if not any(metric.startswith(f"{task.key}/") for task in dev):
        raise UserError(f"metric_for_best_model is {metric!r}, but the dev set gives {default!r}")
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
