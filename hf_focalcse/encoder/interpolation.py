"""Weights between two encoders of one origin: w times the trained one plus 1 - w times the one that it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..errors import UserError


def interpolate(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """The weighted sum of state dicts, in float32 or better and then in each tensor's own type (Xiao et al. 2023,
    LM-Cocktail). What is no floating point number, such as position ids, is copied from the first.

    Raises:
        UserError: the weights do not sum to 1, or the states differ in their tensors or in a shape.
    """
    if abs(sum(weights) - 1) > 1e-6 or len(weights) != len(states):
        raise UserError(f"the weights {', '.join(f'{w:g}' for w in weights)} must be one for each model and sum to 1")
    first = states[0]
    for other in states[1:]:
        different = sorted(first.keys() ^ other.keys())
        if different:
            raise UserError(f"only one of the encoders has {different[0]!r}; they must be of one architecture")
        for name, value in first.items():
            if value.shape != other[name].shape:
                raise UserError(
                    f"{name!r} is {tuple(value.shape)} in one encoder and {tuple(other[name].shape)} in the other; "
                    "they must be of one architecture and one vocabulary"
                )
    return {name: _mean([state[name] for state in states], weights) for name in first}


def _mean(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    first = values[0]
    if not first.dtype.is_floating_point:
        return first.clone()
    wide = torch.promote_types(first.dtype, torch.float32)
    return sum((w * v.to(wide) for w, v in zip(weights, values, strict=True)), torch.zeros((), dtype=wide)).to(
        first.dtype
    )
