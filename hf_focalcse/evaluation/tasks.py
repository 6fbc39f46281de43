"""The STS tasks, one row each, and the sources that their pairs of sentences are read from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..data.files import read_lines
from ..data.formats import read_records
from ..data.hub import pinned_rows
from ..errors import UserError, suggest
from ..runs.scores import SEVEN
from .pair_sets import Pair, PairSet, pair_of, parse_score

REMEDY = "give --sts_dir DIR with the sets as files"


@dataclass(frozen=True)
class Split:
    """The pairs that are scored as one set.

    size: how many were published. parts: of the task's release, which together are the set. hub: the split of the
    data set on the Hub.
    """

    name: str
    size: int
    parts: tuple[str, ...]
    hub: str | None = None  # None: on the Hub these pairs are not a split of their own


@dataclass(frozen=True)
class STSTask:
    """One row of the table. senteval: (folder, part) -> the pairs of one part of SentEval's copy."""

    name: str
    hub_id: str
    revision: str
    splits: tuple[Split, ...]
    senteval: Callable[[Path, str], Iterator[Pair]]
    aligned_above: float | None = None  # the score above which a pair counts as positive, for alignment

    @property
    def title(self) -> str:
        """The name in tables."""
        return SEVEN[self.name]


# ---------------------------------------------------------------- SentEval's data/downstream, its sentences tokenised


def _senteval_year(folder: Path, part: str, year: str, subsets: Sequence[str]) -> Iterator[Pair]:
    for subset in subsets:
        inputs, golds = (folder / f"STS/{year}-en-{part}/STS.{kind}.{subset}.txt" for kind in ("input", "gs"))
        lines, scores = read_lines(inputs), read_lines(golds)
        if len(lines) != len(scores):
            raise UserError(f"{inputs} has {len(lines)} lines but {golds} has {len(scores)}; they must be parallel")
        for number, (line, score) in enumerate(zip(lines, scores, strict=True), start=1):
            if score.strip():  # STS15 and STS16 scored only some of their pairs
                yield _senteval_pair(inputs, number, [subset, score, *line.split("\t")], subset=0, score=1, first=2)


def _senteval_stsb(folder: Path, part: str) -> Iterator[Pair]:
    path = folder / f"STS/STSBenchmark/sts-{part}.csv"  # genre, file, year, id, score and two sentences, with tabs
    for number, line in enumerate(read_lines(path), start=1):
        yield _senteval_pair(path, number, line.split("\t"), subset=1, score=4, first=5)


def _senteval_sick(folder: Path, part: str) -> Iterator[Pair]:
    path = folder / f"SICK/SICK_{'test_annotated' if part == 'test' else part}.txt"  # id, two sentences, score, label
    for number, line in enumerate(read_lines(path)[1:], start=2):
        yield _senteval_pair(path, number, ["SICK", *line.split("\t")], subset=0, score=4, first=2)


def _senteval_pair(path: Path, number: int, columns: list[str], subset: int, score: int, first: int) -> Pair:
    if len(columns) <= max(score, first + 1):
        raise UserError(f"{path}, line {number}: too few columns; two sentences with a tab between them are needed")
    sentences = (" ".join(text.split()) for text in columns[first : first + 2])  # as SentEval joins tokens
    return Pair(columns[subset], parse_score(columns[score], f"{path}, line {number}"), *sentences)


# ---------------------------------------------------------------- the table


def _year(name: str, hub: str, revision: str, size: int, *subsets: str) -> STSTask:
    reader = partial(_senteval_year, year=name, subsets=subsets)
    return STSTask(name, f"mteb/{hub}", revision, (Split("test", size, ("test",), "test"),), reader)


STS_TASKS: dict[str, STSTask] = {
    task.name: task
    for task in (
        _year("STS12", "sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384", 3108,
              "MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
        _year("STS13", "sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca", 1500,
              "FNWN", "headlines", "OnWN"),
        _year("STS14", "sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375", 3750,
              "deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
        _year("STS15", "sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3", 3000,
              "answers-forums", "answers-students", "belief", "headlines", "images"),
        _year("STS16", "sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513", 1186,
              "answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
        STSTask("STSBenchmark", "mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831",
                (Split("train", 5749, ("train",), "train"), Split("dev", 1500, ("dev",), "validation"),
                 Split("test", 1379, ("test",), "test")), _senteval_stsb, aligned_above=4.0),
        STSTask("SICK-R", "mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d",
                (Split("train", 4500, ("train",)), Split("trial", 500, ("trial",)),
                 Split("mteb-test", 9927, ("train", "trial", "test"), "test"),
                 Split("senteval-test", 4927, ("test",))), _senteval_sick),
    )
}  # fmt: skip


# ---------------------------------------------------------------- sources


class Source(NamedTuple):
    """Where the sets come from; ``read`` gives the pairs of one split, or raises UserError if they are missing."""

    name: str
    text: str  # "raw" or "senteval" (tokenised); scores on one cannot be compared with scores on the other
    read: Callable[[STSTask, Split], Iterable[Pair]]
    on_hub: bool = False


def _read_tsv(folder: Path, task: STSTask, split: Split) -> list[Pair]:
    path = folder / f"{task.name}.tsv"
    if not path.is_file():
        raise UserError(f"no such file: {path}; add it, or name the sets that are there with --tasks")
    rows = list(read_records(path, ("subset", "split", "score", "sentence1", "sentence2")))
    absent = set(split.parts) - {row["split"] for _, row in rows}
    if absent:
        raise UserError(f"{path} has no row of split {min(absent)!r}, which {task.name}/{split.name} needs")
    return [pair_of(where, row) for where, row in rows if row["split"] in split.parts]


def _read_senteval(folder: Path, task: STSTask, split: Split) -> list[Pair]:
    return [pair for part in split.parts for pair in task.senteval(folder, part)]


def _read_hub(task: STSTask, split: Split) -> list[Pair]:
    """The set in MTEB's copy at the pinned revision, which names no subsets."""
    rows = pinned_rows(task.hub_id, task.revision, str(split.hub), REMEDY)
    return [pair_of(where, {**row, "subset": ""}) for where, row in rows]


def open_source(sts_dir: str | Path | None = None) -> Source:
    """The Hub, or the folder ``sts_dir``, which holds either TSV files or SentEval's data/downstream.

    Raises:
        UserError: the folder is missing, or its layout is neither of these.
    """
    if sts_dir is None:
        return Source("the Hugging Face Hub", "raw", _read_hub, on_hub=True)
    path = Path(sts_dir)
    if any((path / f"{name}.tsv").is_file() for name in STS_TASKS):
        return Source(str(path), "raw", partial(_read_tsv, path))
    if (path / "STS").is_dir() or (path / "SICK").is_dir():
        return Source(str(path), "senteval", partial(_read_senteval, path))
    inside = [found for found in (path / "downstream", path / "data" / "downstream") if found.is_dir()]
    wrong = "holds no STS sets" if path.is_dir() else "is not a folder"
    raise UserError(
        f"{path} {wrong}: --sts_dir expects files such as STS16.tsv or "
        "SentEval's data/downstream (with STS/ and SICK/)" + (f", did you mean {inside[0]}?" if inside else "")
    )


def load_tasks(names: Sequence[str] | None = None, sts_dir: str | Path | None = None) -> list[PairSet]:
    """The sets of these names: "STS16" is the test split of a task, "STSBenchmark/dev" one split. None: all seven.

    "SICK-R" is the 9,927 pairs of MTEB and, where the source has them as a split, also the 4,927 of SentEval.
    """
    source = open_source(sts_dir)
    return [
        PairSet(
            *(task.name, split.name, tuple(source.read(task, split)), source.name),
            *(task.revision if source.on_hub else None, source.text, split.size, task.aligned_above),
        )
        for task, split in find_sets(names, source)
    ]


def find_sets(names: Sequence[str] | None, source: Source) -> list[tuple[STSTask, Split]]:
    """What `load_tasks` would read; raises UserError if a name is unknown or the source has no such split."""
    names = list(STS_TASKS) if names is None else names
    return list(dict.fromkeys(found for name in names for found in _find(name, source)))


def _find(name: str, source: Source) -> list[tuple[STSTask, Split]]:
    base, _, part = name.partition("/")
    task = next((task for task in STS_TASKS.values() if base in (task.name, task.title)), None)
    if task is None:
        file = "; a file of labelled pairs is given as --eval_file" if Path(name).exists() else ""
        raise UserError(f"there is no task {name!r}{suggest(base, STS_TASKS)}; allowed: {', '.join(STS_TASKS)}{file}")
    names = [split.name for split in task.splits]
    if part and part not in names:
        raise UserError(f"{task.name} has no split {part!r}{suggest(part, names)}; there are {', '.join(names)}")
    found = [split for split in task.splits if (split.name == part if part else split.name.endswith("test"))]
    present = [(task, split) for split in found if split.hub or not source.on_hub]
    if not present:
        raise UserError(f"{source.name} does not tell the pairs of {name} apart; {REMEDY}")
    return present
