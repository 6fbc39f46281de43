"""``focalcse compare``: paired tests of what a setting changes between trained encoders."""

from __future__ import annotations

from ..errors import UserError
from ..options.experiments import CompareOptions
from ..parsing.parser import Parser


def parse(argv: list[str], script: str = "focalcse compare") -> CompareOptions:
    """Run folders and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(
        prog=script,
        description="Test whether trained encoders differ by more than chance: paired tests over seeds and sentences.",
        epilog="Example: focalcse compare runs/study/cls-* --factor loss --to infonce",
    )
    parser.add_argument("runs", nargs="+", help="run folders, patterns, or folders of run folders")
    parser.add_argument(
        "--factor",
        nargs="+",
        required=True,
        help="the settings that may differ; loss stands for the loss with its settings and reference",
    )
    parser.add_argument("--to", nargs="+", help="what to compare with: a value of the factor, or run folders")
    parser.add_argument(
        "--allow", nargs="+", default=[], help="other differences to accept, such as commit; the output names them"
    )
    parser.add_argument(
        "--resamples", type=int, default=2000, help="the number of resamples of the sentence pairs (default: 2000)"
    )
    parser.add_argument("--sick", choices=("senteval", "mteb"), help="whose SICK-R pairs, as in focalcse table")
    parser.add_argument("--json", help="the file to write all results to")
    parser.add_argument("--markdown", action="store_true", help="print tables for a README")
    namespace = parser.parse(argv)
    if not 100 <= namespace.resamples <= 1_000_000:
        raise UserError(
            f"--resamples is {namespace.resamples}; it must be 100 to 1,000,000 (1,000 to 10,000 are usual)"
        )
    return CompareOptions(**vars(namespace))


def run(args: CompareOptions) -> None:
    from ..experiments.compare import compare  # scipy

    compare(args)
