"""``focalcse inspect MODEL FILE``: the qualitative analysis of Hou & Li 2023 (section 5.1) as a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import quickstart
from ..data.sentences import Sentences, read_sentences
from ..encoder.devices import choose_device
from ..encoder.loading import load_model, require_projection
from ..encoder.poolers import explicit_projection
from ..errors import UserError
from ..losses import build_loss
from ..objectives.reference import FrozenReference
from ..options.experiments import InspectOptions
from ..options.field import check_ranges, options_of
from ..runs.atomic import require_writable
from .batches import find


def inspect(args: InspectOptions) -> None:
    """``focalcse inspect``: a table on the terminal, all pairs in ``--jsonl``."""
    check(args)
    require_writable(args.jsonl, "--jsonl")
    device = choose_device(args.device)
    model = prepare_encoder(args).to(device)
    reference = prepare_reference(args, model)
    sentences = prepare_sentences(args, model)
    findings = find(model, sentences, args, reference)
    print(findings.table(args.top))
    if args.jsonl is not None:
        findings.write(Path(args.jsonl))
        print(f"\nWritten to {args.jsonl}: {sum(map(len, findings.rows.values())):,} pairs")


def check(args: InspectOptions) -> None:
    """Refuse numbers that make no sense, before anything is loaded.

    Raises:
        UserError: with the value and what is allowed.
    """
    if args.model_name_or_path is None or args.file is None:
        raise UserError("inspect needs a model and a file of sentences: focalcse inspect MODEL FILE")
    check_ranges(args, options_of(InspectOptions))
    for name in ("reference_pooler", "reference_revision"):
        if getattr(args, name) is not None and args.reference_model is None:
            raise UserError(f"--{name} belongs to --reference_model, which is not given")
    if args.jsonl is not None and (Path(args.jsonl).is_dir() or not Path(args.jsonl).parent.is_dir()):
        raise UserError(f"--jsonl {args.jsonl} cannot be written: name a file in a folder that is there")


def prepare_encoder(args: InspectOptions) -> Any:
    """The encoder, with m, temperature and length in ``args`` as it was trained with where they were not given.

    Raises:
        UserError: it cannot be loaded, a setting is not allowed, or --dropout_views find no dropout or a projection
            that training would draw anew.
    """
    path, _ = quickstart.resolve_model(args.model_name_or_path)
    projection = None
    if args.pooler is not None and not args.dropout_views:
        projection = explicit_projection(args.pooler)
    model = load_model(path, args.pooler, projection, revision=args.model_revision)
    require_projection(model, str(args.model_name_or_path))
    recorded = model.config.focal_cl
    for name, default in (("m", 0.3), ("temperature", 0.05), ("max_seq_length", 32)):
        if getattr(args, name) is None:
            setattr(args, name, default if recorded.get(name) is None else recorded[name])
    build_loss("focal", m=args.m, temperature=args.temperature)  # refuses what no loss can have
    if not 3 <= int(args.max_seq_length or 0) <= model.max_length():
        raise UserError(
            f"--max_seq_length is {args.max_seq_length}; this encoder takes 3 to {model.max_length()} tokens"
        )
    if args.dropout_views:
        if not any(model.dropout_rates().values()):
            raise UserError("--dropout_views: every dropout rate of this encoder is 0, so both views would be equal")
        if model.projection_use != "none" and "loss" not in recorded:
            raise UserError(
                f"--dropout_views: training would draw the projection of {args.model_name_or_path} anew, so there is "
                "nothing to look at yet; give --pooler cls_before_pooler or mean, or a trained folder"
            )
    return model


def prepare_reference(args: InspectOptions, model: Any) -> FrozenReference | None:
    """The frozen encoder that finds false negatives, or None."""
    if args.reference_model is None:
        return None
    path, _ = quickstart.resolve_model(args.reference_model)
    try:
        frozen = load_model(path, args.reference_pooler, revision=args.reference_revision)
        require_projection(frozen, args.reference_model)
    except UserError as error:
        raise UserError(f"--reference_model: {str(error).replace('--pooler', '--reference_pooler')}") from error
    return FrozenReference(frozen, int(args.max_seq_length or 0))


def prepare_sentences(args: InspectOptions, model: Any) -> Sentences:
    """The file's sentences, at least one batch of them."""
    try:
        file = quickstart.resolve_text(args.file)
        sentences = read_sentences(file, text_column=args.text_column)
    except UserError as error:
        raise UserError(str(error).replace("--train_file", "FILE")) from error
    if len(sentences) < args.batch_size:
        raise UserError(
            f"{args.file} holds {len(sentences)} sentences, fewer than one batch of {args.batch_size}: add text, or "
            "lower --batch_size"
        )
    return sentences
