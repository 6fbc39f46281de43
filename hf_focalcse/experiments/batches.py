"""What is in a batch: hard negatives, those that focal weights more, near-duplicates and suspected false negatives."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..data.sentences import Sentences
from ..data.views import Views
from ..losses.base import Pairs
from ..objectives.pairs import make_pairs
from ..objectives.reference import PREFIX, FrozenReference
from .findings import KINDS, Findings, explain, number, summarise, title
from .neighbours import neighbours
from .pushes import gradient_weights, share_gain
from .search import Search

ROUNDING = 1e-5  # by which two cosines that are equal by definition may differ
TOP_ONLY = ("hardest", "upweighted")  # kinds of which only --top pairs are kept; of the others, all are kept


def normal_form(text: str) -> str:
    """A text without its differences in case, punctuation, white space and Unicode variants."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"\w+", folded)) or folded.strip()


def find(model: Any, sentences: Sentences, search: Search, reference: FrozenReference | None = None) -> Findings:
    """Look at ``search.batches`` seeded batches and, with ``search.whole``, at the whole file."""
    count = min(search.batches, len(sentences) // search.batch_size)
    order = np.random.default_rng(search.seed).permutation(len(sentences))[: count * search.batch_size]
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    totals = dict.fromkeys(
        ("negatives", "hard", "more", "infonce", "focal", "infonce_hard", "focal_hard", "positive", "hardest"), 0.0
    )
    torch.manual_seed(search.seed)
    chunks = np.split(order, count)
    for step, indices in enumerate(tqdm(chunks, desc="Inspecting", unit="batch", disable=None, leave=False), start=1):
        texts = [sentences[i]["text"] for i in indices]
        pairs = batch_pairs(model, texts, search, reference)
        batch = Batch(pairs, texts, sentences.lines[indices].tolist(), step, search)
        for name, value in batch.totals().items():
            totals[name] += value
        for kind, found in batch.rows().items():
            rows[kind] = _best(rows[kind] + found, KINDS[kind][1], search.top if kind in TOP_ONLY else None)
    summary = summarise(totals, rows, count, search)
    if reference is None:
        del rows["false_negative"]
    if search.whole:
        rows["neighbour"], summary["sentences_with_near_duplicate"] = neighbours(model, sentences, search)
    else:
        del rows["neighbour"]
    return Findings(title(model, search), summary, list(explain(summary, len(sentences), count, search)), rows)


@torch.no_grad()
def batch_pairs(model: Any, texts: list[str], search: Search, reference: FrozenReference | None = None) -> Pairs:
    """The pairs of one batch: from two views with dropout as in a training step, or from equal views without it."""
    collator: Any = Views(model.tokenizer, search.max_seq_length, views=2 if search.dropout_views else 1)
    collator.prompted(model.prompt, model.template)
    if reference is not None:
        collator = reference.collate(collator)
    beside = next(model.parameters())
    inputs = {name: tensor.to(beside.device) for name, tensor in collator([{"text": text} for text in texts]).items()}
    model.train(search.dropout_views)
    embeddings = model(inputs["input_ids"], inputs["attention_mask"])  # (B, V, D)
    model.eval()
    return make_pairs(
        embeddings.expand(-1, 2, -1),
        inputs["text_ids"] if search.mask_duplicates else None,
        reference.encode(inputs, beside) if PREFIX + "input_ids" in inputs and reference is not None else None,
    )


class Batch:
    """The (B, B) matrices of one batch as float64 arrays, and the pairs of its sentences that are worth a look."""

    def __init__(self, pairs: Pairs, texts: list[str], lines: list[int], number: int, search: Search):
        self.texts, self.lines, self.number, self.search = texts, lines, number, search
        infonce, focal, ratio = gradient_weights(pairs, search.temperature, search.m)
        self.of = {
            "cosine": _array(pairs.cosines()),
            "weight_infonce": _array(infonce),
            "weight_focal": _array(focal),
            "ratio": _array(ratio),
        }
        self.of["share_gain"] = share_gain(self.of["weight_infonce"], self.of["weight_focal"])
        self.reference = None if pairs.reference is None else _array(pairs.reference)
        self.negative = pairs.negative_mask().cpu().numpy()
        self.hard = (self.of["cosine"] > 1 - search.m) & self.negative

    def totals(self) -> dict[str, float]:
        """Sums over the batch, which `find` adds up over batches."""
        cosines, negative = self.of["cosine"], self.negative
        hardest = np.where(negative, cosines, -1.0).max(1)[negative.any(1)]
        return {
            "negatives": negative.sum(),
            "hard": self.hard.sum(),
            "more": (self.of["share_gain"][negative] > 0).sum(),
            "infonce": np.abs(self.of["weight_infonce"][negative]).sum(),
            "focal": np.abs(self.of["weight_focal"][negative]).sum(),
            "infonce_hard": self.of["weight_infonce"][self.hard].sum(),
            "focal_hard": self.of["weight_focal"][self.hard].sum(),
            "positive": np.diag(cosines).mean(),
            "hardest": hardest.mean() if hardest.size else 0.0,
        }

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Kind -> pairs of sentences, each once, in the order of anchor and candidate that fits the kind better."""
        cosines, top = self.of["cosine"], self.search.top
        forms = np.array([hash(normal_form(text)) for text in self.texts])
        equal = forms[:, None] == forms[None, :]
        none = np.zeros_like(equal)
        suspects = none if self.reference is None else (self.reference >= self.search.phi) & self.negative
        return {
            "hardest": self._pairs(self.negative, cosines, top),
            "upweighted": self._pairs(self.negative, self.of["share_gain"], top),
            "near_duplicate": self._pairs((cosines > self.search.near) | equal, cosines),
            "false_negative": self._pairs(suspects, cosines if self.reference is None else self.reference),
        }

    def _pairs(self, chosen: np.ndarray, by: np.ndarray, top: int | None = None) -> list[dict[str, Any]]:
        """The unordered pairs of ``chosen`` with the highest values of ``by``, which need not be symmetric."""
        first, second = np.nonzero(np.triu(chosen | chosen.T, k=1))
        best = np.fmax(by[first, second], by[second, first])
        keep = np.argsort(-best, kind="stable")[:top]
        made = []
        for i, j in zip(first[keep].tolist(), second[keep].tolist(), strict=True):
            more = by[j, i] - by[i, j]
            if abs(more) < ROUNDING:  # equal views: the anchor is the one that focal pushes harder
                more = self.of["weight_focal"][j, i] - self.of["weight_focal"][i, j]
            made.append(self._row(*((j, i) if more > 0 else (i, j))))
        return made

    def _row(self, i: int, j: int) -> dict[str, Any]:
        values = {name: number(of[i, j]) for name, of in self.of.items()}
        return {
            "batch": self.number,
            "lines": [self.lines[i], self.lines[j]],
            "texts": [self.texts[i], self.texts[j]],
            **values,
            "reference_cosine": None if self.reference is None else number(self.reference[i, j]),
            "negative": bool(self.negative[i, j]),
        }


def _best(rows: list[dict[str, Any]], by: str, top: int | None) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -np.inf if row[by] is None else row[by], reverse=True)[:top]


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().double().numpy()
