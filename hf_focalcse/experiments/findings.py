"""What was found in the batches of a file, as a table, in sentences and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..data import terminal
from ..runs.atomic import draft
from .search import Search

WIDTH = 92  # characters of a sentence in a table
KINDS = {  # kind of pair -> (title, the value that it is sorted by)
    "hardest": ("Hardest in-batch negatives", "cosine"),
    "upweighted": ("Negatives whose share of their anchor's push grows most under focal", "share_gain"),
    "near_duplicate": ("Near-duplicates in one batch", "cosine"),
    "false_negative": ("Suspected false negatives: similar by the reference", "reference_cosine"),
    "neighbour": ("Sentences and the nearest other of each in the whole file", "cosine"),
}


@dataclass
class Findings:
    """summary: name -> value. explained: the same in lines of text. rows: pairs of sentences by kind, best first."""

    title: str
    summary: dict[str, float]
    explained: list[str]
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def table(self, top: int) -> str:
        """For the terminal, at most 100 columns wide; ``top`` pairs of each kind."""
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
                lines += ["".join(cells) + masked, *(f"      {terminal.shown(text, WIDTH)}" for text in row["texts"])]
            blocks.append(lines if rows else [f"{lines[0]}: none"])
        return "\n\n".join("\n".join(block) for block in blocks)

    def write(self, path: Path) -> None:
        """One line of JSON for each pair; the file is written completely or not at all."""
        with draft(path) as part, part.open("w", encoding="utf-8") as file:
            for kind, rows in self.rows.items():
                for row in rows:
                    file.write(json.dumps({"kind": kind, **row}, ensure_ascii=False, allow_nan=False) + "\n")


def summarise(
    totals: dict[str, float], rows: dict[str, list[dict[str, Any]]], count: int, search: Search
) -> dict[str, float]:
    """Shares from 0 to 1, counts per batch, and the ratio of focal's push to InfoNCE's (push: |d loss / d cosine|)."""
    negatives, pairs = max(totals["negatives"], 1), count * search.batch_size * (search.batch_size - 1) / 2
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


def title(model: Any, search: Search) -> str:
    through = model.projection_use == "always" or (search.dropout_views and model.projection_use == "training")
    views = (
        "two views with dropout, as in a training step"
        if search.dropout_views
        else "without dropout, so both views are equal"
    )
    return (
        f"{search.model_name_or_path}: pooler {model.pooler_name}{' and projection' * through}, "
        f"{search.max_seq_length} tokens, {views}"
    )


def explain(summary: dict[str, float], sentences: int, count: int, search: Search) -> Iterator[str]:
    """The summary in sentences, in lines of at most 100 columns."""
    few = f" (all that {sentences:,} sentences give)" if count < search.batches else ""
    said = [
        f"{count} batches of {search.batch_size}{few} of {sentences:,} sentences, seed {search.seed}; "
        f"m {search.m:g}, temperature {search.temperature:g}.",
        f"Cosines: positive {summary['positive_cosine_mean']:.3f}, hardest negative of an anchor "
        f"{summary['hardest_negative_cosine_mean']:.3f} (means).",
        f"Hard negatives (cosine above 1 - m = {1 - search.m:.2f}): "
        f"{100 * summary['hard_negative_share']:.3f} % of {summary['negatives']:,.0f} negatives, "
        f"{summary['hard_negatives_per_batch']:.1f} per batch.",
        f"Hard negatives get {summary['hard_push_share_infonce']:.1%} of the push under InfoNCE and "
        f"{summary['hard_push_share_focal']:.1%} under focal, whose push on all negatives is "
        f"{summary['push_ratio']:.2f} times InfoNCE's; {summary['upweighted_share']:.1%} of the negatives get a "
        "greater share of their anchor's push.",
        "Columns InfoNCE and focal: the push, d loss / d cosine; ratio: focal's divided by InfoNCE's; moved: by how "
        "much the negative's share of its anchor's push grows under focal.",
        f"Near-duplicates (cosine above {search.near:g}, or equal but for case, punctuation and space): "
        f"{summary['near_duplicate_pairs_per_batch']:.2f} pairs per batch, of which "
        f"{summary['masked_pairs_per_batch']:.2f} have equal texts and are masked.",
        f"Suspected false negatives (cosine of {search.reference_model} at least {search.phi:g}): "
        f"{summary['suspect_pairs_per_batch']:.2f} pairs per batch, {100 * summary['suspect_pair_share']:.3f} % of "
        "all pairs."
        if search.reference_model
        else "False negatives were not searched: name a frozen encoder with --reference_model.",
    ]
    if "sentences_with_near_duplicate" in summary:
        share = summary["sentences_with_near_duplicate"] / sentences
        said.append(f"In the whole file {share:.1%} of the sentences have another one above {search.near:g}.")
    for sentence in said:
        yield from textwrap.wrap(sentence, 100, subsequent_indent="  ", break_on_hyphens=False)


def _cell(value: float | None, width: int, form: str) -> str:
    return f"{'-' if value is None else format(value, form):>{width}}"


def number(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.6g}")
