"""Frozen encoders beside the one that is trained: they say how similar the sentences of a batch are."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.template import as_read
from ..data.views import View, Views, pad, token_ids
from ..encoder.loading import load_model, require_projection
from ..errors import UserError
from ..losses.base import normalize

PREFIX = "reference_"


def load_reference(name_or_path: str, pooler: str | None = None, revision: str | None = None) -> Any:
    """The encoder that --reference_model names, to be frozen.

    Raises:
        UserError: it cannot be loaded, nothing says how it pools, or it would embed through random weights.
    """
    try:
        model = load_model(name_or_path, pooler, revision=revision)
        require_projection(model, name_or_path)
    except UserError as error:
        raise UserError(f"--reference_model: {str(error).replace('--pooler', '--reference_pooler')}") from error
    return model


class FrozenReference:
    """Encodes each sentence of a batch once, in eval mode and without gradient, with its own tokenizer and pooler.

    It is not a part of the trained model, so that no checkpoint and no optimizer holds it.

    Args:
        model: an encoder of `load_model`. Its parameters are frozen.
        max_seq_length: tokens kept of a sentence, at most what the encoder can read.
        prefix: of the names that its tokens have in a batch.
    """

    def __init__(self, model: Any, max_seq_length: int, prefix: str = PREFIX):
        self.model = model.eval().requires_grad_(False)
        self.max_seq_length = min(max_seq_length, model.max_length())
        self.prefix = prefix

    def collate(self, collator: Any) -> Any:
        """``collator`` with this encoder's tokens besides: ``reference_input_ids`` and the mask, (B, L')."""
        model = self.model
        return ReferenceCollator(
            *(collator, model.tokenizer, self.max_seq_length, model.prompt, model.template), prefix=self.prefix
        )

    @torch.no_grad()
    def encode(self, inputs: Mapping[str, Tensor], beside: torch.nn.Parameter) -> Tensor:
        """Batch of the collator -> vectors (B, D'), on the device and in the precision of the parameter ``beside``."""
        here = next(self.model.parameters())
        if (here.device, here.dtype) != (beside.device, beside.dtype):
            self.model.to(beside.device, beside.dtype)
        vectors: Tensor = self.model(inputs[self.prefix + "input_ids"], inputs[self.prefix + "attention_mask"])
        return vectors


class References:
    """One or several frozen encoders that count as one: the cosine of two sentences is the weighted mean of theirs.

    Args:
        models: encoders of `load_model`.
        max_seq_length: tokens kept of a sentence.
        weights: of the encoders, above 0; they are divided by their sum. None weighs all alike.

    Raises:
        UserError: the weights are not as many as the encoders, or one is not above 0.
    """

    def __init__(self, models: Sequence[Any], max_seq_length: int, weights: Sequence[float] | None = None):
        if weights is not None and (len(weights) != len(models) or not all(0 < w < math.inf for w in weights)):
            raise UserError(
                f"reference_weights is {', '.join(f'{w:g}' for w in weights)}; give a number above 0 for each of the "
                f"{len(models)} reference model(s)"
            )
        given = list(weights or [1.0] * len(models))
        self.weights = [weight / sum(given) for weight in given]
        prefixes = (PREFIX, *(f"reference{number}_" for number in range(2, len(models) + 1)))
        self.each = [FrozenReference(model, max_seq_length, p) for model, p in zip(models, prefixes, strict=True)]

    def collate(self, collator: Any) -> Any:
        for one in self.each:
            collator = one.collate(collator)
        return collator

    def encode(self, inputs: Mapping[str, Tensor], beside: torch.nn.Parameter) -> Tensor:
        """Batch of the collator -> vectors (B, D') whose cosines are the mean of those of all encoders."""
        vectors = [one.encode(inputs, beside) for one in self.each]
        return vectors[0] if len(vectors) == 1 else joined(vectors, self.weights)


def joined(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Vectors (B, D_k) of several encoders -> (B, sum of D_k), whose cosine is sum_k weight_k cosine_k.

    The weights sum to 1. A part of length sqrt(weight) adds its weight times its cosine to the product.
    """
    return torch.cat([normalize(part) * weight**0.5 for part, weight in zip(vectors, weights, strict=True)], 1)


class ReferenceCollator:
    """The tokens of another tokenizer beside those of ``collator``."""

    def __init__(self, collator: Any, tokenizer: Any, max_seq_length: int, prompt: str = "", template: Any = None,
                 prefix: str = PREFIX):  # fmt: skip
        self.collator, self.tokenizer, self.max_seq_length = collator, tokenizer, max_seq_length
        self.prompt, self.template, self.prefix = prompt, template, prefix

    @property
    def first(self) -> View:
        """The view of the anchors."""
        of = self.collator
        return of.first if isinstance(of, (Views, ReferenceCollator)) else View()

    def __call__(self, rows: list[dict[str, str]]) -> dict[str, Tensor]:
        texts = self.first.plain(rows)
        texts, limit = as_read(self.tokenizer, texts, self.max_seq_length, self.prompt, self.template, True)
        reading = {"split_special_tokens": True} if self.template is None else self.template.reading
        tokens = token_ids(self.tokenizer, texts, limit, **reading)
        ids, mask = pad(tokens, self.tokenizer.pad_token_id)
        return self.collator(rows) | {self.prefix + "input_ids": ids, self.prefix + "attention_mask": mask}


class Stopwatch:
    """Seconds spent inside ``with``, summed; on a GPU by its own clock, without waiting for it."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._marks: list[Any] = []
        self._events: list[tuple[Any, Any]] = []
        self.laps = 0

    def __enter__(self) -> Stopwatch:
        self._marks.append(self._mark())
        return self

    def __exit__(self, *_: Any) -> None:
        start, end = self._marks.pop(), self._mark()
        if isinstance(start, float):
            self._seconds += end - start
        else:
            self._events.append((start, end))
        self.laps += 1

    @staticmethod
    def _mark() -> Any:
        if not torch.cuda.is_available():
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> float:
        """The sum so far; waits for the GPU."""
        for start, end in self._events:
            end.synchronize()
            self._seconds += start.elapsed_time(end) / 1000
        self._events.clear()
        return self._seconds
