"""``focalcse table``: many results.json -> one table, plain and in Markdown."""

from __future__ import annotations

import sys

from ..options.experiments import TableOptions
from ..options.field import check_ranges, options_of
from ..parsing.parser import Parser, build


def parse(argv: list[str], script: str = "focalcse table") -> TableOptions:
    """``RESULTS …`` and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(
        TableOptions,
        prog=script,
        usage=f"{script} RESULTS … [flags]",
        description="Print a table of many results.json. What holds no scores, such as the other files of a sweep's "
        "folder, is left out, and a note says so.",
    )
    args = build(TableOptions, parser.parse(argv))
    check_ranges(args, options_of(TableOptions))
    return args


def run(args: TableOptions) -> None:
    from ..evaluation.table import choose_systems, make_table, read_system  # scipy

    chosen, foreign = choose_systems(args.results)
    if foreign:
        print(f"note: left out because they hold no scores: {', '.join(foreign)}", file=sys.stderr)
    made = make_table([read_system(argument) for argument in chosen], args.sick)
    parts = {"plain": made.plain, "markdown": made.markdown}
    print("\n\n".join(write() for name, write in parts.items() if args.format in (name, "both")))
