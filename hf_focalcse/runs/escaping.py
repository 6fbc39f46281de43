"""Text of any origin -> text that Markdown and HTML show as it is."""

from __future__ import annotations

import html
import re


def escape_html(text: str) -> str:
    """For the content of an element or the value of an attribute in double or single quotes."""
    return html.escape(text, quote=True)


def escape_markdown(text: str, keep: str = "") -> str:
    """On one line, also safe inside a cell of a table; the signs in ``keep`` stay what Markdown takes them for."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*\[\]|<>&#])", lambda sign: sign[0] if sign[0] in keep else f"\\{sign[0]}", line)
