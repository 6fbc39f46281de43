"""The weights of a small module beside the encoder: read from safetensors, and put in where they fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..errors import UserError, first_line
from .source import refuse_pointer


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        UserError: it is damaged.
    """
    try:
        found: dict[str, Tensor] = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        if Path(path).is_file() and (pointer := refuse_pointer(Path(path))):
            raise pointer from error
        raise UserError(f"{path} is damaged ({first_line(error)}); copy it again from its source") from error
    return found


def fill(module: nn.Module, found: Mapping[str, Any], where: str) -> None:
    """Put weights into a module; where: the file or folder that holds them, in words.

    Raises:
        UserError: some are missing or of another shape, or there are others.
    """
    wanted = module.state_dict()
    if {key: value.shape for key, value in found.items()} != {key: value.shape for key, value in wanted.items()}:
        held = ", ".join(f"{key} {tuple(value.shape)}" for key, value in found.items()) or "nothing"
        raise UserError(
            f"{where} must hold {', '.join(f'{key} {tuple(value.shape)}' for key, value in wanted.items())}, but "
            f"holds {held}; copy it again from its source"
        )
    module.load_state_dict(found)


def fill_parts(parts: Mapping[str, nn.Module], path: str | Path) -> set[str]:
    """Put what a file holds of several modules into them; each key begins with a module's name. The names of those.

    Raises:
        UserError: as `read_weights` and `fill` do.
    """
    state, found = read_weights(path), set()
    for name, part in parts.items():
        own = {key.removeprefix(f"{name}."): v for key, v in state.items() if key.startswith(f"{name}.")}
        if own:
            fill(part, own, str(path))
            found.add(name)
    return found
