"""What a batch asks of the loss: hard negatives, near-duplicates and suspected false negatives in it."""

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
from ..options.experiments import InspectOptions
from .findings import KINDS, Findings, explain, summarise, title
from .pushes import gradient_weights, share_gain

ROUNDING = 1e-5  # of two cosines that are the same by definition
BLOCK = 2048  # rows of the whole file that meet as many others at a time
TOP_ONLY = ("hardest", "upweighted")  # of these only --top are kept, of the others all


def normal_form(text: str) -> str:
    """What is left of a text when case, punctuation, white space and Unicode variants do not matter."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"\w+", folded)) or folded.strip()


def find(model: Any, sentences: Sentences, args: InspectOptions, reference: FrozenReference | None = None) -> Findings:
    """Look at ``args.batches`` seeded batches of different sentences, and with ``args.whole`` at the whole file."""
    count = min(args.batches, len(sentences) // args.batch_size)
    order = np.random.default_rng(args.seed).permutation(len(sentences))[: count * args.batch_size]
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    totals = dict.fromkeys(
        ("negatives", "hard", "more", "infonce", "focal", "infonce_hard", "focal_hard", "positive", "hardest"), 0.0
    )
    torch.manual_seed(args.seed)
    chunks = np.split(order, count)
    for number, indices in enumerate(tqdm(chunks, desc="Inspecting", unit="batch", leave=False), start=1):
        texts = [sentences[i]["text"] for i in indices]
        pairs = batch_pairs(model, texts, args, reference)
        batch = Batch(pairs, texts, sentences.lines[indices].tolist(), number, args)
        for name, value in batch.totals().items():
            totals[name] += value
        for kind, found in batch.rows().items():
            rows[kind] = _best(rows[kind] + found, KINDS[kind][1], args.top if kind in TOP_ONLY else None)
    summary = summarise(totals, rows, count, args)
    if reference is None:
        del rows["false_negative"]
    if args.whole:
        rows["neighbour"], summary["sentences_with_near_duplicate"] = neighbours(model, sentences, args)
    else:
        del rows["neighbour"]
    return Findings(title(model, args), summary, list(explain(summary, len(sentences), count, args)), rows)


@torch.no_grad()
def batch_pairs(model: Any, texts: list[str], args: InspectOptions, reference: FrozenReference | None = None) -> Pairs:
    """The pairs of one batch: of two views with dropout, as in a training step, or of equal views without."""
    collator: Any = Views(model.tokenizer, int(args.max_seq_length or 0), views=2 if args.dropout_views else 1)
    if reference is not None:
        collator = reference.collate(collator)
    beside = next(model.parameters())
    inputs = {name: tensor.to(beside.device) for name, tensor in collator([{"text": text} for text in texts]).items()}
    model.train(args.dropout_views)
    embeddings = model(inputs["input_ids"], inputs["attention_mask"])  # (B, V, D)
    model.eval()
    return make_pairs(
        embeddings.expand(-1, 2, -1),
        inputs["text_ids"] if args.mask_duplicates else None,
        reference.encode(inputs, beside) if PREFIX + "input_ids" in inputs and reference is not None else None,
    )


class Batch:
    """The (B, B) matrices of one batch as float64 arrays, and the pairs of sentences in it that are worth a look."""

    def __init__(self, pairs: Pairs, texts: list[str], lines: list[int], number: int, args: InspectOptions):
        self.texts, self.lines, self.number, self.args = texts, lines, number, args
        m, temperature = float(args.m or 0), float(args.temperature or 0)
        infonce, focal, ratio = gradient_weights(pairs, temperature, m)
        self.of = {
            "cosine": _array(pairs.cosines()),
            "weight_infonce": _array(infonce),
            "weight_focal": _array(focal),
            "ratio": _array(ratio),
        }
        self.of["share_gain"] = share_gain(self.of["weight_infonce"], self.of["weight_focal"])
        self.reference = None if pairs.reference is None else _array(pairs.reference)
        self.negative = pairs.negative_mask().cpu().numpy()
        self.hard = (self.of["cosine"] > 1 - m) & self.negative

    def totals(self) -> dict[str, float]:
        """Sums over the batch, to be added up."""
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
        """Kind -> pairs of sentences; a pair once, as the anchor and candidate in which it is more of its kind."""
        cosines, top = self.of["cosine"], self.args.top
        forms = np.array([hash(normal_form(text)) for text in self.texts])
        equal = forms[:, None] == forms[None, :]
        none = np.zeros_like(equal)
        suspects = none if self.reference is None else (self.reference >= self.args.phi) & self.negative
        return {
            "hardest": self._pairs(self.negative, cosines, top),
            "upweighted": self._pairs(self.negative, self.of["share_gain"], top),
            "near_duplicate": self._pairs((cosines > self.args.near) | equal, cosines),
            "false_negative": self._pairs(suspects, cosines if self.reference is None else self.reference),
        }

    def _pairs(self, chosen: np.ndarray, by: np.ndarray, top: int | None = None) -> list[dict[str, Any]]:
        """The unordered pairs of ``chosen`` with the highest ``by``, which need not be symmetric."""
        first, second = np.nonzero(np.triu(chosen | chosen.T, k=1))
        best = np.fmax(by[first, second], by[second, first])
        keep = np.argsort(-best, kind="stable")[:top]
        made = []
        for i, j in zip(first[keep].tolist(), second[keep].tolist(), strict=True):
            more = by[j, i] - by[i, j]
            if abs(more) < ROUNDING:  # a cosine of equal views: as the anchor that focal pushes harder
                more = self.of["weight_focal"][j, i] - self.of["weight_focal"][i, j]
            made.append(self._row(*((j, i) if more > 0 else (i, j))))
        return made

    def _row(self, i: int, j: int) -> dict[str, Any]:
        values = {name: _number(of[i, j]) for name, of in self.of.items()}
        return {
            "batch": self.number,
            "lines": [self.lines[i], self.lines[j]],
            "texts": [self.texts[i], self.texts[j]],
            **values,
            "reference_cosine": None if self.reference is None else _number(self.reference[i, j]),
            "negative": bool(self.negative[i, j]),
        }


@torch.no_grad()
def neighbours(
    model: Any, sentences: Sentences, args: InspectOptions, block: int = BLOCK
) -> tuple[list[dict[str, Any]], int]:
    """(the ``args.top`` closest pairs of a sentence and its nearest other one, sentences with another one above
    ``args.near``), without dropout. Equal texts are no negatives where batches mask them.

    All pairs in blocks of rows: time grows with N^2, memory with N.
    """
    count, size, length = len(sentences), args.batch_size, int(args.max_seq_length or 0)
    collator = Views(model.tokenizer, length, views=1)
    device = next(model.parameters()).device
    parts = []
    for start in tqdm(range(0, count, size), desc="Encoding", unit="batch", leave=False):
        inputs = collator([sentences[i] for i in range(start, min(start + size, count))])
        vectors = model(inputs["input_ids"].to(device), inputs["attention_mask"].to(device))[:, 0]
        parts.append(torch.nn.functional.normalize(vectors.float(), dim=1))
    vectors = torch.cat(parts)
    best, nearest = torch.full((count,), -2.0), torch.zeros(count, dtype=torch.int64)
    starts = [(a, b) for a in range(0, count, block) for b in range(a, count, block)]
    for a, b in tqdm(starts, desc="Comparing", unit="block", leave=False):
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
        if len(closest) == args.top:
            break
    unknown = dict.fromkeys(("weight_infonce", "weight_focal", "ratio", "share_gain", "reference_cosine"))
    rows_found = [
        {
            "batch": None,
            "lines": [int(sentences.lines[i]), int(sentences.lines[j])],
            "texts": [sentences[i]["text"], sentences[j]["text"]],
            "cosine": _number(value),
            **unknown,
            "negative": not args.mask_duplicates or sentences[i]["text"] != sentences[j]["text"],
        }
        for (i, j), value in closest.items()
    ]
    return rows_found, int((best > args.near).sum())


def _best(rows: list[dict[str, Any]], by: str, top: int | None) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -np.inf if row[by] is None else row[by], reverse=True)[:top]


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.6g}")
