"""Sections of a report -> one self-contained HTML page, or Markdown; all text is escaped here."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

TEMPLATE = Path(__file__).with_name("report.html")
PICTURES = "report_files"  # folder of the Markdown's pictures


@dataclass(frozen=True)
class Table:
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    name: str
    svg: bytes
    alt: str  # what it shows, for those who cannot see it
    caption: str


@dataclass(frozen=True)
class Finding:
    """A sentence that the data of a section bear out."""

    text: str


Part = str | Finding | Table | Picture  # a string is a paragraph
Section = tuple[str, Sequence[Part]]  # title, parts


def to_html(title: str, sections: Sequence[Section]) -> str:
    """One page that loads nothing."""
    blocks = [f"<h1>{_escape(title)}</h1>"]
    links = "".join(f'<li><a href="#{slug(name)}">{_escape(name)}</a></li>' for name, _ in sections)
    blocks.append(f'<nav aria-label="Sections"><ul>{links}</ul></nav>')
    for name, parts in sections:
        blocks.append(f'<section aria-labelledby="{slug(name)}">\n<h2 id="{slug(name)}">{_escape(name)}</h2>')
        pictures = "".join(_html_picture(part) for part in parts if isinstance(part, Picture))
        blocks += [_html_text(part) for part in parts if not isinstance(part, Picture)]
        blocks += [f'<div class="pictures">\n{pictures}</div>'] if pictures else []
        blocks.append("</section>")
    page = Template(TEMPLATE.read_text(encoding="utf-8"))
    return page.substitute(title=_escape(title), body="\n".join(blocks))


def _html_text(part: str | Finding | Table) -> str:
    if isinstance(part, Finding):
        return f'<p class="finding">{_escape(part.text)}</p>'
    if isinstance(part, str):
        return f"<p>{_code(_escape(part))}</p>"
    kinds = [_kind([row[i] for row in part.rows]) for i in range(len(part.header))]
    head = "".join(f'<th scope="col"{of}>{_escape(cell)}</th>' for cell, of in zip(part.header, kinds, strict=True))
    rows = ""
    for row in part.rows:
        cells = [f"<td{of}>{_escape(cell)}</td>" for cell, of in zip(row, kinds, strict=True)]
        cells[0] = f'<th scope="row"{kinds[0]}>{_escape(row[0])}</th>'
        rows += f"<tr>{''.join(cells)}</tr>\n"
    label = _escape(part.caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>\n'
        f"<caption><span>{label}</span></caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>"
    )


def _html_picture(picture: Picture) -> str:
    data = base64.b64encode(picture.svg).decode()
    return (
        f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{_escape(picture.alt)}">\n'
        f"<figcaption>{_escape(picture.caption)}</figcaption></figure>\n"
    )


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """The same, with the pictures in the folder `PICTURES` beside it."""
    blocks = [f"# {_mark(title)}"]
    for name, parts in sections:
        blocks.append(f"## {_mark(name)}")
        for part in parts:
            if isinstance(part, Table):
                lines = [part.header, [":--", *["--:"] * (len(part.header) - 1)], *part.rows]
                cells = [[cell if i == 1 else _mark(cell) for cell in line] for i, line in enumerate(lines)]
                blocks.append(_mark(part.caption) + "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in cells))
            elif isinstance(part, Picture):
                blocks.append(f"![{_mark(part.alt)}]({PICTURES}/{part.name}.svg)\n\n{_mark(part.caption)}")
            else:
                blocks.append(f"> {_mark(part.text)}" if isinstance(part, Finding) else _mark(part, keep="`"))
    return "\n\n".join(blocks) + "\n"


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


def _code(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", text)


def _mark(text: str, keep: str = "") -> str:
    """Text that Markdown and the HTML in it take for nothing but text, on one line."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*\[\]|<>&#])", lambda sign: sign[0] if sign[0] in keep else f"\\{sign[0]}", line)


def _kind(column: Sequence[str]) -> str:
    """Numbers stand on the right, text on the left, long text in lines."""
    if all(re.fullmatch(r"[-±.,\d() ]*|\S+ to \S+", cell) for cell in column):
        return ""
    return ' class="text long"' if max(map(len, column)) > 34 else ' class="text"'


def slug(text: str) -> str:
    """For ids and names of files."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "x"
