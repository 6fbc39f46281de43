"""``focalcse report``: tables and figures of many runs as one page."""

from __future__ import annotations

from ..options.experiments import ReportOptions
from ..parsing.parser import Parser, build


def parse(argv: list[str], script: str = "focalcse report") -> ReportOptions:
    """``FOLDER …`` and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(
        ReportOptions,
        prog=script,
        usage=f"{script} FOLDER … [flags]",
        description="Write tables and figures of many runs as one page.",
    )
    return build(ReportOptions, parser.parse(argv))


def run(args: ReportOptions) -> None:
    from ..experiments.report import report  # matplotlib, scipy

    report(args)
