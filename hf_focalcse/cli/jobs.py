"""The jobs of the command line: train an encoder, judge an encoder, print a table of results."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

from transformers.utils import logging

from .. import quickstart
from ..compat import find_file
from ..data.sentences import Sentences, read_sentences, require
from ..encoder.augment import build_augmentations
from ..encoder.modeling import HEAD_FILE, load_model, require_projection
from ..errors import UserError
from ..evaluation import PairSet, Results, evaluate_rerank, evaluate_sts, load_rerank, load_tasks, read_pairs
from ..evaluation.identity import as_encoder
from ..evaluation.summary import summarise
from ..evaluation.table import choose_systems, make_table, read_system
from ..evaluation.whitening import Remembering, WhitenedEncoder, Whitening
from ..evaluation.word_vectors import RULE, WordVectors
from ..losses import ContrastiveLoss, build_loss
from ..parsing.arguments import (
    RERANK,
    EvalArguments,
    ExportArguments,
    PublishArguments,
    PushArguments,
    Settings,
    TableArguments,
    check_eval,
)
from ..publishing import publish as publishing
from ..publishing.card import write_card
from ..publishing.export_records import update_export
from ..publishing.hub import Target
from ..publishing.manifest import is_export
from ..publishing.plots import draw_plots
from ..runs.cosines import PAIRS_FILE, write_cosines
from ..runs.record import RUN_FILE, RunRecord, describe_hardware, file_sha256
from ..training import checkpoints
from ..training.engines import engine_of, whole_model
from ..training.trainer import FocalCSETrainer

__all__ = ["evaluate", "export_folder", "push_folder", "table", "train"]  # what the command line calls

RESULTS_FILE = "results.json"
WRITTEN = (RUN_FILE, RESULTS_FILE, PAIRS_FILE, "README.md", "config.json", "model.safetensors", HEAD_FILE)  # by a run
SENTEVAL = Path("SentEval/data/downstream")  # where the public training scripts look
ALWAYS_RECORDED = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type"),
    *("warmup_steps", "weight_decay", "max_grad_norm", "max_steps", "num_train_epochs", "seed"),
)
TARGET = "target"  # as --whiten: the texts that are scored
QUICKSTART = "quickstart"  # as --train_file or --eval_file: what the package carries


# ---- training


def train(settings: Settings) -> None:
    """Recipe and flags -> a trained encoder with run.json, results.json and a model card in ``--output_dir``."""
    started = time.monotonic()
    args = settings.training
    say = print if args.process_index == 0 else _silence
    for note in settings.notes:
        say(f"note: {note}")
    logging.set_verbosity(args.get_process_log_level())
    folder = prepare_output(settings)
    check_precision(settings, say)
    loss = build_loss(settings.loss.loss, **settings.loss_settings)
    model = prepare_model(settings, loss)
    if args.push_to_hub:
        asked = settings.publish
        publishing.prepare_push(
            *(model.pooler_name, args.hub_model_id),
            sentence_transformers=asked.sentence_transformers,
            onnx=asked.onnx,
            say=say,
        )
    sentences = prepare_sentences(settings, model)
    say(sentences.report)
    dev = prepare_dev(settings, say)

    trainer = make_trainer(settings, model, loss, sentences, dev)
    trainer.began = started
    record = trainer.record = start_record(settings, trainer)
    record.baseline = trainer.score_baseline()
    say(describe_start(settings, trainer, record))
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    require_numbers(model)
    trainer.save_whole(folder)
    if args.world_size > 1:
        trainer.accelerator.end_training()  # what follows is rank 0's alone

    if args.process_index == 0:
        weights = file_sha256(folder / "model.safetensors")
        record.model |= {"weights_sha256": weights}
        if trainer.reference is not None:
            record.model["reference"] |= trainer.reference_cost()
        with whole_model():  # the trained one may be sharded over ranks that are gone
            saved = load_model(str(folder)).to(args.device) if dev else None
        results = None
        if dev:
            encoder, identity = as_encoder(saved, args.per_device_eval_batch_size, str(folder), weights)
            results = evaluate_sts(encoder, dev, progress=False, model=identity)
        record.log, record.alarms = trainer.state.log_history, trainer.alarms
        record.final = results.scores if results else {}
        record.dev_sets = {key: of["sha256"] for key, of in results.metadata["data"].items()} if results else {}
        record.best = trainer.make_record().best
        record.alarms += losses_of_score(record)
        record.seconds = round(trainer.seconds, 1)
        if trainer.seconds_before is None:
            record.notes.append("seconds are of the last part alone: the checkpoint that it went on from has none")
        if results:
            results.write(folder / RESULTS_FILE)
            write_cosines(folder, results)
        record.save(folder)
        draw_plots(folder)
        write_card(folder)
        say(describe_end(record, folder))
        if args.push_to_hub:
            target = Target(args.hub_model_id, args.hub_private_repo, revision=args.hub_revision)
            publishing.publish(folder, target, **publication_of(settings.publish), say=say)


def prepare_output(settings: Settings) -> Path:
    """The output folder, new, empty of an earlier run, or with the checkpoints to go on from.

    Raises:
        UserError: it holds a run, finished or not, is a file, or cannot be written.
    """
    args = settings.training
    if "output_dir" not in settings.given:
        start = Path(settings.recipe or settings.model.model_name_or_path or "").name
        for ending in (".yaml", ".yml"):
            start = start.removesuffix(ending)
        args.output_dir = f"runs/{start}-{settings.loss.loss}-seed{args.seed}"
    folder = Path(args.output_dir)
    model = settings.model.model_name_or_path
    if model is not None and Path(model).is_dir() and folder.exists() and folder.samefile(model):
        raise UserError(f"--output_dir {folder} is the encoder that training starts from; give another folder")
    left = checkpoints.list_checkpoints(folder)
    there = [name for name in WRITTEN if (folder / name).exists()] + [path.name for path in left]
    if there and not (settings.job.overwrite_output_dir or args.resume_from_checkpoint):
        what = f"{left[-1].name} of an unfinished run" if left else ", ".join(there)
        what = "a finished run" if RUN_FILE in there else what
        go_on = "go on with --resume_from_checkpoint last, " if left else ""
        raise UserError(
            f"{folder} holds {what}; {go_on}give another --output_dir, or --overwrite_output_dir to replace it"
        )
    make_writable(folder, "--output_dir")
    if not args.resume_from_checkpoint and args.process_index == 0:
        for checkpoint in left:  # a later --resume_from_checkpoint last must not find the old run's
            checkpoints.remove(checkpoint)
        if left or RUN_FILE in there:  # no score of it may stand beside the next run's weights
            for name in WRITTEN:
                (folder / name).unlink(missing_ok=True)
    return folder


def make_writable(folder: Path, flag: str) -> None:
    """Make a folder and see that files can be written there.

    Raises:
        UserError: they cannot.
    """
    probe = folder / f".write-test-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"nothing can be written into {folder} ({error.strerror}); give another {flag}") from error


def check_precision(settings: Settings, say: Any) -> None:
    """Half precision needs a device for it; the published command lines carry --fp16, so a CPU run says it loudly."""
    args = settings.training
    if "fp16" in (args.mixed_precision, args.fp16 and "fp16") and args.device.type == "cpu":
        args.fp16, args.mixed_precision = False, "no"
        settings.notes.append("--fp16 was asked for, but there is no GPU: this run computes in float32 on the CPU")
        say(f"WARNING: {settings.notes[-1]}")


def resolve_model(name: str | None) -> tuple[str, str | None]:
    """(path or Hub id to load, Hub id of the base model if known) of ``--model_name_or_path``.

    Raises:
        UserError: no name was given.
    """
    if name is None:
        raise UserError(
            f"--model_name_or_path is missing: give a folder, a Hub id such as bert-base-uncased, "
            f"or {quickstart.ENCODER_PACKAGE}"
        )
    if name == quickstart.ENCODER_PACKAGE:
        return str(quickstart.encoder_path()), quickstart.BASE_MODEL
    return name, None if Path(name).exists() else name


def prepare_model(settings: Settings, loss: ContrastiveLoss) -> Any:
    """The encoder with its pooler, its projection drawn anew unless it was trained here, and its record in the config.

    Raises:
        UserError: it cannot be loaded, or --mlp_only_train makes no sense.
    """
    chosen = settings.model
    path, base = resolve_model(chosen.model_name_or_path)
    projection = None
    if chosen.mlp_only_train is not None:
        if chosen.pooler not in (None, "cls"):
            raise UserError(f"--mlp_only_train belongs to --pooler cls; pooler {chosen.pooler} has no projection")
        projection = "training" if chosen.mlp_only_train else "always"
    from transformers import set_seed

    set_seed(settings.training.seed)
    with whole_model():
        model = load_model(path, chosen.pooler or "cls", projection, chosen.dropout, chosen.model_revision)
    recorded = model.config.focal_cl
    trained_here = "loss" in recorded
    reset = not trained_here if chosen.reinit_projection is None else chosen.reinit_projection
    if chosen.reinit_projection and model.projection_use == "none":
        raise UserError(f"--reinit_projection belongs to --pooler cls; pooler {model.pooler_name} has no projection")
    if reset and model.projection_use != "none":
        model.reset_projection()
    model.chunk_size = chosen.chunk_size
    model.augmentations = build_augmentations(settings.views.augmentation)
    model.config.focal_cl = recorded | {
        "loss": loss.name,
        **{k: v for k, v in loss.config.items() if k != "name"},
        "base_model": base or recorded.get("base_model"),
        "max_seq_length": settings.data.max_seq_length,
    }
    return model


def prepare_reference(settings: Settings, loss: ContrastiveLoss) -> Any:
    """The frozen encoder that the loss compares with, or None where there is none. A recipe's is left out, with a
    note, where the loss was changed to one that looks at none.

    Raises:
        UserError: it cannot be loaded, or nothing says how it pools.
    """
    chosen = settings.reference
    if chosen.reference_model is None:
        for name in ("reference_pooler", "reference_revision"):
            if getattr(chosen, name) is not None:
                raise UserError(f"--{name} belongs to --reference_model, which is not given")
        return None
    if not loss.needs_reference and "reference_model" not in settings.explicit:
        settings.notes.append(f"recipe {settings.recipe}: no reference is loaded, the loss does not look at one")
        settings.reference = type(chosen)()
        return None
    path, _ = resolve_model(chosen.reference_model)
    try:
        with whole_model():
            model = load_model(path, chosen.reference_pooler, revision=chosen.reference_revision)
        require_projection(model, chosen.reference_model)
    except UserError as error:
        raise UserError(f"--reference_model: {str(error).replace('--pooler', '--reference_pooler')}") from error
    return model


def prepare_sentences(settings: Settings, model: Any) -> Sentences:
    """The training text, enough for one batch on every device."""
    data, args = settings.data, settings.training
    if data.train_file is None and data.dataset_name is None:
        raise UserError(
            f"no training text: give --train_file FILE or --dataset_name ID, or --train_file {QUICKSTART} "
            "for the sentences that this package carries"
        )
    if data.max_seq_length < 3 or data.max_seq_length > model.max_length():
        raise UserError(
            f"--max_seq_length is {data.max_seq_length}; this encoder takes 3 to {model.max_length()} tokens"
        )
    sentences = read_sentences(
        quickstart.CORPUS if data.train_file == QUICKSTART else data.train_file,
        *(data.dataset_name, data.dataset_file, data.dataset_split, data.dataset_revision),
        text_column=data.text_column,
        encoding_errors=data.encoding_errors,
        drop_duplicates=data.drop_duplicates,
        max_samples=data.max_train_samples,
        fraction=data.train_fraction,
        tokenizer=model.tokenizer,
        max_seq_length=data.max_seq_length,
        seed=args.seed,
    )
    require(sentences, args.train_batch_size * args.world_size)
    return sentences


def prepare_dev(settings: Settings, say: Any) -> list[Any]:
    """The labelled pairs that the run is judged by.

    Raises:
        UserError: labelled data was asked for and cannot be had.
    """
    dev, args = settings.dev, settings.training
    wanted = dev.eval_file or dev.sts_dir
    if args.eval_strategy == "no":
        if settings.explicit & {"eval_file", "sts_dir"}:
            raise UserError(f"{wanted} is given to judge by, but --eval_strategy is no; leave one of them out")
        return []
    if dev.eval_file:
        return [read_pairs(quickstart.PAIRS if dev.eval_file == QUICKSTART else dev.eval_file)]
    try:
        return load_tasks(["STSBenchmark/dev"], dev.sts_dir or (str(SENTEVAL) if SENTEVAL.is_dir() else None))
    except UserError as error:
        asked = settings.explicit & {"eval_strategy", "eval_steps", "metric_for_best_model", "sts_dir"}
        if asked or settings.recipe:
            raise UserError(f"{error}, --eval_file FILE with labelled pairs, or --eval_strategy no") from error
        say(f"WARNING: {error}. Training goes on WITHOUT labelled data: no dev score, the last checkpoint is kept.")
        settings.notes.append(f"trained without labelled data: {error}")
        return []


def make_trainer(
    settings: Settings, model: Any, loss: ContrastiveLoss, sentences: Sentences, dev: list[Any]
) -> FocalCSETrainer:
    """The trainer of these settings.

    Raises:
        UserError: they ask for what is not installed or do not go together.
    """
    try:
        return FocalCSETrainer(
            model=model,
            args=settings.training,
            loss=loss,
            train_dataset=sentences,
            dev=dev,
            max_seq_length=settings.data.max_seq_length,
            mask_duplicates=settings.loss.mask_duplicates,
            negatives=settings.distributed.negatives,
            allow_resume_mismatch=settings.distributed.allow_resume_mismatch,
            measure_steps=settings.dev.measure_steps,
            reference=prepare_reference(settings, loss),
        )
    except UserError:
        raise
    except (ImportError, RuntimeError, ValueError) as error:  # Trainer's own checks, a tracker that is not installed
        raise UserError(" ".join(str(error).split())) from error


def require_numbers(model: Any) -> None:
    """See that training left numbers, before anything is saved over what was there.

    Raises:
        UserError: some weights are infinite or no numbers.
    """
    broken = [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
    if broken:
        raise UserError(
            f"training ended with {len(broken)} weight tensors that are no numbers, for instance {broken[0]}; the "
            "model is not saved; lower --learning_rate, keep --max_grad_norm 1.0, or use --bf16 in place of --fp16"
        )


def start_record(settings: Settings, trainer: FocalCSETrainer) -> RunRecord:
    """run.json before the first step."""
    chosen, published = settings.model, settings.publish
    record = trainer.make_record()
    if chosen.model_name_or_path == quickstart.ENCODER_PACKAGE:
        settings.notes.append(quickstart.SUPERVISED_NOTE)
    names = {"name_or_path": chosen.model_name_or_path, "revision": chosen.model_revision}
    wanted = {"sentence_transformers": published.sentence_transformers, "onnx": published.onnx}
    publication = {"license": published.license, "language": published.language, "wanted": wanted}
    return replace(
        record,
        command=settings.command,
        recipe=settings.recipe,
        settings=settings_of_run(settings),
        model=record.model
        | names
        | {
            "augmentation": settings.views.augmentation or ["dropout"],
            "reference": describe_reference(settings, trainer),
        },
        hardware=describe_hardware()
        | {"engine": engine_of(trainer.accelerator), "device": settings.training.device.type},
        step_memory=trainer.step_memory.to_dict(),
        notes=settings.notes,
        publication={key: value for key, value in publication.items() if value},
    )


def describe_reference(settings: Settings, trainer: FocalCSETrainer) -> dict[str, Any] | None:
    """What run.json says of the frozen encoder; its cost is added at the end."""
    if trainer.reference is None:
        return None
    model = trainer.reference.model
    return {
        "name_or_path": settings.reference.reference_model,
        "revision": settings.reference.reference_revision,
        "pooler": model.pooler_name,
        "projection": model.projection_use,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def settings_of_run(settings: Settings) -> dict[str, Any]:
    """Our settings, and those of TrainingArguments that matter or differ from their default; no token."""
    own: list[Any] = [settings.job, settings.model, settings.loss, settings.reference, settings.views]
    own += [settings.data, settings.dev, settings.distributed]
    args = settings.training
    plain = args.to_dict()
    for field in fields(args):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if (plain.get(field.name) == default and field.name not in ALWAYS_RECORDED) or "token" in field.name:
            plain.pop(field.name, None)
    return {k: v for group in own for k, v in asdict(group).items() if v is not None} | settings.loss_settings | plain


def describe_start(settings: Settings, trainer: FocalCSETrainer, record: RunRecord) -> str:
    args = settings.training
    batch = args.train_batch_size * (args.world_size if settings.distributed.negatives == "global" else 1)
    noise = ", ".join(f"{k} {v:g}" for k, v in record.model["dropout"].items())
    reference = record.model["reference"]
    lines = [
        f"Encoder: {record.model['name_or_path']} ({record.model['class']}, {record.model['parameters']:,} parameters)"
        f", pooler {record.model['pooler']}, projection {record.model['projection']}",
        f"Noise between the two views: {noise}; augmentation: {' | '.join(record.model['augmentation'])}",
        f"Loss: {trainer.loss}, equal texts masked: {trainer.mask_duplicates}",
        *([f"Reference: {reference['name_or_path']} (frozen, pooler {reference['pooler']})"] if reference else []),
        f"Engine: {record.hardware['engine']} on {args.device.type}; {trainer.describe_step()}",
        f"Batch: {args.train_batch_size} sentences x {args.world_size} process(es), {batch - 1} negatives per anchor"
        + (
            f"; {args.gradient_accumulation_steps} accumulated batches add none"
            if args.gradient_accumulation_steps > 1
            else ""
        ),
    ]
    lines.append(str(trainer.step_memory))
    lines += [f"Before training: {name} {value:.2f}" for name, value in headline(record.baseline).items()]
    return "\n".join(lines)


def headline(scores: dict[str, float]) -> dict[str, float]:
    """The scores that a set is known by: one Spearman over all its pairs."""
    return {name: value for name, value in scores.items() if name.endswith("/all/spearman")}


def losses_of_score(record: RunRecord) -> list[str]:
    """One loud sentence for each dev score that training lowered."""
    return [
        f"contrastive training LOWERED {name} from {record.baseline[name]:.2f} to {value:.2f}: this encoder is worse "
        "on it than the one it started from"
        for name, value in headline(record.final).items()
        if name in record.baseline and value < record.baseline[name]
    ]


def describe_end(record: RunRecord, folder: Path) -> str:
    lines = [f"Saved to {folder} after {record.seconds:.0f} s."]
    scores = headline(record.final)
    if scores:
        lines.append(f"{'Spearman x 100':40}{'base':>8}{'trained':>9}{'gain':>8}")
    for name, value in scores.items():
        base = record.baseline[name]
        lines.append(f"{name:40}{base:8.2f}{value:9.2f}{value - base:+8.2f}")
    if record.model["reference"]:
        cost = record.model["reference"]
        lines.append(
            f"The frozen reference took {cost['reference_seconds_per_batch']:.3f} s per batch, "
            f"{cost['reference_share_of_step']:.0%} of forward and backward."
        )
    lines += [f"ALARM: {alarm}" for alarm in record.alarms]
    lines.append(f"Judge it on the STS tasks: python run_eval.py --model_name_or_path {shlex.quote(str(folder))}")
    return "\n".join(lines)


# ---- evaluation


def evaluate(args: EvalArguments) -> None:
    """An encoder -> its scores as a table and in results.json; a model card beside it is written anew."""
    path = resolve_model(args.model_name_or_path)[0] if args.word_vectors is None else args.word_vectors
    check_evaluation(args)
    device = choose_device(args.device)
    tasks = choose_tasks(args)
    encoder, identity = (
        open_encoder(args, path, device) if args.word_vectors is None else open_word_vectors(path, tasks)
    )
    folder = results_folder(args, identity["pooler"])
    make_writable(folder, "--output_dir")
    file = folder / RESULTS_FILE
    older = Results.read(file) if file.exists() else None  # before the work: it may be damaged
    if args.whiten is None:
        results = judge(encoder, tasks, identity)
    else:
        results = evaluate_whitened(encoder, tasks, identity, args.whiten, args.whiten_dim)
    if args.word_vectors is not None and encoder.unknown:
        unknown = len(encoder.unknown)
        results.metadata["model"]["sentences_without_known_word"] = unknown
        print(f"note: {unknown} sentences hold no word of {args.word_vectors}; they got the mean of all vectors")
    if args.compare:
        results.metadata["comparisons"] = read_comparisons(args.compare)
    measured = results
    if older is not None:
        results = results.merge(older)
        if lost := sorted(older.metadata["data"].keys() - results.metadata["data"].keys()):
            print(f"note: {file} held scores of {', '.join(lost)} by other weights or settings; they are replaced")
    results.write(file)
    write_cosines(folder, measured)
    print(summarise(results))
    print(f"\nWritten to {file}")
    if is_export(folder):
        update_export(folder, {}, results)
    elif (folder / RUN_FILE).exists():
        draw_plots(folder)
        write_card(folder)
    if (folder / RUN_FILE).exists():
        print(f"Model card renewed: {folder / 'README.md'}")
    if args.push_to_hub:
        publishing.publish_scores(
            *(str(args.model_name_or_path), folder, results),
            repo_id=args.hub_model_id,
            private=args.private,
            create_pr=args.create_pr,
        )


def judge(encoder: Any, tasks: list[Any], model: dict[str, Any], progress: bool = True) -> Results:
    """Scores on sets of pairs and on sets of queries as one."""
    pairs = [task for task in tasks if isinstance(task, PairSet)]
    queries = [task for task in tasks if not isinstance(task, PairSet)]
    parts = [evaluate_sts(encoder, pairs, progress, model)] if pairs or not queries else []
    return Results.join(parts + ([evaluate_rerank(encoder, queries, progress, model)] if queries else []))


def weights_file(path: str, revision: str | None) -> Path | None:
    """The weights of a folder or of a Hub repository that was loaded; None where they are in pieces."""
    name = "model.safetensors"
    if Path(path).is_dir():
        return Path(path) / name if (Path(path) / name).is_file() else None
    found = find_file(path, name, revision=revision)
    return Path(found) if found else None


def read_comparisons(given: list[str]) -> dict[str, list[dict[str, Any]]]:
    """``NAME=FILE`` of results.json -> {name: one entry a file}, for the columns of the model card."""
    found: dict[str, list[dict[str, Any]]] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise UserError(f"--compare takes NAME=FILE, such as base=results/x/results.json, not {text!r}")
        results = Results.read(file)
        weights = results.metadata["model"].get("weights_sha256")
        found.setdefault(name, []).append({"weights_sha256": weights, "scores": headline(results.scores)})
    return found


def open_encoder(args: EvalArguments, path: str, device: Any) -> tuple[Any, dict[str, Any]]:
    """The encoder at ``path`` (what ``--model_name_or_path`` stands for) on its device, and its identity."""
    model = load_model(path, args.pooler, None if args.pooler is None else explicit_projection(args.pooler),
                       revision=args.model_revision)  # fmt: skip
    require_projection(model, str(args.model_name_or_path))
    weights = weights_file(path, args.model_revision)
    sha256 = file_sha256(weights) if weights else None
    name = str(args.model_name_or_path)
    return as_encoder(model.to(device), args.batch_size, name, sha256, args.max_seq_length, args.bf16)


def open_word_vectors(path: str, tasks: list[Any]) -> tuple[WordVectors, dict[str, Any]]:
    """Static word vectors for the sentences of ``tasks``, and their identity."""
    vectors = WordVectors(path, (text for task in tasks for text in task.texts()))
    identity = {
        "name_or_path": path,
        "pooler": "mean of words",
        "projection": "none",
        "max_length": None,
        "weights_sha256": file_sha256(path),
        "tokens": RULE,
    }
    return vectors, identity


def evaluate_whitened(
    encoder: Any, tasks: list[Any], identity: dict[str, Any], source: str, dimensions: int | None
) -> Results:
    """Scores with whitened vectors; source: a file of sentences, or "target" for the texts of each set itself, every
    sentence as often as the set holds it."""
    encoder = Remembering(encoder)
    if source != TARGET:
        sentences = read_sentences(quickstart.CORPUS if source == QUICKSTART else source)
        report = sentences.report
        whitening = Whitening(encoder.encode([sentences[i]["text"] for i in range(len(sentences))]), dimensions)
        of = f"{Path(source).name} ({report.kept:,} sentences, sha256 {report.sha256[:12]})"
        model = identity | {"whitening": f"{of}, {whitening.kernel.shape[1]} dimensions"}
        return judge(WhitenedEncoder(encoder, whitening), tasks, model)
    parts = []
    for task in tasks:
        whitening = Whitening(encoder.encode(task.texts()), dimensions)
        model = identity | {"whitening": f"the texts of each set, {whitening.kernel.shape[1]} dimensions"}
        parts.append(judge(WhitenedEncoder(encoder, whitening), [task], model, progress=False))
    return Results.join(parts)


def export_folder(args: ExportArguments) -> None:
    if args.folder is None:
        raise UserError("no folder to export: focalcse export FOLDER")
    publishing.export_folder(args.folder, args.output_dir, **publication_of(args))


def push_folder(args: PushArguments) -> None:
    if args.folder is None or args.hub_model_id is None:
        raise UserError("push needs a folder and a repository: focalcse push FOLDER org/name")
    target = Target(args.hub_model_id, args.private, args.create_pr, args.revision, args.message)
    publishing.publish(args.folder, target, **publication_of(args), dry_run=args.dry_run)


def publication_of(args: PublishArguments) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("license", "language", "sentence_transformers", "onnx")}


def table(args: TableArguments) -> None:
    """Many results.json -> one table, plain and in Markdown."""
    chosen, bare = choose_systems(args.results)
    if bare:
        print(f"note: left out, for they have no {RESULTS_FILE}: {', '.join(bare)}", file=sys.stderr)
    made = make_table([read_system(argument) for argument in chosen], args.sick)
    parts = {"plain": made.plain, "markdown": made.markdown}
    print("\n\n".join(write() for name, write in parts.items() if args.format in (name, "both")))


def explicit_projection(pooler: str) -> str:
    """``--pooler cls`` means with the projection, as in the public evaluation scripts; every other row has none."""
    return "always" if pooler == "cls" else "none"


def check_evaluation(args: EvalArguments) -> None:
    if args.push_to_hub and args.hub_model_id is None and Path(str(args.model_name_or_path)).exists():
        raise UserError("--push_to_hub needs --hub_model_id org/name where the model is a folder")
    if args.compare:
        read_comparisons(args.compare)
    check_eval(args)
    if args.whiten_dim is not None and args.whiten is None:
        raise UserError(f"--whiten_dim is {args.whiten_dim}, but nothing is whitened; add --whiten target or FILE")
    if args.word_vectors is not None:
        for name in ("model_name_or_path", "model_revision", "pooler", "max_seq_length", "device", "bf16"):
            if getattr(args, name) not in (None, False):
                raise UserError(f"--word_vectors are judged in place of an encoder; leave --{name} out")


def choose_tasks(args: EvalArguments) -> list[Any]:
    """The sets of pairs, and with --tasks rerank those of queries."""
    if RERANK in (args.tasks or []):
        names = [name for name in args.tasks or [] if name != RERANK]
        if not names and args.sts_dir:
            raise UserError(f"--sts_dir {args.sts_dir} is given, but --tasks names no STS set; leave one of them out")
        queries = load_rerank(args.rerank_file, args.rerank_split, args.rerank_scorer)
        return [*(load_tasks(names, args.sts_dir) if names else []), *queries]
    for flag in ("rerank_file", "rerank_split", "rerank_scorer"):
        if getattr(args, flag) is not None:
            raise UserError(f"--{flag} is given, but --tasks does not name {RERANK}; add --tasks {RERANK}")
    if args.eval_file:
        return [read_pairs(quickstart.PAIRS if args.eval_file == QUICKSTART else args.eval_file)]
    return load_tasks(args.sets(), args.sts_dir)


def choose_device(name: str | None) -> Any:
    """The device asked for, or a GPU if there is one.

    Raises:
        UserError: no such device here.
    """
    import torch

    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    here = ["cpu", *(["cuda", *gpus] if gpus else []), *mps]
    if name is None:
        return torch.device(here[-1] if mps else "cuda" if gpus else "cpu")
    if name not in here:
        raise UserError(f"there is no device {name!r} here; there are: {', '.join(here)}")
    return torch.device(name)


def results_folder(args: EvalArguments, pooler: str) -> Path:
    """The model's folder where it is judged as it embeds, else results/NAME-POOLER: scores of one kind a file."""
    if args.output_dir is not None:
        return Path(args.output_dir)
    name = str(args.word_vectors or args.model_name_or_path).rstrip("/")
    as_it_embeds = args.pooler is None and args.max_seq_length is None and args.whiten is None and not args.bf16
    if Path(name).is_dir() and as_it_embeds:
        return Path(name)
    stem = Path(name).name if Path(name).exists() else name.replace("/", "--")
    whitened = "" if args.whiten is None else f"-whitened-{Path(args.whiten).stem}{args.whiten_dim or ''}"
    length = "" if args.max_seq_length is None else f"-{args.max_seq_length}"
    precision = "-bf16" if args.bf16 else ""
    return Path("results") / f"{stem}-{pooler.replace(' ', '-')}{length}{whitened}{precision}"


def _silence(*_: Any) -> None:
    pass
