"""`Objective`: what a training step computes, and what it keeps between steps.

A new method (a second network, a queue, a momentum twin, a decoder) is one file with one class. The trainer asks it
for the collator of its views, for the loss of a batch and for what a checkpoint must hold; the trainer is not edited.

Shape letters: B sentences of this process, V views, L tokens, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import Parameter, signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..data.views import Views
from ..losses.base import Pairs
from .reference import References, Stopwatch

Batch = Mapping[str, Any]
READ = ("input_ids", "attention_mask", "text_tokens")  # what of a batch the encoder reads
OBJECTIVES: dict[str, type[Objective]] = {}


class Objective(nn.Module):
    """Base of all objectives. A class statement with ``name=`` registers one: ``--objective`` chooses it by this name,
    and each keyword-only argument of its constructor is a flag, whose help is taken from the docstring.

    Parameters and buffers that a subclass registers become a part of the trained model while it trains, under the name
    ``objective``: they join the optimizer and are sharded by FSDP2 and ZeRO; `loss` then runs inside the model's own
    forward pass. They are kept in checkpoints (``objective-RANK.safetensors``, or the engine's own files) and never in
    the published encoder. What must not be trained or sharded, such as a frozen reference, is held in an attribute
    that is not an ``nn.Module`` (in a list, say); what of it must be kept is added to `kept` and taken back in
    `restore`.

    Random numbers drawn from torch's global generator repeat in a resumed run without further work. An objective with
    a separate generator adds its state to `kept` and takes it back in `restore`.
    """

    name: ClassVar[str] = ""
    #: What the card says of the objective besides the loss inside it.
    formula: ClassVar[str] = ""
    networks: ClassVar[str] = ""  # what is there in training alone, besides the encoder
    paper: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    #: Times the work that is done outside the trained model; the log and the card report it.
    side_time: Stopwatch | None = None
    #: Frozen encoders that the objective compares with; they are held beside this module, not in it.
    reference: References | None = None
    #: Whether vectors pass the encoder's own projection in training, where it has one.
    projects: ClassVar[bool] = True
    #: Whether equal texts in a batch are left out of each other's negatives.
    mask_duplicates: bool = False
    #: Whose candidates an anchor meets: those of all processes ("global"), or of its own ("local").
    negatives: str = "global"

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is not None:
            cls.name = name
            OBJECTIVES[name] = cls

    def __init__(self) -> None:
        super().__init__()
        self.criterion: Any = None  # the `ContrastiveLoss` over pairs, where there is one

    def forward(self, model: Any, batch: Batch) -> tuple[Tensor, Pairs | None]:
        """`loss`. A call of the module, so that engines gather the parameters that lie directly in it."""
        return self.loss(model, batch)

    def collator(self, tokenizer: Any, max_seq_length: int, seed: int) -> Callable[[list[Any]], dict[str, Tensor]]:
        """Rows of the data set -> the batch that `loss` gets; by default two equal views of the column ``text``.

        seed: of the run, for views that draw.
        """
        return Views(tokenizer, max_seq_length, seed=seed)

    def collate(self, collator: Callable[[list[Any]], dict[str, Tensor]]) -> Callable[[list[Any]], dict[str, Tensor]]:
        """``collator`` with what this objective needs in a batch besides the views; by default nothing."""
        return collator

    def attach(self, model: Any, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        """Called once, before engine and optimizer are made. model: the encoder, not wrapped by any engine.

        What it registers here (a momentum twin, a decoder) is trained and kept like what the constructor registers.

        autocast: makes the context that the encoder's forward pass runs in, for further networks.
        """

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Pairs | None]:
        """The scalar to minimise, and the pairs that it was computed from, for the log; None where there are none.

        Args:
            model: gives embeddings (B, V, D) for ``input_ids`` and ``attention_mask`` (B, V, L).
            batch: what the collator made, with ``seed`` (the same on all ranks, another for each batch, repeated in a
                resumed run) and, where the last batch of an epoch is filled up, ``real`` (B,) bool: false at padding.
        """
        raise NotImplementedError

    def after_step(self, model: Any) -> None:
        """Called after every step of the optimizer. model: the encoder, not wrapped by any engine."""

    def kept(self) -> dict[str, Tensor]:
        """What a checkpoint needs and an export does not: parameters, buffers, and the state of own generators."""
        return {name: value.detach() for name, value in self.state_dict().items()}

    def shared(self) -> set[str]:
        """The names in `kept` of what is equal on all processes, so that the first alone writes it."""
        return {name for name, _ in self.named_parameters()}

    def check_engine(self, engine: str) -> None:
        """Refuse an engine that this objective cannot be trained by: "one process", DDP, FSDP2, ZeRO-0 … ZeRO-3.

        Raises:
            UserError: with the reason and what works.
        """

    def memory(self) -> dict[str, Any]:
        """For the estimate of a step's memory, see `estimate_step`: ``passes`` with gradient through networks of the
        encoder's size that a row takes, bytes of the ``frozen`` networks that are held beside this module, and
        ``guesses``, the share of a row's tokens that are guessed out of the whole vocabulary."""
        return {"passes": 1, "frozen": 0, "guesses": 0.0}

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        """Take back what `kept` gave; parameters that an engine restores itself may be missing.

        Raises:
            RuntimeError: a tensor is not known here, or has another shape.
        """
        own = self.state_dict()
        unknown = sorted(kept.keys() - own.keys())
        if unknown:
            raise RuntimeError(f"{type(self).__name__} has nothing called {', '.join(unknown)}")
        with torch.no_grad():
            for name, value in kept.items():
                own[name].copy_(value)

    def diagnostics(self, pairs: Pairs) -> dict[str, float]:
        """What a log line says of the pairs of a step, besides the loss."""
        return {} if self.criterion is None else self.criterion.diagnostics(pairs)

    def identity(self) -> dict[str, Any]:
        """What must be equal for a resumed run to equal the uninterrupted one."""
        return {"objective": type(self).__name__, "objective_settings": self.config}

    @property
    def config(self) -> dict[str, Any]:
        """The settings, by name."""
        return {key: getattr(self, key) for key in settings_of(type(self))}

    def cost(self, steps: Stopwatch) -> dict[str, float]:
        """What the work beside the trained model takes of the steps, for the log and the card."""
        return {}

    def describe(self) -> dict[str, Any]:
        """For run.json and the card: name, settings, formula, paper, citation."""
        parts = [part for part in (self.criterion, *self.described(), self) if part is not None]
        texts = {key: [getattr(part, key) for part in parts] for key in ("formula", "paper", "citation")}
        if self.criterion is None:
            named = {"name": self.name or type(self).__name__}
        else:  # what adds nothing to the loss inside it is not named
            named = self.criterion.config | ({"objective": self.name} if self.formula else {})
        return (
            named
            | self.config
            | {
                "formula": "; ".join(filter(None, texts["formula"])),
                "paper": next(filter(None, reversed(texts["paper"])), ""),
                "citation": "\n\n".join(filter(None, texts["citation"])),
            }
            | ({"networks": self.networks} if self.networks else {})
        )

    def described(self) -> list[Any]:
        """What else has a formula, a paper and a citation that `describe` gives, such as a kind of view."""
        return []

    def has_state(self) -> bool:
        """Whether there is something to train or to keep besides the encoder."""
        return bool(self.kept())


def settings_of(objective: type[Objective]) -> dict[str, Parameter]:
    """The settings that an objective declares: the keyword-only arguments of its constructor."""
    found = signature(objective.__init__).parameters.items()
    return {name: parameter for name, parameter in found if parameter.kind is Parameter.KEYWORD_ONLY}
