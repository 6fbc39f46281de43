"""What an export says of itself: run.json, results.json, pictures and the card."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..encoder.saving import HEAD_FILE
from ..errors import UserError
from ..runs.atomic import write_text
from ..runs.folder import WEIGHTS_FILE, read_results, same_weights, weights_sha256
from ..runs.record import RUN_FILE, RunRecord, without_paths
from ..runs.scores import RESULTS_FILE, Results
from .card import render, write_card
from .eval_results import eval_result_files
from .formats import ONNX_FILE, POOLING_FILE
from .manifest import CARD, MADE, files_in, is_export, read_manifest, write_manifest
from .merge import merge_cards
from .plots import draw_plots


def write_records(checkpoint: Path, stage: Path, publication: dict[str, Any]) -> None:
    """Write run.json and results.json as they may be published, naming the exported weights; then plots and card."""
    record = RunRecord.load(checkpoint).publishable()
    published = weights_sha256(stage)
    head = HEAD_FILE if (stage / HEAD_FILE).exists() else None
    names = {"weights_sha256": published, "checkpoint_sha256": weights_sha256(checkpoint), "projection_file": head}
    kept = {key: value for key, value in publication.items() if value is not None}
    said = {key: value for key, value in record.publication.items() if key != "wanted"}
    record = replace(record, model=record.model | names, publication=said | kept)
    record.save(stage)
    results = read_results(checkpoint)
    if results is not None:
        results.metadata["model"] |= {"weights_sha256": published}
        publishable(results, record).write(stage / RESULTS_FILE)
    write_pages(stage)


def remembered(checkpoint: Path, folder: Path) -> dict[str, bool]:
    """What an export of ``checkpoint`` holds where it is not said: what its newest export held, else what training
    asked for. ONNX is in it as soon as the export that it replaces, ``folder``, has it.
    """
    recorded = (checkpoint / RUN_FILE).exists() and RunRecord.load(checkpoint).publication.get("wanted")
    files = read_manifest(folder)["files"] if is_export(folder) else None
    return {
        "sentence_transformers": POOLING_FILE in files if files is not None else True,
        "onnx": False,
        **(recorded or {}),
        **({"onnx": True} if files is not None and ONNX_FILE in files else {}),
    }


def remember(checkpoint: Path, wanted: dict[str, bool]) -> None:
    """Let the next export of ``checkpoint`` hold the same."""
    record = RunRecord.load(checkpoint)
    if record.publication.get("wanted") != wanted:
        record.publication["wanted"] = wanted
        with contextlib.suppress(OSError):  # a folder that is not ours to write; its export was written all the same
            record.save(checkpoint)


def keep_hand_made(former: Path, card: Path) -> None:
    """Bring into the new card what was written by hand into the card of the export that is to be replaced."""
    if is_export(former) and (former / CARD).exists():
        by_hand, generated = ((former / CARD).read_text(encoding="utf-8"), card.read_text(encoding="utf-8"))
        write_text(card, merge_cards(read_manifest(former)["card"], by_hand, generated)[0])


def check_records(model: Any, checkpoint: Path) -> None:
    """Check that run.json and results.json, where there are any, belong to the weights beside them.

    Raises:
        UserError: one of them was written for other weights, or with another pooling.
    """
    trained = weights_sha256(checkpoint)
    if (checkpoint / RUN_FILE).exists():
        recorded = RunRecord.load(checkpoint).model.get("weights_sha256")
        if recorded not in (None, trained):
            raise UserError(f"{checkpoint / RUN_FILE} belongs to other weights than {WEIGHTS_FILE} there; train again")
    results = read_results(checkpoint)
    if results is not None:
        measured = results.metadata["model"]
        asked = {"weights_sha256": trained, "pooler": model.pooler_name, "projection": model.projection_use}
        for key, value in asked.items():
            if measured.get(key) != value:
                raise UserError(
                    f"{checkpoint / RESULTS_FILE} was measured with {key} {measured.get(key)}, not {value}; "
                    "run `focalcse eval` on the folder again"
                )


def publishable(results: Results, record: RunRecord) -> Results:
    """The results without paths of this machine."""
    details = without_paths(results.metadata, [of["source"] for of in results.metadata["data"].values()])
    details["model"]["name_or_path"] = record.publication.get("repo_id") or Path(details["model"]["name_or_path"]).name
    return Results(results.scores, details)


def write_pages(stage: Path) -> None:
    """What follows from the records: pictures, scores as the Hub reads them, the card."""
    draw_plots(stage)
    shutil.rmtree(stage / ".eval_results", ignore_errors=True)
    results = read_results(stage)
    for name, content in (eval_result_files(results) if results else {}).items():
        write_text(stage / name, content)
    write_card(stage)


def update_export(folder: Path, publication: dict[str, Any], results: Results | None = None) -> None:
    """Give an export another target, licence or language, or new scores; the card keeps what was written by hand.

    The weights may lie elsewhere.

    Raises:
        UserError: it has no run.json, or the scores are of other weights.
    """
    record, manifest = RunRecord.load(folder), read_manifest(folder)
    wanted = {key: value for key, value in publication.items() if value is not None}
    changed = any(record.publication.get(key) != value for key, value in wanted.items())
    if not changed and results is None:
        return
    if results is not None and not same_weights(results.metadata["model"], record.model):
        raise UserError(
            f"the scores were measured on weights {results.metadata['model'].get('weights_sha256')}, "
            f"but {record.publication.get('repo_id')} holds {record.model['weights_sha256']}; evaluate that one"
        )
    record.publication |= wanted
    record.save(folder)
    if results is not None:
        results, older = publishable(results, record), read_results(folder)
        (results.merge(older) if older else results).write(folder / RESULTS_FILE)
    card = folder / CARD
    by_hand = card.read_text(encoding="utf-8") if card.exists() else ""
    write_pages(folder)
    generated = card.read_text(encoding="utf-8")
    write_text(card, merge_cards(manifest["card"], by_hand, generated)[0])
    own = {*manifest["files"], RUN_FILE, RESULTS_FILE}
    kept = {name: sha256 for name, sha256 in manifest["files"].items() if not name.startswith(MADE)}
    names = [name for name in files_in(folder) if name in own or name.startswith(MADE)]
    write_manifest(folder, names, render(folder), kept)
