"""``focalcse report``: tables and figures of many runs as one page."""

from __future__ import annotations

import argparse

from ..options.experiments import ReportOptions
from ..parsing.parser import Parser


def parse(argv: list[str], script: str = "focalcse report") -> ReportOptions:
    """``FOLDER …`` and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(prog=script, description="Write tables and figures of many runs as one page.")
    parser.add_argument("folders", nargs="+", help="output folders of training runs, or folders above them")
    parser.add_argument(
        "--output_dir",
        default=argparse.SUPPRESS,
        help="the folder for report.html and report.md. Default: FOLDER/report",
    )
    parser.add_argument(
        "--compare",
        nargs="+",
        default=argparse.SUPPRESS,
        help="files that focalcse compare --json wrote, for the sentences on significance",
    )
    return ReportOptions(**vars(parser.parse(argv)))


def run(args: ReportOptions) -> None:
    from ..experiments.report import report  # matplotlib, scipy

    report(args)
