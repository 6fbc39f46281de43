"""Contenders measured in turn within one process, compared by the ratios of each turn; a table and json of them."""

from __future__ import annotations

import gc
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("torch", "transformers", "sentence-transformers", "numpy")


@dataclass
class Measured:
    """Seconds of each contender, one a turn: ``seconds[name][turn]``."""

    seconds: dict[str, list[float]]

    def ratios(self, name: str, base: str) -> np.ndarray:
        """(turns,): seconds of ``name`` over seconds of ``base`` in the same turn."""
        return np.array(self.seconds[name]) / np.array(self.seconds[base])

    def summary(self, base: str) -> dict[str, dict[str, float]]:
        """Per contender: median seconds, and median, quartiles and extremes of its ratio to ``base``."""
        rows = {}
        for name, seconds in self.seconds.items():
            ratios = self.ratios(name, base)
            low, high = np.quantile(ratios, [0.25, 0.75])
            rows[name] = {
                "seconds_median": float(np.median(seconds)),
                "ratio_median": float(np.median(ratios)),
                "ratio_quartile_1": float(low),
                "ratio_quartile_3": float(high),
                "ratio_min": float(ratios.min()),
                "ratio_max": float(ratios.max()),
                "turns": len(seconds),
            }
        return rows


def interleave(contenders: Mapping[str, Callable[[int], Any]], turns: int, warm_up: int = 1) -> Measured:
    """Run every contender once a turn with the turn's number, in an order that rotates, so that other load and a
    drifting clock hit all alike; the first ``warm_up`` turns are not kept."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(warm_up + turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            gc.collect()
            started = time.perf_counter()
            contenders[name](turn)
            taken = time.perf_counter() - started
            if turn >= warm_up:
                seconds[name].append(taken)
    return Measured(seconds)


def table(title: str, rows: Mapping[str, Mapping[str, float]], base: str) -> str:
    """`Measured.summary` for the terminal."""
    lines = [title, f"{'':34}{'median s':>10}{'/ ' + base:>10}{'quartiles':>16}{'min - max':>16}"]
    for name, row in rows.items():
        lines.append(
            f"{name:34}{row['seconds_median']:10.3f}{row['ratio_median']:10.3f}"
            f"{row['ratio_quartile_1']:9.3f}-{row['ratio_quartile_3']:.3f}"
            f"{row['ratio_min']:10.3f}-{row['ratio_max']:.3f}"
        )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    import torch

    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = found[0].partition(":")[2].strip() if found else model
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }


def write(path: str | Path | None, content: Mapping[str, Any]) -> None:
    """``content`` and the machine as json, where a path is given."""
    if path is not None:
        Path(path).write_text(json.dumps({"machine": machine(), **content}, indent=2) + "\n", encoding="utf-8")


def sentences_of(path: str | Path, count: int, seed: int = 42) -> Sequence[str]:
    """``count`` sentences of a file, drawn with ``seed``, in random order."""
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(lines) < count:
        raise SystemExit(f"{path} holds {len(lines)} sentences, {count} are needed; give a longer file")
    return [lines[i] for i in np.random.default_rng(seed).permutation(len(lines))[:count]]
