"""Checkpointing of one chunk of rows: its activations are computed again when backward needs them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def checkpointed(embed: Callable[..., Tensor], *chunk: Any) -> Tensor:
    """``embed(*chunk)``, of which only the result is kept until backward; dropout is replayed there."""
    vectors: Tensor = checkpoint(embed, *chunk, use_reentrant=False)
    if vectors.device.type == "cpu":
        give_back_memory()
        if vectors.requires_grad:  # and before its backward, which begins with this gradient
            vectors.register_hook(give_back_memory)
    return vectors


def give_back_memory(gradient: Tensor | None = None) -> None:
    """Return free memory of the C library's heap to the system, where that library is glibc. Also a tensor's hook.

    Without it the peak grows: each chunk has another size than the one before, and its small result pins its memory.
    """
    if TRIM is not None:
        TRIM(0)
