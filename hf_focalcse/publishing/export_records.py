"""What an export says of itself: run.json, results.json, pictures and the card."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..encoder.saving import HEAD_FILE
from ..errors import UserError
from ..runs.atomic import write_bytes, write_text
from ..runs.folder import WEIGHTS_FILE, read_results, same_weights, weights_sha256
from ..runs.locking import locked
from ..runs.record import RUN_FILE, RunRecord, without_paths
from ..runs.scores import RESULTS_FILE, Results
from .card import write_card
from .eval_results import eval_result_files
from .formats import ONNX_FILE, POOLING_FILE, QUANTIZED_FILE
from .manifest import CARD, MADE, MANIFEST, files_in, is_export, read_manifest, write_manifest
from .merge import merge_or_refuse
from .plain import dimensions_of
from .plots import draw_plots
from .shortened import cut_scores


def write_records(model: Any, checkpoint: Path, stage: Path, publication: dict[str, Any]) -> None:
    """Write run.json and results.json as they may be published, naming the exported weights; then plots and card.

    model: the encoder as it is exported, whose vectors may be cut to fewer dimensions than when it was trained.
    """
    record = RunRecord.load(checkpoint).publishable()
    published = weights_sha256(stage)
    head = HEAD_FILE if (stage / HEAD_FILE).exists() else None
    names = {"weights_sha256": published, "checkpoint_sha256": weights_sha256(checkpoint), "projection_file": head}
    kept = {key: value for key, value in publication.items() if value is not None}
    said = {key: value for key, value in record.publication.items() if key != "wanted"}
    record = replace(record, model=record.model | names | dimensions_of(model), publication=said | kept)
    results = read_results(checkpoint)
    record, results = cut_scores(record, results, model.truncate_dim)
    record.save(stage)
    if results is not None:
        results.metadata["model"] |= {"weights_sha256": published}
        publishable(results, record).write(stage / RESULTS_FILE)
    write_pages(stage)


def remembered(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """What an export of ``checkpoint`` holds where it is not said: what its newest export held, else what training
    asked for. ONNX is in it as soon as the export that it replaces, ``folder``, has it.
    """
    recorded = (checkpoint / RUN_FILE).exists() and RunRecord.load(checkpoint).publication.get("wanted")
    files = read_manifest(folder)["files"] if is_export(folder) else None
    return {
        "sentence_transformers": POOLING_FILE in files if files is not None else True,
        "onnx": False,
        "quantized_onnx": files is None or ONNX_FILE not in files or QUANTIZED_FILE in files,
        **(recorded or {}),
        **({"onnx": True} if files is not None and ONNX_FILE in files else {}),
    }


def remember(checkpoint: Path, wanted: dict[str, Any]) -> None:
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
        write_text(card, merge_or_refuse(read_manifest(former)["card"], by_hand, generated, str(former / CARD))[0])


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
        UserError: it has no run.json, the scores are of other weights, or the card has metadata that are not YAML.
    """
    with locked(folder), tempfile.TemporaryDirectory() as place:
        renewed = Path(place)
        before, names = read_manifest(folder)["files"], renew(folder, publication, results, renewed)
        # run.json comes last: as long as it is the old one, the same command does all of this again
        for name in sorted(names, key=lambda name: (name == RUN_FILE, name == MANIFEST)):
            write_bytes(folder / name, (renewed / name).read_bytes())
        for name in before if names else ():
            if name.startswith(MADE) and name not in names:
                (folder / name).unlink(missing_ok=True)


def renew(folder: Path, publication: dict[str, Any], results: Results | None, stage: Path) -> list[str]:
    """Write into ``stage`` what changes in an export; the names of the files, none where nothing does.

    Raises:
        UserError: as `update_export`.
    """
    record, manifest = RunRecord.load(folder), read_manifest(folder)
    wanted = {key: value for key, value in publication.items() if value is not None}
    changed = any(record.publication.get(key) != value for key, value in wanted.items())
    if not changed and results is None:
        return []
    if results is not None and not same_weights(results.metadata["model"], record.model):
        raise UserError(
            f"the scores were measured on weights {results.metadata['model'].get('weights_sha256')}, "
            f"but {record.publication.get('repo_id')} holds {record.model['weights_sha256']}; evaluate that one"
        )
    record.publication |= wanted
    record.save(stage)
    older = read_results(folder)
    if results is not None:
        results = publishable(results, record)
        results = results.merge(older) if older else results
    if (now := results or older) is not None:
        now.write(stage / RESULTS_FILE)
    write_pages(stage)
    card, generated = folder / CARD, (stage / CARD).read_text(encoding="utf-8")
    by_hand = card.read_text(encoding="utf-8") if card.exists() else ""
    write_text(stage / CARD, merge_or_refuse(manifest["card"], by_hand, generated, str(card))[0])
    kept = {name: sha256 for name, sha256 in manifest["files"].items() if not name.startswith(MADE)}
    write_manifest(stage, files_in(stage), generated, kept)
    return files_in(stage)
