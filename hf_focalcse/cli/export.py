"""``focalcse export``: a trained folder -> the folder that other libraries load."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UserError
from ..options.field import HARMLESS, PATH, option
from ..options.training import Publish
from ..parsing.parser import Parser, build


@dataclass(frozen=True)
class Export(Publish):
    """The trained folder, and how it is exported."""

    _argument_group_name = "export"

    folder: str | None = option(None, help="The output folder of a training run.", role=PATH, place=True)
    output_dir: str | None = option(
        None,
        help="The folder to write. Default: FOLDER/hub.",
        role=HARMLESS,
        why="it is where the export is written",
        short=("output",),
    )


def parse(argv: list[str], script: str = "focalcse export") -> Export:
    """``FOLDER`` and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(Export, prog=script, usage=f"{script} FOLDER [flags]")
    args = build(Export, parser.parse(argv))
    if args.folder is None:
        raise UserError("no folder to export: focalcse export FOLDER")
    return args


def run(args: Export) -> None:
    from ..publishing.publish import export_folder  # torch

    export_folder(str(args.folder), args.output_dir, **args.publication())
