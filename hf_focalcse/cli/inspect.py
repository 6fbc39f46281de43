"""``focalcse inspect``: the hard negatives and likely false negatives of a file of sentences."""

from __future__ import annotations

from ..options.experiments import InspectOptions
from ..parsing.parser import Parser, build


def parse(argv: list[str], script: str = "focalcse inspect") -> InspectOptions:
    """``MODEL FILE`` and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(InspectOptions, prog=script, usage=f"{script} MODEL FILE [flags]")
    return build(InspectOptions, parser.parse(argv))


def run(args: InspectOptions) -> None:
    from ..experiments.inspect import inspect  # torch

    inspect(args)
