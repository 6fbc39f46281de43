"""A table, AskUbuntu's files or MTEB's copy on the Hub -> sets of queries with candidates to rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..data.askubuntu import TEXTS, read_questions, texts_of
from ..data.files import read_lines
from ..data.formats import read_records
from ..data.hub import pinned_rows
from ..errors import UserError, suggest
from .rerank import SCORERS, Query, RerankSet

LABELS = {"1": True, "0": False, "true": True, "false": False}
COLUMNS = ("qid", "label", "query", "candidate")
LONGEST = 10_000  # characters of a header
HUB_ID = "mteb/askubuntudupquestions-reranking"
REVISION = "2000358ca161889fa9c082cb41daa8dcfb161a54"


def load_rerank(
    source: str | Path | None = None, splits: Sequence[str] | None = None, scorer: str | None = None
) -> list[RerankSet]:
    """The sets in a table, in a folder with AskUbuntu's files, or (None, or its id) in MTEB's data set on the Hub.

    splits: which to read, by default all. scorer: a row of `SCORERS`, by default "official" for a table and "sbert"
    for AskUbuntu.

    Raises:
        UserError: the sets cannot be read or scored; with file and line.
    """
    if scorer is not None and scorer not in SCORERS:
        raise UserError(f"--rerank_scorer is {scorer!r}{suggest(scorer, SCORERS)}; it must be {' or '.join(SCORERS)}")
    read: Callable[[Path, str, str], RerankSet]
    if source is None or str(source) == HUB_ID:
        there, read = ["test"], _read_hub
    elif Path(source).is_dir():
        there, read = ["dev", "test"], _read_askubuntu
    elif not Path(source).exists():
        raise UserError(f"no such file: {source}, nor a folder; --rerank_file takes a table or AskUbuntu's folder")
    else:
        return _choose(_read_table(Path(source), scorer or "official"), splits, str(source))
    for split in splits or ():
        _require_split(split, there, str(source or HUB_ID))
    return [read(Path(str(source)), split, scorer or "sbert") for split in splits or there]


def _require_split(name: str, there: Sequence[str], source: str) -> None:
    if name not in there:
        raise UserError(f"{source} has no split {name!r}{suggest(name, there)}; there are {', '.join(there)}")


# ---------------------------------------------------------------- a table, a row a candidate


def _read_table(path: Path, scorer: str) -> list[RerankSet]:
    """Columns: qid, label (1 or 0), query, candidate, and optionally split, cid, ir_rank (1 is the best)."""
    rows: dict[tuple[str, str], list[tuple[str, str, str, bool, float | None]]] = {}
    seen: dict[tuple[str, str, str], str] = {}
    for where, row in read_records(path, COLUMNS):
        cells = (row.get(name) for name in ("split", "qid", "query", "candidate", "cid"))
        split, qid, query, candidate, cid = ("" if cell is None else str(cell) for cell in cells)  # 0 is a value
        label = LABELS.get(str(row["label"]).lower())
        if label is None:
            raise UserError(f"{where}, column label: {row['label']!r} is not one of {', '.join(LABELS)}")
        for name, value in (("qid", qid), ("query", query), ("candidate", candidate)):
            if not value.strip():
                why = "a query needs candidates" if name == "candidate" else "each row names its query"
                raise UserError(f"{where}, column {name}: it is empty; {why}")
        if cid.strip() and (first := seen.setdefault((split, qid, cid), where)) != where:
            raise UserError(f"{where}: candidate {cid!r} of query {qid!r} is listed before, in {first}; leave one out")
        group = rows.setdefault((split or "file", qid), [])
        if group and group[0][1] != query:
            raise UserError(f"{where}: query {qid!r} differs from {group[0][0]}; rows of one qid share their query")
        group.append((where, query, candidate, label, _rank(row.get("ir_rank"), where)))
    if not rows:
        raise UserError(f"{path} holds no candidates; a row has {', '.join(COLUMNS)}")
    found: dict[str, list[Query]] = {}
    for (split, _), group in rows.items():
        _, texts, candidates, relevant, ranks = zip(*group, strict=True)
        engine = None if None in ranks else tuple(-rank for rank in ranks)
        found.setdefault(split, []).append(Query(texts[0], candidates, relevant, engine))
    name = path.name.split(".")[0]
    return [RerankSet(name, split, tuple(queries), str(path), scorer) for split, queries in found.items()]


def is_rerank_table(path: Path) -> bool:
    """Whether a .tsv or .csv has a header with the columns of queries and their candidates."""
    if path.suffix not in (".tsv", ".csv") or not path.is_file():
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        header = file.readline(LONGEST).strip().split("\t" if path.suffix == ".tsv" else ",")
    return set(COLUMNS) <= {name.strip('"') for name in header}


def _rank(value: Any, where: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        rank = float(value)
    except (TypeError, ValueError):
        rank = -1.0
    if not 0 < rank < float("inf"):
        raise UserError(
            f"{where}, column ir_rank: {value!r} is not a rank; it must be a number above 0, and 1 is the best "
            "candidate of the search engine"
        )
    return rank


def _choose(sets: list[RerankSet], splits: Sequence[str] | None, source: str) -> list[RerankSet]:
    there = {found.split: found for found in sets}
    for split in splits or ():
        _require_split(split, list(there), source)
    return [there[split] for split in dict.fromkeys(splits or there)]


# ---------------------------------------------------------------- AskUbuntu: text_tokenized.txt, dev.txt, test.txt


def _read_askubuntu(folder: Path, split: str, scorer: str) -> RerankSet:
    """Questions are read by their titles alone, as in the papers. A line of a split is ``query id, relevant ids,
    candidate ids, BM25 scores``, separated by tabs.

    As in the script of sentence-transformers, the relevant ids are the positives and the other candidates are the
    negatives, once each. A relevant question that the search engine did not find comes last in the engine's order.
    """
    texts = texts_of(folder)
    if texts is None:
        raise UserError(f"{folder} has no {TEXTS} (or .gz): --rerank_file takes a table or AskUbuntu's folder")
    path = folder / f"{split}.txt"
    rows = list(_askubuntu_rows(path))
    needed = {name for _, qid, positives, scores in rows for name in (qid, *positives, *scores)}
    titles: dict[str, str] = {}
    for question in read_questions(texts):
        if question.id in needed:
            titles[question.id] = question.title
    queries = []
    for where, qid, positives, scores in rows:
        names = [*scores, *(name for name in positives if name not in scores)]
        for name in (qid, *names):
            if name not in titles:
                raise UserError(f"{where}: question {name} is not in {texts.name}")
        relevant = [name in positives for name in names]
        last = min(scores.values()) - 1
        engine = [scores.get(name, last) for name in names]
        queries.append(Query(titles[qid], tuple(titles[name] for name in names), tuple(relevant), tuple(engine)))
    return RerankSet("AskUbuntu", split, tuple(queries), str(path), scorer, text="tokenised")


def _askubuntu_rows(path: Path) -> Iterator[tuple[str, str, dict[str, None], dict[str, float]]]:
    """(where, query id, relevant ids, {candidate id: BM25 score}) of each line."""
    for number, line in enumerate(read_lines(path), start=1):
        where, cells = f"{path}, line {number}", line.split("\t")
        if line == "":
            continue
        if len(cells) != 4:
            raise UserError(f"{where}: {len(cells)} columns, not 4: query id, relevant ids, candidate ids, scores")
        qid, positives, candidates, scores = cells[0], *(cell.split() for cell in cells[1:])
        if not candidates:
            raise UserError(f"{where}: query {qid} has no candidates")
        try:
            values = [float(score) for score in scores]
        except ValueError as error:
            raise UserError(f"{where}: a score is not a number ({error})") from None
        if len(values) != len(candidates):
            raise UserError(f"{where}: {len(candidates)} candidates but {len(values)} scores; they must be parallel")
        best: dict[str, float] = {}
        for name, value in zip(candidates, values, strict=True):
            best[name] = max(value, best.get(name, value))
        yield where, qid, dict.fromkeys(positives), best


# ---------------------------------------------------------------- the Hub


def _read_hub(_: Path, split: str, scorer: str) -> RerankSet:
    """AskUbuntu's dev and test sets in one, as MTEB 1 scores them; a row is a query, its positives, its negatives."""
    queries = []
    remedy = "give --rerank_file with a table or AskUbuntu's folder"
    for where, row in pinned_rows(HUB_ID, REVISION, split, remedy):
        try:
            query, positives, negatives = row["query"], list(row["positive"]), list(row["negative"])
        except (KeyError, TypeError):
            raise UserError(f"{where}: columns query, positive, negative are needed, found {', '.join(row)}") from None
        labels = [True] * len(positives) + [False] * len(negatives)
        queries.append(Query(query, (*positives, *negatives), tuple(labels)))
    return RerankSet("AskUbuntuDupQuestions", split, tuple(queries), f"{HUB_ID} on the Hub", scorer, HUB_ID, REVISION)
