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
    """One page that loads no other file."""
    blocks = [f"<h1>{escape_html(title)}</h1>"]
    links = "".join(f'<li><a href="#{slug(name)}">{escape_html(name)}</a></li>' for name, _ in sections)
    blocks.append(f'<nav aria-label="Sections"><ul>{links}</ul></nav>')
    for name, parts in sections:
        blocks.append(f'<section aria-labelledby="{slug(name)}">\n<h2 id="{slug(name)}">{escape_html(name)}</h2>')
        pictures = "".join(_html_picture(part) for part in parts if isinstance(part, Picture))
        blocks += [_html_text(part) for part in parts if not isinstance(part, Picture)]
        blocks += [f'<div class="pictures">\n{pictures}</div>'] if pictures else []
        blocks.append("</section>")
    page = Template(TEMPLATE.read_text(encoding="utf-8"))
    return page.substitute(title=escape_html(title), body="\n".join(blocks))


def _html_text(part: str | Finding | Table) -> str:
    if isinstance(part, Finding):
        return f'<p class="finding">{escape_html(part.text)}</p>'
    if isinstance(part, str):
        return f"<p>{_code(escape_html(part))}</p>"
    kinds = [_kind([row[i] for row in part.rows]) for i in range(len(part.header))]
    head = "".join(
        f'<th scope="col"{of}>{escape_html(cell)}</th>' for cell, of in zip(part.header, kinds, strict=True)
    )
    rows = ""
    for row in part.rows:
        cells = [f"<td{of}>{escape_html(cell)}</td>" for cell, of in zip(row, kinds, strict=True)]
        cells[0] = f'<th scope="row"{kinds[0]}>{escape_html(row[0])}</th>'
        rows += f"<tr>{''.join(cells)}</tr>\n"
    label = escape_html(part.caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>\n'
        f"<caption><span>{label}</span></caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>"
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
