"""`Table`: header, rows and notes -> aligned columns for the terminal, or Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .escaping import escape_markdown, escape_terminal


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header.

    align: one letter a column, "l" or "r"; columns that it does not reach are "r", and by default only the first is
    "l". caption: a sentence above the table. notes: paragraphs below it. bold: the (row, column) of cells that stand
    out in Markdown and on a page, both from 0, without the header.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    align: str = "l"
    caption: str = ""
    bold: frozenset[tuple[int, int]] = frozenset()

    def lines(self, widths: Sequence[int] = ()) -> list[str]:
        """Header and rows, one line each; a column is as wide as its longest cell, and at least as ``widths`` says."""
        table = [[*map(escape_terminal, row)] for row in (self.header, *self.rows)]
        columns = range(len(self.header))
        least = [*widths, *[0] * len(self.header)]
        wide = [max(least[i], *(len(row[i]) for row in table)) for i in columns]
        cells = ([row[i].ljust(wide[i]) if self._side(i) == "l" else row[i].rjust(wide[i]) for i in columns]
                 for row in table)  # fmt: skip
        return ["  ".join(row).rstrip() for row in cells]

    def plain(self) -> str:
        """For the terminal: the caption, the header over a rule, the rows and the notes."""
        header, *rows = self.lines()
        rule = "-" * max(map(len, [header, *rows]))
        above = [escape_terminal(self.caption), ""] if self.caption else []
        return "\n".join([*above, header, rule, *rows, *(f"\n{escape_terminal(note)}" for note in self.notes)])

    def markdown(self, marked_up: bool = False) -> str:
        """For a README. marked_up: the text holds Markdown already and is not escaped."""

        def text(cell: str) -> str:
            return cell if marked_up else escape_markdown(cell)

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cells) + " |"

        rule = [":--" if self._side(i) == "l" else "--:" for i in range(len(self.header))]
        header, *rows = [line([*map(text, row)]) for row in (self.header, *self.rows)]
        for place in {row for row, _ in self.bold}:
            cells = [*map(text, self.rows[place])]
            rows[place] = line([f"**{cell}**" if (place, i) in self.bold else cell for i, cell in enumerate(cells)])
        above = [text(self.caption)] if self.caption else []
        return "\n\n".join([*above, "\n".join([header, line(rule), *rows]), *map(text, self.notes)])

    def _side(self, column: int) -> str:
        return self.align[column : column + 1] or "r"
