"""What an encoder was trained with before a run began: the runs that lie behind the folder that it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .record import RUN_FILE, RunRecord


def stages_before(folder: str | Path | None) -> list[dict[str, Any]]:
    """One row for each run behind an encoder, the first one first; none where it is no run's folder.

    A row has objective, loss, stage (its name in a recipe), text, sentences, sha256, steps, learning_rate, seed,
    seconds, weights_sha256, formula and paper.
    """
    if folder is None or not (Path(folder) / RUN_FILE).is_file():
        return []
    record = RunRecord.load(Path(folder))
    return [*record.stages, row_of(record)]


def row_of(record: RunRecord) -> dict[str, Any]:
    """A run in one row."""
    loss, data = record.loss, record.data
    return {
        "stage": record.settings.get("stage"),
        "objective": loss.get("objective") or loss.get("name"),
        "loss": loss.get("name"),
        "formula": loss.get("formula"),
        "paper": loss.get("paper"),
        "text": Path(str(data.get("source", ""))).name,
        "sentences": data.get("kept"),
        "sha256": data.get("sha256"),
        "steps": max((line.get("step", 0) for line in record.log), default=0),
        "learning_rate": record.settings.get("learning_rate"),
        "seed": record.seed,
        "seconds": record.seconds,
        "weights_sha256": record.model.get("weights_sha256"),
    }
