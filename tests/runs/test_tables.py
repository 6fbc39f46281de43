"""Tables for the terminal and for Markdown, and what they escape."""

import html
import re

import pytest

from hf_focalcse.runs.escaping import escape_html, escape_markdown
from hf_focalcse.runs.tables import Table

TABLE = Table(
    ["System", "a", "note"], [["long name", "1.0", "x|y"], ["b", "12.00", "*z*"]], ["So it is."], "lrl", "All:"
)


def test_columns_are_as_wide_as_they_must_be():
    assert TABLE.plain() == (
        "All:\n\n"
        "System         a  note\n"
        "----------------------\n"
        "long name    1.0  x|y\n"
        "b          12.00  *z*\n"
        "\n"
        "So it is."
    )
    assert Table(["A", "b"], [["c", "d"]]).lines([4, 3]) == ["A       b", "c       d"]


def test_markdown_shows_the_cells_as_they_are():
    assert TABLE.markdown().splitlines() == [
        *("All:", "", "| System | a | note |", "| :-- | --: | :-- |", "| long name | 1.0 | x\\|y |"),
        *("| b | 12.00 | \\*z\\* |", "", "So it is."),
    ]
    assert "| *z* |" in TABLE.markdown(marked_up=True)


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "a | b", "*x* `z`", "[l](http://x)", "a & b #1", "\\"])
def test_escaped_text_is_text(text):
    marked = escape_markdown(text)
    assert re.sub(r"\\(.)", r"\1", marked) == text
    assert not re.search(
        r"[`*\[\]|<>&#]", re.sub(r"\\.", "", marked)
    )  # nothing that Markdown reads as a sign of its own
    assert html.unescape(escape_html(text)) == text and "<" not in escape_html(text)
