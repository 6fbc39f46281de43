"""How an encoder is saved and loaded: a plain encoder, and a side file for what that has no place for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.utils import logging

from ..compat import find_file
from ..errors import UserError
from .merging import merged_state
from .parts import fill_parts
from .recorded import take_recorded

logger = logging.get_logger(__name__)
HEAD_FILE = "focal_head.safetensors"
SIDE_PARTS = ("mlp", "tail")  # what it holds, where an encoder has them
# Of a config: says nothing of the vectors. Trainer turns use_cache off.
NOT_OF_THE_VECTORS = ("transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype", "use_cache")

if TYPE_CHECKING:
    _Base = PreTrainedModel
else:
    _Base = object


class SavingMixin(_Base):
    """``from_pretrained``, in float32 where no ``dtype`` is given, and ``save_pretrained`` of every ``…ForFocalCL``
    class."""

    side_parts: set[str]  # of SIDE_PARTS, those that a side file held
    set_pooling: Any
    keep_record: Any
    lora: Any = None  # how it is trained by LoRA, a `Lora`

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("use_safetensors", True)  # pickled weights are not opened
        if not {"dtype", "torch_dtype"} & kwargs.keys():  # else that of the file, in which small updates may be lost
            kwargs["dtype"] = torch.float32
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        hub = {key: kwargs[key] for key in ("revision", "cache_dir", "token", "subfolder") if key in kwargs}
        if pretrained_model_name_or_path is not None:
            model.load_head(pretrained_model_name_or_path, **hub)
            take_recorded(model, str(pretrained_model_name_or_path), **hub)
        model.set_pooling(model.pooler_name, model.projection_use)  # loading made the parameters anew
        if not model.pooling_is_said:
            logger.warning(
                f"nothing in {pretrained_model_name_or_path} says how it pools: {model.pooler_name} is taken, "
                f"projection use {model.projection_use!r}; set_pooling chooses another, load_model takes one"
            )
        return loaded

    def load_head(self, folder: Any, **hub: Any) -> bool:
        """Read the side file of a folder or a Hub repository: a projection that the encoder has no place for, and what
        follows pooling. Returns whether such a projection was there; ``side_parts`` has the names of what was."""
        parts = {name: part for name in SIDE_PARTS if (part := getattr(self, name, None)) and part.state_dict()}
        path = find_file(str(folder), HEAD_FILE, **hub) if parts else None
        if path is not None:
            self.side_parts |= fill_parts(parts, path)
        return "mlp" in self.side_parts

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers; what the plain encoder has no place for goes into a side file: see `load_head`."""
        # By default older transformers write the names of TensorFlow (LayerNorm.gamma, .beta), which Trainer, who
        # reads checkpoints non-strictly, would pass over; so the model's own names are asked for.
        kwargs.setdefault("save_original_format", False)
        self.keep_record()
        state = kwargs.get("state_dict") or self.state_dict()  # read first: super() takes the head out of it
        if self.lora is not None:
            state = kwargs["state_dict"] = merged_state(self, state)
        start = tuple(f"{name}." for name in SIDE_PARTS if hasattr(self, name))
        head = {k: v.detach().cpu().contiguous() for k, v in state.items() if k.startswith(start)}
        super().save_pretrained(save_directory, *args, **kwargs)
        if not kwargs.get("is_main_process", True):
            return
        check_written_config(self.config, save_directory)
        if head:
            save_file(head, Path(save_directory) / HEAD_FILE, metadata={"format": "pt"})


def check_written_config(config: Any, folder: Any) -> None:
    """Transformers before 5.16 halves the attention window of a bidirectional Gemma 3 each time it is read.

    Raises:
        UserError: what lies in the folder is read as another configuration than the one that was written.
    """
    read = type(config).from_pretrained(folder).to_dict()
    for key, own in config.to_dict().items():
        texts = {json.dumps(value, default=str, sort_keys=True) for value in (own, read.get(key))}
        if key not in NOT_OF_THE_VECTORS and len(texts) > 1:
            raise UserError(
                f"transformers {transformers.__version__} writes {key} {own} of {config.model_type} into {folder} and "
                f"reads {read.get(key)}, which gives other vectors; install a newer transformers"
            )
