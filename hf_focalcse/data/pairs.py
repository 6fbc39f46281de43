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
from .files import Input
from .fingerprint import Fingerprint
from .formats import named, open_table, read_rows, require_columns
from .look import look
from .places import ending
from .reading import AS_USUAL, PAIR_HINTS, TABLES, TEXTS, Reading
from .rows import Rows
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


def is_table(path: str | Path, reading: Reading = AS_USUAL) -> bool:
    """Whether the name of a file is that of a table; plain text is one where its delimiter is named."""
    return Path(path).is_file() and ending(path) in (TABLES if reading.plain else (*TEXTS, *TABLES))


def header_of(path: str | Path, reading: Reading = AS_USUAL) -> list[str]:
    """The columns of a table, of which one row is read; none of a file of plain text."""
    if not is_table(path, reading):
        return []
    seen: list[list[str]] = []

    def choose(found: list[str], where: str) -> Sequence[str]:
        seen.append(found)
        return list(dict.fromkeys(found))

    source = Input(str(path), reading, PAIR_HINTS)
    next(read_rows(source, *open_table(source, Path(path)), choose), None)
    return seen[0] if seen else []


def read_pairs(
    path: str | Path | Sequence[str | Path], columns: tuple[str, ...], reading: Reading = AS_USUAL, **how: Any
) -> PairRows:
    """The rows of one or several tables whose ``columns`` all have text, in order. how: the arguments of `collect`.

    Raises:
        UserError: a file cannot be read, a cell is not text, or no row has text in all columns.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    reading.require_used({ending(one) for one in paths}, ", ".join(map(str, paths)))

    def choose(found: list[str], where: str) -> Sequence[str]:
        require_columns(columns, found, where)
        return columns

    def rows(source: Input) -> Rows:
        yield from read_rows(source, *open_table(source, Path(source.name)), choose)

    sources = [Input(str(one), reading, PAIR_HINTS) for one in paths]
    return collect([(source, rows(source)) for source in sources], columns, **how)


def pairs_of(rows: Iterable[Mapping[str, Any]], columns: tuple[str, ...], source: str, **how: Any) -> PairRows:
    """The same of rows in memory, such as a split of ``datasets``, the first of which has the number 0."""
    return collect([(Input(source, unit="row"), enumerate(map(dict, rows)))], columns, **how)


def collect(
    parts: Sequence[tuple[Input, Rows]],
    columns: tuple[str, ...],
    drop_duplicates: bool = False,
    max_samples: int | None = None,
    fraction: float | None = None,
    tokenizer: Any = None,
    max_seq_length: int = 32,
    seed: int = 0,
) -> PairRows:
    """The rows of each source, with their numbers for messages -> rows with a report; the other arguments as for
    `read_sentences`."""
    found: list[tuple[str, ...]] = []
    seen: set[int] = set()
    counts: list[dict[str, Any]] = []
    of: list[int] = []  # which source each row is from
    for number_of_source, (source, records) in enumerate(parts):
        read = empty = again = 0
        for number, record in records:
            read += 1
            texts = tuple(text_in(record, column, source, number) for column in columns)
            if not all(texts):
                empty += 1
                continue
            key = hash(texts)
            again += key in seen
            if not (drop_duplicates and key in seen):
                found.append(texts)
                of.append(number_of_source)
            seen.add(key)
        counts.append({"name": source.name, "lines_read": read, "blank": empty, "duplicates": again})
    names = ", ".join(source.name for source, _ in parts)
    total = {key: sum(count[key] for count in counts) for key in ("lines_read", "blank", "duplicates")}
    if not found:
        raise UserError(
            f"{names}: none of {total['lines_read']} rows has text in all of the columns {', '.join(columns)}"
        )
    wanted = max_samples if fraction is None else max(round(fraction * len(found)), 1)
    keep = np.arange(len(found))
    if wanted is not None and wanted < len(found):
        keep = np.sort(np.random.default_rng(seed).choice(len(found), wanted, replace=False))
    rows = PairRows([found[i] for i in keep], columns)
    kept = np.bincount(np.array(of)[keep], minlength=len(parts)).tolist()
    for count, here, (source, _) in zip(counts, kept, parts, strict=True):
        dropped = count["lines_read"] - count["blank"] - here
        count |= {"dropped": dropped, "kept": here, "undecodable": source.undecodable}
    n, fingerprint = len(rows), Fingerprint()
    for texts in rows.rows:
        fingerprint.add(text.encode() for text in texts)
    notes = [note for source, _ in parts for note in source.notes]
    looked = look(lambda i: rows.rows[i], n, tokenizer, max_seq_length, notes)
    rows.report = PairReport(
        source=names,
        column=", ".join(columns),
        **total,
        dropped=total["lines_read"] - total["blank"] - n,
        kept=n,
        undecodable=sum(source.undecodable for source, _ in parts),
        max_samples=max_samples,
        fraction=fraction,
        max_seq_length=max_seq_length,
        truncated_share=looked.truncated_share,
        truncated_sample=looked.looked_at if tokenizer is not None else 0,
        samples=[" | ".join(shown(text, SHOWN) for text in rows.rows[i]) for i in (0, n // 2, n - 1)],
        sha256=fingerprint.hexdigest(),
        files=counts if len(parts) > 1 else [],
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


def text_in(record: Mapping[str, Any], column: str, source: Input, number: int) -> str:
    """The text of a cell without the white space around it; empty where there is none.

    Raises:
        UserError: it is something else than text.
    """
    cell = record.get(column)
    if cell is None or (isinstance(cell, float) and cell != cell):  # pandas has NaN for None
        return ""
    if not isinstance(cell, str):
        raise UserError(
            f"{source.at(number)}: {column!r} is {repr(cell)[:60]}, not a text; name columns of text with --columns"
        )
    return source.mend(cell, number).strip()
