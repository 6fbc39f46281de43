"""The nearest other sentence of each sentence in a file."""

from __future__ import annotations

from typing import Any

import torch
from tqdm.auto import tqdm

from ..data.sentences import Sentences
from ..data.views import Views
from .findings import number
from .search import Search

BLOCK = 2048  # rows that are compared with as many others at a time


@torch.no_grad()
def neighbours(
    model: Any, sentences: Sentences, search: Search, block: int = BLOCK
) -> tuple[list[dict[str, Any]], int]:
    """(the ``search.top`` closest pairs of a sentence and its nearest other one, how many sentences have another one
    above ``search.near``), without dropout. Equal texts are not negatives if batches mask them.

    All pairs are compared in blocks of rows, so the time grows with N^2 and the memory with N.
    """
    count, size = len(sentences), search.batch_size
    collator = Views(model.tokenizer, search.max_seq_length, views=1).prompted(model.prompt, model.template)
    device = next(model.parameters()).device
    parts = []
    for start in tqdm(range(0, count, size), desc="Encoding", unit="batch", disable=None, leave=False):
        inputs = collator([sentences[i] for i in range(start, min(start + size, count))])
        vectors = model(inputs["input_ids"].to(device), inputs["attention_mask"].to(device))[:, 0]
        parts.append(torch.nn.functional.normalize(vectors.float(), dim=1))
    vectors = torch.cat(parts)
    best, nearest = torch.full((count,), -2.0), torch.zeros(count, dtype=torch.int64)
    starts = [(a, b) for a in range(0, count, block) for b in range(a, count, block)]
    for a, b in tqdm(starts, desc="Comparing", unit="block", disable=None, leave=False):
        cosines = (vectors[a : a + block] @ vectors[b : b + block].T).cpu()
        if a == b:
            cosines.fill_diagonal_(-2.0)
        for first, other, found in ((a, b, cosines.max(1)), (b, a, cosines.max(0))):
            rows = torch.arange(first, first + len(found.values))
            better = found.values > best[rows]
            best[rows[better]] = found.values[better]
            nearest[rows[better]] = found.indices[better] + other
    closest: dict[tuple[int, int], float] = {}
    for i in torch.argsort(best, descending=True, stable=True).tolist():
        j = int(nearest[i])
        closest.setdefault((min(i, j), max(i, j)), float(best[i]))
        if len(closest) == search.top:
            break
    unknown = dict.fromkeys(("weight_infonce", "weight_focal", "ratio", "share_gain", "reference_cosine"))
    rows_found = [
        {
            "batch": None,
            "lines": [int(sentences.lines[i]), int(sentences.lines[j])],
            "texts": [sentences[i]["text"], sentences[j]["text"]],
            "cosine": number(value),
            **unknown,
            "negative": not search.mask_duplicates or sentences[i]["text"] != sentences[j]["text"],
        }
        for (i, j), value in closest.items()
    ]
    return rows_found, int((best > search.near).sum())
