"""``focalcse push``: a trained or exported folder -> a repository on the Hub."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UserError
from ..options.field import HARMLESS, PATH, option
from ..options.training import Publish
from ..parsing.parser import Parser, build

ON_THE_HUB = "it is about the repository on the Hub"


@dataclass(frozen=True)
class Push(Publish):
    """The folder, the repository, and how it is published."""

    _argument_group_name = "publishing"

    folder: str | None = option(None, help="An export, or the output folder of a training run.", role=PATH, place=True)
    hub_model_id: str | None = option(
        None, help="The repository: org/name.", role=HARMLESS, why=ON_THE_HUB, place=True
    )
    private: bool | None = option(
        None, help="Make the repository private if it is new.", role=HARMLESS, why=ON_THE_HUB
    )
    create_pr: bool = option(False, help="Open a pull request instead of committing.", role=HARMLESS, why=ON_THE_HUB)
    revision: str | None = option(
        None, help="The branch to push to; it is created if it does not exist.", role=HARMLESS, why=ON_THE_HUB
    )
    message: str | None = option(None, help="The title of the commit.", role=HARMLESS, why=ON_THE_HUB)
    allow_deletions: bool = option(
        False,
        help="Delete from the repository what an earlier push sent and the folder has no longer, such as ONNX files.",
        role=HARMLESS,
        why=ON_THE_HUB,
    )
    dry_run: bool = option(
        False, help="List the files, their sizes and the target, and send nothing.", role=HARMLESS, why=ON_THE_HUB
    )
    given: frozenset[str] = frozenset()  # the flags that were given


def parse(argv: list[str], script: str = "focalcse push") -> Push:
    """``FOLDER org/name`` and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(Push, prog=script, usage=f"{script} FOLDER org/name [flags]")
    args = replace(build(Push, parser.parse(argv)), given=frozenset(parser.named(parser.spelled_out(argv))))
    if args.folder is None or args.hub_model_id is None:
        raise UserError("push needs a folder and a repository: focalcse push FOLDER org/name")
    return args


def run(args: Push) -> None:
    from ..publishing.hub import Target
    from ..publishing.publish import publish  # torch

    target = Target(
        *(str(args.hub_model_id), args.private, args.create_pr, args.revision, args.message),
        allow_deletions=args.allow_deletions,
    )
    publish(str(args.folder), target, **args.publication(args.given), dry_run=args.dry_run)
