"""Flags of evaluation -> `Evaluation`, as the command line and the grids take them."""

from __future__ import annotations

from ..errors import UserError
from ..options.evaluation import Evaluation
from ..options.field import check_ranges, options_of
from .parser import Parser, build

RERANK = "rerank"  # as one of --tasks: queries with candidates


def parse_eval(argv: list[str], script: str = "run_eval.py") -> Evaluation:
    """Flags of the evaluation -> `Evaluation`.

    Raises:
        UserError: an unknown flag (with the nearest name) or a value of the wrong type.
        SystemExit: ``--help`` was asked for.
    """
    return build(Evaluation, Parser(Evaluation, prog=script).parse(argv))


def check_eval(args: Evaluation) -> None:
    """Refuse values of the evaluation that are out of range or do not go together, before anything is loaded.

    Raises:
        UserError: there are some.
    """
    if args.splits == "dev" and RERANK in (args.tasks or []):
        raise UserError("--splits dev is for the STS sets; name the splits to rerank with --rerank_split")
    check_ranges(args, options_of(Evaluation))
    if args.eval_file and (args.sts_dir or args.tasks or args.splits != "test"):
        raise UserError(
            "--eval_file names the pairs to judge on; leave out --sts_dir, --tasks and --splits, or --eval_file"
        )
    if args.splits == "dev" and args.tasks is not None:
        raise UserError("--splits dev scores STS-B dev and SICK trial; leave out --splits, or --tasks")
