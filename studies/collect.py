"""The scores of the runs of a sweep in one small file: python studies/collect.py RUNS > results.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hf_focalcse.runs.folder import Run
from hf_focalcse.runs.record import RUN_FILE, without_paths
from hf_focalcse.runs.scores import RESULTS_FILE, Results, ScoreKey

SETTINGS = ("temperature", "m", "weighting", "base")


def kept(results: Results) -> dict[str, float]:
    """One score for each set, with alignment and uniformity."""
    keys = {name: ScoreKey.parse(name) for name in results.scores}
    wanted = [name for name, key in keys.items() if key.is_headline or key.metric in ("alignment", "uniformity")]
    return {name: results.scores[name] for name in wanted}


def compact(run: Run) -> dict[str, Any]:
    """What a table of the run needs: scores x 100 by task/split/aggregation/metric, and their origin."""
    record, results = run.record, run.judged()
    key = record.best["metric"] if record.best else None
    return {
        "loss": record.loss["name"],
        **{name: record.loss[name] for name in SETTINGS if name in record.loss},
        "pooler": record.model["pooler"],
        "learning_rate": record.settings["learning_rate"],
        "seed": record.seed,
        "steps": record.settings["max_steps"],
        "best_step": record.best["step"] if record.best else None,
        "dev": {key: [record.baseline[key], record.final[key]]} if key else {},  # before and after training
        "scores": kept(results),
        "training_seconds": record.seconds,
        "weights_sha256": record.model["weights_sha256"],
    }


def before(folder: Path) -> dict[str, Any]:
    """The scores of an encoder that was evaluated without being trained here."""
    results = Results.read(folder / RESULTS_FILE)
    return {
        "pooler": results.metadata["model"]["pooler"],
        "scores": kept(results),
    }


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit("python studies/collect.py RUNS: give the folder of a sweep's runs")
    folders = sorted(path.parent for path in Path(sys.argv[1]).glob(f"*/{RUN_FILE}"))
    if not folders:
        raise SystemExit(f"there is no {RUN_FILE} in a folder of {sys.argv[1]}")
    judged = sorted(path.parent for path in Path(sys.argv[1]).glob(f"*/{RESULTS_FILE}"))
    found = [Run.read(folder) for folder in folders]
    records = [run.record for run in found]
    shared = {
        "commit": sorted({record.git_commit or "" for record in records}),
        "training_text_sha256": sorted({record.data["sha256"] for record in records}),
        "sentences": sorted({record.data["kept"] for record in records}),
        "versions": records[0].versions,
        "hardware": {key: records[0].hardware[key] for key in ("machine", "cpu_cores", "gpus")},
        "evaluation": without_paths(found[0].judged().metadata["model"]),
    }
    shared["evaluation"] = {k: v for k, v in shared["evaluation"].items() if k in ("precision", "max_length")}
    runs = {run.folder.name: compact(run) for run in found}
    untrained = {folder.name: before(folder) for folder in judged if folder not in folders}
    json.dump({**shared, "before_training": untrained, "runs": runs}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
