"""The device to compute on: the one asked for, or the best that is there."""

from __future__ import annotations

import torch

from ..errors import UserError


def choose_device(name: str | None) -> torch.device:
    """The device ``name``, or a GPU if there is one.

    Raises:
        UserError: there is no such device here.
    """
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    here = ["cpu", *(["cuda", *gpus] if gpus else []), *mps]
    if name is None:
        return torch.device(here[-1] if mps else "cuda" if gpus else "cpu")
    if name not in here:
        raise UserError(f"there is no device {name!r} here; there are: {', '.join(here)}")
    return torch.device(name)
