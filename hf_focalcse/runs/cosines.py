"""What was measured of every pair, query or sentence <-> pairs.npz beside results.json, for tests over them."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import UserError
from .atomic import draft
from .scores import IDENTITY, Results, set_of

PAIRS_FILE = "pairs.npz"
ABOUT = "about.json"
DAMAGED = (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError, zipfile.BadZipFile, zlib.error)
TEXTS = "texts/"  # before the name of a set: which pairs or units these are
UNITS = "units/"  # before the key of a score: the values whose mean it is


def write_cosines(folder: str | Path, results: Results) -> None:
    """Write the gold score and the cosine of every pair of ``results``, and the scores of every query or sentence.

    Sets that were measured before with the same model are kept.
    """
    file = Path(folder) / PAIRS_FILE
    model = {key: results.metadata["model"].get(key) for key in IDENTITY}
    sets = results.pairs | {UNITS + key: of for key, of in results.units.items()}
    data = {key: results.metadata["data"][key]["sha256"] for key in {*results.pairs, *map(set_of, results.units)}}
    if file.exists() and model["weights_sha256"]:
        try:
            older, about = _read(file)
        except DAMAGED:  # what it held is measured anew
            older, about = {}, {"model": None}
        if about["model"] == model:
            sets, data = older | sets, about["data"] | data
    sets |= {TEXTS + key: of for key, of in results.texts.items()}
    text = json.dumps({"model": model, "data": data})
    with draft(file) as part, open(part, "wb") as stream:  # savez would add .npz to a path
        np.savez_compressed(stream, **{ABOUT: np.array(text), **sets})  # type: ignore[arg-type]


def read_cosines(folder: str | Path, results: Results) -> dict[str, np.ndarray]:
    """Set -> (2, N) gold scores and cosines behind these results of ``folder``; empty where none were kept.

    Raises:
        UserError: the file is damaged.
    """
    return recall(folder, results).pairs


def read_fingerprints(folder: str | Path, results: Results) -> dict[str, np.ndarray]:
    """Set -> (N,) int64 fingerprints of the texts of its pairs, as in `read_cosines`; older files have none."""
    return recall(folder, results).texts


def recall(folder: str | Path, results: Results) -> Results:
    """``results`` of ``folder`` with the pairs, units and texts that were kept of them, see `Results`.

    Raises:
        UserError: the file is damaged.
    """
    kept = _kept(folder, results)
    units, texts = (
        {key.removeprefix(kind): of for key, of in kept.items() if key.startswith(kind)} for kind in (UNITS, TEXTS)
    )
    pairs = {key: of for key, of in kept.items() if not key.startswith((UNITS, TEXTS))}
    return replace(results, pairs=pairs, units=units, texts=texts)


def _kept(folder: str | Path, results: Results) -> dict[str, np.ndarray]:
    """What was measured with the same model, pooling and precision, on the same pairs."""
    file = Path(folder) / PAIRS_FILE
    if not file.exists():
        return {}
    try:
        sets, about = _read(file)
    except DAMAGED as error:
        raise UserError(f"{file} cannot be read ({error}); delete it and evaluate again") from error
    model, data = results.metadata["model"], results.metadata["data"]
    if about["model"] != {key: model.get(key) for key in IDENTITY}:
        return {}
    measured = {key for key, sha256 in about["data"].items() if data.get(key, {}).get("sha256") == sha256}
    return {key: of for key, of in sets.items() if set_of(key.removeprefix(TEXTS).removeprefix(UNITS)) in measured}


def _read(file: Path) -> tuple[dict[str, np.ndarray], dict]:
    with np.load(io.BytesIO(file.read_bytes())) as content:
        about = json.loads(str(content[ABOUT]))
        if not all(isinstance(about.get(key), kind) for key, kind in {"model": dict | None, "data": dict}.items()):
            raise ValueError(f"its {ABOUT} does not say what was measured")
        return {key: content[key] for key in content.files if key != ABOUT}, about
