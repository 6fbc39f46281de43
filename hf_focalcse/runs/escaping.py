"""Text of any origin -> text that Markdown, HTML or a terminal shows as it is; one function for each."""

from __future__ import annotations

import html
import re

from ..errors import printable as escape_terminal  # the third of them  # noqa: F401

# What no reader should see act: control characters, and those that turn the direction of what follows.
ACTING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
MARKS = re.compile(
    r"[\\`*\[\]|<>&#$]"  # wherever they stand
    r"|~(?=~)|(?<=~)~|(?<![^\W_])_|_(?![^\W_])"  # in pairs, and at the edge of a word
    r"|\A[-+](?= )|\A-(?=--)|(?<=\A\d)[.)](?= )|(?<=\A\d\d)[.)](?= )"  # what begins a list or a rule
)


def escape_html(text: str) -> str:
    """For the content of an element or the value of an attribute in double or single quotes."""
    return html.escape(_without_acting(text), quote=True)


def escape_markdown(text: str, keep: str = "") -> str:
    """On one line, also safe inside a cell of a table; the signs in ``keep`` stay what Markdown takes them for."""
    line = " ".join(_without_acting(text).split())
    return MARKS.sub(lambda sign: sign[0] if sign[0] in keep else f"\\{sign[0]}", line)


def code_span(text: str) -> str:
    """Text in the type of code within a line of Markdown, or in a cell of a table."""
    line = " ".join(_without_acting(text).split()).replace("|", r"\|")
    fence = "`" * (_longest(line) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line or ' '}{fence}"


def code_block(text: str, language: str) -> str:
    """Lines of code in Markdown, whatever signs are in them."""
    fence = "`" * max(3, _longest(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _without_acting(text: str) -> str:
    return ACTING.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)
