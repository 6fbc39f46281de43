"""``focalcse train``: recipe and flags -> a trained encoder with its record, scores and model card."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import logging

from .. import quickstart
from ..encoder.augment import build_augmentations
from ..errors import UserError
from ..evaluation.verdict import conclusions, judged_keys, score_table
from ..experiments.asked import settings_asked
from ..losses import ContrastiveLoss
from ..options.field import listed
from ..options.tables import own_options, recorded, told_otherwise
from ..parsing.settings import Settings
from ..publishing.hub import Target
from ..publishing.publish import prepare_push, publish
from ..runs.atomic import clear_drafts
from ..runs.locking import locked
from ..runs.record import RunRecord, describe_hardware
from ..runs.scores import headlines
from ..runs.stages import stages_before
from ..training.engines import engine_of
from ..training.finish import finish_run, first_record
from ..training.trainer import FocalCSETrainer
from .objective import decide_reference, describe_reference, prepare_loss, prepare_objective
from .preparation import (
    advise_rate,
    clear_output,
    decide_pooling,
    decide_precision,
    prepare_dev,
    prepare_model,
    prepare_output,
    prepare_sentences,
    reason_of_pooling,
)
from .progress import show_progress
from .stages import run_stages, stages_in

Say = Callable[[object], None]


def run(settings: Settings) -> None:
    """Recipe and flags -> a trained encoder with run.json, results.json and a model card in ``--output_dir``."""
    if stages_in(settings):
        run_stages(settings, run_one)
    else:
        run_one(settings)


def run_one(settings: Settings, goes_on: bool = False) -> None:
    """One run. goes_on: whether another follows in this process."""
    if settings.training.process_index > 0:  # the first process holds the folder for all
        train(settings, goes_on)
        return
    folder = Path(settings.training.output_dir)
    with locked(folder):
        clear_drafts(folder)
        try:
            train(settings, goes_on)
        except BrokenPipeError as error:
            raise UserError(
                "nobody takes the output of training any more, so it has ended; send it to a file, and go on with "
                "--resume_from_checkpoint last"
            ) from error


def train(settings: Settings, goes_on: bool = False) -> None:
    started = time.monotonic()
    say: Say = print if settings.training.process_index == 0 else _silence
    for note in settings.notes:
        say(f"note: {note}")
    logging.set_verbosity(settings.training.get_process_log_level())
    folder = prepare_output(settings)
    asked, settings = settings, decide_precision(settings)
    for note in settings.notes[len(asked.notes) :]:
        say(f"WARNING: {note}")
    args = settings.training
    loss = prepare_loss(settings)
    model = prepare_model(settings, loss)
    asked, settings = settings, advise_rate(decide_pooling(settings, model))
    for note in settings.notes[len(asked.notes) :]:
        say(f"WARNING: {note}")
    if args.push_to_hub:
        wanted = settings.publish
        prepare_push(
            *(model.pooler_name, args.hub_model_id),
            sentence_transformers=wanted.sentence_transformers,
            onnx=wanted.onnx,
            adapter_only=wanted.adapter_only,
            lora=model.lora,
            template=model.template,
            say=say,
        )
    sentences = prepare_sentences(settings, model)
    say(sentences.report)
    dev, settings = prepare_dev(settings, say)
    settings = decide_reference(settings, loss)

    trainer = make_trainer(settings, model, loss, sentences, dev)
    trainer.began = started
    trainer.score_baseline()
    record = trainer.record = start_record(settings, trainer)
    say(describe_start(settings, trainer, record))
    if not args.resume_from_checkpoint:
        trainer.clear_output = partial(clear_output, folder)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    require_numbers(model)
    trainer.save_whole(folder)
    if args.world_size > 1 and not goes_on:
        trainer.accelerator.end_training()  # what follows is rank 0's alone
    if args.process_index == 0:
        noted = len(record.notes)
        record = finish_run(trainer, folder)
        say(describe_end(record, folder, noted))
        if args.push_to_hub:
            target = Target(args.hub_model_id, args.hub_private_repo, revision=args.hub_revision)
            publish(folder, target, **settings.publish.publication(), say=say)
    if goes_on:
        trainer.accelerator.wait_for_everyone()  # the next stage reads what the first process has written


def make_trainer(
    settings: Settings, model: Any, loss: ContrastiveLoss | None, sentences: Any, dev: list[Any]
) -> FocalCSETrainer:
    """The trainer of these settings.

    Raises:
        UserError: they ask for what is not installed or do not go together.
    """
    try:
        trainer = FocalCSETrainer(
            model=model,
            args=settings.training,
            objective=prepare_objective(settings, loss, sentences, model),
            train_dataset=sentences,
            dev=dev,
            max_seq_length=settings.data.max_seq_length,
            allow_resume_mismatch=settings.distributed.allow_resume_mismatch,
            measure_steps=settings.dev.measure_steps,
        )
    except UserError:
        raise
    except (ImportError, RuntimeError, ValueError) as error:  # Trainer's own checks, a tracker that is not installed
        raise UserError(" ".join(str(error).split())) from error
    model.augmentations = build_augmentations(settings.views.augmentation, trainer.views)
    show_progress(trainer, Path(settings.training.output_dir))
    encoders = {name for name, found in own_options().items() if found.encoder}
    asked, told = settings_asked(settings), told_otherwise() | encoders  # these are compared by what they led to
    trainer.asked = {name: asked[name] for name in settings.own() if name in asked and name not in told}
    return trainer


def require_numbers(model: Any) -> None:
    """Check that all weights are finite before anything is saved over what was there.

    Raises:
        UserError: some weights are NaN or infinite.
    """
    broken = [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
    if broken:
        raise UserError(
            f"training ended with {len(broken)} weight tensors that contain NaN or infinity, for instance "
            f"{broken[0]}; the model is not saved; lower --learning_rate, keep --max_grad_norm 1.0, or use --bf16 "
            "in place of --fp16"
        )


def start_record(settings: Settings, trainer: FocalCSETrainer) -> RunRecord:
    """run.json before the first step."""
    chosen, published = settings.model, settings.publish
    record = first_record(trainer, chosen.model_revision)
    supervised = [quickstart.SUPERVISED_NOTE] if chosen.model_name_or_path == quickstart.ENCODER_PACKAGE else []
    names = {"name_or_path": chosen.model_name_or_path}
    files = ("sentence_transformers", "onnx", "quantized_onnx")
    wanted = {name: getattr(published, name) for name in files}
    asked = {"license": published.license, "language": published.language, "wanted": wanted}
    inherited = {} if published.license else record.publication
    return replace(
        record,
        command=list(settings.command),
        recipe=settings.recipe,
        settings=settings_of_run(settings, trainer.args),
        model=record.model
        | names
        | {
            "augmentation": settings.views.augmentation or ["dropout"],
            "reference": describe_reference(settings, trainer.objective),
        },
        hardware=describe_hardware()
        | {"engine": engine_of(trainer.accelerator), "device": settings.training.device.type},
        step_memory=trainer.step_memory.to_dict(),
        stages=stages_before(chosen.model_name_or_path),
        notes=[*settings.notes, *supervised],
        publication=inherited | {key: value for key, value in asked.items() if value},
    )


def settings_of_run(settings: Settings, args: Any) -> dict[str, Any]:
    """The options of this package, and the arguments of transformers that are always recorded or differ from their
    default; no token."""
    always = recorded()
    plain = args.to_dict()
    for field in fields(args):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if (plain.get(field.name) == default and field.name not in always) or "token" in field.name:
            plain.pop(field.name, None)
    return (
        {k: v for k, v in settings.own().items() if v is not None}
        | settings.loss_settings
        | settings.objective_settings
        | plain
    )


def describe_start(settings: Settings, trainer: FocalCSETrainer, record: RunRecord) -> str:
    args = settings.training
    batch = args.train_batch_size * (args.world_size if settings.distributed.negatives == "global" else 1)
    candidates = batch * max(trainer.views - 1, 1)  # positives, and hard negatives where rows have them
    noise = ", ".join(f"{k} {v:g}" for k, v in record.model["dropout"].items())
    reference = record.model["reference"]
    lines = [
        f"Encoder: {record.model['name_or_path']} ({record.model['class']}, {record.model['parameters']:,} parameters)"
        f", pooler {record.model['pooler']}, projection {record.model['projection']}",
        f"Pooling: {reason_of_pooling(settings, trainer.encoder)}",
        trainer.encoder.spec.describe(),
        *describe_lora(record),
        f"Noise between the two views: {noise}; augmentation: {' | '.join(record.model['augmentation'])}",
        *describe_objective(trainer, candidates),
        *(
            [f"Reference: {_joined(reference['name_or_path'])} (frozen, pooler {_joined(reference['pooler'])})"]
            if reference
            else []
        ),
        f"Engine: {record.hardware['engine']} on {args.device.type}; {trainer.describe_step()}",
        f"Batch: {args.train_batch_size} sentences x {args.world_size} process(es)"
        + (f", {candidates - 1} negatives per anchor" if trainer.loss is not None else "")
        + (
            f"; {args.gradient_accumulation_steps} accumulated batches add none"
            if args.gradient_accumulation_steps > 1
            else ""
        ),
    ]
    lines.append(str(trainer.step_memory))
    for title, scores in ((record.baseline_name, record.baseline), (record.start_name, record.start)):
        lines += [f"{title[0].upper()}{title[1:]}: {name} {value:.2f}" for name, value in headlines(scores).items()]
    return "\n".join(lines)


def describe_lora(record: RunRecord) -> list[str]:
    """One line on the adapter that is trained, where one is."""
    lora = record.model["lora"]
    if lora is None:
        return []
    share = lora["trained_parameters"] / record.model["parameters"]
    return [
        f"LoRA: rank {lora['rank']}, alpha {lora['alpha']:g}, dropout {lora['dropout']:g} on "
        f"{', '.join(lora['target_modules'])}; {lora['trained_parameters']:,} parameters are trained, {share:.1%} "
        "of the encoder's"
    ]


def describe_range(trainer: FocalCSETrainer, candidates: int) -> list[str]:
    """Between which losses the run moves, where its objective says so: at a high temperature, a run that learns well
    has a loss not far from that of an untrained encoder."""
    if not trainer.logs_range:
        return []
    found = trainer.loss.bounds(candidates, trainer.encoder.get_embedding_dimension())
    perfect, untrained, collapsed = (found[f"loss_if_{end}"] for end in ("perfect", "untrained", "collapsed"))
    return [
        f"Range of the loss: {perfect:.3f} of a perfect encoder, {untrained:.3f} of one that tells no sentences apart"
        f", {collapsed:.3f} of one whose vectors are all alike"
    ]


def describe_objective(trainer: FocalCSETrainer, candidates: int) -> list[str]:
    """The objective, where it has settings of its own, and the loss, where there is one."""
    objective = trainer.objective
    lines = [f"Objective: {objective.name}, {objective.config}"] if objective.config else []
    if trainer.loss is not None:
        lines.append(f"Loss: {trainer.loss}, equal texts masked: {objective.mask_duplicates}")
        lines += describe_range(trainer, candidates)
    return lines


def describe_end(record: RunRecord, folder: Path, noted: int = 0) -> str:
    """noted: how many of the notes were said at the start."""
    lines = [f"Saved to {folder} after {record.seconds:.0f} s."]
    if judged_keys(record):
        lines += [score_table(record).plain(), *conclusions(record)]
    cost = record.model["reference"] or {}
    if "reference_seconds_per_batch" in cost:  # not where a run was resumed from its last step
        lines.append(
            f"The frozen reference took {cost['reference_seconds_per_batch']:.3f} s per batch, "
            f"{cost['reference_share_of_step']:.0%} of forward and backward."
        )
    lines += [f"note: {note}" for note in record.notes[noted:]]
    lines += [f"ALARM: {alarm}" for alarm in record.alarms]
    lines.append(f"Evaluate it on the STS tasks: python run_eval.py --model_name_or_path {shlex.quote(str(folder))}")
    return "\n".join(lines)


def _joined(names: Any) -> str:
    return " and ".join(map(str, listed(names)))


def _silence(*_: Any) -> None:
    pass
