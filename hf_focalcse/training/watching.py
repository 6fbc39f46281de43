"""The first steps of a run: which parameters get a gradient, and which of them move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from .alarms import Alarms

WATCHED = 10  # steps with a rate above 0: an adapter's first matrix gets no gradient before the second has moved
NAMED = 3  # parameters that an alarm names


class FirstSteps(TrainerCallback):
    """Raises an alarm for parameters that got no gradient in the first steps, and for those that did not move.

    As a rule every parameter has both after the first step, and nothing is looked at any more. Not under engines that
    shard parameters or gradients, which a process does not see whole.
    """

    def __init__(self, alarms: Alarms, sharded: bool):
        self.alarms, self.sharded = alarms, sharded
        self.silent: dict[str, Tensor] = {}  # parameters that have had no gradient so far
        self.still: dict[str, list[Tensor]] = {}  # those that have not moved, with their sums at the start
        self.first = self.steps = self.trained = 0

    @property
    def watching(self) -> bool:
        return bool(self.silent or self.still)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        trained = {} if self.sharded or model is None else dict(model.named_parameters())
        self.silent = {name: p for name, p in trained.items() if p.requires_grad}
        self.trained = len(self.silent)
        before = sums(self.silent.values())
        self.still = {name: of for name, *of in zip(self.silent, self.silent.values(), before, strict=True)}
        self.first, self.steps = state.global_step + 1, 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.silent:
            sizes = largest(p.grad for p in self.silent.values())
            self.silent = {
                name: p for (name, p), size in zip(self.silent.items(), sizes, strict=True) if size == 0
            }  # a gradient of NaN has its own alarm

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        if not self.watching:
            return
        now = sums(p for p, _ in self.still.values())
        moved = [bool((one != other).any()) for one, (_, other) in zip(now, self.still.values(), strict=True)]
        self.still = {name: of for (name, of), has in zip(self.still.items(), moved, strict=True) if not has}
        self.steps += any(group["lr"] > 0 for group in optimizer.param_groups) if optimizer is not None else 1
        if self.steps >= WATCHED:
            self.tell(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.watching and state.global_step >= self.first:
            self.tell(state.global_step)

    def tell(self, step: int) -> None:
        """Raise the alarms and stop watching. A parameter without a gradient cannot move, and is told once."""
        still = [name for name in self.still if name not in self.silent]
        whole = len(self.silent) == self.trained
        if whole:
            self.alarms.add(
                "no parameter got a gradient in the first steps: the loss is at an end of its range, or its gradient "
                "is not finite; raise --temperature, and see that the sentences of a batch differ",
                *("no gradient", self.first, step),
            )
        for kind, names, what in (
            ("no gradient", [] if whole else list(self.silent), "got no gradient"),
            ("no movement", still, "did not move"),
        ):
            if names:
                shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
                self.alarms.add(
                    f"{len(names)} of the parameters that are trained {what} in the first steps: {shown}; "
                    + REMEDIES[kind],
                    *(kind, self.first, step),
                )
        self.silent, self.still = {}, {}


REMEDIES = {
    "no gradient": "freeze them with requires_grad_(False), or choose a --pooler and --loss that use them",
    "no movement": "raise --learning_rate, train in float32 or with --bf16, and give them to the optimizer",
}


def sums(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Sum and norm of each in float64. Both, since what lies before a softmax or a layer norm keeps its sum."""
    found = [p.detach() for p in parameters]
    wide = torch.float64
    return [torch.stack([p.sum(dtype=wide), torch.linalg.vector_norm(p, dtype=wide)]) for p in found]


def largest(gradients: Iterable[Tensor | None]) -> list[float]:
    """The largest absolute value of each gradient, 0 where there is none; read from the device at once."""
    found = [torch.zeros(()) if g is None or not g.numel() else g.detach().abs().amax() for g in gradients]
    devices = {value.device for value in found}
    if len(devices) == 1:
        return list(torch.stack([value.float() for value in found]).tolist())
    return [float(value) for value in found]
