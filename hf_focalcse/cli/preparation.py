"""What a training run starts from: its folder, encoder, loss reference, sentences and labelled pairs.

A function that decides something which the settings left open returns the `Settings` that result.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import set_seed

from .. import quickstart
from ..data.hub import download, files_of_split, load_split
from ..data.pairs import PairRows, chosen_columns, header_of, is_table, pairs_of, read_pairs
from ..data.places import find_files
from ..data.reading import Reading
from ..data.sentences import Sentences, read_sentences, require
from ..data.template import PROMPTBERT
from ..encoder.adapters import ADAPTER_FOLDER
from ..encoder.augment import build_augmentations
from ..encoder.loading import load_model, require_exact
from ..encoder.lora import add_lora
from ..encoder.poolers import pooler_of
from ..encoder.prompts import prompt_tokens
from ..encoder.saving import HEAD_FILE
from ..errors import UserError
from ..evaluation import load_tasks, read_tasks
from ..losses import ContrastiveLoss
from ..options.field import listed
from ..options.training import Data
from ..parsing.settings import Settings
from ..runs.atomic import draft_of
from ..runs.cosines import PAIRS_FILE
from ..runs.folder import WEIGHTS_FILE
from ..runs.record import RUN_FILE
from ..runs.scores import RESULTS_FILE
from ..training import checkpoints
from ..training.baseline import departures
from ..training.engines import whole_model
from ..training.given import record_training
from .stages import STAGES

WRITTEN = (RUN_FILE, RESULTS_FILE, PAIRS_FILE, "README.md", "config.json", WEIGHTS_FILE, HEAD_FILE)  # by a run
FIRST_LINES = 64  # of the training text, on which the tokenizer is compared with its file
SENTEVAL = Path("SentEval/data/downstream")  # where the public training scripts look


def prepare_output(settings: Settings) -> Path:
    """The output folder, new, empty, with the checkpoints to go on from, or with a run that `clear_output` removes.

    Raises:
        UserError: it holds a run, finished or not, or an encoder that the run reads, is a file, or cannot be written.
    """
    args = settings.training
    folder = Path(args.output_dir)
    for flag, place in (
        ("--model_name_or_path", settings.model.model_name_or_path),
        *(("--reference_model", name) for name in listed(settings.reference.reference_model)),
    ):
        inner = Path(place or "").resolve()
        of_stage = inner.parent == folder.resolve() / STAGES
        if place is not None and inner.is_dir() and folder.resolve() in (inner, *inner.parents) and not of_stage:
            raise UserError(f"--output_dir {folder} holds the encoder of {flag} {place}; give another folder")
    there = earlier_run(folder)
    if there and not (settings.job.overwrite_output_dir or args.resume_from_checkpoint):
        left = checkpoints.list_checkpoints(folder)
        what = f"{left[-1].name} of an unfinished run" if left else ", ".join(path.name for path in there)
        what = "a finished run" if (folder / RUN_FILE).exists() else what
        go_on = "go on with --resume_from_checkpoint last, " if left else ""
        raise UserError(
            f"{folder} holds {what}; {go_on}give another --output_dir, or --overwrite_output_dir to replace it"
        )
    make_writable(folder, "--output_dir")
    return folder


def earlier_run(folder: Path) -> list[Path]:
    """What a run before has left in its output folder, its checkpoints among it."""
    written = [folder / name for name in WRITTEN if (folder / name).exists()]
    return written + checkpoints.list_checkpoints(folder)


def clear_output(folder: Path) -> None:
    """Remove an earlier run. Called when the first checkpoint of the new one is whole: a mistake that only the
    optimizer or the first steps show must not cost it either."""
    left = checkpoints.list_checkpoints(folder)
    for checkpoint in left:  # a later --resume_from_checkpoint last must not find the old run's
        checkpoints.remove(checkpoint)
    if left or (folder / RUN_FILE).exists():  # no score of it may stand beside the next run's weights
        for name in WRITTEN:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / ADAPTER_FOLDER, ignore_errors=True)


def make_writable(folder: Path, flag: str) -> None:
    """Make a folder and see that files can be written there.

    Raises:
        UserError: the folder cannot be made, or takes no files.
    """
    probe = draft_of(folder / "write-test")  # which is deleted later, should this process be killed
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"nothing can be written into {folder} ({error.strerror}); give another {flag}") from error


def decide_precision(settings: Settings) -> Settings:
    """Half precision needs a GPU. The published command lines carry --fp16, so a run on a CPU goes on in float32."""
    args = settings.training
    if "fp16" not in (args.mixed_precision, args.fp16 and "fp16") or args.device.type != "cpu":
        return settings
    args = copy.copy(args)
    args.fp16, args.mixed_precision = False, "no"
    return settings.noting(
        "--fp16 was asked for, but there is no GPU: this run computes in float32 on the CPU", training=args
    )


def prepare_model(settings: Settings, loss: ContrastiveLoss | None) -> Any:
    """The encoder with its pooler and with the record of its training in its config. Its projection is initialised
    anew, unless the encoder was trained with this package.

    Without --pooler it pools as its checkpoint records; where nothing is recorded, by [CLS] with the projection, as in
    the papers.

    Raises:
        UserError: it cannot be loaded, or --reinit_projection or --mlp_only_train is given for a pooler without a
            projection.
    """
    chosen = settings.model
    place = quickstart.resolve_model(chosen.model_name_or_path, chosen.model_revision)
    prompted = settings.views.view == "prompt"
    set_seed(settings.training.seed)
    with whole_model():
        model = load_model(
            place.path,
            "mask" if prompted else chosen.pooler,
            dropout=chosen.dropout,
            revision=place.revision,
            prompt=chosen.prompt,
            prompt_name=chosen.prompt_name,
            default_pooler=True,
            prompt_template=view_templates(settings)[0] if prompted else chosen.prompt_template,
        )
    if chosen.mlp_only_train is not None:
        if pooler_of(model.pooler_name).marked:
            raise UserError("--mlp_only_train belongs to --pooler cls; --view prompt embeds without it; leave it out")
        if not pooler_of(model.pooler_name).projection:
            raise UserError(
                f"--mlp_only_train belongs to --pooler cls; {chosen.model_name_or_path} records pooler "
                f"{model.pooler_name}, which has no projection; give --pooler cls, or leave --mlp_only_train out"
            )
        model.set_pooling(model.pooler_name, "training" if chosen.mlp_only_train else "always")
    trained_here = "loss" in model.config.focal_cl
    reset = not trained_here if chosen.reinit_projection is None else chosen.reinit_projection
    if chosen.reinit_projection and model.projection_use == "none":
        raise UserError(f"--reinit_projection belongs to --pooler cls; pooler {model.pooler_name} has no projection")
    if reset and model.projection_use != "none":
        model.reset_projection()
    model.chunk_size = chosen.chunk_size
    model.augmentations = build_augmentations(settings.views.augmentation)
    record_training(model, loss, place.base, max_seq_length=settings.data.max_seq_length)
    asked = settings.lora
    if asked.lora:
        add_lora(model, asked.lora_rank, asked.lora_alpha, asked.lora_dropout, asked.lora_target_modules)
    return model


def view_templates(settings: Settings) -> tuple[str, str]:
    """The templates of the two views in --view prompt, as they are asked for."""
    first, second = (*(settings.views.view_templates or PROMPTBERT), None)[:2]
    return first, second or first


def reason_of_pooling(settings: Settings, model: Any) -> str:
    """Which pooling training starts with, and why."""
    pooler = model.pooler_name
    if settings.views.view == "prompt":
        return f"{pooler}, of the templates of --view prompt"
    if settings.model.pooler is not None:
        by = "--pooler" if "pooler" in settings.explicit else f"recipe {settings.recipe}"
        return f"{pooler}, asked for by {by}"
    if model.published is not None:
        return f"{pooler}, as {model.published.source} of the encoder records"
    return f"{pooler}, since nothing records how this encoder pools (the papers train [CLS] with the projection)"


def decide_pooling(settings: Settings, model: Any) -> Settings:
    """Notes where the encoder is trained with another pooling or prompt than it was published with, and where the
    sizes that are trained are not those of the vectors that it embeds with."""
    for said in departures(model):
        settings = settings.noting(said)
    if settings.loss.matryoshka_dims and model.projection_use == "training":
        settings = settings.noting(
            "--matryoshka_dims cuts what the loss sees, a projection that no sentence is embedded with, so the first "
            "dimensions of the vectors are trained indirectly; --pooler cls_before_pooler trains those of [CLS] itself"
        )
    return settings


def advise_rate(settings: Settings) -> Settings:
    """A note where LoRA would be trained at the learning rate that is the default because full training takes it."""
    if not settings.lora.lora or "learning_rate" in settings.given:
        return settings
    rate = settings.training.learning_rate
    return settings.noting(
        f"--learning_rate is {rate:g}, the default, which suits full training; LoRA usually takes ten times as much "
        f"or more, such as --learning_rate {10 * rate:g}"
    )


def find_pairs(data: Data, reading: Reading, how: dict[str, Any]) -> PairRows | None:
    """The pairs of texts of tables that are asked for pairs or have columns with their usual names, else None.

    how: the arguments of `read_pairs` besides files, columns and reading.

    Raises:
        UserError: columns are asked for of what has none.
    """
    if data.text_column is not None:
        return None
    of_split = (data.dataset_config, data.dataset_split, data.dataset_revision)
    if data.dataset_name is None:
        files = find_files([quickstart.resolve_text(name) or name for name in listed(data.train_file)]).files
    elif data.dataset_file is not None:
        files = [str(download(data.dataset_name, data.dataset_file, data.dataset_revision))]
    else:
        files = [str(file) for file in files_of_split(data.dataset_name, *of_split)]
        if not files:
            split, rows = f"{data.dataset_name} ({data.dataset_split})", load_split(data.dataset_name, *of_split)
            columns = chosen_columns(rows.column_names, data.columns, split)
            if columns is None:
                return None
            reading.require_used((), f"{split}, which is read by datasets")
            return pairs_of(rows.select_columns(list(columns)), columns, split, **how)
    plain = next((file for file in files if not is_table(file, reading)), None)
    if plain is not None:
        if data.columns:
            raise UserError(
                f"--columns {' '.join(data.columns)} names columns of tables, and {plain} is none; give .csv, .tsv, "
                ".jsonl or .parquet files, name what lies between its columns with --delimiter, or leave --columns out"
            )
        return None
    columns = chosen_columns(header_of(files[0], reading), data.columns, files[0])
    return None if columns is None else read_pairs(files, columns, reading, **how)


def prepare_sentences(settings: Settings, model: Any) -> Sentences | PairRows:
    """The training text, enough for one batch on every device."""
    data, args = settings.data, settings.training
    if data.train_file is None and data.dataset_name is None:
        raise UserError(
            f"no training text: give --train_file FILE or --dataset_name ID, or --train_file {quickstart.NAME} "
            "for the sentences that this package carries"
        )
    if not 3 <= data.max_seq_length <= model.max_length():
        raise UserError(
            f"--max_seq_length is {data.max_seq_length}; this encoder takes 3 to {model.max_length()} tokens"
        )
    before = prompt_tokens(model.tokenizer, model.prompt)
    if before + 2 > data.max_seq_length:
        raise UserError(
            f"the prompt {model.prompt!r} takes {before} tokens with those that every text has, so --max_seq_length "
            f"{data.max_seq_length} leaves nothing of a sentence; give more"
        )
    how: dict[str, Any] = {
        "drop_duplicates": data.drop_duplicates,
        "max_samples": data.max_train_samples,
        "fraction": data.train_fraction,
        "tokenizer": model.tokenizer,
        "max_seq_length": data.max_seq_length,
        "seed": args.seed,
    }
    reading = Reading(data.encoding_errors, data.encoding, data.delimiter, data.quotes)
    text: Sentences | PairRows | None = find_pairs(data, reading, how)
    if text is None:
        text = read_sentences(
            [quickstart.resolve_text(name) or name for name in listed(data.train_file)] or None,
            *(data.dataset_name, data.dataset_file, data.dataset_split, data.dataset_revision),
            text_column=data.text_column,
            encoding_errors=data.encoding_errors,
            dataset_config=data.dataset_config,
            encoding=data.encoding,
            delimiter=data.delimiter,
            quotes=data.quotes,
            **how,
        )
    require_exact(model, [one for i in range(min(len(text), FIRST_LINES)) for one in text[i].values()])
    require(text, args.train_batch_size * args.world_size)
    return text


def prepare_dev(settings: Settings, say: Callable[[object], None]) -> tuple[list[Any], Settings]:
    """The labelled pairs that score the run. Without a recipe or a flag that asks for them, training goes on if there
    are none, and a note says so.

    Raises:
        UserError: labelled data was asked for and cannot be had.
    """
    dev, args = settings.dev, settings.training
    if args.eval_strategy == "no":
        return [], settings
    if dev.eval_file:
        return read_tasks(dev.eval_file), settings
    try:
        folder = dev.sts_dir or (str(SENTEVAL) if SENTEVAL.is_dir() else None)
        return load_tasks(["STSBenchmark/dev"], folder), settings
    except UserError as error:
        asked = settings.explicit & {"eval_strategy", "eval_steps", "metric_for_best_model", "sts_dir"}
        if asked or settings.recipe:
            raise UserError(f"{error}, --eval_file FILE with labelled pairs, or --eval_strategy no") from error
        say(f"WARNING: {error}. Training goes on WITHOUT labelled data: no dev score, the last checkpoint is kept.")
        return [], settings.noting(f"trained without labelled data: {error}")
