"""Seconds a step and peak memory of each method of family.yaml: python studies/family/cost.py [GRID] > cost.json

Every method trains for a few steps without a dev set, in a process of its own; the methods take turns, so that what
else the machine does meets all of them, and the quickest of the turns counts. Run it in a folder with wiki3.txt.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

STEPS, TURNS = 8, 2
WITHOUT = ("sts_dir", "eval_steps", "logging_steps", "max_steps")
SHORT = {"max_steps": STEPS, "logging_steps": STEPS, "eval_strategy": "no", "save_strategy": "no", "seed": 1}
MEASURED = """
import json, resource, runpy, sys
sys.argv = ["focalcse", *json.loads(sys.argv[1])]
try:
    runpy.run_module("hf_focalcse", run_name="__main__")
finally:
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def flags_of(settings: dict[str, Any], folder: str) -> list[str]:
    """The command line of one run."""
    found = ["train", f"--output_dir={folder}", "--load_best_model_at_end=false"]
    for name, value in settings.items():
        found += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    return found


def measure(settings: dict[str, Any]) -> tuple[float, float]:
    """(seconds a step, peak memory in GB) of one run."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-c", MEASURED, json.dumps(flags_of(settings, f"{folder}/out"))]
        done = subprocess.run(line, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": "0"})
        if done.returncode:
            raise SystemExit(f"{settings} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        peak = float(done.stderr.rpartition("peak ")[2].split()[0])
        log = json.loads((Path(folder) / "out/run.json").read_text())["log"]
    (seconds,) = (row["train_runtime"] for row in log if "train_runtime" in row)
    return seconds / STEPS, peak / 1e6


def main() -> None:
    grid = yaml.safe_load(
        Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("family.yaml")).read_text()
    )
    base = {name: value for name, value in grid["base"].items() if name not in WITHOUT}
    methods = {name: base | flags | SHORT for name, flags in grid["axes"]["method"].items() if "recipe" not in flags}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    for _ in range(TURNS):
        for name, settings in methods.items():
            found[name].append(measure(settings))
            print(name, found[name][-1], file=sys.stderr)
    quickest = {name: min(seconds for seconds, _ in turns) for name, turns in found.items()}
    rows = {
        name: {
            "seconds_a_step": round(quickest[name], 3),
            "relative_to_infonce": round(quickest[name] / quickest["infonce"], 2),
            "peak_memory_gb": round(max(peak for _, peak in turns), 2),
        }
        for name, turns in found.items()
    }
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
