"""The scores of one encoder as text for the terminal, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..runs.escaping import escape_terminal
from ..runs.scores import IDENTITY, SEVEN, SICK_SPLITS, SUBSET, Results, ScoreKey, SickSplit
from ..runs.tables import Table
from .sizes import by_size

WIDTHS = (34, *[6] * 8)  # of the columns
SHOWN_QUANTILES = ("0.01", "0.25", "0.5", "0.75", "0.99")  # of those that are kept


def summarise(results: Results) -> str:
    """The seven test sets in a row, then what was measured besides, then what must be known to read the scores."""
    data, model = results.metadata["data"], results.metadata["model"]
    settings = ", ".join(f"{key} {model[key]}" for key in IDENTITY[1:] if key in model)
    blocks = [[escape_terminal(str(model.get("name_or_path", "encoder")) + (f" ({settings})" if settings else ""))]]

    mteb, senteval = SICK_SPLITS.values()
    rows = {f"all, SICK-R as in {sick.label}": _seven(results, "all", sick) for sick in (mteb, senteval)}
    if not rows[f"all, SICK-R as in {senteval.label}"][-2]:  # without its SICK-R it is the row above once more
        del rows[f"all, SICK-R as in {senteval.label}"]
    rows |= {
        "mean of subsets": _seven(results, "mean", mteb),
        "mean of subsets by pairs": _seven(results, "wmean", mteb),
    }
    rows = {name: row for name, row in rows.items() if any(row)}
    blocks.append(_table(["Spearman x 100", *SEVEN.values(), "Avg"], rows))

    shown = {key for sick in SICK_SPLITS.values() for key in sick.test_sets()}
    cells = {key: [_score(results, key, "all/spearman"), f"{of['pairs']:,}"] for key, of in data.items()}
    other = {key: row for key, row in cells.items() if key not in shown and row[0]}
    blocks.append(_table(["Other sets", "Spearman", "pairs"], other))

    ranked = {f"{key}, {of['scorer']}": _ranked(results, key, of) for key, of in data.items() if "scorer" in of}
    blocks.append(_table(["Reranking x 100; IR: search engine", "MAP", "MRR", "IR MAP", "IR MRR", "queries"], ranked))

    sizes, sized = by_size(results.scores)
    header = ["Dimensions that are kept", "all", *map(str, sizes[: len(WIDTHS) - 2])]
    blocks.append(_table(header, {str(key): row[: len(header) - 1] for key, row in sized.items()}))

    cells = {key: [_score(results, key, name, 4) for name in ("alignment", "uniformity")] for key in data}
    shape = {key: row for key, row in cells.items() if any(row)}
    blocks.append(_table(["Lower is better", "align", "uniform"], shape))

    spread = {key: of.get("cosines", {}).get("quantiles", {}) for key, of in data.items()}
    named = [name for name in SHOWN_QUANTILES if any(name in of for of in spread.values())]
    cells = {key: [f"{of[name]:.2f}" if name in of else "" for name in named] for key, of in spread.items() if of}
    blocks.append(_table(["Cosine of random pairs", *(f"{float(name):.0%}" for name in named)], cells))

    subsets = []
    for key, of in data.items():
        each = {name: _score(results, key, f"{SUBSET}{name}/spearman") for name in of["subsets"]}
        if any(each.values()):
            scored = (f"{name}\xa0{score}\xa0({of['subsets'][name]})" for name, score in each.items())
            subsets += _wrap(f"{key}: {', '.join(scored)}")
    blocks += [subsets, [line for note in _notes(results) for line in _wrap(note)]]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _score(results: Results, key: str, name: str, digits: int = 2) -> str:
    score = results.scores.get(f"{key}/{name}")
    return "" if score is None else f"{score:.{digits}f}"


def _seven(results: Results, aggregation: str, sick: SickSplit) -> list[str]:
    """The seven scores and their average."""
    return [_score(results, key, f"{aggregation}/spearman") for key in (*sick.test_sets(), sick.average)]


def _ranked(results: Results, key: str, of: Mapping[str, Any]) -> list[str]:
    """MAP and MRR of the encoder and of the search engine, and how many queries they are the mean of."""
    names = [f"{metric}_{of['scorer']}" for metric in ("map", "mrr")]
    engine = [f"{of['search_engine'][name]:.2f}" if of["search_engine"] else "" for name in names]
    return [*(_score(results, key, name) for name in names), *engine, f"{of['queries_scored']:,}"]


def _notes(results: Results) -> Iterator[str]:
    data = results.metadata["data"]
    rules = {of["scorer"]: of["rule"] for of in data.values() if "scorer" in of}
    yield from (f"{name}: {rule}." for name, rule in rules.items())
    for key, of in data.items():
        if "scorer" in of:
            yield (
                f"{key}: of {of['queries']:,} queries {of['without_positive']:,} have no positive and "
                f"{of['without_negative']:,} no negative."
            )
    if any(ScoreKey.parse(key).is_average for key in results.scores):
        yield "Avg: the mean of the seven scores, each rounded to two decimals first."
    for key, of in data.items():
        if of["expected_pairs"] not in (None, of["pairs"]):
            yield (
                f"{key}: {of['pairs']:,} pairs where the published set has {of['expected_pairs']:,}; "
                "its scores do not compare with published ones."
            )
        if of["empty_sentences"]:
            yield f"{key}: {of['empty_sentences']:,} empty sentences, scored as they are."
    if any(of["text"] == "senteval" for of in data.values()):
        yield "Text: tokenised (and mostly lower-cased) by SentEval; scores on raw text, as in MTEB, differ."


def _wrap(text: str) -> list[str]:
    """Lines of at most 100 columns, not broken at hyphens or no-break spaces."""
    lines = textwrap.wrap(text, 100, subsequent_indent="  ", break_on_hyphens=False)
    return [escape_terminal(line.replace("\xa0", " ")) for line in lines]


def _table(header: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Columns that stand below each other in all tables of a summary; no lines where there are no rows."""
    cells = [[name[: WIDTHS[0]], *(cell or "-" for cell in row)] for name, row in rows.items()]
    return Table(header, cells).lines(WIDTHS[: len(header)]) if rows else []
