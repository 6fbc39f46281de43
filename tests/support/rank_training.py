"""Training in a rank: one trainer for every engine, its whole weights, and graded pairs to judge it by.

FSDP2 runs on the CPU by a shim of two lines that no user gets; NCCL and GPUs are not tested here.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
from tiny import SENTENCES

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, add_lora, build_loss
from hf_focalcse.encoder.augment import build_augmentations
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.training.engines import FSDP_FROM

TEXTS = [{"text": f"{a} {b}"} for a in SENTENCES for b in ("", "today", "the dog", "in a house")]
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
ENGINES = ["DDP", "FSDP2", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
needs_deepspeed = pytest.mark.skipif(
    not HAS_DEEPSPEED, reason="DeepSpeed is not installed: pip install -e '.[deepspeed]'"
)
needs_fsdp = pytest.mark.skipif(torch.__version__ < FSDP_FROM, reason=f"torch is older than {FSDP_FROM}")


def over(*names: str) -> pytest.MarkDecorator:
    """A test of each of these engines; those of DeepSpeed where it is installed, FSDP where it is not refused."""
    marks = {"ZeRO": needs_deepspeed, "FSDP": needs_fsdp}
    return pytest.mark.parametrize("engine", [pytest.param(e, marks=marks.get(e[:4], ())) for e in names])


engines = over(*ENGINES)
# ZeRO-1 and 2 shard the optimizer's state and the gradients, ZeRO-3 the weights as well: where no gradient and no
# optimizer is looked at (order, noise, scores, hanging), what holds for ZeRO-3 holds for them.
engines_by_weights = over("DDP", "FSDP2", "ZeRO-3")


def engine_arguments(engine: str, folder: Path) -> dict:
    if engine == "FSDP2":
        return {
            "fsdp": True,
            "fsdp_config": {
                "version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "transformer_layer_cls_to_wrap": ["BertLayer"], "state_dict_type": "FULL_STATE_DICT",
            },
        }  # fmt: skip
    if engine.startswith("ZeRO"):
        zero = {"stage": int(engine[-1]), "stage3_gather_16bit_weights_on_model_save": True}
        return {
            "deepspeed": {
                "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
                "gradient_clipping": "auto", "zero_allow_untested_optimizer": True, "zero_optimization": zero,
            }
        }  # fmt: skip
    return {}


def shim_fsdp() -> None:
    """Accelerate turns FSDP on for GPUs only; the group is gloo already and the device the CPU."""
    from accelerate.state import DistributedType, PartialState

    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    PartialState._shared_state["device"] = torch.device("cpu")


def make_trainer(base, folder, engine="DDP", loss="focal", dropout=0.1, chunk=None, texts=TEXTS, dev=None,
                 double=False, settings=None, augmentation=None, lora=None, **arguments):  # fmt: skip
    torch.set_num_threads(1)
    defaults = {
        "max_steps": 1, "per_device_train_batch_size": 8, "logging_steps": 1, "use_cpu": True, "disable_tqdm": True,
        "report_to": "none", "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False,
    }  # fmt: skip
    args = FocalCSETrainingArguments(
        output_dir=str(folder), **(defaults | engine_arguments(engine, Path(folder)) | arguments)
    )
    if engine == "FSDP2":
        shim_fsdp()
    from hf_focalcse.training.engines import whole_model

    built = build_loss(loss) if isinstance(loss, str) else loss
    with whole_model():
        model = load_model(base, "cls", dropout=dropout)
        frozen = {"reference": load_model(base, "mean")} if built.needs_reference else {}
    model = model.double() if double else model
    if lora is not None:
        add_lora(model, **lora)
    model.chunk_size = chunk
    if augmentation:
        model.augmentations = build_augmentations(augmentation)
    return FocalCSETrainer(model, args, built, texts, dev, **(settings or {}) | frozen)


def weights(trainer) -> dict:
    """The whole state, on every rank where the engine gives it there."""
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return {k.removeprefix("module."): v.detach().cpu().numpy().copy() for k, v in (state or {}).items()}


def write_pairs(path, count):
    some = SENTENCES[:count]
    rows = [f"{a}\t{b}\t{5 - abs(i - j) / 2}\n" for i, a in enumerate(some) for j, b in enumerate(some) if i < j]
    path.write_text("sentence1\tsentence2\tscore\n" + "".join(rows))
    return path
