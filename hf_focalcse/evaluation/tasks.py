"""STS tasks as frozen rows, and the sources that their sentence pairs are read from."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, suggest

REMEDY = "give --sts_dir DIR with the sets as files"


class Pair(NamedTuple):
    subset: str
    score: float
    sentence1: str
    sentence2: str


@dataclass(frozen=True)
class Split:
    """What is scored as one set: its published size, the parts of the release that make it, its split on the Hub."""

    name: str
    size: int
    parts: tuple[str, ...]
    hub: str | None = None  # None: the Hub's data set does not tell these pairs apart


@dataclass(frozen=True)
class STSTask:
    """One row of the table; ``senteval`` reads one part from a SentEval folder."""

    name: str
    hub_id: str
    revision: str
    splits: tuple[Split, ...]
    senteval: Callable[[Path, str], Iterator[Pair]]
    label: str = ""
    aligned_above: float | None = None  # gold score above which a pair counts as positive, for alignment

    @property
    def title(self) -> str:
        return self.label or self.name


@dataclass(frozen=True)
class PairSet:
    """The pairs of one split of one task, in file order; UserError where no correlation can be computed on them."""

    task: str
    split: str
    pairs: tuple[Pair, ...]
    source: str
    revision: str | None = None
    text: str = "raw"
    expected: int | None = None
    aligned_above: float | None = None

    def __post_init__(self):
        if len(self.pairs) < 2:
            raise UserError(f"{self.source}: {len(self.pairs)} scored pairs for {self.key}, at least 2 are needed")
        if self.scores.min() == self.scores.max():
            raise UserError(f"{self.source}: all scores of {self.key} equal {self.scores[0]:g}; they must differ")

    @cached_property
    def scores(self) -> np.ndarray:
        """(N,) float64."""
        return np.array([pair.score for pair in self.pairs], dtype=np.float64)

    def texts(self) -> list[str]:
        """Every sentence as often as the set holds it."""
        return [text for pair in self.pairs for text in (pair.sentence1, pair.sentence2)]

    def fingerprints(self) -> np.ndarray:
        """(N,) int64 of the two sentences of each pair: equal where another set, or this one again, has them."""
        texts = (f"{pair.sentence1}\0{pair.sentence2}".encode() for pair in self.pairs)
        digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        return np.frombuffer(digests, dtype="<i8").astype(np.int64)

    @property
    def key(self) -> str:
        """``STS16/test``: how every score of this set begins."""
        return f"{self.task}/{self.split}"

    def describe(self) -> dict[str, Any]:
        """What results.json says of the data; the hash covers subset, score and text of the pairs in order."""
        content = "\n".join("\t".join(map(str, pair)) for pair in self.pairs)
        return {
            "pairs": len(self.pairs),
            "expected_pairs": self.expected,
            "subsets": dict(Counter(pair.subset for pair in self.pairs if pair.subset)),
            "source": self.source,
            "revision": self.revision,
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "text": self.text,
            "empty_sentences": sum(not text.strip() for pair in self.pairs for text in pair[2:]),
        }


# ---------------------------------------------------------------- files


def read_text(path: Path) -> str:
    """A UTF-8 file, or its .gz, as text."""
    return _decode(path, _read_bytes(path))


def split_lines(text: str) -> list[str]:
    r"""Only \n and \r\n end a line: str.splitlines would also cut at U+2028 and form feeds inside a sentence."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _read_bytes(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.start - error.object.rfind(b"\n", 0, error.start)
        bad = f"0x{error.object[error.start]:02x}"
        raise UserError(f"{path}, line {line}, byte {byte}: {bad} is not UTF-8; save the file as UTF-8") from None


def _number(value: Any, where: str) -> float:
    try:
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{where}: the score {value!r} is not a finite number")
    return score


def _under_header(path: Path, rows: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, dict[str, str]]]:
    rows = ((number, row) for number, row in rows if row)
    _, header = next(rows, (1, []))
    for number, row in rows:
        if len(row) != len(header):
            raise UserError(f"{path}, line {number}: {len(row)} columns where the first line has {len(header)}")
        yield number, dict(zip(header, row, strict=True))


def _tsv(path: Path, data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    rows = (line.split("\t") if line else [] for line in split_lines(_decode(path, data)))
    return _under_header(path, enumerate(rows, start=1))


def _csv(path: Path, data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(io.StringIO(_decode(path, data), newline=""), strict=True)
    try:
        yield from _under_header(path, ((reader.line_num, row) for row in reader))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from error


def _jsonl(path: Path, data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(split_lines(_decode(path, data)), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # an escaped lone surrogate is no text
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not JSON in UTF-8 ({error})") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: expected one JSON object a line")
        yield number, row


def _parquet(path: Path, data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    from pyarrow import parquet

    try:
        rows = parquet.read_table(io.BytesIO(data)).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"cannot read {path} as parquet: {error}") from error
    yield from enumerate(rows, start=1)


FORMATS = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}


def records(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, row) for each row of a table in any format; every row has ``columns``."""
    suffix = (path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix).lower()
    if suffix not in FORMATS:
        raise UserError(f"cannot read {path}: the name must end in {', '.join(FORMATS)}, each also with .gz")
    for number, row in FORMATS[suffix](path, _read_bytes(path)):
        where = f"{path}, {'row' if suffix == '.parquet' else 'line'} {number}"
        for column in columns:
            if column not in row:
                found = ", ".join(f"{str(name)[:40]!r}" for name in row)
                raise UserError(f"{where}: no column {column!r}; needed are {', '.join(columns)}, found {found}")
        yield where, row


def _pair(where: str, row: dict[str, Any]) -> Pair:
    for column in ("sentence1", "sentence2"):
        if not isinstance(row[column], str):
            raise UserError(f"{where}, column {column}: {row[column]!r} is not text")
    score = _number(row["score"], f"{where}, column score")
    return Pair(str(row.get("subset") or ""), score, row["sentence1"], row["sentence2"])


def read_pairs(path: str | Path) -> PairSet:
    """A user's labelled file, .tsv (unquoted), .csv, .jsonl or .parquet, each also .gz: sentence1, sentence2, score.

    A column ``subset``, if there is one, gives subset scores. The set's key is ``<file name>/file``.
    """
    path = Path(path)
    rows = records(path, ("sentence1", "sentence2", "score"))
    return PairSet(path.name.split(".")[0], "file", tuple(_pair(*row) for row in rows), source=str(path))


# ---------------------------------------------------------------- SentEval's data/downstream, its sentences tokenised


def _senteval_year(folder: Path, part: str, year: str, subsets: Sequence[str]) -> Iterator[Pair]:
    for subset in subsets:
        inputs, golds = (folder / f"STS/{year}-en-{part}/STS.{kind}.{subset}.txt" for kind in ("input", "gs"))
        lines, scores = split_lines(read_text(inputs)), split_lines(read_text(golds))
        if len(lines) != len(scores):
            raise UserError(f"{inputs} has {len(lines)} lines but {golds} has {len(scores)}; they must be parallel")
        for number, (line, score) in enumerate(zip(lines, scores, strict=True), start=1):
            if score.strip():  # STS15 and STS16 scored only some of their pairs
                yield _senteval_pair(inputs, number, [subset, score, *line.split("\t")], subset=0, score=1, first=2)


def _senteval_stsb(folder: Path, part: str) -> Iterator[Pair]:
    path = folder / f"STS/STSBenchmark/sts-{part}.csv"  # genre, file, year, id, score and two sentences, with tabs
    for number, line in enumerate(split_lines(read_text(path)), start=1):
        yield _senteval_pair(path, number, line.split("\t"), subset=1, score=4, first=5)


def _senteval_sick(folder: Path, part: str) -> Iterator[Pair]:
    path = folder / f"SICK/SICK_{'test_annotated' if part == 'test' else part}.txt"  # id, two sentences, score, label
    for number, line in enumerate(split_lines(read_text(path))[1:], start=2):
        yield _senteval_pair(path, number, ["SICK", *line.split("\t")], subset=0, score=4, first=2)


def _senteval_pair(path: Path, number: int, columns: list[str], subset: int, score: int, first: int) -> Pair:
    if len(columns) <= max(score, first + 1):
        raise UserError(f"{path}, line {number}: too few columns; two sentences with a tab between them are needed")
    sentences = (" ".join(text.split()) for text in columns[first : first + 2])  # as SentEval joins its tokens
    return Pair(columns[subset], _number(columns[score], f"{path}, line {number}"), *sentences)


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
                 Split("test", 1379, ("test",), "test")), _senteval_stsb, label="STS-B", aligned_above=4.0),
        STSTask("SICK-R", "mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d",
                (Split("train", 4500, ("train",)), Split("trial", 500, ("trial",)),
                 Split("mteb-test", 9927, ("train", "trial", "test"), "test"),
                 Split("senteval-test", 4927, ("test",))), _senteval_sick),
    )
}  # fmt: skip


# ---------------------------------------------------------------- sources


class Source(NamedTuple):
    """Where sets come from; ``read`` gives the pairs of one split, UserError where they are not there."""

    name: str
    text: str  # "raw" or "senteval" (tokenised): scores on the one do not compare with scores on the other
    read: Callable[[STSTask, Split], Iterable[Pair]]
    on_hub: bool = False


def _read_tsv(folder: Path, task: STSTask, split: Split) -> list[Pair]:
    path = folder / f"{task.name}.tsv"
    if not path.is_file():
        raise UserError(f"no such file: {path}; add it, or name the sets that are there with --tasks")
    rows = list(records(path, ("subset", "split", "score", "sentence1", "sentence2")))
    absent = set(split.parts) - {row["split"] for _, row in rows}
    if absent:
        raise UserError(f"{path} has no row of split {min(absent)!r}, which {task.name}/{split.name} needs")
    return [_pair(where, row) for where, row in rows if row["split"] in split.parts]


def _read_senteval(folder: Path, task: STSTask, split: Split) -> list[Pair]:
    return [pair for part in split.parts for pair in task.senteval(folder, part)]


def _read_hub(task: STSTask, split: Split) -> list[Pair]:
    """The set as MTEB keeps it, at the pinned revision; it names no subsets."""
    rows = hub_rows(task.hub_id, task.revision, str(split.hub), REMEDY)
    return [_pair(where, {**row, "subset": ""}) for where, row in rows]


def hub_rows(hub_id: str, revision: str, split: str, remedy: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, row) for each row of a split of a data set at its pinned revision; remedy: what to do without it."""
    import datasets
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HTTPError

    what = f"{hub_id} at revision {revision[:8]}"
    offline = constants.HF_HUB_OFFLINE
    try:
        if not offline:  # one request with a time limit, since load_dataset alone retries for half a minute
            HfApi().dataset_info(hub_id, revision=revision, timeout=10)
        rows = datasets.load_dataset(hub_id, revision=revision, split=split)
    except (HTTPError, OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        cached = "" if offline else ", or set HF_HUB_OFFLINE=1 to use copies downloaded before"
        raise UserError(f"cannot load {what} from the Hugging Face Hub ({reason}); {remedy}{cached}") from error
    # offline, datasets takes the newest copy in its cache, whatever revision was asked for
    if offline and not all(revision in file["filename"] for file in rows.cache_files):
        raise UserError(f"the cached copy of {hub_id} is not revision {revision[:8]}; {remedy}")
    for number, row in enumerate(rows, start=1):
        yield f"{what}, row {number}", row


def open_source(sts_dir: str | Path | None = None) -> Source:
    """The Hub, or the folder ``sts_dir``, whose layout is recognised: TSV files or SentEval's data/downstream."""
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
    """The named sets from one source: "STS16" is a task's test split, "STSBenchmark/dev" one split; None is all seven.

    "SICK-R" is MTEB's 9,927 pairs and, where the source tells them apart, also SentEval's 4,927.
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
    """What `load_tasks` would read; UserError where a name is unknown or the source has no such split."""
    names = list(STS_TASKS) if names is None else names
    return list(dict.fromkeys(found for name in names for found in _find(name, source)))


def _find(name: str, source: Source) -> list[tuple[STSTask, Split]]:
    base, _, part = name.partition("/")
    task = next((task for task in STS_TASKS.values() if base in (task.name, task.label)), None)
    if task is None:
        raise UserError(f"unknown task {base!r}{suggest(base, STS_TASKS)}; there are {', '.join(STS_TASKS)}")
    names = [split.name for split in task.splits]
    if part and part not in names:
        raise UserError(f"{task.name} has no split {part!r}{suggest(part, names)}; there are {', '.join(names)}")
    found = [split for split in task.splits if (split.name == part if part else split.name.endswith("test"))]
    present = [(task, split) for split in found if split.hub or not source.on_hub]
    if not present:
        raise UserError(f"{source.name} does not tell the pairs of {name} apart; {REMEDY}")
    return present
