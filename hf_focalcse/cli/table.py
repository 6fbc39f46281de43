"""``focalcse table``: many results.json -> one table, plain and in Markdown."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from ..parsing.parser import Parser

FORMATS = ("plain", "markdown", "both")


@dataclass(frozen=True)
class Table:
    results: list[str]
    format: str = "both"
    sick: str | None = None


def parse(argv: list[str], script: str = "focalcse table") -> Table:
    """``RESULTS …`` and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(prog=script, description="Print a table of many results.json.")
    parser.add_argument(
        "results", nargs="+", help="results.json files or folders that hold one, each also as NAME=PATH"
    )
    parser.add_argument("--format", choices=FORMATS, default="both", help="how to print it (default: both)")
    parser.add_argument(
        "--sick",
        choices=("senteval", "mteb"),
        default=argparse.SUPPRESS,
        help="whose SICK-R pairs. Default: SentEval's 4,927, which papers report, unless no result has them",
    )
    return Table(**vars(parser.parse(argv)))


def run(args: Table) -> None:
    from ..evaluation.table import choose_systems, make_table, read_system  # scipy

    chosen, bare = choose_systems(args.results)
    if bare:
        print(f"note: left out because they have no results.json: {', '.join(bare)}", file=sys.stderr)
    made = make_table([read_system(argument) for argument in chosen], args.sick)
    parts = {"plain": made.plain, "markdown": made.markdown}
    print("\n\n".join(write() for name, write in parts.items() if args.format in (name, "both")))
