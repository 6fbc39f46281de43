"""``focalcse inspect MODEL FILE``: the qualitative analysis of Hou & Li 2023 (section 5.1) as a command."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from .. import quickstart
from ..data.reading import FILE_HINTS
from ..data.sentences import Sentences, read_sentences
from ..encoder.devices import choose_device
from ..encoder.loading import load_model, require_projection
from ..encoder.poolers import explicit_projection
from ..errors import UserError
from ..losses import build_loss
from ..objectives.reference import FrozenReference, load_reference
from ..options.experiments import InspectOptions
from ..options.field import check_ranges, options_of
from ..runs.atomic import require_writable
from .batches import find
from .hard_pairs import hard_table, read_pairs
from .search import Search

LABELLED = ("model_name_or_path", "file", "model_revision", "pooler", "labelled", "after", "top", "device")
DEFAULTS = {"m": 0.3, "temperature": 0.05, "max_seq_length": 32}  # of an encoder that records none


def inspect(args: InspectOptions) -> None:
    """Print a table of the pairs that were found, and write them to ``--jsonl``."""
    check(args)
    require_writable(args.jsonl, "--jsonl")
    device = choose_device(args.device)
    if args.labelled:
        print(inspect_labelled(args, device))
        return
    model, search = prepare_encoder(args)
    model = model.to(device)
    reference = prepare_reference(args, search.max_seq_length)
    sentences = prepare_sentences(args)
    findings = find(model, sentences, search, reference)
    print(findings.table(args.top))
    if args.jsonl is not None:
        findings.write(Path(args.jsonl))
        print(f"\nWritten to {args.jsonl}: {sum(map(len, findings.rows.values())):,} pairs")


def check(args: InspectOptions) -> None:
    """Refuse options that are missing, out of range or without effect, before anything is loaded.

    Raises:
        UserError: with the value and what is allowed.
    """
    if args.model_name_or_path is None or args.file is None:
        raise UserError("inspect needs a model and a file of sentences: focalcse inspect MODEL FILE")
    check_ranges(args, options_of(InspectOptions))
    if args.after is not None and not args.labelled:
        raise UserError("--after belongs to --labelled, which is not given; add it, or leave --after out")
    if args.labelled:
        given = {field.name for field in fields(args) if field.name not in LABELLED}
        defaults = InspectOptions()
        for name in sorted(given):
            if getattr(args, name) != getattr(defaults, name):
                raise UserError(f"--{name} is about batches of sentences, not about --labelled pairs; leave it out")
    for name in ("reference_pooler", "reference_revision"):
        if getattr(args, name) is not None and args.reference_model is None:
            raise UserError(f"--{name} belongs to --reference_model, which is not given; leave it out")


def inspect_labelled(args: InspectOptions, device: Any) -> str:
    """Pairs that are rated low and similar by the encoder, with the cosines of ``--after`` beside them."""
    encoders: dict[str, Any] = {}
    for name in filter(None, (args.model_name_or_path, args.after)):
        place = quickstart.resolve_model(name, args.model_revision if name == args.model_name_or_path else None)
        model = load_model(place.path, args.pooler, revision=place.revision)
        require_projection(model, str(name))
        encoders[("before", "after")[len(encoders)] if args.after else "cosine"] = model.to(device)
    table, means = hard_table(encoders, read_pairs(args.file, None), args.top)
    change = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    return f"{table.plain()}\n\nMean cosine of all pairs that are rated low: {change}"


def prepare_encoder(args: InspectOptions) -> tuple[Any, Search]:
    """The encoder, and what to look for: m, temperature and length default to those that it was trained with.

    Raises:
        UserError: the encoder cannot be loaded, a setting is not allowed, or --dropout_views has no dropout or would
            use a projection that training initialises again.
    """
    place = quickstart.resolve_model(args.model_name_or_path, args.model_revision)
    projection = None
    if args.pooler is not None and not args.dropout_views:
        projection = explicit_projection(args.pooler)
    asked: dict[str, Any] = {"prompt": args.prompt, "prompt_name": args.prompt_name}
    model = load_model(place.path, args.pooler, projection, revision=place.revision, **asked)
    print(model.spec.describe())
    require_projection(model, str(args.model_name_or_path))
    recorded = model.config.focal_cl
    given = {field.name: getattr(args, field.name) for field in fields(Search)}
    for name, default in DEFAULTS.items():
        if given[name] is None:
            given[name] = default if recorded.get(name) is None else recorded[name]
    search = Search(**given)
    build_loss("focal", m=search.m, temperature=search.temperature)  # refuses what no loss accepts
    if not 3 <= search.max_seq_length <= model.max_length():
        raise UserError(
            f"--max_seq_length is {search.max_seq_length}; this encoder takes 3 to {model.max_length()} tokens"
        )
    if args.dropout_views:
        if not any(model.dropout_rates().values()):
            raise UserError("--dropout_views: every dropout rate of this encoder is 0, so both views would be equal")
        if model.projection_use != "none" and "loss" not in recorded:
            raise UserError(
                f"--dropout_views: training would initialise the projection of {args.model_name_or_path} again, so "
                "there is nothing to inspect yet; give --pooler cls_before_pooler or mean, or a trained folder"
            )
    return model, search


def prepare_reference(args: InspectOptions, max_seq_length: int) -> FrozenReference | None:
    """The frozen encoder that finds false negatives, if one was asked for."""
    if args.reference_model is None:
        return None
    frozen = load_reference(args.reference_model, args.reference_pooler, args.reference_revision)
    return FrozenReference(frozen, max_seq_length)


def prepare_sentences(args: InspectOptions) -> Sentences:
    """The sentences of the file, which must fill a batch."""
    try:
        file = quickstart.resolve_text(args.file)
        sentences = read_sentences(
            *(file,),
            text_column=args.text_column,
            delimiter=args.delimiter,
            quotes=args.quotes,
            encoding=args.encoding,
            hints=FILE_HINTS,
        )
    except UserError as error:
        raise UserError(str(error).replace("--train_file", "FILE")) from error
    if len(sentences) < args.batch_size:
        raise UserError(
            f"{args.file} holds {len(sentences)} sentences, fewer than one batch of {args.batch_size}: add text, or "
            "lower --batch_size"
        )
    return sentences
