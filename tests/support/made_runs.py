"""Run folders made up from literals: the records of runs that never happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hf_focalcse.runs.record import RunRecord

DEV, TEST = "STSBenchmark/dev", "STSBenchmark/test"
SEVEN = ("STS12/test", "STS13/test", "STS14/test", "STS15/test", "STS16/test", TEST, "SICK-R/senteval-test")


def made_run(
    folder: Path,
    seed: int,
    dev: float,
    seven: list[float] | None = None,
    loss: str = "focal",
    log: list[dict[str, Any]] | None = None,
    counts: dict[str, list[int]] | None = None,
    **settings: Any,
) -> Path:
    """A run that ended at ``dev``; settings: m, temperature and phi are the loss's, the rest is the run's."""
    own = {key: settings.pop(key) for key in ("m", "temperature", "phi") if key in settings}
    kept, name = settings.pop("kept", 28_503), settings.pop("encoder", "all-minilm")
    scores: dict[str, Any] = {f"{DEV}/all/spearman": dev, f"{DEV}/alignment": 0.15, f"{DEV}/uniformity": -2.5}
    if seven:
        scores |= {f"{key}/all/spearman": score for key, score in zip(SEVEN, seven, strict=True)}
        scores["average/senteval-sickr/all/spearman"] = round(sum(seven) / 7, 6)
    RunRecord(
        command=["run_unsup.py", "--train_file", "/home/somebody/wiki.txt"],
        recipe=None,
        settings={"per_device_train_batch_size": 64, "gradient_accumulation_steps": 1, "seed": seed, "max_steps": 20,
                  "train_file": "/home/somebody/wiki.txt", "output_dir": f"/home/somebody/{folder.name}"} | settings,
        loss={"name": loss, "temperature": 0.05, "formula": "", "paper": "", "citation": ""} | own,
        model={"name_or_path": name, "base_model": name, "pooler": settings.get("pooler", "cls"),
               "projection": "training", "dropout": {"hidden": 0.1, "attention": 0.1}, "augmentation": ["dropout"],
               "reference": {"name_or_path": "teacher"} if loss == "dclr" else None,
               "weights_sha256": folder.name.encode().hex()},
        data={"source": "wiki.txt", "lines_read": 28_503, "kept": kept, "samples": ["A sentence of the corpus."],
              "sha256": f"text{seed if kept < 28_503 else ''}", "max_samples": kept if kept < 28_503 else None},
        seed=seed,
        world_size=1,
        versions={"torch": "2.6"},
        git_commit="abc",
        hardware={"machine": "x86_64"},
        started="2026-01-01",
        seconds=100.0,
        log=log if log is not None else [line(10, dev - 1), line(20, dev)],
        baseline={f"{DEV}/all/spearman": 79.0, f"{DEV}/alignment": 0.1, f"{DEV}/uniformity": -2.0},
        notes=["a note"],
    ).save(folder)  # fmt: skip
    write_results(folder, scores, folder.name.encode().hex(), counts, settings.get("pooler", "cls"))
    return folder


def write_results(
    folder: Path,
    scores: dict[str, Any],
    weights: str | None = None,
    counts: dict[str, list[int]] | None = None,
    pooler: str = "cls",
    projection: str = "training",
    name: str = "all-minilm",
    **model: Any,
) -> None:
    model |= {"name_or_path": name, "pooler": pooler, "projection": projection, "weights_sha256": weights}
    data = {DEV: {"sha256": "dev", "cosines": {"counts": counts}}} if counts else {}
    folder.mkdir(parents=True, exist_ok=True)
    content = scores | {"metadata": {"format": 1, "protocol": "", "model": model, "data": data}}
    (folder / "results.json").write_text(json.dumps(content))


def line(step: int, dev: float) -> dict[str, Any]:
    """Of the log, at an evaluation."""
    of_dev = {"all/spearman": dev, "alignment": 0.1 + step / 1000, "uniformity": -2 - step / 100}
    return {"step": step, "epoch": 0.1} | {f"eval_{DEV}/{key}": value for key, value in of_dev.items()}
