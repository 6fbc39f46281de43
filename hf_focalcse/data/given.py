"""Sentences that a script has in memory, or gives as a stream -> the rows that a file of them would give.

A row is a string, or has its text in a column: ``text``, else ``sentence``, else the only column of text. As in files,
white space around a sentence does not count, and rows without text are left out.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from ..errors import UserError
from .fingerprint import Fingerprint
from .look import look
from .sentences import SHOWN, DataReport, Sentences, read_sentences
from .terminal import shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
KNOWN = ("text", "sentence")  # columns that hold the sentences where they are there
LOOKED_AT = 100  # rows in which columns of text are looked for, where the data do not say their types
BATCH = 1_000  # rows read together
SOURCE = "a data set in memory"  # in records and on cards


class GivenSentences(Dataset):
    """Map-style data set of ``{"text": str}`` over rows that a script gave.

    Args:
        rows: with ``len`` and an index.
        column: of the text in a row; None where a row is the text.
        kept: (N,) int64, the rows that have text.
    """

    report: DataReport

    def __init__(self, rows: Any, column: str | None, kept: np.ndarray):
        self.rows, self.column, self.kept = rows, column, kept

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> dict[str, str]:
        number = int(self.kept[index])
        text = text_of(cell_of(self.rows[number], self.column, number), number)
        if not text:
            raise UserError(
                f"train_dataset: row {number} had text when training began and has none now; leave it as it is"
            )
        return {"text": text}


class SentenceStream(IterableDataset):
    """Iterable data set of ``{"text": str}`` over one that gives rows; those without text are left out."""

    def __init__(self, rows: Any):
        self.rows = rows

    def __iter__(self) -> Iterator[dict[str, str]]:
        column, none = None, 0
        for number, row in enumerate(self.rows):
            if number == 0 and isinstance(row, Mapping):
                column = choose_column(self.rows, [row])
            text = text_of(cell_of(row, column, number), number)
            if text:
                yield {"text": text}
            elif text is None:
                none += 1
                if none == 1:
                    logger.warning("train_dataset: row %d has no text (None); such rows are left out", number)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as the data set does in this epoch."""
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)


def take_rows(data: Any, columns: tuple[str, ...] | None) -> Any:
    """``data`` as a data set of the rows that a collator reads.

    Args:
        data: a data set of ``datasets`` or torch, a list of strings or of rows, any other iterable (which is read to
            its end), or the path of a file for `read_sentences`.
        columns: that the collator reads, see `Collator`.

    Returns:
        `Sentences`, `GivenSentences` or `SentenceStream` where the collator reads ``text`` alone; else the rows as
        they are.

    Raises:
        UserError: the data are of a kind that has no rows, have no sentence, or leave open which column holds them.
    """
    if isinstance(data, (str, Path)):
        return read_sentences(data)
    refuse_other_kinds(data)
    stream = isinstance(data, IterableDataset)
    has_index = hasattr(data, "__len__") and (
        isinstance(data, (Dataset, list, tuple)) or hasattr(data, "column_names")
    )
    if columns != ("text",):
        return data if stream or has_index else list(data)
    if isinstance(data, Sentences):
        return data
    if stream:
        return SentenceStream(data)
    return given_sentences(data if has_index else list(data))


def given_sentences(rows: Any) -> GivenSentences:
    """The rows with text, each of which is read once to see which these are.

    Raises:
        UserError: there is none, the text of a row is not a string, or it is open which column holds the text.
    """
    if not len(rows):
        raise UserError("train_dataset is empty; give at least as many sentences as a batch has")
    first = rows[0]
    column = choose_column(rows, islice(iterate(rows, None), LOOKED_AT)) if isinstance(first, Mapping) else None
    kept, hashes, fingerprint, none, count = array("q"), array("q"), Fingerprint(), 0, 0
    for number, cell in enumerate(iterate(rows, column)):
        text = text_of(cell, number)
        count += 1
        if text:
            kept.append(number)
            raw = encoded(text, number)
            hashes.append(hash(raw))
            fingerprint.add([raw])
        none += text is None
    if none:
        logger.warning("train_dataset: %d of %d rows have no text (None) and are left out", none, count)
    if not kept:
        raise UserError(f"train_dataset holds no sentence: {count} rows, none with text")
    sentences = GivenSentences(rows, column, np.frombuffer(kept, np.int64))
    n = len(sentences)
    sentences.report = DataReport(
        source=SOURCE,
        column=column,
        lines_read=count,
        blank=count - n,
        duplicates=n - len(np.unique(np.frombuffer(hashes, np.int64))),
        dropped=0,
        kept=n,
        undecodable=0,
        max_samples=None,
        fraction=None,
        max_seq_length=0,
        truncated_share=None,
        truncated_sample=0,
        samples=[shown(sentences[i]["text"], SHOWN) for i in (0, n // 2, n - 1)],
        sha256=fingerprint.hexdigest(),
    )
    return sentences


def measure(data: Any, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> bool:
    """Let a report that was made without a tokenizer say which share of the texts is longer than ``max_seq_length``
    tokens, and what else the tokenizer makes of them; False where there is no such report."""
    report = getattr(data, "report", None)
    if report is None or report.truncated_share is not None:
        return False
    found = look(lambda i: list(data[i].values()), len(data), tokenizer, max_seq_length, report.notes)
    report.max_seq_length = max_seq_length
    report.truncated_share, report.truncated_sample = found.truncated_share, found.looked_at
    report.unknown_share, report.alike_share = found.unknown_share, found.alike_share
    report.notes, report.alarms = found.notes, found.alarms
    return True


def texts_of(data: Any, what: str) -> list[str]:
    """The text of each row, for embedding: all of them, in order, as they are.

    Raises:
        UserError: a row has no text, or as for `take_rows`.
    """
    refuse_other_kinds(data, what)
    if isinstance(data, (str, Path)):
        raise UserError(f"{what} takes a list of sentences or a data set, not one string; give [{str(data)[:40]!r}]")
    rows = data if hasattr(data, "__len__") and hasattr(data, "__getitem__") else list(data)
    if not len(rows):
        return []
    head = list(islice(iterate(rows, None), LOOKED_AT))
    column = choose_column(rows, head, what) if isinstance(head[0], Mapping) else None
    texts = []
    for number, cell in enumerate(iterate(rows, column)):
        if text_of(cell, number, what) is None:
            raise UserError(f"{what}: row {number} has no text (None), so it has no vector; leave it out")
        texts.append(str(cell))
    return texts


# ---- rows and their columns


def refuse_other_kinds(data: Any, what: str = "train_dataset") -> None:
    """Raise UserError where ``data`` would not be read as rows: its parts are data sets, columns, or have no order."""
    kind = type(data).__name__
    if isinstance(data, Mapping):
        names = list(map(str, data))
        parts = f"with the {'splits' if 'Dict' in kind else 'keys'} {', '.join(names[:8]) or '(none)'}"
        remedy = f"data[{names[0]!r}]" if names else "a data set"
        raise UserError(
            f"{what} is a {kind} {parts}, and one data set is needed; give one of them, such as {remedy}"
            + ("" if "Dict" in kind else ", or datasets.Dataset.from_dict(data)")
        )
    if hasattr(data, "iterrows"):
        raise UserError(f"{what} is a {kind}; give its rows as datasets.Dataset.from_pandas(data)")
    if isinstance(data, (set, frozenset)):
        raise UserError(f"{what} is a {kind}, which has no order that could be repeated; give sorted(data)")
    if isinstance(data, (bytes, bytearray)) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise UserError(
            f"{what} is a {kind}; it must be a data set of `datasets` or torch, a list of sentences, or the path of a "
            "file"
        )


def iterate(rows: Any, column: str | None) -> Iterator[Any]:
    """The rows in order or, of a ``column``, its cells."""
    if column is not None and hasattr(rows, "column_names"):  # of `datasets`: batches are faster than rows
        for batch in rows.iter(BATCH):
            yield from batch[column]
    elif isinstance(rows, Dataset) or not hasattr(rows, "__iter__"):  # of torch: an index is all that it must have
        yield from (cell_of(rows[i], column, i) for i in range(len(rows)))
    else:
        yield from (cell_of(row, column, i) for i, row in enumerate(rows))


def choose_column(data: Any, head: Iterable[Any], what: str = "train_dataset") -> str:
    """The column that holds the sentences, of ``data`` with the first rows ``head``.

    Raises:
        UserError: there is no column of text, or there are several and none is called text or sentence.
    """
    rows = [row for row in head if isinstance(row, Mapping)]
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    features = getattr(data, "features", None) or {}
    declared = {name for name, kind in features.items() if "string" in str(getattr(kind, "dtype", ""))}
    seen = {str(name) for row in rows for name, cell in row.items() if isinstance(cell, str)}
    texts = [name for name in names if name in seen or name in declared]
    for name in KNOWN:
        if name in texts or (name in names and all(row.get(name) is None for row in rows)):
            return name
    if len(texts) == 1:
        return texts[0]
    listed = ", ".join(map(repr, texts or names))
    if not texts:
        raise UserError(f"{what} has no column of text; its columns are {listed}")
    raise UserError(
        f"{what} has {len(texts)} columns of text, {listed}, and none of them is called text or sentence; keep one, "
        f"as with data.select_columns({texts[0]!r}), or rename it to text"
    )


def cell_of(row: Any, column: str | None, number: int) -> Any:
    """The cell of a row, or the row itself where there is no column."""
    if column is None:
        return row
    if not isinstance(row, Mapping) or column not in row:
        raise UserError(f"row {number} has no column {column!r}, as the first row has; every row needs it")
    return row[column]


def text_of(cell: Any, number: int, what: str = "train_dataset") -> str | None:
    """The text without the white space around it; None where there is none.

    Raises:
        UserError: the cell is something else than text, None or NaN.
    """
    if isinstance(cell, str):
        return str(cell).strip()
    if cell is None or (isinstance(cell, float) and cell != cell):  # pandas has NaN for None
        return None
    raise UserError(f"{what}: row {number} is {type(cell).__name__} {repr(cell)[:60]}, not a text; give strings")


def encoded(text: str, number: int) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"train_dataset: row {number} holds half a character (\\u{ord(text[error.start]):04x}), which UTF-8 does "
            "not have; read the text again as UTF-8"
        ) from error
