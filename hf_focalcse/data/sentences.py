"""Files or a Hub data set -> sentences, with a report of what was read and a fingerprint of what was kept.

A sentence is a line of a text file, or a cell of a table, without the white space around it (``str.strip``). Lines
of which nothing is left are dropped and counted. Two sentences are equal when they are equal after stripping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from ..errors import UserError
from .files import MappedFile
from .fingerprint import Fingerprint
from .hub import download, files_of_split, load_split
from .lines import Source
from .look import look
from .places import ending
from .reading import SENTENCE_HINTS, Hints, Reading
from .several import MappedFiles, Text, read_files, read_source
from .terminal import printable, shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 100  # characters of a sample
FILES_SHOWN = 20  # of several, when the report is printed


@dataclass
class DataReport:
    """What was read: ``lines_read == blank + dropped + kept``; lines of a text file, rows of a table."""

    source: str
    column: str | None
    lines_read: int
    blank: int
    duplicates: int  # repeats of an earlier equal sentence, kept unless drop_duplicates
    dropped: int  # left out by drop_duplicates, max_samples and fraction
    kept: int
    undecodable: int  # lines in which bytes that are not UTF-8 were replaced by U+FFFD
    max_samples: int | None
    fraction: float | None  # of the sentences to keep: like max_samples, a seeded random subset in file order
    max_seq_length: int
    truncated_share: float | None  # of the truncated_sample sentences; None without a tokenizer
    truncated_sample: int  # sentences looked at, evenly spaced; equal to kept where the share is exact
    samples: list[str]  # first, middle, last; cut, and escaped for a terminal
    sha256: str  # of the kept sentences in order, whatever format they came from
    files: list[dict[str, Any]] = field(default_factory=list)  # the counts of each file, where there are several
    left_out: int = 0  # files of other formats in a folder
    unknown_share: float | None = None  # of the tokens of that sample that are [UNK]
    alike_share: float | None = None  # of that sample, whose tokens are those of another text
    notes: list[str] = field(default_factory=list)  # how it was read where that is not plain, and what seems odd in it
    alarms: list[str] = field(default_factory=list)

    def to_dict(self) -> dict:
        """Plain values for run.json."""
        return asdict(self)

    def __str__(self) -> str:
        column = f", column {self.column!r}" if self.column else ""
        several = f", {len(self.files):,} files" if self.files else ""
        lines = [
            f"Training text: {printable(self.source)}{several}{printable(column)}",
            f"  {self.lines_read:,} lines read: {self.kept:,} kept, {self.blank:,} blank, {self.dropped:,} dropped"
            f"; {self.duplicates:,} repeat an earlier sentence",
        ]
        if self.max_samples is not None:
            lines.append(f"  a random subset of at most {self.max_samples:,} sentences was asked for, in file order")
        if self.fraction is not None:
            lines.append(f"  a random subset of {self.fraction:.4g} of the sentences was asked for, in file order")
        if self.undecodable:
            lines.append(f"  {self.undecodable:,} lines held bytes that are not UTF-8, replaced by U+FFFD")
        if self.truncated_share is not None:
            exact = self.truncated_sample == self.kept
            of = "all sentences" if exact else f"an evenly spaced sample of {self.truncated_sample:,} sentences"
            lines.append(
                f"  {self.truncated_share:.1%} of {of} are longer than {self.max_seq_length} tokens: truncated"
            )
        for file in self.files[:FILES_SHOWN]:
            lines.append(
                f"  {printable(file['name'])}: {file['lines_read']:,} lines, {file['kept']:,} kept, "
                f"{file['blank']:,} blank, {file['dropped']:,} dropped; {file['duplicates']:,} repeat an earlier one"
            )
        if len(self.files) > FILES_SHOWN:
            lines.append(f"  and {len(self.files) - FILES_SHOWN:,} more files, which run.json lists")
        if self.left_out:
            lines.append(f"  of other formats, and left out: {self.left_out:,} of the folder's files")
        lines += [f"  note: {printable(note)}" for note in self.notes]
        lines += [
            f"  {name:<6} | {text}" for name, text in zip(("first", "middle", "last"), self.samples, strict=True)
        ]
        return "\n".join([*lines, f"  sha256 {self.sha256}"])


class Sentences(Dataset):
    """Map-style data set of ``{"text": str}`` over memory-mapped files; 20 bytes of memory a sentence."""

    report: DataReport
    # (N,) int32: the line of each sentence in a text file, or its row in a table, from 1; counted on from file to file
    lines: np.ndarray

    def __init__(self, file: MappedFile | MappedFiles, starts: np.ndarray, ends: np.ndarray, encoding_errors: str):
        self.file, self.starts, self.ends, self.encoding_errors = file, starts, ends, encoding_errors

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, str]:
        raw = self.file.read(self.starts[index], self.ends[index])
        return {"text": raw.decode("utf-8", self.encoding_errors)}


def read_sentences(
    train_file: str | Path | Sequence[str | Path] | None = None,
    dataset_name: str | None = None,
    dataset_file: str | None = None,
    dataset_split: str = "train",
    dataset_revision: str | None = None,
    text_column: str | None = None,
    encoding_errors: str = "strict",
    *,
    dataset_config: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    quotes: str | None = None,
    drop_duplicates: bool = False,
    max_samples: int | None = None,
    fraction: float | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_seq_length: int = 32,
    seed: int = 0,
    hints: Hints = SENTENCE_HINTS,
) -> Sentences:
    """The non-blank sentences of local files or of a Hub data set, in order.

    ``train_file`` is one or several local files, folders or patterns, see `find_files`; equal sentences of two files
    are repeats as those of one, and the fingerprint is that of one file with all of them. ``dataset_file`` is one file
    of the data set's repository, read by the same rules; without it ``dataset_split`` of ``dataset_config`` is read,
    by ``datasets`` where it is no text or table. ``encoding``, ``delimiter``, ``quotes``: see `Reading`.
    ``encoding_errors``: "strict" refuses a byte that is not UTF-8, "replace" puts U+FFFD in its place.
    ``max_samples``: keep a seeded random subset of at most so many,
    in file order; ``fraction``: keep such a subset of this share, at least one sentence. With a ``tokenizer`` the
    report says which share of the sentences is longer than ``max_seq_length`` tokens. ``hints``: what the command that
    reads them offers in its messages.

    Raises:
        UserError: an argument is not allowed, or the text cannot be read; with file and line.
    """
    if (train_file is None) == (dataset_name is None):
        both = "both were" if train_file is not None else "neither was"
        raise UserError(f"give either --train_file (a local file) or --dataset_name (a Hub data set); {both} given")
    if dataset_name is None and (dataset_file or dataset_revision or dataset_config or dataset_split != "train"):
        raise UserError(
            "--dataset_file, --dataset_config, --dataset_split and --dataset_revision need --dataset_name; "
            "--train_file is a local file"
        )
    if dataset_file and dataset_config:
        raise UserError(f"--dataset_config does not apply to one file, --dataset_file {dataset_file}; leave one out")
    if dataset_file and dataset_split != "train":
        raise UserError(
            f"--dataset_split {dataset_split} does not apply to one file, --dataset_file {dataset_file}; leave one out"
        )
    reading = Reading(encoding_errors, encoding, delimiter, quotes)
    if max_samples is not None and max_samples < 1:
        raise UserError(f"--max_train_samples is {max_samples}; it must be at least 1")

    if fraction is not None and not 0 < fraction <= 1:
        raise UserError(f"--train_fraction is {fraction}; it must be above 0 and at most 1")
    if fraction is not None and max_samples is not None:
        raise UserError(
            f"--train_fraction {fraction} and --max_train_samples {max_samples} both say how many sentences to keep; "
            "leave one out"
        )

    if dataset_name is None:
        text = read_files(listed(train_file), reading, text_column, hints)
    elif dataset_file is not None:
        source = Source(f"{dataset_name}/{dataset_file}", reading, text_column)
        reading.require_used({ending(dataset_file)}, source.input.name)
        text = read_source(source, *source.read_file(download(dataset_name, dataset_file, dataset_revision)))
    elif files := files_of_split(dataset_name, dataset_config, dataset_split, dataset_revision):
        text = replace(read_files(files, reading, text_column), name=f"{dataset_name} ({dataset_split})")
    else:
        source = Source(f"{dataset_name} ({dataset_split})", reading, text_column)
        reading.require_used((), f"{source.input.name}, which is read by datasets")
        table = load_split(dataset_name, dataset_config, dataset_split, dataset_revision).with_format("arrow")
        read = source.read_arrow(
            table.column_names,
            lambda names: (b for rows in table.select_columns(list(names)).iter(8192) for b in rows.to_batches()),
        )
        text = read_source(source, *read)

    lines_read, some = len(text.starts), np.flatnonzero(text.ends > text.starts)
    if not len(some):
        raise UserError(f"{text.name} holds no sentence: {lines_read} lines, none with text")
    sentences = Sentences(text.file, text.starts[some], text.ends[some], encoding_errors)
    repeats = _repeats(text.hashes[some])
    keep = np.flatnonzero(~repeats if drop_duplicates else np.ones_like(repeats))
    wanted = max_samples if fraction is None else max(round(fraction * len(keep)), 1)
    if wanted is not None and wanted < len(keep):
        keep = np.sort(np.random.default_rng(seed).choice(keep, wanted, replace=False))
    sentences.starts, sentences.ends = sentences.starts[keep], sentences.ends[keep]
    sentences.lines = (some[keep] + 1).astype(np.int32)

    n = len(sentences)
    looked = look(lambda i: [sentences[i]["text"]], n, tokenizer, max_seq_length, text.notes)
    sentences.report = DataReport(
        source=text.name,
        column=text.column,
        lines_read=lines_read,
        blank=lines_read - len(repeats),
        duplicates=int(repeats.sum()),
        dropped=len(repeats) - n,
        kept=n,
        undecodable=text.undecodable,
        max_samples=max_samples,
        fraction=fraction,
        max_seq_length=max_seq_length,
        truncated_share=looked.truncated_share,
        truncated_sample=looked.looked_at if tokenizer is not None else 0,
        samples=[shown(sentences[i]["text"], SHOWN) for i in (0, n // 2, n - 1)],
        sha256=_fingerprint(sentences),
        files=_of_files(text, some, some[repeats], some[keep]),
        left_out=text.left_out,
        unknown_share=looked.unknown_share,
        alike_share=looked.alike_share,
        notes=looked.notes,
        alarms=looked.alarms,
    )
    return sentences


def _of_files(text: Text, some: np.ndarray, repeats: np.ndarray, kept: np.ndarray) -> list[dict[str, Any]]:
    """The counts of each of several files; some, repeats, kept: numbers of lines, from 0."""
    counted = zip(text.parts, *map(text.counts, (some, repeats, kept)), strict=True) if text.parts else ()
    return [
        {"name": part.name, "lines_read": part.lines, "blank": part.lines - with_text, "duplicates": again,
         "dropped": with_text - here, "kept": here, "undecodable": part.undecodable}
        for part, with_text, again, here in counted
    ]  # fmt: skip


def listed(train_file: str | Path | Sequence[str | Path] | None) -> list[str | Path]:
    return [train_file] if isinstance(train_file, str | Path) else list(train_file or ())


def require(sentences: Any, batch_size: int) -> None:
    """Raise UserError if there are fewer sentences than one batch of ``batch_size`` needs."""
    if len(sentences) < batch_size:
        raise UserError(
            f"{sentences.report.source} holds {len(sentences)} sentences, fewer than one batch of {batch_size}; "
            "add text, or lower --per_device_train_batch_size"
        )


def _repeats(hashes: np.ndarray) -> np.ndarray:
    """(N,) bool: True where an earlier sentence has the same 64-bit hash.

    Among 10^6 sentences, two different ones share a hash with a probability of 3e-8. The worst result is that one
    sentence too many is counted (or dropped), so the texts are not kept in memory to compare them.
    """
    repeats = np.ones(len(hashes), dtype=bool)
    repeats[np.unique(hashes, return_index=True)[1]] = False
    return repeats


def _fingerprint(sentences: Sentences) -> str:
    found, step = Fingerprint(), 8192
    read, errors = sentences.file.read, sentences.encoding_errors
    for first in range(0, len(sentences), step):
        starts, ends = (edge[first : first + step].tolist() for edge in (sentences.starts, sentences.ends))
        texts = (read(a, b) for a, b in zip(starts, ends, strict=True))
        found.add(texts if errors == "strict" else (text.decode("utf-8", errors).encode() for text in texts))
        sentences.file.release()
    return found.hexdigest()
