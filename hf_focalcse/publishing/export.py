"""A checkpoint -> a folder from which transformers, sentence-transformers and TEI compute the same vectors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..encoder.loading import load_model, require_projection
from ..encoder.prompts import add_prompt
from ..errors import UserError
from ..runs.atomic import draft_folder, failed_writes
from ..runs.locking import locked
from ..runs.record import RUN_FILE
from .adapter import check_adapter, find_adapter, on_local_base, write_adapter_export
from .card import render
from .export_records import check_records, keep_hand_made, remember, remembered, write_records
from .formats import write_encoder, write_onnx, write_quantized_onnx, write_sentence_transformers
from .manifest import CARD, files_in, foreign_files, is_export, shortened, write_manifest
from .parity import CHECKED, LOWEST_COSINE, check_vectors, lowest_cosine
from .readers import who_differs
from .usage import EXAMPLES


def export_model(
    checkpoint: str | Path,
    folder: str | Path | None = None,
    *,
    sentence_transformers: bool | None = None,
    onnx: bool | None = None,
    quantized_onnx: bool | None = None,
    truncate_dim: int | None = None,
    adapter_only: bool = False,
    publication: dict[str, Any] | None = None,
    remembering: bool = True,
) -> tuple[Path, dict[str, float]]:
    """Write the published folder (default: ``hub`` in the checkpoint), whole or not at all.

    sentence_transformers, onnx: whether the files that sentence-transformers reads, and ONNX, are in it;
    quantized_onnx: whether ONNX is there with weights in 8 bits too. truncate_dim: how many dimensions are kept of a
    vector. None: as in the newest export of this checkpoint; in its first one, the files of sentence-transformers are
    there, ONNX is not (where it is, both kinds are), and vectors are cut as the checkpoint says. What is written is
    remembered in run.json of the checkpoint, unless ``remembering`` is off.

    adapter_only: of an encoder that was trained by LoRA, write the adapter alone, with its base named by its Hub id;
    without it the export is the merged encoder.

    publication: repo_id, license, language for the card. Without run.json in the checkpoint there is no card, so that
    the folder can be used but not pushed.

    Returns:
        The folder, and library -> the lowest cosine of its vectors to the checkpoint's.

    Raises:
        UserError: sentence-transformers cannot express the pooler or is not installed, results.json belongs to other
            weights, the vectors differ, the folder cannot be written or is in use,
            or it holds files that no export wrote; of an adapter, there is none, or others do not have its base.
    """
    checkpoint = Path(checkpoint)
    folder = Path(folder) if folder else checkpoint / "hub"
    check_place(folder)
    if not checkpoint.is_dir():
        raise UserError(f"there is no folder {checkpoint}; give the output folder of a training run")
    with locked(checkpoint):
        wanted = remembered(checkpoint, folder)
        sentence_transformers = (
            wanted["sentence_transformers"] if sentence_transformers is None else sentence_transformers
        )
        onnx = wanted["onnx"] if onnx is None else onnx
        quantized_onnx = wanted["quantized_onnx"] if quantized_onnx is None else quantized_onnx
        truncate_dim = wanted.get("truncate_dim") if truncate_dim is None else truncate_dim
        model = load_model(str(checkpoint)).float().eval()
        if truncate_dim is not None:
            cut_vectors(model, truncate_dim)
        if sentence_transformers:
            say_as_prompt(model)
        require_projection(model, str(checkpoint))
        check_formats(model, sentence_transformers, onnx)
        check_libraries(model.pooler_name, sentence_transformers, onnx)
        check_records(model, checkpoint)
        adapter = find_adapter(checkpoint) if adapter_only else None
        config = None if adapter is None else check_adapter(model, adapter, sentence_transformers, onnx)
        with staged(folder) as stage:
            if adapter is None or config is None:
                limit = write_encoder(model, stage)
            else:
                limit = write_adapter_export(model, adapter, config, stage)
            if sentence_transformers:
                write_sentence_transformers(model, stage, limit)
            with nullcontext() if adapter is None else on_local_base(adapter, stage):
                found = check_vectors(model, stage, sentence_transformers)
            if onnx:
                found["onnxruntime"] = write_onnx(model, stage, limit)
            cost = write_quantized_onnx(model, stage) if onnx and quantized_onnx else None
            if cost is not None:
                found["onnxruntime, weights in 8 bits"] = cost["lowest_cosine"]
            if (checkpoint / RUN_FILE).exists():
                vectors = model.encode(list(EXAMPLES))
                added = {
                    "sentence_transformers": sentence_transformers,
                    "onnx": onnx,
                    "quantized_onnx": cost,
                    "max_seq_length": limit,
                    "readers": who_differs(model) if sentence_transformers else [],
                    "example_cosine": round(float(lowest_cosine(vectors[:1], vectors[1:])), 4),
                    "adapter_of": None if config is None else config["base_model_name_or_path"],
                }
                write_records(model, checkpoint, stage, (publication or {}) | added)
                keep_hand_made(folder, stage / CARD)
            write_manifest(stage, files_in(stage), render(stage) if (stage / RUN_FILE).exists() else None)
        if remembering and (checkpoint / RUN_FILE).exists():
            kept = {"sentence_transformers": sentence_transformers, "onnx": onnx, "quantized_onnx": quantized_onnx}
            remember(checkpoint, kept | ({} if truncate_dim is None else {"truncate_dim": truncate_dim}))
    return folder, found


def cut_vectors(model: Any, size: int) -> None:
    """Let ``model`` keep the first ``size`` dimensions of its vectors, also where it is loaded from.

    Raises:
        UserError: its vectors have fewer.
    """
    if size > model.dimensions:
        raise UserError(f"--truncate_dim is {size}; vectors of this encoder have {model.dimensions} dimensions")
    model.truncate_dim = size if size < model.dimensions else None
    model.keep_record()


def check_place(folder: Path) -> None:
    """Check that nothing is lost when an export takes the place of ``folder``.

    Raises:
        UserError: it holds files that no export wrote.
    """
    if folder.is_dir() and not is_export(folder) and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and not an export; give another --output_dir")
    foreign = foreign_files(folder) if is_export(folder) else []
    if foreign:
        raise UserError(
            f"{folder} would be replaced, but holds files that no export wrote: {shortened(foreign)}; move them, or "
            "give another --output_dir"
        )


def check_libraries(pooler: str, sentence_transformers: bool, onnx: bool) -> None:
    """Check that an export of this kind can be made here.

    Raises:
        UserError: a library is missing.
    """
    if sentence_transformers and find_spec("sentence_transformers") is None:
        raise UserError(
            "an export is checked in sentence-transformers, which is not installed: "
            "pip install 'hf_focalcse[export]', or export with --no_sentence_transformers"
        )
    if onnx and (find_spec("onnx") is None or find_spec("onnxruntime") is None):
        raise UserError(
            "--onnx needs onnx and onnxruntime: pip install 'hf_focalcse[onnx]', or leave ONNX out with --onnx false"
        )


def check_formats(model: Any, sentence_transformers: bool, onnx: bool) -> None:
    """Check that these formats can hold what the encoder does.

    Raises:
        UserError: one of them has no place for a part of it.
    """
    check_template(model.template, sentence_transformers)
    if not sentence_transformers and model.tail.state_dict():
        raise UserError(
            "this encoder has layers after pooling (Dense, LayerNorm), which only the files of sentence-transformers "
            "hold; leave --no_sentence_transformers out"
        )
    if onnx and model.unpooled:
        raise UserError(
            "this encoder leaves the tokens of its prompt out of pooling, which ONNX cannot know of; leave --onnx out"
        )


def say_as_prompt(model: Any) -> None:
    """Let an encoder whose template only stands before a text have it as its prompt, with which other libraries embed
    alike, at the length that the template leaves.

    Raises:
        UserError: that would give other vectors.
    """
    before = None if model.template is None else model.template.before
    if before is None:
        return
    vectors, template = model.encode(CHECKED), model.template
    kept = len(template.empty(model.tokenizer)[0]) + model.max_length()
    model.template = None
    model.prompts, model.default_prompt_name = add_prompt(model.prompts, before)
    model.max_seq_length = kept
    model.keep_record()
    lowest = lowest_cosine(vectors, model.encode(CHECKED))
    if lowest < LOWEST_COSINE:
        raise UserError(
            f"the template {template.text!r} as a prompt before each text gives other vectors (lowest cosine "
            f"{lowest:.7f}), since its tokens and those of a text run together; export with --no_sentence_transformers"
        )


def check_template(template: Any, sentence_transformers: bool) -> None:
    """Check that files of sentence-transformers are not asked for where they would give other vectors.

    Raises:
        UserError: texts stand in a template that does more than stand before them.
    """
    if template is not None and template.before is None and sentence_transformers:
        raise UserError(
            f"this encoder reads every text within the template {template.text!r}, and the files of "
            "sentence-transformers can say only what stands before a text: they would give other vectors; export it "
            "with --no_sentence_transformers, and the card shows how to embed with transformers"
        )


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder beside ``folder`` that takes its place when the block ends, and is deleted when it fails."""
    try:
        with draft_folder(folder) as stage, failed_writes():
            yield stage
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(
            f"the export to {folder} could not be written ({reason}); the checkpoint is untouched; "
            "free some space, or give another --output_dir"
        ) from error
