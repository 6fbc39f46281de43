"""Texts -> batches of texts with about as many tokens, padded on the right, so that little is padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..data.views import pad, token_ids

TOKENISED_TOGETHER = 4096  # texts: padding then adds 1.8 % to the tokens of STS, and 0.9 % without this limit


def batches_by_length(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int, batch_size: int
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """N texts -> batches as (which texts (B,), ids (B, L), mask (B, L)); some thousand are tokenised at a time."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    for start in range(0, len(texts), TOKENISED_TOGETHER):
        window = order[start : start + TOKENISED_TOGETHER]
        ids = token_ids(tokenizer, [texts[i] for i in window], max_length)
        # Sorted by characters alone, batches of STS sentences would be padded to 1.4 times their tokens.
        by_length = np.argsort([-len(row) for row in ids], kind="stable")
        for first in range(0, len(window), batch_size):
            rows = by_length[first : first + batch_size]
            yield window[rows], *pad([ids[i] for i in rows], tokenizer.pad_token_id)


def padded_right(ids: Tensor, mask: Tensor, types: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Ids and mask (R, L) and R * L token types, each (R, L) with what is padded of a row at its end."""
    types = None if types is None else types.reshape(ids.shape)
    if mask[:, 0].all():
        return ids, mask, types
    order = mask.argsort(dim=1, descending=True, stable=True)
    return ids.gather(1, order), mask.gather(1, order), None if types is None else types.gather(1, order)
