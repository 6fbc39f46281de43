"""Which engine drives the processes: what really runs is checked against what was asked for, before the first step.

Launchers, accelerate and DeepSpeed silently fall back in at least ten ways (one process for two, DDP for FSDP,
no averaging of gradients, another clipping, an empty folder for a model). Each is refused with what works.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType

from ..compat import leave_out_shared_memory_operator, no_deepspeed_config
from ..errors import UserError

ON_CPU = "accelerate launch --config_file accelerate_configs/cpu_2.yaml run_unsup.py …"
BY_TORCHRUN = "torchrun --nproc_per_node {n} run_unsup.py --use_cpu true …"
FSDP_FROM = "2.11"
WRAPPERS = {"DDP": "DistributedDataParallel", "FSDP2": "FSDPModule", "ZeRO": "DeepSpeedEngine"}
DEFAULT_CLIPPING = "DeepSpeed would clip gradients at its own default of 1.0 whatever --max_grad_norm says"


# ---- what was asked for


def asked_processes() -> int:
    """WORLD_SIZE, which launchers set for every process they start."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def asked_of_launcher() -> int:
    """``--num_processes`` of the `accelerate launch` that started this process, by flag or config file; else 1."""
    import psutil

    try:
        line = psutil.Process().parent().cmdline()
    except (psutil.Error, AttributeError):  # no parent, or not ours to look at
        return 1
    start = next((i for i, word in enumerate(line) if word.endswith(("accelerate-launch", "commands.launch"))), None)
    if start is None and "launch" in line and any(Path(word).name == "accelerate" for word in line):
        start = line.index("launch")
    if start is None:
        return 1
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    asked, _ = launch_command_parser().parse_known_args(line[start + 1 :])
    if asked.num_processes is None and (asked.config_file or (os.path.isfile(default_config_file) and not asked.cpu)):
        return int(load_config_from_file(asked.config_file).num_processes or 1)
    return int(asked.num_processes or 1)


def check_launch() -> None:
    """Refuse a launcher that was asked for several processes and started one.

    Raises:
        UserError: with a command that starts them.
    """
    if asked_processes() == 1 and (asked := asked_of_launcher()) > 1:
        raise UserError(
            f"accelerate launch was asked for {asked} processes and started one: with --cpu, use_cpu or MULTI_CPU it "
            f"ignores num_processes; use {ON_CPU} or {BY_TORCHRUN.format(n=asked)}"
        )


def check_fsdp_version(args: Any) -> None:
    """FSDP 1 is deprecated, and saving from it crashes on some machines; FSDP 2 of torch before 2.11 gives other
    gradients than one process (2.7) or fails where a layer runs again (2.8 to 2.10).

    Raises:
        UserError: it was asked for.
    """
    by_launcher = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and os.environ.get("FSDP_VERSION") == "1"
    if (args.fsdp_plugin_args or {}).get("fsdp_version") == 1 or by_launcher:
        raise UserError('FSDP 1 is not supported; give --fsdp_version 2 to accelerate launch, or "version": 2 in '
                        "--fsdp_config")  # fmt: skip
    if asked_engine(args) == "FSDP2" and torch.__version__ < FSDP_FROM:  # by numbers, not by letters
        raise UserError(
            f"FSDP of torch {torch.__version__} does not give the gradient of one process here; install torch "
            f"{FSDP_FROM} or newer, or train without --fsdp (DDP and DeepSpeed are exact)"
        )


def no_accelerator() -> bool:
    return not torch.accelerator.is_available() if hasattr(torch, "accelerator") else not torch.cuda.is_available()


def asked_engine(args: Any) -> str:
    env = os.environ
    if args.deepspeed or env.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        return "DeepSpeed"
    if args.fsdp or env.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        return "FSDP2"
    return "DDP" if asked_processes() > 1 else "one process"


# ---- what runs


def engine_of(accelerator: Any) -> str:
    """one process, DDP, FSDP2, ZeRO-0 … ZeRO-3."""
    kind = accelerator.distributed_type
    if kind == DistributedType.DEEPSPEED:
        return f"ZeRO-{accelerator.state.deepspeed_plugin.zero_stage}"
    if kind == DistributedType.FSDP:
        return f"FSDP{accelerator.state.fsdp_plugin.fsdp_version}"
    return "one process" if kind == DistributedType.NO else "DDP"


def check_engine(args: Any, accelerator: Any, objective: Any = None) -> None:
    """Refuse an engine that is not the one asked for, that would save nothing or clip by its own rule, or that the
    objective cannot be trained by.

    Raises:
        UserError: with the setting or the command that works.
    """
    if objective is not None:
        objective.check_engine(engine_of(accelerator))
    asked, runs, several = asked_engine(args), engine_of(accelerator), asked_processes()
    if accelerator.num_processes != several:
        raise UserError(
            f"{several} processes were started, but each of them sees {accelerator.num_processes}: they would train "
            f"apart from each other; on a machine without GPUs use {BY_TORCHRUN.format(n=several)}"
        )
    if asked != "one process" and not runs.startswith({"DeepSpeed": "ZeRO", "FSDP2": "FSDP"}.get(asked, asked)):
        remedy = {
            "FSDP2": f"accelerate turns FSDP on for GPUs only; without them use DDP: {BY_TORCHRUN.format(n=several)} "
            "without --fsdp",
            "DeepSpeed": "ACCELERATE_USE_CPU or --cpu turns DeepSpeed off; unset it and use "
            f"{BY_TORCHRUN.format(n=several)} --deepspeed FILE",
        }.get(asked, f"use {BY_TORCHRUN.format(n=several)}")
        raise UserError(f"{asked} was asked for and {runs} would run: {remedy}")
    if runs == "FSDP2" and "FULL" not in str(accelerator.state.fsdp_plugin.state_dict_type):
        raise UserError(
            "FSDP with SHARDED_STATE_DICT saves a folder without a model; give --fsdp_state_dict_type FULL_STATE_DICT "
            'to accelerate launch, or "state_dict_type": "FULL_STATE_DICT" in --fsdp_config'
        )
    if several > 1 and recomputes_reentrantly(args):
        raise UserError(
            f"activations are to be computed again with use_reentrant true, by which {runs} gets the gradient of a "
            "parameter twice and stops; leave use_reentrant out, without which they are computed again in the way "
            "that works"
        )
    if runs.startswith("ZeRO"):
        check_deepspeed(accelerator.state.deepspeed_plugin.deepspeed_config, args)


def recomputes_reentrantly(args: Any) -> bool:
    """Whether activations are computed again by the older way of torch, a backward pass within backward."""
    names = ("gradient_checkpointing", "activation_checkpointing")  # the second is its name in newer versions
    asked = any(getattr(args, name, None) for name in names)
    return asked and any((getattr(args, f"{name}_kwargs", None) or {}).get("use_reentrant") for name in names)


def check_deepspeed(config: dict[str, Any], args: Any) -> None:
    """Refuse a DeepSpeed config that clips by another rule than --max_grad_norm or cannot save a whole model."""
    clipping = config.get("gradient_clipping")
    if clipping is None:
        raise UserError(f'the DeepSpeed config has no "gradient_clipping": {DEFAULT_CLIPPING}; add '
                        '"gradient_clipping": "auto"')  # fmt: skip
    if clipping != "auto" and float(clipping) != args.max_grad_norm:
        raise UserError(
            f'the DeepSpeed config has "gradient_clipping": {clipping} and --max_grad_norm is {args.max_grad_norm}; '
            'write "gradient_clipping": "auto"'
        )
    zero = config.get("zero_optimization", {})
    if zero.get("stage") == 3 and not zero.get("stage3_gather_16bit_weights_on_model_save"):
        raise UserError(
            "ZeRO-3 would save shards and no model; put "
            '"stage3_gather_16bit_weights_on_model_save": true into "zero_optimization" of the DeepSpeed config '
            "(zero3_save_16bit_model: true in an accelerate config)"
        )


def check_wrapper(model: Any, accelerator: Any, args: Any) -> None:
    """Refuse a model that is not in the wrapper of its engine: its gradients would not be averaged.

    Raises:
        UserError: the wrapper is another, or DeepSpeed clips at another norm.
    """
    runs = engine_of(accelerator)
    kinds = [kind.__name__ for kind in type(model).__mro__]
    wanted = WRAPPERS.get(runs.partition("-")[0])
    if wanted and wanted not in kinds:
        raise UserError(
            f"{runs} is on, but the model is a {kinds[0]}, not a {wanted}: processes would drift apart; on a machine "
            f"without GPUs use {BY_TORCHRUN.format(n=asked_processes())}"
        )
    if wanted == "DeepSpeedEngine" and model.gradient_clipping() != args.max_grad_norm:
        raise UserError(
            f"DeepSpeed clips gradients at {model.gradient_clipping()} and --max_grad_norm is {args.max_grad_norm}; "
            'write "gradient_clipping": "auto" into its config'
        )


# ---- what makes engines work here


def prepare_deepspeed() -> None:
    """Without a GPU, keep DeepSpeed from compiling an operator for minutes that is never called."""
    if no_accelerator():
        try:
            leave_out_shared_memory_operator()
        except ImportError as error:
            raise UserError("DeepSpeed is not installed; pip install 'hf_focalcse[deepspeed]'") from error


@contextlib.contextmanager
def whole_model() -> Iterator[None]:
    """Load a model whole under ZeRO-3 too: it is scored and its projection drawn before it is sharded."""
    with no_deepspeed_config():
        yield
