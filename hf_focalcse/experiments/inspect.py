"""What a batch asks of the loss: hard negatives, what focal makes of them, near-duplicates, false negatives.

The qualitative analysis of Hou & Li 2023 (section 5.1) as a command: ``focalcse inspect MODEL FILE``.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from .. import quickstart
from ..cli.jobs import QUICKSTART, choose_device, explicit_projection, resolve_model
from ..data.sentences import Sentences, read_sentences
from ..data.views import Views
from ..encoder.modeling import load_model, require_projection
from ..errors import UserError
from ..losses import build_loss
from ..losses.base import Pairs
from ..objectives.pairs import make_pairs
from ..objectives.reference import PREFIX, FrozenReference
from ..parsing.arguments import IN_RANGE, InspectArguments
from ..runs.record import require_writable

ROUNDING = 1e-5  # of two cosines that are the same by definition
BLOCK = 2048  # rows of the whole file that meet as many others at a time
HEAD = f"{'cosine':>8}{'reference':>11}{'InfoNCE':>11}{'focal':>11}{'ratio':>9}{'moved':>9}  lines"
KINDS = {  # kind -> (title, what it is sorted by)
    "hardest": ("Hardest in-batch negatives", "cosine"),
    "upweighted": ("Negatives that focal moves most of an anchor's push to", "share_gain"),
    "near_duplicate": ("Near-duplicates in one batch", "cosine"),
    "false_negative": ("Suspected false negatives: alike for the reference", "reference_cosine"),
    "neighbour": ("Sentences and the nearest other of each in the whole file", "cosine"),
}


def gradient_weights(pairs: Pairs, temperature: float, m: float) -> tuple[Tensor, Tensor, Tensor]:
    """How hard each loss pushes anchor i from its negative j: (B, N) for InfoNCE, for focal, and their ratio.

    The weight is d l_i / d s_ij, l_i the loss of anchor i (the mean over a batch divides all by B) and s the cosine:

        InfoNCE  w_ij = P_ij / tau                 P_i = softmax over k of s_ik / tau
        focal    w_ij = Q_ij (2 s_ij + m) / tau    Q_i = softmax over k of s_ik (s_ik + m) / tau, s_ii^2 / tau at k = i

    with equal texts left out of both where the pairs exclude them. Focal's is negative below s = -m/2, where it pulls.
    nan at positives and excluded candidates, float64.
    """
    cosines, positive, negative = pairs.cosines().double(), pairs.positive_mask(), pairs.negative_mask()
    log_shares = []
    for loss in (build_loss("infonce", temperature=temperature), build_loss("focal", temperature=temperature, m=m)):
        logits: Tensor = loss.logits(cosines, positive)  # type: ignore[operator]
        log_shares.append(logits.masked_fill(~(negative | positive), -torch.inf).log_softmax(1))
    slope = 2 * cosines + m
    weights = log_shares[0].exp() / temperature, log_shares[1].exp() * slope / temperature
    ratio = (log_shares[1] - log_shares[0]).exp() * slope  # of logarithms: both shares may be too small to divide
    return tuple(found.masked_fill(~negative, torch.nan) for found in (*weights, ratio))  # type: ignore[return-value]


def share_gain(infonce: np.ndarray, focal: np.ndarray) -> np.ndarray:
    """Weights (B, N) of both losses -> how much more of its anchor's push a negative has under focal, -1..1.

    The share is w_ij / sum over k of |w_ik|: free of the factor that focal, with its other positive logit, puts on all
    negatives of an anchor alike, and unlike the ratio of two weights small where both are next to nothing.
    """
    with np.errstate(invalid="ignore"):  # an anchor without a negative has no push
        shares = [of / np.nansum(np.abs(of), axis=1, keepdims=True) for of in (infonce, focal)]
    return shares[1] - shares[0]


def normal_form(text: str) -> str:
    """What is left of a text when case, punctuation, white space and Unicode variants do not matter."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"\w+", folded)) or folded.strip()


@dataclass
class Findings:
    """summary: figure -> value. rows: pairs of sentences by kind, each kind sorted, best first."""

    title: str
    summary: dict[str, float]
    explained: list[str]
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def table(self, top: int) -> str:
        """For the terminal, at most 100 columns; ``top`` pairs of each kind."""
        blocks = [[self.title, *self.explained]]
        for kind, rows in self.rows.items():
            shown = f", {top} of {len(rows):,}" if len(rows) > top else ""
            lines = [f"{KINDS[kind][0]}{shown}"]
            if rows:
                lines.append(
                    f"{'cosine':>8}{'reference':>11}{'InfoNCE':>11}{'focal':>11}{'ratio':>9}{'moved':>9}  lines"
                )
            for row in rows[:top]:
                cells = [_cell(row["cosine"], 8, ".3f"), _cell(row["reference_cosine"], 11, ".3f")]
                cells += [_cell(row[name], 11, ".2e") for name in ("weight_infonce", "weight_focal")]
                cells += [_cell(row["ratio"], 9, ".2f"), _cell(row["share_gain"], 9, "+.1%")]
                cells += [f"  {row['lines'][0]}, {row['lines'][1]}"]
                masked = "" if row["negative"] else "  (equal: masked)"
                lines += ["".join(cells) + masked, *(f"      {_shown(text)}" for text in row["texts"])]
            blocks.append(lines if rows else [f"{lines[0]}: none"])
        return "\n\n".join("\n".join(block) for block in blocks)

    def write(self, path: Path) -> None:
        """One JSON object a pair and line, whole or not at all."""
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with draft.open("w", encoding="utf-8") as file:
                for kind, rows in self.rows.items():
                    for row in rows:
                        file.write(json.dumps({"kind": kind, **row}, ensure_ascii=False, allow_nan=False) + "\n")
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def inspect(args: InspectArguments) -> None:
    """``focalcse inspect``: a table on the terminal, all pairs in ``--jsonl``."""
    check(args)
    require_writable(args.jsonl, "--jsonl")
    device = choose_device(args.device)
    model = prepare_encoder(args).to(device)
    reference = prepare_reference(args, model)
    sentences = prepare_sentences(args, model)
    findings = find(model, sentences, args, reference)
    print(findings.table(args.top))
    if args.jsonl is not None:
        findings.write(Path(args.jsonl))
        print(f"\nWritten to {args.jsonl}: {sum(map(len, findings.rows.values())):,} pairs")


# ---- what was asked for


def check(args: InspectArguments) -> None:
    """Refuse numbers that make no sense, before anything is loaded.

    Raises:
        UserError: with the value and what is allowed.
    """
    if args.model_name_or_path is None or args.file is None:
        raise UserError("inspect needs a model and a file of sentences: focalcse inspect MODEL FILE")
    bounds = {"batch_size": 2, "top": 1, "batches": 1}
    for name, least in bounds.items():
        if getattr(args, name) < least:
            raise UserError(f"--{name} is {getattr(args, name)}; it must be at least {least}")
    allowed, words = IN_RANGE["seed"]
    if not allowed(args.seed):
        raise UserError(f"--seed is {args.seed}; it must be {words}")
    for name in ("phi", "near"):
        if not 0 < getattr(args, name) <= 1:
            raise UserError(f"--{name} is {getattr(args, name)}; it is a cosine, above 0 and at most 1")
    for name in ("reference_pooler", "reference_revision"):
        if getattr(args, name) is not None and args.reference_model is None:
            raise UserError(f"--{name} belongs to --reference_model, which is not given")
    if args.jsonl is not None and (Path(args.jsonl).is_dir() or not Path(args.jsonl).parent.is_dir()):
        raise UserError(f"--jsonl {args.jsonl} cannot be written: name a file in a folder that is there")


def prepare_encoder(args: InspectArguments) -> Any:
    """The encoder, with m, temperature and length in ``args`` as it was trained with where they were not given.

    Raises:
        UserError: it cannot be loaded, a setting is not allowed, or --dropout_views find no dropout or a projection
            that training would draw anew.
    """
    path, _ = resolve_model(args.model_name_or_path)
    projection = None
    if args.pooler is not None and not args.dropout_views:
        projection = explicit_projection(args.pooler)
    model = load_model(path, args.pooler, projection, revision=args.model_revision)
    require_projection(model, str(args.model_name_or_path))
    recorded = model.config.focal_cl
    for name, default in (("m", 0.3), ("temperature", 0.05), ("max_seq_length", 32)):
        if getattr(args, name) is None:
            setattr(args, name, default if recorded.get(name) is None else recorded[name])
    build_loss("focal", m=args.m, temperature=args.temperature)  # refuses what no loss can have
    if not 3 <= int(args.max_seq_length or 0) <= model.max_length():
        raise UserError(
            f"--max_seq_length is {args.max_seq_length}; this encoder takes 3 to {model.max_length()} tokens"
        )
    if args.dropout_views:
        if not any(model.dropout_rates().values()):
            raise UserError("--dropout_views: every dropout rate of this encoder is 0, so both views would be equal")
        if model.projection_use != "none" and "loss" not in recorded:
            raise UserError(
                f"--dropout_views: training would draw the projection of {args.model_name_or_path} anew, so there is "
                "nothing to look at yet; give --pooler cls_before_pooler or mean, or a trained folder"
            )
    return model


def prepare_reference(args: InspectArguments, model: Any) -> FrozenReference | None:
    """The frozen encoder that finds false negatives, or None."""
    if args.reference_model is None:
        return None
    path, _ = resolve_model(args.reference_model)
    try:
        frozen = load_model(path, args.reference_pooler, revision=args.reference_revision)
        require_projection(frozen, args.reference_model)
    except UserError as error:
        raise UserError(f"--reference_model: {str(error).replace('--pooler', '--reference_pooler')}") from error
    return FrozenReference(frozen, int(args.max_seq_length or 0))


def prepare_sentences(args: InspectArguments, model: Any) -> Sentences:
    """The file's sentences, at least one batch of them."""
    try:
        file = quickstart.CORPUS if args.file == QUICKSTART else args.file
        sentences = read_sentences(file, text_column=args.text_column)
    except UserError as error:
        raise UserError(str(error).replace("--train_file", "FILE")) from error
    if len(sentences) < args.batch_size:
        raise UserError(
            f"{args.file} holds {len(sentences)} sentences, fewer than one batch of {args.batch_size}: add text, or "
            "lower --batch_size"
        )
    return sentences


# ---- looking


def find(
    model: Any, sentences: Sentences, args: InspectArguments, reference: FrozenReference | None = None
) -> Findings:
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


TOP_ONLY = ("hardest", "upweighted")  # of these only --top are kept, of the others all


@torch.no_grad()
def batch_pairs(
    model: Any, texts: list[str], args: InspectArguments, reference: FrozenReference | None = None
) -> Pairs:
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

    def __init__(self, pairs: Pairs, texts: list[str], lines: list[int], number: int, args: InspectArguments):
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
    model: Any, sentences: Sentences, args: InspectArguments, block: int = BLOCK
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


# ---- saying


def summarise(
    totals: dict[str, float], rows: dict[str, list[dict[str, Any]]], count: int, args: InspectArguments
) -> dict[str, float]:
    """Shares from 0 to 1, counts a batch, and how many times InfoNCE's push (|d loss / d cosine|) focal's is."""
    negatives, pairs = max(totals["negatives"], 1), count * args.batch_size * (args.batch_size - 1) / 2
    twins = rows["near_duplicate"]
    summary = {
        "batches": count,
        "negatives": totals["negatives"],
        "positive_cosine_mean": totals["positive"] / count,
        "hardest_negative_cosine_mean": totals["hardest"] / count,
        "hard_negative_share": totals["hard"] / negatives,
        "hard_negatives_per_batch": totals["hard"] / count,
        "upweighted_share": totals["more"] / negatives,
        "push_ratio": totals["focal"] / totals["infonce"] if totals["infonce"] else 0.0,
        **{
            f"hard_push_share_{loss}": totals[f"{loss}_hard"] / totals[loss] if totals[loss] else 0.0
            for loss in ("infonce", "focal")
        },
        "near_duplicate_pairs_per_batch": len(twins) / count,
        "masked_pairs_per_batch": sum(not row["negative"] for row in twins) / count,
        "suspect_pairs_per_batch": len(rows["false_negative"]) / count,
        "suspect_pair_share": len(rows["false_negative"]) / pairs,
    }
    return {name: float(value) for name, value in summary.items()}


def title(model: Any, args: InspectArguments) -> str:
    through = model.projection_use == "always" or (args.dropout_views and model.projection_use == "training")
    views = (
        "two views with dropout, as in a training step"
        if args.dropout_views
        else "without dropout, so both views are equal"
    )
    return (
        f"{args.model_name_or_path}: pooler {model.pooler_name}{' and projection' * through}, {args.max_seq_length} "
        f"tokens, {views}"
    )


def explain(summary: dict[str, float], sentences: int, count: int, args: InspectArguments) -> Iterator[str]:
    """The summary in words, in lines of at most 100 columns."""
    few = f" (all that {sentences:,} sentences give)" if count < args.batches else ""
    said = [
        f"{count} batches of {args.batch_size}{few} of {sentences:,} sentences, seed {args.seed}; "
        f"m {args.m:g}, temperature {args.temperature:g}.",
        f"Cosines: positive {summary['positive_cosine_mean']:.3f}, hardest negative of an anchor "
        f"{summary['hardest_negative_cosine_mean']:.3f} (means).",
        f"Hard negatives (cosine above 1 - m = {1 - float(args.m or 0):.2f}): "
        f"{100 * summary['hard_negative_share']:.3f} % of {summary['negatives']:,.0f} negatives, "
        f"{summary['hard_negatives_per_batch']:.1f} a batch.",
        f"Hard negatives get {summary['hard_push_share_infonce']:.1%} of the push under InfoNCE and "
        f"{summary['hard_push_share_focal']:.1%} under focal, whose push on all negatives is "
        f"{summary['push_ratio']:.2f} times InfoNCE's; {summary['upweighted_share']:.1%} of the negatives get a "
        "greater share of their anchor's push.",
        "Push: d loss / d cosine, columns InfoNCE and focal; ratio: of the two; moved: how much more of its anchor's "
        "push the negative has under focal.",
        f"Near-duplicates (cosine above {args.near:g}, or equal but for case, punctuation and space): "
        f"{summary['near_duplicate_pairs_per_batch']:.2f} pairs a batch, of which "
        f"{summary['masked_pairs_per_batch']:.2f} are equal texts, masked.",
        f"Suspected false negatives (cosine of {args.reference_model} at least {args.phi:g}): "
        f"{summary['suspect_pairs_per_batch']:.2f} pairs a batch, {100 * summary['suspect_pair_share']:.3f} % of all."
        if args.reference_model
        else "False negatives were not looked for: name a frozen encoder with --reference_model.",
    ]
    if "sentences_with_near_duplicate" in summary:
        share = summary["sentences_with_near_duplicate"] / sentences
        said.append(f"In the whole file {share:.1%} of the sentences have another above {args.near:g}.")
    for sentence in said:
        yield from textwrap.wrap(sentence, 100, subsequent_indent="  ", break_on_hyphens=False)


def _best(rows: list[dict[str, Any]], by: str, top: int | None) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -np.inf if row[by] is None else row[by], reverse=True)[:top]


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.6g}")


def _cell(value: float | None, width: int, form: str) -> str:
    return f"{'-' if value is None else format(value, form):>{width}}"


def _shown(text: str, width: int = 92) -> str:
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return plain if len(plain) <= width else plain[: width - 1] + "…"
