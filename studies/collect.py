"""The scores of a sweep's runs as one small file: python studies/collect.py RUNS > results.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hf_focalcse.evaluation import Results
from hf_focalcse.runs.record import RunRecord, without_paths

KEPT = ("/all/spearman", "/alignment", "/uniformity")
SETTINGS = ("temperature", "m", "weighting", "base")


def compact(folder: Path) -> dict[str, Any]:
    """What a table of the run needs: scores x 100 by task/split/aggregation/metric, and where they come from."""
    record, results = RunRecord.load(folder), Results.read(folder / "results.json")
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
        "scores": {name: value for name, value in results.scores.items() if name.endswith(KEPT)},
        "training_seconds": record.seconds,
        "weights_sha256": record.model["weights_sha256"],
    }


def before(folder: Path) -> dict[str, Any]:
    """The scores of an encoder that was judged without being trained."""
    results = Results.read(folder / "results.json")
    return {
        "pooler": results.metadata["model"]["pooler"],
        "scores": {name: value for name, value in results.scores.items() if name.endswith(KEPT)},
    }


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit("python studies/collect.py RUNS: give the folder of the sweep's runs")
    folders = sorted(path.parent for path in Path(sys.argv[1]).glob("*/run.json"))
    if not folders:
        raise SystemExit(f"there is no run.json in a folder of {sys.argv[1]}")
    judged = sorted(path.parent for path in Path(sys.argv[1]).glob("*/results.json"))
    records = [RunRecord.load(folder) for folder in folders]
    shared = {
        "commit": sorted({record.git_commit or "" for record in records}),
        "training_text_sha256": sorted({record.data["sha256"] for record in records}),
        "sentences": sorted({record.data["kept"] for record in records}),
        "versions": records[0].versions,
        "hardware": {key: records[0].hardware[key] for key in ("machine", "cpu_cores", "gpus")},
        "evaluation": without_paths(Results.read(folders[0] / "results.json").metadata["model"]),
    }
    shared["evaluation"] = {k: v for k, v in shared["evaluation"].items() if k in ("precision", "max_length")}
    runs = {folder.name: compact(folder) for folder in folders}
    untrained = {folder.name: before(folder) for folder in judged if folder not in folders}
    json.dump({**shared, "before_training": untrained, "runs": runs}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
