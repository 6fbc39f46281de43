"""Sections of a report -> one self-contained HTML page, or Markdown; here all text is escaped."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from ..runs.escaping import escape_html, escape_markdown
from ..runs.tables import Table

TEMPLATE = Path(__file__).with_name("report.html")
LONG = 220  # letters from which a phone shows the first sentence of a finding alone
PICTURES = "report_files"  # the folder of the pictures that the Markdown shows


@dataclass(frozen=True)
class Picture:
    name: str
    svg: bytes
    alt: str  # a description for readers who cannot see the picture
    caption: str


@dataclass(frozen=True)
class Finding:
    """A sentence that follows from the data of a section."""

    text: str


Part = str | Finding | Table | Picture  # a string is a paragraph
Section = tuple[str, Sequence[Part]]  # title, parts


def to_html(title: str, sections: Sequence[Section]) -> str:
    """One page that loads no other file. On a phone, tables and pictures are folded but for the first section's."""
    blocks = [f"<h1>{escape_html(title)}</h1>"]
    links = "".join(f'<li><a href="#{slug(name)}">{escape_html(name)}</a></li>' for name, _ in sections)
    blocks.append(f'<nav aria-label="Sections">{_folded("Sections", f"<ul>{links}</ul>")}</nav>')
    for i, (name, parts) in enumerate(sections):
        blocks.append(f'<section aria-labelledby="{slug(name)}">\n<h2 id="{slug(name)}">{escape_html(name)}</h2>')
        blocks += [_html_text(part) for part in parts if isinstance(part, str | Finding)]
        tables = [_html_table(part) for part in parts if isinstance(part, Table)]
        pictures = [_html_picture(part) for part in parts if isinstance(part, Picture)]
        shown = "\n".join(tables + ([f'<div class="pictures">\n{"".join(pictures)}</div>'] if pictures else []))
        counted = [_counted(len(tables), "table"), _counted(len(pictures), "picture")]
        blocks += [shown if i == 0 else _folded(", ".join(filter(None, counted)), shown)] if shown else []
        blocks.append("</section>")
    page = Template(TEMPLATE.read_text(encoding="utf-8"))
    return page.substitute(title=escape_html(title), body="\n".join(blocks))


def _folded(summary: str, content: str, kind: str = "more") -> str:
    """What a phone shows as ``summary`` until it is tapped, and everything else as ``content``."""
    return f'<details class="{kind}"><summary>{summary}</summary>\n{content}\n</details>'


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}" if number else ""


def _html_text(part: str | Finding) -> str:
    if isinstance(part, str):
        return f"<p>{_code(escape_html(part))}</p>"
    first, rest = _first_sentence(part.text)
    if not rest:
        return f'<p class="finding">{escape_html(part.text)}</p>'
    return _folded(escape_html(first), f"<p>{escape_html(rest)}</p>", "finding")


def _first_sentence(text: str) -> tuple[str, str]:
    """A long finding in two parts; a short one stays whole."""
    end = re.search(r"(?<=[.?!]) (?=[A-Z])", text) if len(text) > LONG else None
    return (text[: end.start()], text[end.end() :]) if end else (text, "")


def _html_table(table: Table) -> str:
    kinds = [_kind([row[i] for row in table.rows]) for i in range(len(table.header))]
    head = "".join(
        f'<th scope="col"{of}>{escape_html(cell)}</th>' for cell, of in zip(table.header, kinds, strict=True)
    )
    rows = ""
    for place, row in enumerate(table.rows):
        texts = [escape_html(cell).replace("± ", "±\N{NO-BREAK SPACE}") for cell in row]
        texts = [f"<strong>{text}</strong>" if (place, i) in table.bold else text for i, text in enumerate(texts)]
        cells = [f"<td{of}>{text}</td>" for text, of in zip(texts, kinds, strict=True)]
        cells[0] = f'<th scope="row"{kinds[0]}>{texts[0]}</th>'
        rows += f"<tr>{''.join(cells)}</tr>\n"
    label = escape_html(table.caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>\n<caption><span>{label}</span>'
        f"</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>"
    )


def _html_picture(picture: Picture) -> str:
    data = base64.b64encode(picture.svg).decode()
    return (
        f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{escape_html(picture.alt)}">\n'
        f"<figcaption>{escape_html(picture.caption)}</figcaption></figure>\n"
    )


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """The same as Markdown, with the pictures in the folder `PICTURES` beside the file."""
    blocks = [f"# {escape_markdown(title)}"]
    for name, parts in sections:
        blocks.append(f"## {escape_markdown(name)}")
        for part in parts:
            if isinstance(part, Table):
                blocks.append(part.markdown())
            elif isinstance(part, Picture):
                blocks.append(
                    f"![{escape_markdown(part.alt)}]({PICTURES}/{part.name}.svg)\n\n{escape_markdown(part.caption)}"
                )
            else:
                blocks.append(
                    f"> {escape_markdown(part.text)}" if isinstance(part, Finding) else escape_markdown(part, keep="`")
                )
    return "\n\n".join(blocks) + "\n"


def _code(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", text)


def _kind(column: Sequence[str]) -> str:
    """The class of a column: numbers are aligned right, text left, and long text is wrapped."""
    if all(re.fullmatch(r"[-±.,\d() ]*|\S+ to \S+", cell) for cell in column):
        return ""
    return ' class="text long"' if max(map(len, column)) > 34 else ' class="text"'


def slug(text: str) -> str:
    """``text`` as an id or as part of the name of a file."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "x"
