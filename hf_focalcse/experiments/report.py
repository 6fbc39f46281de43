"""``focalcse report``: a `Study` written as one HTML page, and as Markdown with its pictures beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count as count_from
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..options.experiments import ReportOptions
from ..runs.atomic import write_bytes
from ..runs.record import without_paths
from ..runs.tables import Table
from .groups import REPORT, read_study
from .names import tell_apart
from .page import PICTURES, Finding, Part, Picture, Section, to_html, to_markdown
from .sections import SECTIONS, NoData
from .study import Study

SENTENCES = (
    "sentence",
    "sentences",
    "conclusion",
    "conclusions",
)  # keys under which `focalcse compare` writes sentences


def report(args: ReportOptions) -> None:
    """Read the runs, write report.html and report.md with its pictures, and print where they are."""
    study = read_study(args.folders)
    folder = Path(args.output_dir or Path(args.folders[0]) / "report")
    sections = make_sections(study, read_comparisons(args.compare or []))
    title = args.title
    pictures = [part for _, parts in sections for part in parts if isinstance(part, Picture)]
    try:
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            write_bytes(folder / PICTURES / f"{picture.name}.svg", picture.svg)
        before = pictures_of(folder / "report.md")
        write_bytes(folder / "report.md", to_markdown(title, sections).encode())
        write_bytes(folder / REPORT, to_html(title, sections).encode())
        for name in before - {f"{picture.name}.svg" for picture in pictures}:
            (folder / PICTURES / name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"the report cannot be written into {folder} ({error.strerror}); give --output_dir") from error
    print(f"{len(study.runs)} runs in {len(study.groups)} groups, {len(study.skipped)} folders left out")
    for name, reason in study.skipped.items():
        print(f"  {name}: {reason}")
    print(f"Written to {folder / REPORT} and {folder / 'report.md'} ({len(pictures)} pictures)")


def pictures_of(report: Path) -> set[str]:
    """The files of an earlier report's pictures, which its folder may hold among others."""
    text = report.read_text(encoding="utf-8", errors="replace") if report.is_file() else ""
    return set(re.findall(rf"\]\({PICTURES}/([^/)]+\.svg)\)", text))


def make_sections(study: Study, comparisons: Sequence[str] = ()) -> list[Section]:
    """(title, parts) of each section that has data; the last section names what was left out."""
    made: list[Section] = []
    missing: list[Part] = []
    for title, section in SECTIONS.items():
        try:
            made.append((title, list(section(study))))
        except NoData as reason:
            missing.append(f"No section “{title}”: {reason}.")
    used: set[str] = set()
    made = [(title, _with_own_names(parts, used)) for title, parts in made]
    said: list[Part] = [*map(Finding, comparisons)] or [
        "No comparison was given, so nothing here is a test. `focalcse compare` tests whether two groups differ."
    ]
    made.insert(1, ("What the tests say", said))
    rows = [[name, reason] for name, reason in study.skipped.items()]
    skipped = [Table(["folder", "why"], rows, caption=f"{len(rows)} folders that are not used above")] if rows else []
    return [*made, *([("Left out", [*missing, *skipped])] if missing or skipped else [])]


def _with_own_names(parts: Sequence[Part], used: set[str]) -> list[Part]:
    """Number pictures whose name is taken: they are files, and the slugs of different names may be equal."""
    named: list[Part] = []
    for part in parts:
        if isinstance(part, Picture):
            names = (part.name + (f"-{i}" if i > 1 else "") for i in count_from(1))
            part = replace(part, name=next(name for name in names if name not in used))
            used.add(part.name)
        named.append(part)
    return named


def read_comparisons(files: Sequence[str]) -> list[str]:
    """The sentences in the JSON files of `focalcse compare`; with several files, each after the name of its file.

    Raises:
        UserError: a file is missing, is not JSON, or contains no sentence.
    """
    said = []
    names = tell_apart([Path(file).stem for file in files], list(files))
    for file, name in zip(files, names, strict=True):
        try:
            found = list(dict.fromkeys(_sentences(json.loads(Path(file).read_text(encoding="utf-8")))))
        except (OSError, ValueError) as error:
            raise UserError(
                f"--compare {file} cannot be read as JSON ({error}); give what focalcse compare --json wrote"
            ) from error
        if not found:
            raise UserError(f"--compare {file} contains no sentence; give what focalcse compare --json wrote")
        which = f"{name}: " if len(files) > 1 else ""
        said += [which + without_paths(sentence) for sentence in found]
    return said


def _sentences(content: Any, wanted: bool = False) -> Iterator[str]:
    if isinstance(content, dict):
        notes = content.get("notes")
        for key, value in content.items():
            for sentence in _sentences(value, key in SENTENCES):
                noted = notes if key in SENTENCES and isinstance(notes, list) else []
                yield f"{sentence} Note: {'; '.join(map(str, noted))}." if noted else sentence
    elif isinstance(content, list):
        for value in content:
            yield from _sentences(value, wanted)
    elif isinstance(content, str) and wanted:
        yield content
