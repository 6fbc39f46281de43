"""The arguments of `transformers.TrainingArguments`: how each that this package knows is treated.

An argument that no row names has the role ``identity``. A row whose key ends in ``*`` holds for all arguments that
begin so and have no row of their own; arguments of older versions are among them, since their runs are still read.
"""

from __future__ import annotations

from .field import HARMLESS, PATH, Option, Range, above, at_least, one_of, up_to

LOGS = Option(HARMLESS, "it changes what is printed or logged")
KEPT = Option(HARMLESS, "it changes which checkpoints are kept")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # of torch.compile
PUBLISHED = Option(HARMLESS, "it is about the repository on the Hub")
LOADED = Option(HARMLESS, "it changes how fast sentences are read, not which")
RECOMPUTED = Option(HARMLESS, "activations are computed again with the same dropout, which gives the same gradient")
UNREAD = Option(HARMLESS, "nothing here reads it")

FOREIGN = {
    "output_dir": Option(
        PATH,
        "it is where the run is written",
        sweep="every run has a folder of its own below --runs",
        short=("output",),
    ),
    "resume_from_checkpoint": Option(
        PATH, "a resumed run equals an uninterrupted one", sweep="interrupted runs are resumed anyway"
    ),
    "push_to_hub": Option(HARMLESS, PUBLISHED.why, sweep="publish the run you choose afterwards, with focalcse push"),
    "hub_*": PUBLISHED,
    # what is learnt
    "learning_rate": Option(range=above(0, "a number above 0"), recorded=True, short=("lr",)),
    "lr_scheduler_type": Option(recorded=True),
    "warmup_steps": Option(range=at_least(0), recorded=True),
    "weight_decay": Option(range=at_least(0), recorded=True),
    "max_grad_norm": Option(range=at_least(0, "at least 0 (0 does not clip)"), recorded=True),
    "max_steps": Option(range=Range(lambda steps: steps == -1 or steps >= 1, "at least 1"), recorded=True),
    "num_train_epochs": Option(range=above(0), replaces=("max_steps",), recorded=True, short=("epochs",)),
    "per_device_train_batch_size": Option(recorded=True, short=("batch_size",)),
    "gradient_accumulation_steps": Option(range=at_least(1), recorded=True),
    "seed": Option(
        range=up_to(0, 2**32 - 1, "a whole number from 0 to 4294967295"),
        recorded=True,
        told=True,
        factor=False,
    ),
    "data_seed": Option(range=up_to(0, 2**32 - 1, "a whole number from 0 to 4294967295")),
    "neftune_noise_alpha": Option(range=at_least(0)),
    "torch_compile_mode": Option(range=one_of(*COMPILE_MODES)),
    "activation_checkpointing": RECOMPUTED,
    "gradient_checkpointing": RECOMPUTED,
    "activation_checkpointing_kwargs": RECOMPUTED,
    "gradient_checkpointing_kwargs": RECOMPUTED,
    "torch_empty_cache_steps": Option(HARMLESS, "it frees memory between steps"),
    "deepspeed": Option(PATH),
    "ddp_timeout": Option(HARMLESS, "it says how long processes wait for each other"),
    "local_rank": Option(HARMLESS, "the launcher numbers the processes"),
    "debug": LOGS,
    "do_*": UNREAD,
    # when it is scored and saved
    "eval_steps": Option(range=above(0)),
    "save_steps": Option(range=above(0)),
    "save_total_limit": KEPT,
    "save_only_model": KEPT,
    "save_on_each_node": KEPT,
    "enable_jit_checkpoint": KEPT,
    # what is printed, and how batches are read
    "logging_steps": Option(HARMLESS, LOGS.why, range=above(0)),
    "logging_first_step": LOGS,
    "logging_strategy": LOGS,
    "logging_dir": LOGS,
    "log_*": LOGS,
    "disable_tqdm": LOGS,
    "report_to": LOGS,
    "run_name": Option(PATH, LOGS.why),  # transformers takes the output folder for it
    "project": LOGS,
    "trackio_*": LOGS,
    "include_num_input_tokens_seen": LOGS,
    "skip_memory_metrics": LOGS,
    "per_device_eval_batch_size": Option(
        HARMLESS, "a vector does not depend on the sentences beside it", range=at_least(1)
    ),
    "dataloader_num_workers": Option(HARMLESS, "the order of the sentences does not depend on it", range=at_least(0)),
    "dataloader_pin_memory": LOADED,
    "dataloader_persistent_workers": LOADED,
    "dataloader_prefetch_factor": LOADED,
    "dataloader_multiprocessing_context": LOADED,
}
