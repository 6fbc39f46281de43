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
        UserError: an unknown flag (with the nearest name), a value of the wrong type or out of range, or flags that do
            not go together.
        SystemExit: ``--help`` was asked for.
    """
    parser = Parser(Evaluation, prog=script, usage=f"{script} MODEL [flags]")
    args = build(Evaluation, parser.parse(argv))
    _check(args)
    return args


def _check(args: Evaluation) -> None:
    if args.splits == "dev" and RERANK in (args.tasks or []):
        raise UserError("--splits dev is for the STS sets; name the splits to rerank with --rerank_split")
    check_ranges(args, options_of(Evaluation))
    if args.eval_file and (args.sts_dir or args.tasks or args.splits != "test"):
        raise UserError(
            "--eval_file names the pairs to judge on; leave out --sts_dir, --tasks and --splits, or --eval_file"
        )
    if args.splits == "dev" and args.tasks is not None:
        raise UserError("--splits dev scores STS-B dev and SICK trial; leave out --splits, or --tasks")
    for name in ("rerank_file", "rerank_split", "rerank_scorer"):
        if getattr(args, name) is not None and RERANK not in (args.tasks or []):
            raise UserError(f"--{name} is given, but --tasks does not name {RERANK}; add --tasks {RERANK}")
    if args.tasks == [RERANK] and args.sts_dir:
        raise UserError(f"--sts_dir {args.sts_dir} is given, but --tasks names no STS set; leave one of them out")
    if args.whiten_dim is not None and args.whiten is None:
        raise UserError(f"--whiten_dim is {args.whiten_dim}, but nothing is whitened; add --whiten target or FILE")
    if args.whiten is not None and args.matryoshka_dims is not None:
        raise UserError(
            "--matryoshka_dims cuts the encoder's vectors and --whiten makes others of them; for whitened vectors of "
            "fewer dimensions give --whiten_dim"
        )
    if args.word_vectors is not None:
        encoder = (
            "model_name_or_path",
            "model_revision",
            "pooler",
            "prompt",
            "prompt_name",
            "prompt_template",
            "truncate_dim",
            "matryoshka_dims",
        )
        for name in (*encoder, "max_seq_length", "device", "bf16"):
            if getattr(args, name) not in (None, False):
                raise UserError(f"--word_vectors are evaluated in place of an encoder; leave --{name} out")
    for name in ("hub_model_id", "private", "create_pr"):
        if getattr(args, name) and not args.push_to_hub:
            raise UserError(f"--{name} belongs to --push_to_hub, which is not given; add that, or leave it out")
    for text in args.compare or ():
        name, _, file = text.partition("=")
        if not (name and file):
            raise UserError(f"--compare takes NAME=FILE, such as base=results/x/results.json, not {text!r}")
