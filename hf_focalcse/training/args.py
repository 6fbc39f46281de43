"""`FocalCSETrainingArguments`: the arguments of transformers with our defaults; it takes seconds to import.

How each is treated says `options/foreign.py`; an option of our own is a field of `options/training.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from transformers import TrainingArguments

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
        default=False, metadata={"help": "Hide a loss that is no number from the log; then it cannot stop the run."}
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
            self.dataloader_pin_memory = False  # torch warns at every start where there is nothing to pin for
