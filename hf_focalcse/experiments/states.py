"""How far the run in a folder is, by what training, evaluation and a sweep have left there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..options.evaluation import Evaluation
from ..options.field import PATH, options_of
from ..parsing.evaluation import parse_eval
from ..runs.record import RUN_FILE, RunRecord
from ..runs.scores import RESULTS_FILE, Results
from ..training.checkpoints import find_checkpoint, list_checkpoints
from .asked import differences_from_command, same_command
from .grid import Grid, PlannedRun

ASKED = "sweep.json"  # in a run's folder: the flags that it was started with, and those that it was evaluated with
NEW, INTERRUPTED, DAMAGED, TRAINED, FINISHED = "new", "interrupted", "not resumable", "trained", "finished"


def state_of(run: PlannedRun, folder: Path, grid: Grid) -> str:
    """How far the run in ``folder`` is.

    Raises:
        UserError: the folder holds a run with other settings.
    """
    asked = folder / ASKED
    cut = is_cut(folder / RUN_FILE)
    if (folder / RUN_FILE).exists() and not cut:
        record = RunRecord.load(folder)
        _refuse_other(run, record.command, folder)
        if record.seconds is not None:
            return FINISHED if grid.evaluate is None or is_evaluated(folder, record, grid.evaluate) else TRAINED
    elif asked.exists():
        try:
            command = json.loads(asked.read_text(encoding="utf-8"))["command"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{asked} cannot be read ({error}); delete {folder} to start the run again") from error
        _refuse_other(run, command, folder)
    if cut:
        return DAMAGED
    if not list_checkpoints(folder):
        return NEW
    try:
        return INTERRUPTED if find_checkpoint(folder, "last") else NEW
    except UserError:
        return DAMAGED  # the run starts again from the beginning


def summary(states: dict[str, str]) -> str:
    """How many runs are in each state."""
    kinds = (NEW, INTERRUPTED, DAMAGED, TRAINED, FINISHED)
    counted = [f"{n} {kind}" for kind in kinds if (n := sum(state == kind for state in states.values()))]
    return f"{len(states)} run{'s' * (len(states) != 1)} ({', '.join(counted)})"


def is_cut(file: Path) -> bool:
    """Whether a record exists but is not JSON, as a full disk or a power failure leaves it.

    A record of another version of this package is not cut.
    """
    try:
        return file.exists() and not isinstance(json.loads(file.read_bytes()), dict)
    except ValueError:
        return True


def _refuse_other(run: PlannedRun, command: list[str], folder: Path) -> None:
    asked = read_asked(folder)
    try:
        by_sweep = "asked" in asked and same_command(command, asked["command"])
        found = differences_from_command(run.asked, command, asked["asked"] if by_sweep else None)
    except (UserError, SystemExit) as error:
        raise UserError(
            f"{folder} holds a run whose settings cannot be compared: {error}; give another --runs"
        ) from error
    if found:
        more = f" (and {len(found) - 1} more: {', '.join(text.split()[0] for text in found[1:])})" if found[1:] else ""
        raise UserError(
            f"{folder} holds a run with other settings than the grid's: {found[0]}{more}; "
            "give another --runs, or delete the folder"
        )


def read_asked(folder: Path) -> dict[str, Any]:
    """The content of a run's sweep.json; empty where the file is missing or damaged."""
    try:
        asked = json.loads((folder / ASKED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return asked if isinstance(asked, dict) else {}


def is_evaluated(folder: Path, record: RunRecord, evaluate: tuple[str, ...]) -> bool:
    """Whether a sweep has evaluated these weights with these flags, and results.json still holds every set.

    The names of the sets alone are no proof: two files of pairs may have the same name.
    """
    judged = read_asked(folder).get("judged")
    try:
        found = evaluation_of(folder, evaluate)
    except UserError:  # results.json is missing or damaged
        return False
    return (
        isinstance(judged, dict)
        and found["weights_sha256"] == record.model.get("weights_sha256")
        and all(judged.get(key) == found[key] for key in ("by", "weights_sha256"))
        and set(judged.get("sets", ())) <= set(found["sets"])
    )


def evaluation_of(folder: Path, evaluate: tuple[str, ...]) -> dict[str, Any]:
    """What identifies an evaluation: the flags that change scores, and the weights and sets in results.json."""
    options = options_of(Evaluation)
    asked = asdict(parse_eval(list(evaluate))).items()
    by = {key: value for key, value in asked if value not in (None, False) and not options[key].harmless}
    for flag in by:
        if options[flag].role == PATH and Path(by[flag]).exists():
            by[flag] = str(Path(by[flag]).resolve())
    metadata = Results.read(folder / RESULTS_FILE).metadata
    return {"by": by, "weights_sha256": metadata["model"].get("weights_sha256"), "sets": sorted(metadata["data"])}
