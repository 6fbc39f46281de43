"""``focalcse merge``: a trained encoder and the one that it started from -> an encoder whose weights lie between."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..options.field import HARMLESS, PATH, Range, option
from ..parsing.parser import Parser, build
from ..runs.cosines import PAIRS_FILE
from ..runs.record import RUN_FILE
from ..runs.scores import RESULTS_FILE

MERGE_FILE = "merge.json"
PAPER = "https://arxiv.org/abs/2311.13534"


@dataclass(frozen=True)
class Merge:
    """The two encoders, and how much of the trained one is taken."""

    _argument_group_name = "merge"

    base: str | None = option(None, help="The encoder that training started from.", encoder=True, place=True)
    trained: str | None = option(
        None, help="The output folder of the training run, or an export.", encoder=True, place=True
    )
    weight: list[float] | None = option(
        None,
        help="The share of the trained encoder, 0 to 1. Several are scored on the dev set, and the best is written. "
        "Default: 0.5.",
        range=Range(lambda values: all(0 <= value <= 1 for value in values), "0 to 1"),
    )
    output_dir: str | None = option(
        None, help="The folder to write.", role=PATH, why="it is where the encoder is written", required=True
    )
    eval_file: str | None = option(
        None, help="Labelled pairs (sentence1, sentence2, score) to choose among several weights by.", role=PATH
    )
    sts_dir: str | None = option(
        None, help="A folder that holds the STS sets, whose STS-B dev chooses among several weights.", role=PATH
    )
    overwrite_output_dir: bool = option(
        False, help="Write into --output_dir although it is not empty.", role=HARMLESS, why="it decides where to write"
    )


def parse(argv: list[str], script: str = "focalcse merge") -> Merge:
    """``BASE TRAINED`` and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(Merge, prog=script, usage=f"{script} BASE TRAINED --weight 0.5 --output_dir FOLDER [flags]")
    args = build(Merge, parser.parse(argv))
    if args.base is None or args.trained is None:
        raise UserError("merge needs two encoders: focalcse merge BASE TRAINED --output_dir FOLDER")
    weights = args.weight or [0.5]
    outside = next((w for w in weights if not 0 <= w <= 1), None)
    if outside is not None:
        raise UserError(f"--weight is {outside:g}; it must be 0 to 1, the share of the trained encoder")
    labelled = args.eval_file or args.sts_dir
    if len(weights) > 1 and not labelled:
        raise UserError("several values of --weight are chosen among by a dev set; give --eval_file or --sts_dir")
    if args.eval_file and args.sts_dir:
        raise UserError("--eval_file and --sts_dir are both given; leave one of them out")
    if len(weights) == 1 and labelled:
        raise UserError(f"{labelled} is given to choose among weights, but there is one --weight; give several")
    return args


def run(args: Merge) -> None:
    from transformers.utils import logging  # torch

    from ..encoder.interpolation import interpolate
    from ..encoder.loading import load_model
    from ..publishing.formats import write_sentence_transformers
    from ..runs.atomic import draft_folder, write_json
    from ..runs.locking import locked

    logging.set_verbosity_error()
    folder = prepare_folder(args)
    base, trained = load_model(str(args.base), "cls_before_pooler"), load_model(str(args.trained))
    require_alike(base, trained, args)
    if trained.projection_use == "always":
        raise UserError(
            f"{args.trained} embeds through a projection that {args.base} does not have, so there is nothing to merge "
            "it with; train with --mlp_only_train, or with another pooler"
        )
    states = [dict(model.encoder.state_dict()) for model in (base, trained)]
    states[0] |= {name: value for name, value in states[1].items() if "pooler." in name}  # used in training alone
    weights, scores = args.weight or [0.5], {}
    for weight in weights if len(weights) > 1 else ():
        trained.encoder.load_state_dict(interpolate(states, [1 - weight, weight]))
        scores[weight], metric = score(trained, args)
        print(f"weight {weight:g}: {metric} {scores[weight]:.2f}")
    chosen = max(weights, key=lambda weight: scores.get(weight, 0.0))
    trained.encoder.load_state_dict(interpolate(states, [1 - chosen, chosen]))
    said = f"{chosen:g} x {args.trained} + {1 - chosen:g} x {args.base}"
    note = f", the best of {', '.join(f'{w:g}' for w in weights)} on {args.eval_file or 'STS-B dev'}" if scores else ""
    facts: dict[str, Any] = {"weight": chosen, "scores": {f"{w:g}": s for w, s in scores.items()}, "paper": PAPER}
    facts |= {k: v for k, v in asdict(args).items() if k in ("base", "trained")}
    with locked(folder), draft_folder(folder) as stage:
        keep_others(folder, stage)
        trained.save_pretrained(stage)
        trained.tokenizer.save_pretrained(stage)
        write_sentence_transformers(trained, stage, int(min(trained.positions, trained.tokenizer.model_max_length)))
        write_json(stage / MERGE_FILE, facts)
    print(f"Saved to {folder}: {said}{note}.")
    if scores:
        print("The weight was chosen on labelled pairs: say so beside every score of this encoder.")


def prepare_folder(args: Merge) -> Path:
    """The folder to write, new or empty.

    Raises:
        UserError: it holds something, is one of the two encoders or a file, or holds a training run.
    """
    folder = Path(str(args.output_dir))
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output_dir {folder} is a file; give a folder")
    for place in (args.base, args.trained):
        if folder.exists() and Path(str(place)).is_dir() and folder.samefile(str(place)):
            raise UserError(f"--output_dir {folder} is one of the encoders to merge; give another folder")
    if folder.exists() and any(folder.iterdir()) and not args.overwrite_output_dir:
        raise UserError(f"{folder} is not empty; give another --output_dir, or --overwrite_output_dir")
    if (folder / RUN_FILE).exists():
        raise UserError(f"{folder} holds a training run, whose record would be of other weights; give another folder")
    return folder


def keep_others(folder: Path, stage: Path) -> None:
    """Take over what lies in the folder that is replaced, without the scores of the weights that were there."""
    if folder.exists():
        shutil.copytree(folder, stage, dirs_exist_ok=True, symlinks=True)
        for name in (RESULTS_FILE, PAIRS_FILE):
            (stage / name).unlink(missing_ok=True)


def require_alike(base: Any, trained: Any, args: Merge) -> None:
    """See that the two are of one architecture and read the same tokens.

    Raises:
        UserError: they are not.
    """
    kinds = [model.config.model_type for model in (base, trained)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{args.base} is {kinds[0]} and {args.trained} is {kinds[1]}; only encoders of one architecture, one of "
            "which was trained from the other, can be merged"
        )
    if base.tokenizer.get_vocab() != trained.tokenizer.get_vocab():
        raise UserError(
            f"{args.base} and {args.trained} have different vocabularies; merge an encoder with its own base"
        )


def score(model: Any, args: Merge) -> tuple[float, str]:
    """The headline score of the dev set, x 100, and its name."""
    from ..evaluation import evaluate_sts, load_tasks, read_tasks

    tasks = read_tasks(args.eval_file) if args.eval_file else load_tasks(["STSBenchmark/dev"], args.sts_dir)
    metric = tasks[0].headline
    return evaluate_sts(model.eval(), tasks, progress=False).scores[metric], metric
