"""`FocalCSETrainingArguments`, the arguments of transformers with our defaults, and what a trainer decides of them.

``options/foreign.py`` says how each argument is treated; an option of our own is a field of ``options/training.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_utils import HubStrategy, IntervalStrategy
from transformers.utils import logging

from ..errors import UserError
from ..options.unhonoured import UNHONOURED
from .engines import asked_engine, asked_processes, check_fsdp_version, check_launch, no_accelerator, prepare_deepspeed
from .refusing import word

logger = logging.get_logger(__name__)
OUTPUT = "trainer_output"  # the output folder where none is named, as in transformers


@dataclass
class FocalCSETrainingArguments(TrainingArguments):
    """`transformers.TrainingArguments` with the defaults of unsupervised contrastive training.

    Batches are whole (a short last batch would have fewer negatives) and the text column is kept for the collator.
    """

    _argument_group_name = "transformers.TrainingArguments, with our defaults"

    learning_rate: float = field(default=3e-5, metadata={"help": "Peak learning rate of AdamW."})
    num_train_epochs: float = field(default=1.0, metadata={"help": "Epochs, where --max_steps is not given."})
    per_device_train_batch_size: int = field(default=64, metadata={"help": "Sentences per step and device."})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Sentences encoded together."})
    dataloader_drop_last: bool = field(default=True, metadata={"help": "Drop the last batch if it is not whole."})
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Must stay off: the collator needs the text."}
    )
    eval_strategy: str = field(default="steps", metadata={"help": "When to score the dev set: no, steps or epoch."})
    eval_steps: float | None = field(default=125, metadata={"help": "Steps between two scorings of the dev set."})
    save_strategy: str = field(default="steps", metadata={"help": "When to save a checkpoint: no, steps or epoch."})
    save_total_limit: int | None = field(
        default=2,  # with 1, Trainer deletes the last checkpoint at the end and the run could not be continued
        metadata={"help": "Checkpoints kept: the best and the last are among them."},
    )
    load_best_model_at_end: bool = field(
        default=True, metadata={"help": "End with the checkpoint that scored best on the dev set, if both are kept."}
    )
    logging_nan_inf_filter: bool = field(
        default=False,
        metadata={"help": "Leave a loss of NaN or infinity out of the log; then it cannot stop the run."},
    )
    logging_steps: float = field(default=10, metadata={"help": "Steps between two log lines."})
    logging_first_step: bool = field(default=True, metadata={"help": "Log the first step too."})
    hub_strategy: str = field(default="end", metadata={"help": "Must stay: the finished export is pushed once."})
    hub_private_repo: bool | None = field(
        default=None, metadata={"aliases": ["--private"], "help": "Make the repository private if it is new."}
    )
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "See torch DDP."})
    ddp_broadcast_buffers: bool | None = field(default=False, metadata={"help": "See torch DDP."})

    def __post_init__(self) -> None:
        check_launch()
        if asked_processes() > 1 and no_accelerator():
            self.use_cpu = True  # else accelerate makes no process group and every process trains on its own
        if asked_engine(self) == "DeepSpeed":
            prepare_deepspeed()
        self._follow()
        super().__post_init__()
        check_fsdp_version(self)
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False  # without a GPU torch would warn at every start

    def _follow(self) -> None:
        """Let our defaults follow what is given, where transformers would refuse the two together: the best checkpoint
        is chosen among those that were scored, so that saving and scoring go by the same steps."""
        scores, saves = word(self.eval_strategy), word(self.save_strategy)
        if not self.load_best_model_at_end:
            return
        if "no" in (scores, saves):
            self.load_best_model_at_end = False
        elif {scores, saves} == {"steps", "epoch"}:
            self.eval_strategy = self.save_strategy = "epoch"
        elif (scores, saves) == ("steps", "steps") and self.eval_steps and self.save_steps % self.eval_steps:
            if self.save_steps == _default("save_steps"):
                self.save_steps = self.eval_steps
            elif self.eval_steps == _default("eval_steps"):
                self.eval_steps = self.save_steps


def _default(name: str) -> Any:
    return next(f.default for f in fields(FocalCSETrainingArguments) if f.name == name)


def take_arguments(args: Any) -> Any:
    """What a script gives as ``args``, checked: our arguments, plain ones of transformers, or None for our defaults.

    Plain arguments count as they are, their defaults too; only what training here needs is changed, by `decide`.

    Raises:
        UserError: they are no training arguments, or ask for what is not done here.
    """
    if args is None:
        return FocalCSETrainingArguments(output_dir=OUTPUT)
    if not isinstance(args, TrainingArguments):
        raise UserError(
            f"args is {type(args).__name__} {repr(args)[:60]}; give FocalCSETrainingArguments(output_dir=…), or leave "
            "it out"
        )
    if not isinstance(args, FocalCSETrainingArguments):
        check_launch()
        if asked_engine(args) == "DeepSpeed":
            prepare_deepspeed()
        check_fsdp_version(args)
        logger.warning(
            "plain TrainingArguments count as they are: learning rate %g, batches of %d, %s; "
            "FocalCSETrainingArguments has the defaults of this package (3e-5, 64, a score every 125 steps)",
            *(args.learning_rate, args.per_device_train_batch_size),
            f"eval_strategy {word(args.eval_strategy)}",
        )
    check_honoured(args)
    return args


def check_honoured(args: TrainingArguments) -> None:
    """Refuse arguments that would be ignored.

    Raises:
        UserError: an argument of `UNHONOURED`, or one that sentence-transformers adds, is not at its default.
    """
    foreign = {f.name for f in fields(args)} if type(args).__module__.startswith("sentence_transformers") else set()
    reasons = dict.fromkeys(
        foreign - {f.name for f in fields(TrainingArguments)},
        f"it is one of {type(args).__name__}, which FocalCSETrainer does not have",
    )
    reasons |= UNHONOURED
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        if (getattr(args, name, None) or {}).get("preserve_rng_state") is False:
            raise UserError(
                f"{name} has preserve_rng_state false, with which activations would be computed again with another "
                "dropout, and the gradient would be wrong; leave it out"
            )
    if foreign:
        del reasons["prediction_loss_only"]  # these arguments always set it
    for f in fields(args):
        if f.name in reasons and not _is_default(args, f):
            value = getattr(args, f.name)
            raise UserError(f"{f.name} is {getattr(value, 'value', value)!r}, but {reasons[f.name]}; leave it out")


def _is_default(args: Any, f: Any) -> bool:
    """Whether an argument has the value that its class gives it where nothing is said."""
    default = f.default if f.default_factory is MISSING else f.default_factory()
    value = getattr(args, f.name)
    return bool(getattr(value, "value", value) == getattr(default, "value", default)) or value in (None, [])


def decide(args: Any, dev: Sequence[Any], own_metrics: bool = False) -> Any:
    """A copy of ``args`` with what depends on the dev tasks and the number of processes; ``args`` stays as it is.

    The dev tasks choose the best checkpoint; without any, nothing is scored and the last checkpoint is kept. The token
    of the Hub is left out, since each checkpoint that Trainer writes holds a pickle of its arguments.

    own_metrics: whether a script's compute_metrics gives scores whose names are not known yet.

    Raises:
        UserError: no dev task gives the metric that is asked for.
    """
    decided = copy.copy(args)
    decided.hub_token = None
    decided.remove_unused_columns = False  # the collator needs the text
    decided.hub_strategy = HubStrategy.END
    for name in ("ddp_find_unused_parameters", "ddp_broadcast_buffers"):
        if getattr(args, name) is None:  # each rank has buffers of its own, and all parameters get a gradient
            setattr(decided, name, False)
    decided.dataloader_pin_memory = args.dataloader_pin_memory and args.device.type != "cpu"
    if args.accelerator_config.dispatch_batches is None:  # else a stream's batches must all be of one length
        decided.accelerator_config = copy.copy(args.accelerator_config)
        decided.accelerator_config.dispatch_batches = False
    if args.world_size > 1 and args.data_seed is None:
        decided.data_seed = args.seed  # else the order follows each rank's generator, which dropout needs for itself
    if not dev:
        if type(args) is TrainingArguments and args.eval_strategy != IntervalStrategy.NO:
            raise UserError(
                f"eval_strategy is {word(args.eval_strategy)}, but there is nothing to score; give eval_dataset, or "
                "leave eval_strategy out"
            )
        decided.eval_strategy, decided.load_best_model_at_end = IntervalStrategy.NO, False
        decided.metric_for_best_model = None
        return decided
    default = dev[0].headline
    metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
    if metric == "loss":  # what TrainingArguments puts where nothing was asked for; evaluation gives no loss
        metric, decided.greater_is_better = default, True
    if not own_metrics and not any(metric.startswith(f"{task.key}/") for task in dev):
        raise UserError(f"metric_for_best_model is {metric!r}, but the dev set gives {default!r}")
    if metric.endswith(("/alignment", "/uniformity")):
        decided.greater_is_better = False
    decided.metric_for_best_model = metric
    return decided
