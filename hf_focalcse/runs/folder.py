"""`Run.read`: a folder -> the run in it, whose record and scores are of the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from .record import RUN_FILE, RunRecord, file_sha256
from .scores import RESULTS_FILE, Results

WEIGHTS_FILE = "model.safetensors"
ADAPTER_FILE = "adapter_model.safetensors"  # of a folder that holds an adapter in place of a whole encoder


@dataclass(frozen=True)
class Run:
    """What a training run, or an export of it, left in its folder.

    record: run.json. results: results.json, None where the folder has none. That both are of the same weights has
    been checked where both name theirs; a file by an older version of this package may name none.
    """

    folder: Path
    record: RunRecord
    results: Results | None

    @classmethod
    def read(cls, folder: str | Path) -> Run:
        """Read a folder, also one of version 0.1.

        Raises:
            UserError: run.json is missing, a file is damaged, or the scores are of other weights.
        """
        folder = Path(folder)
        record, results = RunRecord.load(folder), read_results(folder)
        if results is not None and same_weights(record.model, results.metadata["model"]) is False:
            raise UserError(
                f"{folder / RESULTS_FILE} was measured on other weights than {RUN_FILE} names; "
                "evaluate the folder again"
            )
        return cls(folder, record, results)

    @property
    def finished(self) -> bool:
        return self.record.seconds is not None

    @property
    def scores(self) -> dict[str, float]:
        """The dev scores of what was saved and, where they differ or add to it, those of results.json."""
        return self.record.final | (self.results.scores if self.results else {})

    @property
    def data(self) -> dict[str, Any]:
        """Set -> what results.json says of it; empty without results.json."""
        return self.results.metadata["data"] if self.results else {}

    def judged(self) -> Results:
        """The scores, known to be of the weights that run.json names.

        Raises:
            UserError: there is no results.json, or one of the two files does not name its weights.
        """
        results = self.results or Results.read(self.folder / RESULTS_FILE)
        if not same_weights(results.metadata["model"], self.record.model):
            raise UserError(
                f"{self.folder / RESULTS_FILE} does not name the weights that {RUN_FILE} names; "
                "evaluate the folder again"
            )
        return results


def read_results(folder: str | Path) -> Results | None:
    """results.json of a folder, None where it has none; UserError where it is damaged."""
    file = Path(folder) / RESULTS_FILE
    return Results.read(file) if file.exists() else None


def same_weights(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    """Whether two descriptions of an encoder, in run.json or results.json, name the same weights; None: unknown."""
    first, second = one.get("weights_sha256"), other.get("weights_sha256")
    return first == second if first and second else None


def weights_sha256(folder: str | Path) -> str | None:
    """None where the weights do not lie in one file."""
    file = next((path for name in (WEIGHTS_FILE, ADAPTER_FILE) if (path := Path(folder) / name).is_file()), None)
    return None if file is None else file_sha256(file)
