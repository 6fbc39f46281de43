"""`FocalCSETrainingArguments`, the arguments of transformers with our defaults, and what a trainer decides of them.

``options/foreign.py`` says how each argument is treated; an option of our own is a field of ``options/training.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from ..errors import UserError
from .engines import asked_engine, asked_processes, check_fsdp_version, check_launch, no_accelerator, prepare_deepspeed


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
        default=True, metadata={"help": "End with the checkpoint that scored best on the dev set."}
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
        super().__post_init__()
        check_fsdp_version(self)
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False  # without a GPU torch would warn at every start


def decide(args: Any, dev: Sequence[Any]) -> Any:
    """A copy of ``args`` with what depends on the dev tasks and the number of processes; ``args`` stays as it is.

    The dev tasks choose the best checkpoint; without any, nothing is scored and the last checkpoint is kept. The token
    of the Hub is left out, since each checkpoint that Trainer writes holds a pickle of its arguments.

    Raises:
        UserError: no dev task gives the metric that is asked for.
    """
    decided = copy.copy(args)
    decided.hub_token = None
    if args.world_size > 1 and args.data_seed is None:
        decided.data_seed = args.seed  # else the order follows each rank's generator, which dropout needs for itself
    if not dev:
        decided.eval_strategy, decided.load_best_model_at_end = IntervalStrategy.NO, False
        decided.metric_for_best_model = None
        return decided
    default = dev[0].headline
    metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
    if metric == "loss":  # what TrainingArguments puts where nothing was asked for; evaluation gives no loss
        metric, decided.greater_is_better = default, True
    if not any(metric.startswith(f"{task.key}/") for task in dev):
        raise UserError(f"metric_for_best_model is {metric!r}, but the dev set gives {default!r}")
    if metric.endswith(("/alignment", "/uniformity")):
        decided.greater_is_better = False
    decided.metric_for_best_model = metric
    return decided
