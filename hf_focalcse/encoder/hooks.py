"""Hooks on modules of an encoder that change what passes through them for the length of a ``with``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def only_tokens(module: nn.Module | None, tokens: slice | Tensor | None) -> Iterator[None]:
    """Within it, a module is given these tokens of its inputs (B, L, D) alone; None for either changes nothing."""
    if module is None or tokens is None:
        yield
        return
    handle = module.register_forward_pre_hook(lambda module, inputs: tuple(hidden[:, tokens] for hidden in inputs))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def zeroed(modules: Iterable[nn.Module], keep: Tensor | None) -> Iterator[None]:
    """Within it, the output (B, L, D) of modules is zero where keep (B, L or 1, D or 1) is false."""
    if keep is None:
        yield
        return
    handles = [module.register_forward_hook(lambda module, inputs, hidden: hidden * keep) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
