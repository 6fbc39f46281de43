"""The sections "Scores" and "Choosing a threshold" of a model card: tables, and what must be known to read them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from ..evaluation import STS_TASKS
from ..evaluation.sizes import by_size
from ..evaluation.verdict import difference_cell
from ..runs.escaping import escape_markdown
from ..runs.record import RunRecord
from ..runs.scores import SEVEN, SICK_SPLITS, Results, ScoreKey, headline, is_headline, measures, set_of
from ..runs.tables import Table

MAIN = "STSBenchmark/test"
SICK_NOTES = {
    "mteb": "SICK-R (MTEB) is all 9,927 pairs; tables of SimCSE and its successors have SentEval's 4,927, and the two "
    "do not compare.",
    "senteval": "SICK-R (SentEval) is the 4,927 test pairs that tables of SimCSE and its successors have.",
}


def scores(record: RunRecord, results: Results | None) -> Iterator[str]:
    """Tables, and paragraphs on them."""
    own = {**record.final, **(results.scores if results else {})}
    data = results.metadata["data"] if results else {}
    keys = ordered_keys(own)
    ranked = reranking(own, data)
    if not keys and not ranked:
        yield "None: run `python run_eval.py --model_name_or_path FOLDER`."
        return
    if keys:
        yield from correlations(record, results, own, keys)
    yield from ranked
    yield from sizes(record, own)
    rows: dict[str, dict[str, str]] = {}
    for key in map(ScoreKey.parse, own):
        if key.metric in ("alignment", "uniformity"):
            rows.setdefault(key.set, {})[key.metric] = f"{own[str(key)]:.4f}"
    if rows:
        columns = ["alignment", "uniformity"]
        cells = [[escape_markdown(name), *(row.get(of, "") for of in columns)] for name, row in rows.items()]
        yield Table(["Lower is better", *columns], cells).markdown(marked_up=True)


def sizes(record: RunRecord, own: dict[str, float]) -> Iterator[str]:
    """Scores by how many dimensions of a vector are kept, where several sizes were measured."""
    kept, rows = by_size(own)
    if not rows:
        return
    header = ["Dimensions that are kept", str(record.model["embedding_dimensions"]), *map(str, kept)]
    cells = [[escape_markdown(row_title(key)), *row] for key, row in rows.items()]
    yield Table(header, cells).markdown(marked_up=True)
    yield (
        "To keep fewer dimensions, cut each vector after its first ones and then bring it to length 1 again, as "
        f"`SentenceTransformer(…, truncate_dim={kept[-1]})` with `normalize_embeddings=True` does; a cosine needs no "
        "such length, a dot product does."
    )


def reranking(own: dict[str, float], data: dict[str, Any]) -> list[str]:
    """MAP and MRR beside those of the search engine, and the rules by which they are computed."""
    of_queries = {key: of for key, of in data.items() if "scorer" in of}
    if not of_queries:
        return []
    rows = []
    for key, of in of_queries.items():
        best, first = (own[f"{key}/{metric}_{of['scorer']}"] for metric in ("map", "mrr"))
        known = (of["search_engine"] or {}).get(f"map_{of['scorer']}")
        name = escape_markdown(f"{key} ({of['scorer']})")
        engine = "" if known is None else f"{known:.2f}"
        rows.append([name, f"{of['queries_scored']:,}", engine, f"**{best:.2f}**", f"**{first:.2f}**"])
    rules = {of["scorer"]: of["rule"] for of in of_queries.values()}
    header = ["Reranking by cosine, x 100", "queries", "search engine's MAP", "MAP", "MRR"]
    return [Table(header, rows).markdown(marked_up=True), " ".join(f"{name}: {rule}." for name, rule in rules.items())]


def correlations(record: RunRecord, results: Results | None, own: dict[str, float], keys: list[str]) -> Iterator[str]:
    """The score that each set is known by, beside those before training and those of other encoders."""
    data = results.metadata["data"] if results else {}
    columns: dict[str, dict[str, str]] = {}
    for title, before in ((record.baseline_name, record.baseline), (record.start_name, record.start)):
        if any(key in before for key in keys):
            columns[title] = {key: f"{value:.2f}" for key, value in before.items()}
    for name, runs in (results.metadata.get("comparisons", {}) if results else {}).items():
        title = escape_markdown(f"{name} ({len(runs)} seeds)" if len(runs) > 1 else name)
        columns[title] = {
            key: with_spread([run["scores"][key] for run in runs if key in run["scores"]]) for key in own
        }
    columns["this model"] = {key: f"**{value:.2f}**" for key, value in own.items()}
    if any(key in record.differences for key in keys):
        title = f"difference to {record.baseline_name} (95 % interval)"
        columns[title] = {key: difference_cell(record, key, own[key]) for key in keys}
    rows = []
    for key in keys:
        of = data.get(set_of(key), {})
        counted = of.get("queries_scored", of.get("pairs"))
        cells = [f"{counted:,}" if counted else "", *(column.get(key, "") for column in columns.values())]
        rows.append([escape_markdown(row_title(ScoreKey.parse(key))), *cells])
    units = dict.fromkeys(data.get(set_of(key), {}).get("unit", "pairs") for key in keys)
    yield Table([f"{measures(keys)} x 100", " or ".join(units), *columns], rows).markdown(marked_up=True)
    yield " ".join(score_notes(record, keys, data))


def score_notes(record: RunRecord, keys: list[str], data: dict[str, Any]) -> Iterator[str]:
    if "Spearman" in measures(keys):
        yield "One Spearman correlation over all pairs of a set, cosine against the gold score, no regressor."
    for key in map(ScoreKey.parse, keys):
        rule = data.get(key.set, {}).get("rule")
        if key.title == "MRR" and rule:
            yield f"MRR of {escape_markdown(key.set)}: the mean of 1 / rank by cosine; {rule}."
    if any(ScoreKey.parse(key).is_average for key in keys):
        yield "Average: the mean of the seven, each rounded to two decimals first."
    yield from (note for name, note in SICK_NOTES.items() if headline(SICK_SPLITS[name].set) in keys)
    if headline(MAIN) in keys and headline("STS12/test") in keys:
        yield (
            "1,006 of the 1,379 pairs of STS-B test also occur in STS12-16, so these sets are not independent of "
            "each other, nor of a checkpoint chosen on STS-B dev."
        )
    for name, of in data.items():
        if of["expected_pairs"] not in (None, of["pairs"]):
            yield (
                f"{escape_markdown(name)} had {of['pairs']:,} pairs where the published set has "
                f"{of['expected_pairs']:,}: its scores do not compare with published ones."
            )
    if any(of["text"] == "senteval" for of in data.values()):
        yield "The sentences are tokenised by SentEval; scores on raw text, as in MTEB, differ."
    pinned = {name: of for name, of in data.items() if of["revision"]}
    if pinned:
        yield "Data: " + ", ".join(dataset_link(name, of) for name, of in pinned.items()) + "."
    if record.best:
        yield f"The checkpoint was chosen on {escape_markdown(str(record.best['metric']))}."
    yield "These scores are of one seed."


def similarity(results: Results | None, plots: Sequence[str]) -> str:
    """How high cosines of random pairs are, so that a reader can choose a threshold."""
    found = {
        key: of["cosines"] for key, of in (results.metadata["data"] if results else {}).items() if "cosines" in of
    }
    if not found:
        return ""
    key = MAIN if MAIN in found else next(iter(found))
    of = found[key]
    shares = [f"{100 * float(q):g} %" for q in of["quantiles"]]
    quantiles = Table(shares, [[f"{value:.3f}" for value in of["quantiles"].values()]], align="r")
    picture = "![Cosines of random pairs and of pairs rated low and high](plots/cosines.png)\n\n"
    return (
        "\n## Choosing a threshold\n\n"
        + picture * ("plots/cosines.png" in plots)
        + f"The share of {of['random_pairs']:,} random pairs of sentences of {escape_markdown(key)} whose cosine lies "
        + f"below:\n\n{quantiles.markdown()}\n\n"
        + f"A threshold of {of['quantiles']['0.99']:.2f} lets one random pair in a hundred through. On text of "
        "another kind the figures differ: measure them there.\n"
    )


def ordered_keys(found: dict[str, float]) -> list[str]:
    """The keys of headline scores: the seven sets in their usual order, their averages, then the rest."""
    sets = dict.fromkeys(key for sick in SICK_SPLITS.values() for key in sick.test_sets())
    known = [headline(key) for key in (*sets, *(of.average for of in SICK_SPLITS.values()))]
    rest = [key for key in found if is_headline(key) and key not in known]
    return [key for key in known if key in found] + rest


def row_title(key: ScoreKey) -> str:
    if key.is_average:
        return f"Average of the seven, SICK-R as in {key.sick.owner if key.sick else key.split}"
    if key.sick:
        return f"SICK-R ({key.sick.owner} test)"
    return f"{SEVEN.get(key.task, key.task)} {key.split}{key.aside}"


def dataset_link(key: str, of: dict[str, Any]) -> str:
    name, revision = of.get("hub_id") or STS_TASKS[key.partition("/")[0]].hub_id, of["revision"]
    return f"[{name} @ {revision[:8]}](https://huggingface.co/datasets/{name}/tree/{revision})"


def with_spread(values: list[float]) -> str:
    """A score, or the mean of several with their sample standard deviation."""
    if not values:
        return ""
    mean = statistics.fmean(values)
    return f"{mean:.2f}" if len(values) == 1 else f"{mean:.2f} ± {statistics.stdev(values):.2f}"
