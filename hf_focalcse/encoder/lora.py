"""Training by LoRA: low-rank changes of an encoder's linear layers are learnt, its own weights stay as they are."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..errors import UserError, suggest
from ..runs.atomic import write_json
from .adapters import CONFIG_FILE, RECORD_FILE, WEIGHTS_FILE
from .dropout import use_fast_dropout
from .merging import ADAPTER, layers_of
from .packaged import BASE_MODEL, BASE_REVISION, find_packaged
from .parts import read_weights
from .saving import HEAD_FILE

ALL = "all-linear"
IN_LAYER = re.compile(r"^.*\.\d+\.")  # the path of a module up to the number of its layer
RANK, DROPOUT = 16, 0.05


@dataclass(frozen=True)
class Lora:
    """How an encoder is trained by LoRA: W + alpha / rank * B A takes the place of a weight W.

    Args:
        rank: of A and B. alpha: see above. dropout: of what comes into A.
        targets: the linear layers that are changed, by the ends of their paths.
        base, revision: the encoder that is changed, a folder or a Hub id; its weights are not in a checkpoint.
        digest: CRC-32 of the weights that stay as they are.
    """

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    base: str
    revision: str | None = None
    digest: str = ""

    def settings(self) -> dict[str, Any]:
        """What two runs must share, and what a record says."""
        names = ("rank", "alpha", "dropout")
        return {name: getattr(self, name) for name in names} | {"target_modules": list(self.targets)}


def public_base(base: str, revision: str | None) -> tuple[str, str | None]:
    """The base of an adapter as others can have it: a Hub id and its revision.

    Raises:
        UserError: it is a folder, which others do not have.
    """
    if not Path(base).is_absolute():
        return base, revision
    packaged = find_packaged()
    if packaged is not None and Path(base).is_dir() and packaged.samefile(base):
        return BASE_MODEL, BASE_REVISION
    raise UserError(
        f"--adapter_only: the base of this adapter is the folder {Path(base).name}, which others do not have; publish "
        "that encoder and train from its Hub id, or leave --adapter_only out: the export then holds the whole encoder"
    )


def add_lora(
    model: Any,
    rank: int = RANK,
    alpha: float | None = None,
    dropout: float = DROPOUT,
    target_modules: list[str] | None = None,
) -> Any:
    """Let an encoder of `load_model` be trained by LoRA from now on; returns the same encoder.

    All its own weights are frozen but those of a projection in use. `save_pretrained` writes the merged encoder,
    checkpoints hold the adapter alone.

    rank, alpha, dropout: see `Lora`; alpha defaults to twice the rank. target_modules: the ends of the names of linear
    layers, such as ``["query", "value"]``; default: all that its layers have. A pooler is never among them.

    Raises:
        UserError: peft is not installed, a value is out of range, the encoder has no such layers, or it was loaded
            from an adapter or has one already.
    """
    alpha = 2 * rank if alpha is None else alpha
    for name, value, fits, allowed in (
        ("rank", rank, isinstance(rank, int) and rank >= 1, "a whole number, at least 1"),
        ("alpha", alpha, alpha > 0, "above 0"),
        ("dropout", dropout, 0 <= dropout < 1, "at least 0 and below 1"),
    ):
        if not fits:
            raise UserError(f"LoRA's {name} is {value!r}; it must be {allowed}")
    spec = model.spec
    if model.lora is not None:
        raise UserError("this encoder is trained by LoRA already; load it anew to choose other settings")
    if spec is None:
        raise UserError("LoRA needs to know where its base lies; load the encoder with hf_focalcse.load_model")
    if spec.adapter is not None:
        raise UserError(
            f"{spec.name_or_path!r} is an adapter already, and one on top of it would have a base that is nowhere; "
            f"merge it first: focalcse export {spec.name_or_path} --output_dir FOLDER, and start from that folder"
        )
    if spec.files.encoder_path:
        raise UserError(
            f"{spec.name_or_path!r} keeps its encoder in {spec.files.encoder_path}, where nobody looks for the base "
            f"of an adapter; export it first (focalcse export {spec.name_or_path} --output_dir FOLDER) and start from "
            "that folder"
        )
    targets = choose_targets(model, target_modules)
    if find_spec("peft") is None:
        raise UserError("LoRA needs peft, which is not installed: pip install 'hf_focalcse[lora]'")
    from peft import LoraConfig, inject_adapter_in_model

    digest = digest_of(model)
    settings: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "lora_dropout": dropout}  # alpha may be a fraction
    inject_adapter_in_model(LoraConfig(**settings, target_modules=list(targets)), model.encoder, ADAPTER)
    model.tail.requires_grad_(False)
    model.set_pooling(model.pooler_name, model.projection_use)  # its parameters are trained, or not, as before
    use_fast_dropout(model.encoder)
    base = str(Path(spec.name_or_path).absolute()) if Path(spec.name_or_path).is_dir() else spec.name_or_path
    model.lora = Lora(rank, alpha, dropout, targets, base, spec.revision, digest)
    return model


def choose_targets(model: Any, asked: list[str] | None) -> tuple[str, ...]:
    """The ends of the paths of the linear layers that are changed, such as "attention.self.query".

    Raises:
        UserError: a name that is asked for fits none.
    """
    linear = {name for name, module in model.encoder.named_modules() if isinstance(module, nn.Linear)}
    ends = sorted({IN_LAYER.sub("", name) for name in linear if IN_LAYER.match(name) and "pooler" not in name})
    found: set[str] = set()
    for name in asked or [ALL]:
        fitting = ends if name == ALL else [end for end in ends if f".{end}".endswith(f".{name}")]
        if not fitting:
            names = sorted({part for end in ends for part in (end, end.rpartition(".")[2])})
            raise UserError(
                f"--lora_target_modules: no linear layer of this {model.config.model_type} encoder is called {name!r}"
                f"{suggest(name, names)}; it has {', '.join(ends)}, and {ALL} for all of them"
            )
        found |= set(fitting)
    return tuple(sorted(found))


def digest_of(model: Any) -> str:
    """CRC-32 of an encoder's weights, which tells whether an adapter meets the base that it was trained on."""
    crc = 0
    for name, value in sorted(model.encoder.named_parameters()):
        if "pooler" not in name:  # drawn anew, and kept in checkpoints
            crc = zlib.crc32(value.detach().cpu().contiguous().view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def trained_parameters(model: Any) -> int:
    """The number of an encoder's parameters that are trained, the projection among them."""
    return sum(p.numel() for name, p in model.named_parameters() if p.requires_grad and "objective." not in name)


def adapter_parameters(model: Any) -> int:
    """The number of parameters of an adapter; 0 for an encoder without one."""
    return sum(
        p.numel() for layer in layers_of(model).values() for name, p in layer.named_parameters() if "lora_" in name
    )


def describe_lora(model: Any) -> dict[str, Any] | None:
    """What a record says of an encoder's training by LoRA; None for one that is trained whole."""
    if model.lora is None:
        return None
    return model.lora.settings() | {
        "adapter_parameters": adapter_parameters(model),
        "trained_parameters": trained_parameters(model),
        "base_weights": model.lora.digest,
    }


def adapter_state(model: Any) -> dict[str, Tensor]:
    """The adapter's weights by the names under which peft keeps them for a plain encoder."""
    return {
        f"base_model.model.{path}.{part}.weight": getattr(layer, part)[ADAPTER].weight.detach().cpu().contiguous()
        for path, layer in layers_of(model).items()
        for part in ("lora_A", "lora_B")
    }


def write_adapter(model: Any, folder: Path, tokenizer: Any) -> None:
    """Write an adapter as peft reads it, with its tokenizer and what is known of the encoder besides its weights; the
    projection, where one is trained, goes into the side file."""
    lora = model.lora
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    write_json(folder / CONFIG_FILE, adapter_config(lora, lora.base, lora.revision))
    save_file(adapter_state(model), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    model.keep_record()
    write_json(folder / RECORD_FILE, model.config.focal_cl)
    if model.projection_use != "none":
        head = {
            f"mlp.dense.{k}": v.detach().cpu().contiguous() for k, v in model.projection_linear.state_dict().items()
        }
        save_file(head, folder / HEAD_FILE, metadata={"format": "pt"})


def adapter_config(lora: Lora, base: str, revision: str | None) -> dict[str, Any]:
    """adapter_config.json, with those settings alone that every version of peft knows."""
    return {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base,
        "revision": revision,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(lora.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "modules_to_save": None,
        "init_lora_weights": True,
    }


@torch.no_grad()
def read_adapter_weights(model: Any, folder: str | Path) -> None:
    """Give an encoder that is trained by LoRA the adapter and the projection of a checkpoint.

    Raises:
        UserError: the checkpoint holds no adapter, or one of other layers or of another rank.
    """
    file = Path(folder) / WEIGHTS_FILE
    if not file.is_file():
        raise UserError(f"checkpoint {folder} holds a whole encoder and no adapter; resume it without --lora")
    found, own = read_weights(file), layers_of(model)
    wanted = {name: value.shape for name, value in adapter_state(model).items()}
    if {name: value.shape for name, value in found.items()} != wanted:
        raise UserError(
            f"checkpoint {folder} holds an adapter of other layers or of another rank; give the --lora_rank and "
            "--lora_target_modules that it was trained with"
        )
    for path, layer in own.items():
        for part in ("lora_A", "lora_B"):
            getattr(layer, part)[ADAPTER].weight.copy_(found[f"base_model.model.{path}.{part}.weight"])
    read_projection(model, Path(folder) / HEAD_FILE)


@torch.no_grad()
def read_projection(model: Any, file: Path | None) -> bool:
    """Take the projection that was trained beside an adapter; whether there was one."""
    held = {} if file is None or not file.is_file() else read_weights(file)
    for name, value in model.projection_linear.state_dict().items():
        if f"mlp.dense.{name}" not in held:
            return False
        value.copy_(held[f"mlp.dense.{name}"])
    return True
