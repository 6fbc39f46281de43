"""The jobs behind ``focalcse export``, ``focalcse push`` and ``--push_to_hub``."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HTTPError

from ..errors import UserError
from ..evaluation import Results
from ..options.evaluation import Evaluation
from ..options.training import Publish
from ..quickstart import BASE_MODEL
from ..runs.record import RUN_FILE, RunRecord
from .export import MANIFEST, RESULTS_FILE, check_libraries, export_model, is_export, update_export
from .hub import Target, check_target, describe, host, push

LICENSES = {  # of encoders that people start from, by their own cards
    BASE_MODEL: "apache-2.0",
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
CARD_FILES = ("README.md", RESULTS_FILE, RUN_FILE, MANIFEST)


def export_folder(args: Any) -> None:
    """``focalcse export FOLDER``."""
    if args.folder is None:
        raise UserError("no folder to export: focalcse export FOLDER")
    folder, found = export_model(
        args.folder,
        args.output_dir,
        sentence_transformers=args.sentence_transformers,
        onnx=args.onnx,
        publication=describe_publication(Path(args.folder), args, None),
    )
    print(f"Exported to {folder}")
    for library, cosine in found.items():
        print(f"  {library}: lowest cosine to the checkpoint's vectors {cosine:.9f}")
    if not (folder / RUN_FILE).exists():
        print(f"  no {RUN_FILE} in {args.folder}, so there is no model card")
    elif "license" not in RunRecord.load(folder).publication:
        print("  no licence is known for this encoder; name one with --license")


def push_folder(args: Any) -> None:
    """``focalcse push FOLDER org/name``: an export as it is, a training folder after its export."""
    if args.folder is None or args.hub_model_id is None:
        raise UserError("push needs a folder and a repository: focalcse push FOLDER org/name")
    target = Target(args.hub_model_id, args.private, args.create_pr, args.revision, args.message)
    publish(Path(args.folder), target, args, args.dry_run, print)


def publish(folder: Path, target: Target, args: Publish, dry_run: bool, say: Callable[[str], Any]) -> None:
    """Export where needed, then push."""
    check_target(target)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give an export or the output folder of a training run")
    if is_export(folder):
        if args.onnx or not args.sentence_transformers:
            raise UserError(f"{folder} is exported already; --onnx and --no_sentence_transformers go to its export")
        if (folder / RUN_FILE).exists():
            update_export(folder, describe_publication(folder, args, target.repo_id))
    else:
        folder, found = export_model(
            folder,
            sentence_transformers=args.sentence_transformers,
            onnx=args.onnx,
            publication=describe_publication(folder, args, target.repo_id),
        )
        checked = ", ".join(f"{library} {cosine:.8f}" for library, cosine in found.items())
        say(f"Exported to {folder}; lowest cosine to the checkpoint's vectors: {checked}")
    if dry_run:
        say(describe(folder, target))
        return
    say(f"Published: {push(folder, target, say=say)}")


def describe_publication(folder: Path, args: Publish, repo_id: str | None) -> dict[str, Any]:
    """What the card says beyond the run: asked for, else recorded at training, else known of the base encoder."""
    recorded: dict[str, Any] = {}
    base = None
    if (folder / RUN_FILE).exists():
        record = RunRecord.load(folder)
        recorded, base = record.publication, record.model.get("base_model")
    return {
        "repo_id": repo_id,
        "license": args.license or recorded.get("license") or LICENSES.get(base or ""),
        "language": args.language or recorded.get("language") or ("en" if base in LICENSES else None),
    }


def prepare_push(pooler: str, hub_model_id: str | None, args: Publish, say: Callable[[str], Any]) -> None:
    """Before training: see what could be wrong with a push without sending anything.

    Raises:
        UserError: no repository is named, or the export will not be possible.
    """
    if hub_model_id is None:
        raise UserError("--push_to_hub needs --hub_model_id org/name")
    check_target(Target(hub_model_id))
    check_libraries(pooler, args.sentence_transformers, args.onnx)
    if not get_token():
        say(f"WARNING: no token for {host()} yet: run `hf auth login` before training ends, or push the folder later.")


def publish_scores(args: Evaluation, folder: Path, results: Results, say: Callable[[str], Any]) -> None:
    """New scores of a training folder, or of a repository that was published from here, onto the Hub.

    Raises:
        UserError: the repository was not published from here, or the push fails.
    """
    repo_id = args.hub_model_id or str(args.model_name_or_path)
    target = Target(repo_id, args.private, args.create_pr, None, f"Scores of {', '.join(results.metadata['data'])}")
    check_target(target)
    if Path(str(args.model_name_or_path)).is_dir():
        if not (folder / RUN_FILE).exists():
            raise UserError(f"{folder} has no {RUN_FILE}; only what was trained here can be published")
        if is_export(folder):
            update_export(folder, {"repo_id": repo_id}, results)
        wanted = {} if is_export(folder) else RunRecord.load(folder).publication.get("wanted", {})
        publish(folder, target, Publish(**wanted), False, say)
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
        # the card on the Hub is merged when it is pushed; here only the generated one is wanted
        (stage / "README.md").write_text(json.loads((stage / MANIFEST).read_text())["card"], encoding="utf-8")
        update_export(stage, {"repo_id": repo_id}, results)
        say(f"Published: {push(stage, target, only=lambda _: True, say=say)}")
