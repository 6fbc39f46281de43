"""The work of ``focalcse export``, ``focalcse push`` and ``--push_to_hub``, from plain values."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HTTPError

from ..encoder.lora import public_base
from ..errors import UserError
from ..runs.atomic import scratch_folder, write_text
from ..runs.folder import ADAPTER_FILE
from ..runs.record import RUN_FILE, RunRecord
from ..runs.scores import RESULTS_FILE, Results
from .export import check_libraries, check_place, check_template, export_model
from .export_records import remembered, renew, update_export
from .formats import ONNX_FILE, POOLING_FILE
from .hub import Target, check_target, describe, host, push, with_owner
from .manifest import CARD, MANIFEST, is_export, read_manifest

LICENSES = {  # of encoders that people start from, by their own cards
    "sentence-transformers/all-MiniLM-L6-v2": "apache-2.0",
    "bert-base-uncased": "apache-2.0",
    "bert-large-uncased": "apache-2.0",
    "google-bert/bert-base-uncased": "apache-2.0",
    "google-bert/bert-large-uncased": "apache-2.0",
    "distilbert-base-uncased": "apache-2.0",
    "distilbert/distilbert-base-uncased": "apache-2.0",
    "roberta-base": "mit",
    "roberta-large": "mit",
    "FacebookAI/roberta-base": "mit",
    "FacebookAI/roberta-large": "mit",
}
CARD_FILES = (CARD, RESULTS_FILE, RUN_FILE, MANIFEST)


def export_folder(
    folder: str | Path,
    output_dir: str | Path | None = None,
    *,
    license: str | None = None,
    language: str | None = None,
    sentence_transformers: bool | None = None,
    onnx: bool | None = None,
    quantized_onnx: bool | None = None,
    truncate_dim: int | None = None,
    adapter_only: bool = False,
) -> None:
    """``focalcse export FOLDER``: export it and print where to, and what was checked."""
    written, found = export_again(
        *(folder, output_dir, print),
        sentence_transformers=sentence_transformers,
        onnx=onnx,
        quantized_onnx=quantized_onnx,
        truncate_dim=truncate_dim,
        adapter_only=adapter_only,
        publication=describe_publication(Path(folder), None, license, language),
    )
    print(f"Exported to {written}")
    for library, cosine in found.items():
        print(f"  {library}: lowest cosine to the checkpoint's vectors {cosine:.9f}")
    if not (written / RUN_FILE).exists():
        print(f"  no {RUN_FILE} in {folder}, so there is no model card")
    elif "license" not in RunRecord.load(written).publication:
        print("  no licence is known for this encoder; name one with --license")


def export_again(
    checkpoint: str | Path, folder: str | Path | None = None, say: Callable[[str], Any] = print, **options: Any
) -> tuple[Path, dict[str, float]]:
    """`export_model`, which says what the export that it replaces had and the new one has not."""
    place = Path(folder) if folder else Path(checkpoint) / "hub"
    before = set(read_manifest(place)["files"]) if is_export(place) else set()
    written, found = export_model(checkpoint, folder, **options)
    if gone := sorted(before - set(read_manifest(written)["files"])):
        say(f"WARNING: the export before had {', '.join(gone)}; this one has not")
    return written, found


def publish(
    folder: str | Path,
    target: Target,
    *,
    license: str | None = None,
    language: str | None = None,
    sentence_transformers: bool | None = None,
    onnx: bool | None = None,
    quantized_onnx: bool | None = None,
    adapter_only: bool = False,
    dry_run: bool = False,
    say: Callable[[str], Any] = print,
) -> None:
    """``focalcse push FOLDER org/name``: push an export as it is, and a training folder after its export.

    Raises:
        UserError: there is no such folder, an export would have to be made anew, or what `export_model` and `push`
            raise.
    """
    check_target(target)
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give an export or the output folder of a training run")
    if not (is_export(folder) or (folder / RUN_FILE).is_file()):
        raise UserError(
            f"{folder} is neither an export nor the output folder of a finished run, since it has no {RUN_FILE}; "
            "nothing was written or sent"
        )
    target = with_owner(target, folder, say)
    publication = describe_publication(folder, target.repo_id, license, language)
    if is_export(folder):
        check_holds(folder, sentence_transformers, onnx, adapter_only)
    if dry_run:
        rehearse(folder, target, publication, sentence_transformers, onnx, adapter_only, say)
        return
    if is_export(folder):
        if (folder / RUN_FILE).exists():
            update_export(folder, publication)
    else:
        wanted = {
            "sentence_transformers": sentence_transformers,
            "onnx": onnx,
            "quantized_onnx": quantized_onnx,
            "adapter_only": adapter_only,
        }
        folder, found = export_again(folder, None, say, **wanted, publication=publication)
        checked = ", ".join(f"{library} {cosine:.8f}" for library, cosine in found.items())
        say(f"Exported to {folder}; lowest cosine to the checkpoint's vectors: {checked}")
    say(f"Published: {push(folder, target, say=say)}")


def rehearse(
    folder: Path,
    target: Target,
    publication: dict[str, Any],
    sentence_transformers: bool | None,
    onnx: bool | None,
    adapter_only: bool,
    say: Callable[[str], Any],
) -> None:
    """``--dry_run``: say what `publish` would send; the folder stays as it is.

    Raises:
        UserError: as `publish`.
    """
    if is_export(folder):
        with tempfile.TemporaryDirectory() as place:
            if (folder / RUN_FILE).exists():
                renew(folder, publication, None, Path(place))
            say(describe(folder, target, Path(place)))
        return
    hub = folder / "hub"
    check_place(hub)
    asked = {"sentence_transformers": sentence_transformers, "onnx": onnx}
    wanted = remembered(folder, hub) | {key: value for key, value in asked.items() if value is not None}
    with scratch_folder(hub) as place:
        made, _ = export_model(
            *(folder, place / hub.name),
            sentence_transformers=wanted["sentence_transformers"],
            onnx=wanted["onnx"],
            adapter_only=adapter_only,
            publication=publication,
            remembering=False,
        )
        say(describe(made, target))


def check_holds(
    export: Path, sentence_transformers: bool | None, onnx: bool | None, adapter_only: bool = False
) -> None:
    """An export is pushed as it is.

    Raises:
        UserError: another content is asked for than it has.
    """
    files = read_manifest(export)["files"]
    if adapter_only and ADAPTER_FILE not in files:
        raise UserError(
            f"{export} is exported already, as a whole encoder; give --adapter_only to focalcse export, and push what "
            "that writes"
        )
    for asked, file in ((sentence_transformers, POOLING_FILE), (onnx, ONNX_FILE)):
        if asked is not None and asked is not (file in files):
            raise UserError(
                f"{export} is exported already, {'with' if file in files else 'without'} {file}; give --onnx and "
                "--no_sentence_transformers to focalcse export"
            )


def describe_publication(
    folder: Path, repo_id: str | None, license: str | None, language: str | None
) -> dict[str, Any]:
    """What the card says beyond the run: asked for, else recorded at training, else known of the base encoder."""
    recorded: dict[str, Any] = {}
    base = None
    if (folder / RUN_FILE).exists():
        record = RunRecord.load(folder)
        recorded, base = record.publication, record.model.get("base_model")
    return {
        "repo_id": repo_id,
        "license": license or recorded.get("license") or LICENSES.get(base or ""),
        "language": language or recorded.get("language") or ("en" if base in LICENSES else None),
    }


def prepare_push(
    pooler: str,
    hub_model_id: str,
    *,
    sentence_transformers: bool | None = None,
    onnx: bool | None = None,
    adapter_only: bool = False,
    lora: Any = None,
    template: Any = None,
    say: Callable[[str], Any] = print,
) -> None:
    """Find, before training and without sending anything, what would keep a push from working.

    Raises:
        UserError: the name of the repository is not valid, or the export will not be possible.
    """
    check_target(Target(hub_model_id))
    check_template(template, sentence_transformers is not False)
    if adapter_only and lora is None:
        raise UserError(
            "--adapter_only belongs to --lora, which is not given; add --lora, or leave --adapter_only out"
        )
    if adapter_only:
        public_base(lora.base, lora.revision)
    check_libraries(pooler, sentence_transformers is not False, bool(onnx))
    if not get_token():
        say(f"WARNING: no token for {host()} yet: run `hf auth login` before training ends, or push the folder later.")


def publish_scores(
    model: str,
    folder: Path,
    results: Results,
    *,
    repo_id: str | None = None,
    private: bool | None = None,
    create_pr: bool = False,
    say: Callable[[str], Any] = print,
) -> None:
    """Put new scores of ``model``, which lie in ``folder``, on the Hub.

    model: a training folder, an export, or a repository that was published from here.

    Raises:
        UserError: the repository was not published from here, or the push fails.
    """
    repo_id = repo_id or model
    target = Target(repo_id, private, create_pr, None, f"Scores of {', '.join(results.metadata['data'])}")
    check_target(target)
    target = with_owner(target, folder, say)
    repo_id = target.repo_id
    if Path(model).is_dir():
        if not (folder / RUN_FILE).exists():
            raise UserError(f"{folder} has no {RUN_FILE}; only what was trained here can be published")
        if is_export(folder):
            update_export(folder, {"repo_id": repo_id}, results)
        publish(folder, target, say=say)
        return
    wanted = [*CARD_FILES, "plots/*", ".eval_results/*"]
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary) / "scores"
        try:
            head = HfApi().repo_info(repo_id).sha
            found = snapshot_download(repo_id, revision=head, allow_patterns=wanted)
        except (HfHubHTTPError, HTTPError, OSError) as error:
            raise UserError(
                f"{repo_id} could not be read ({type(error).__name__}); the scores are in {folder / RESULTS_FILE}"
            ) from error
        shutil.copytree(found, stage)
        if not all((stage / name).exists() for name in (RUN_FILE, MANIFEST)):
            raise UserError(
                f"{repo_id} was not published by focalcse push, so its card is not renewed; "
                f"the scores are in {folder / RESULTS_FILE}"
            )
        # the push merges what was written by hand on the Hub into this card, so it starts as it was generated
        write_text(stage / CARD, read_manifest(stage)["card"] or "")
        update_export(stage, {"repo_id": repo_id}, results)
        say(f"Published: {push(stage, target, only=lambda _: True, say=say)}")
