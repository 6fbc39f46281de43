"""Tables of pairs of texts (an anchor, its positive, perhaps a hard negative) -> rows with these columns.

A row in which one of its texts is empty is left out and counted, since it has nothing to be drawn to or away from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from ..errors import UserError
from .files import TABLES, Input
from .fingerprint import Fingerprint
from .formats import named, read_records, read_rows, require_columns
from .look import look
from .places import ending
from .sentences import SHOWN, DataReport
from .terminal import shown

USUAL = (  # names of anchor, positive and hard negative that data sets have
    ("sent0", "sent1", "hard_neg"),
    ("anchor", "positive", "negative"),
    ("query", "positive", "negative"),
)
HOW = "--columns ANCHOR POSITIVE or --columns ANCHOR POSITIVE HARD_NEGATIVE"


@dataclass
class PairReport(DataReport):
    """What was read of a table of pairs; a line is a row, and ``duplicates`` counts rows equal in all columns."""

    columns: tuple[str, ...] = ()


class PairRows(Dataset):
    """Map-style data set of rows ``{column: text}``, held in memory. columns: those of every row, anchors first."""

    report: PairReport

    def __init__(self, rows: Sequence[tuple[str, ...]], columns: tuple[str, ...]):
        self.rows, self.columns = rows, columns

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, str]:
        return dict(zip(self.columns, self.rows[index], strict=True))


def usual_columns(columns: Iterable[str]) -> tuple[str, ...] | None:
    """The two or three columns of pairs that have names of `USUAL`; None where there are none."""
    there = set(columns)
    for names in USUAL:
        if there.issuperset(names[:2]):
            return names[: 2 + (names[2] in there)]
    return None


def chosen_columns(columns: Sequence[str], asked: Sequence[str] | None, where: str) -> tuple[str, ...] | None:
    """The columns of pairs: those asked for, or those with usual names; None where neither is there.

    Raises:
        UserError: another number of columns is asked for than two or three, one twice, or one that is not there.
    """
    if not asked:
        return usual_columns(columns)
    if len(asked) not in (2, 3) or len(set(asked)) < len(asked):
        raise UserError(
            f"--columns names {len(asked)} column(s), {', '.join(map(repr, asked))}; give {HOW}; {where}: "
            f"{named(columns)}"
        )
    require_columns(asked, list(columns), where)
    return tuple(asked)


def header_of(path: str | Path) -> list[str]:
    """The columns of a table, of which no row is read; none of a file of plain text."""
    if not Path(path).is_file() or ending(path) not in TABLES:
        return []
    seen: list[list[str]] = []

    def choose(found: list[str], where: str) -> Sequence[str]:
        seen.append(found)
        return list(dict.fromkeys(found))

    source = Input(str(path))
    next(read_rows(source, *source.open(Path(path), TABLES), choose), None)
    return seen[0] if seen else []


def read_pairs(
    path: str | Path,
    columns: tuple[str, ...],
    drop_duplicates: bool = False,
    max_samples: int | None = None,
    fraction: float | None = None,
    tokenizer: Any = None,
    max_seq_length: int = 32,
    seed: int = 0,
) -> PairRows:
    """The rows of a table whose ``columns`` all have text, in order; the other arguments as for `read_sentences`.

    Raises:
        UserError: the file cannot be read, a cell is not text, or no row has text in all columns.
    """
    return collect(
        read_records(Path(path), columns), columns, str(path), drop_duplicates, max_samples, fraction, tokenizer,
        max_seq_length, seed,
    )  # fmt: skip


def pairs_of(rows: Iterable[Mapping[str, Any]], columns: tuple[str, ...], source: str, **how: Any) -> PairRows:
    """The same of rows in memory, such as a split of ``datasets``."""
    return collect(((f"{source}, row {i}", dict(row)) for i, row in enumerate(rows)), columns, source, **how)


def collect(
    records: Iterable[tuple[str, dict[str, Any]]],
    columns: tuple[str, ...],
    source: str,
    drop_duplicates: bool = False,
    max_samples: int | None = None,
    fraction: float | None = None,
    tokenizer: Any = None,
    max_seq_length: int = 32,
    seed: int = 0,
) -> PairRows:
    """Records with their places for messages -> rows with a report."""
    read, found, again = 0, [], 0
    seen: set[int] = set()
    for place, record in records:
        read += 1
        texts = tuple(text_in(record, column, place) for column in columns)
        if not all(texts):
            continue
        key = hash(texts)
        again += key in seen
        if not (drop_duplicates and key in seen):
            found.append(texts)
        seen.add(key)
    if not found:
        raise UserError(f"{source}: none of {read} rows has text in all of the columns {', '.join(columns)}")
    with_text = len(found) + again * drop_duplicates
    wanted = max_samples if fraction is None else max(round(fraction * len(found)), 1)
    if wanted is not None and wanted < len(found):
        keep = np.sort(np.random.default_rng(seed).choice(len(found), wanted, replace=False))
        found = [found[i] for i in keep]
    rows = PairRows(found, columns)
    n, fingerprint = len(found), Fingerprint()
    for texts in found:
        fingerprint.add(text.encode() for text in texts)
    looked = look(lambda i: rows.rows[i][0], n, tokenizer, max_seq_length)  # the anchors
    rows.report = PairReport(
        source=source,
        column=", ".join(columns),
        lines_read=read,
        blank=read - with_text,
        duplicates=again,
        dropped=with_text - n,
        kept=n,
        undecodable=0,
        max_samples=max_samples,
        fraction=fraction,
        max_seq_length=max_seq_length,
        truncated_share=looked.truncated_share,
        truncated_sample=looked.looked_at if tokenizer is not None else 0,
        samples=[shown(" | ".join(found[i]), SHOWN) for i in (0, n // 2, n - 1)],
        sha256=fingerprint.hexdigest(),
        unknown_share=looked.unknown_share,
        alike_share=looked.alike_share,
        notes=looked.notes,
        alarms=looked.alarms,
        columns=columns,
    )
    return rows


class Anchors:
    """The anchors of pairs as rows ``{"text": str}``."""

    def __init__(self, rows: PairRows):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, str]:
        return {"text": self.rows.rows[index][0]}

    def __iter__(self) -> Iterator[dict[str, str]]:
        return (self[i] for i in range(len(self)))


def text_in(record: Mapping[str, Any], column: str, place: str) -> str:
    """The text of a cell without the white space around it; empty where there is none.

    Raises:
        UserError: it is something else than text.
    """
    cell = record.get(column)
    if cell is None or (isinstance(cell, float) and cell != cell):  # pandas has NaN for None
        return ""
    if not isinstance(cell, str):
        raise UserError(f"{place}: {column!r} is {repr(cell)[:60]}, not a text; name columns of text with --columns")
    return cell.strip()
