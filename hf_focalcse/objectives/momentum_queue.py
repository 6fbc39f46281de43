"""ESimCSE's further negatives: sentences of earlier batches, embedded by a momentum twin of the encoder."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..losses.base import Pairs
from .base import READ, Batch
from .contrastive import Contrastive
from .pairs import gather_rows

TWIN = "twin."


class MomentumQueue(Contrastive, name="momentum_queue"):
    """Each anchor meets, besides the candidates of its batch, the ``queue_size`` newest vectors of a momentum encoder
    (Wu et al. 2022, ESimCSE, section 3.2).

    The momentum encoder starts as a copy of the encoder, where the released code starts it with random weights. After
    each step it moves to ``momentum`` times itself plus 1 - ``momentum`` times the encoder. It embeds the first view
    of each sentence without dropout, through the encoder's own projection, and the vectors of all processes enter the
    queue after the step, so that a batch never meets itself. They are candidates alone and get no gradient.
    A text that comes again while it is in the queue is not its own negative where equal texts are masked.

    Args:
        queue_size: vectors in the queue; the paper takes 2.5 times the batch.
        momentum: of the momentum encoder, at least 0 and below 1.
    """

    formula = "the sum over j also runs over the newest vectors of a momentum encoder, embedded without dropout"
    networks = "a momentum encoder, and a queue of its vectors"
    paper = "https://arxiv.org/abs/2109.04380"
    citation = """@inproceedings{wu2022esimcse,
  title = {{ESimCSE}: Enhanced Sample Building Method for Contrastive Learning of Unsupervised Sentence Embedding},
  author = {Wu, Xing and Gao, Chaochen and Zang, Liangjun and Han, Jizhong and Wang, Zhongyuan and Hu, Songlin},
  booktitle = {International Conference on Computational Linguistics (COLING)},
  year = {2022}
}"""

    queue: Tensor
    queue_ids: Tensor
    filled: Tensor

    def __init__(self, *given: Any, queue_size: int = 160, momentum: float = 0.995, **common: Any):
        super().__init__(*given, **common)
        if self.criterion.needs_reference:
            raise UserError(
                f"loss {self.criterion.name} compares with a frozen encoder, which has no vectors of the queue; leave "
                "--objective momentum_queue out, or use --loss infonce or focal"
            )
        if self.of_pairs:
            raise UserError(
                "--objective momentum_queue takes sentences, and the training text is pairs; leave it out, or name "
                "one column with --text_column"
            )
        if queue_size < 1:
            raise UserError(f"queue_size is {queue_size}; it must be at least 1 (2.5 times the batch is usual)")
        if not 0 <= momentum < 1:
            raise UserError(f"momentum is {momentum}; it must be at least 0 and below 1 (0.995 is usual)")
        self.queue_size, self.momentum = queue_size, momentum
        self._twin: list[Any] = []  # in a list, so that it is no part of this module: no engine shards it
        self._newest: list[tuple[Tensor, Tensor]] = []  # of the batches since the last step of the optimizer

    @property
    def twin(self) -> Any:
        """The momentum encoder."""
        return self._twin[0]

    def attach(self, model: Any, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        super().attach(model, autocast)
        model.carry(None)  # the copy is of the encoder alone
        self._twin[:] = [momentum_twin(model)]
        weights = next(model.parameters())
        wide = torch.float64 if weights.dtype == torch.float64 else torch.float32
        size = model.get_embedding_dimension()
        self.register_buffer("queue", torch.zeros(self.queue_size, size, dtype=wide, device=weights.device))
        self.register_buffer("queue_ids", torch.zeros(self.queue_size, dtype=torch.int64, device=weights.device))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64, device=weights.device))

    def extend(self, pairs: Pairs, batch: Batch) -> Pairs:
        """With the queue as further candidates; the vectors of this batch wait for the step."""
        filled = int(self.filled)
        own, excluded = batch["text_ids"], pairs.excluded
        if torch.is_grad_enabled():  # a training step, not what is computed for a log line
            self._newest.append((gather_rows(self._encode(batch)), gather_rows(own)))
        if not filled:
            return pairs
        if excluded is not None:
            excluded = torch.cat([excluded[:], own.unsqueeze(1) == self.queue_ids[:filled]], 1)  # (B, N + K)
        queue = self.queue[:filled].to(pairs.candidates.dtype)
        return dataclasses.replace(pairs, candidates=torch.cat([pairs.candidates, queue]), excluded=excluded)

    @torch.no_grad()
    def _encode(self, batch: Batch) -> Tensor:
        """View 1 by the momentum encoder: (B, D)."""
        here, there = next(self.twin.parameters()), self._beside() if self._beside else None
        if there is not None and (here.device, here.dtype) != (there.device, there.dtype):
            self.twin.to(there.device, there.dtype)
        first = {name: batch[name][:, :1] for name in READ if name in batch}  # (B, 1, L)
        with self._autocast():
            vectors: Tensor = self.twin(**first)[:, 0]
        return vectors.to(self.queue.dtype)

    @torch.no_grad()
    def after_step(self, model: Any) -> None:
        """The newest vectors enter the queue, and the momentum encoder moves."""
        filled = int(self.filled)
        queue = torch.cat([self.queue[:filled], *(vectors for vectors, _ in self._newest)])[-self.queue_size :]
        ids = torch.cat([self.queue_ids[:filled], *(texts for _, texts in self._newest)])[-self.queue_size :]
        self._newest.clear()
        self.queue[: len(queue)], self.queue_ids[: len(ids)] = queue, ids
        self.filled.fill_(len(queue))
        move(self.twin, model, self.momentum)

    def kept(self) -> dict[str, Tensor]:
        twin = self.twin.state_dict() if self._twin else {}
        return super().kept() | {TWIN + name: value for name, value in twin.items()}

    def shared(self) -> set[str]:
        return set(self.kept())

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        self.twin.load_state_dict({k.removeprefix(TWIN): v for k, v in kept.items() if k.startswith(TWIN)})
        super().restore({name: value for name, value in kept.items() if not name.startswith(TWIN)})

    def check_engine(self, engine: str) -> None:
        if engine == "ZeRO-3":
            raise UserError(
                "--objective momentum_queue needs whole weights in each process to move its momentum encoder, and "
                "ZeRO-3 shares them out; use ZeRO-2, FSDP2 or DDP"
            )

    def beside(self) -> list[Any]:
        return [*super().beside(), *self._twin]


def momentum_twin(model: Any) -> Any:
    """A frozen copy of an encoder that embeds without dropout, through the projection where training uses it."""
    twin = copy.deepcopy(model).eval().requires_grad_(False)
    twin.augmentations = ()
    if twin.projection_use == "training":
        twin.set_pooling(twin.pooler_name, "always")
        twin.requires_grad_(False)
    return twin


@torch.no_grad()
def move(twin: nn.Module, model: Any, momentum: float) -> None:
    """twin <- momentum x twin + (1 - momentum) x model, but the projection, which both share, is copied."""
    projection = {id(parameter) for parameter in model.projection_linear.parameters()}
    new = dict(model.named_parameters())
    for name, own in twin.named_parameters():
        other = new[name]
        value = other.full_tensor() if hasattr(other, "full_tensor") else other  # FSDP2 shares weights out
        value = value.to(own.device, own.dtype)
        own.copy_(value if id(other) in projection else momentum * own + (1 - momentum) * value)
