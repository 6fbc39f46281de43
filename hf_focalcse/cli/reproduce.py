"""``focalcse reproduce``: the runs of a paper's table or figure, and a page with the paper's scores beside ours."""

from __future__ import annotations

from dataclasses import replace

from ..options.experiments import ReproduceOptions
from ..options.field import check_ranges, options_of
from ..parsing.parser import Parser, build


def parse(argv: list[str], script: str = "focalcse reproduce") -> ReproduceOptions:
    """``PAPER ITEM`` and flags, among them those of training; raises as `parsing.parse_eval` does."""
    parser = Parser(
        ReproduceOptions,
        prog=script,
        usage=f"{script} [PAPER [ITEM]] [--scale quickstart] [--dry_run] [flags]",
        description="Repeat a table or figure of a paper, and write one page: their scores, ours, and what differs.",
        epilog="Every other flag is one of training (see focalcse train --help) for all runs.",
    )
    namespace, overrides = parser.parse_known_args(parser.spelled_out(argv))
    parser.complete(namespace)
    args = replace(build(ReproduceOptions, namespace), overrides=overrides)
    check_ranges(args, options_of(ReproduceOptions))
    return args


def run(args: ReproduceOptions) -> None:
    from ..experiments.reproduce import list_items, reproduce  # torch

    if args.paper is None or args.item is None:
        print(list_items(args.paper))
    else:
        reproduce(args)
