"""``focalcse export``: a trained folder -> the folder that other libraries load."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UserError
from ..options.field import HARMLESS, PATH, at_least, check_ranges, option, options_of
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
    truncate_dim: int | None = option(
        None,
        help="The number of dimensions that are kept of each vector, the first ones. Default: all, or as many as the "
        "encoder's folder says.",
        range=at_least(1),
        role=HARMLESS,
        why="it is about the export; the training folder stays as it is",
    )
    given: frozenset[str] = frozenset()  # the flags that were given


def parse(argv: list[str], script: str = "focalcse export") -> Export:
    """``FOLDER`` and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(Export, prog=script, usage=f"{script} FOLDER [flags]")
    args = replace(build(Export, parser.parse(argv)), given=frozenset(parser.named(parser.spelled_out(argv))))
    check_ranges(args, options_of(Export))
    if args.folder is None:
        raise UserError("no folder to export: focalcse export FOLDER")
    return args


def run(args: Export) -> None:
    from ..publishing.publish import export_folder  # torch

    export_folder(str(args.folder), args.output_dir, **args.publication(args.given), truncate_dim=args.truncate_dim)
