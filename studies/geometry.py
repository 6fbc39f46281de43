"""Alignment and uniformity of the arms of a study, tested: python studies/geometry.py results.json

For studies whose runs are gone; of runs that are there, `focalcse compare` says the same.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hf_focalcse.experiments.conclusions import Row, conclude_further
from hf_focalcse.experiments.statistics import compare_seeds, holm

METRICS = ("alignment", "uniformity")
OF = "STSBenchmark/test"
BASE = "infonce"
Scores = dict[int, dict[str, float]]  # seed -> scores


def arms(study: dict[str, Any]) -> dict[str, dict[str, Scores]]:
    """Pooler -> arm -> its scores by seed, of arms with several seeds."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for folder, run in study["runs"].items():
        found.setdefault((run["pooler"], re.sub(r"[-_]seed-?\d+", "", folder)), {})[run["seed"]] = run
    named: dict[str, dict[str, Scores]] = {}
    for (pooler, _), seeds in found.items():
        run = next(iter(seeds.values()))
        name = run["loss"] + (f" m {run['m']:g}" if run.get("m") is not None else "")
        if len(seeds) > 1:
            named.setdefault(pooler, {})[name] = {seed: of["scores"] for seed, of in seeds.items()}
    return named


def lines(study: dict[str, Any]) -> Iterator[str]:
    """Rows of a table in Markdown, and a sentence for each arm."""
    before = {of["pooler"]: of["scores"] for of in study["before_training"].values()}
    for pooler, named in arms(study).items():
        untrained = next((of for name, of in before.items() if name.startswith(pooler)), {})
        yield f"| {pooler} | {' | '.join(METRICS)} |"
        yield "|---|---|---|"
        if untrained:
            cells = [f"{untrained[f'{OF}/{metric}']:.4f}" for metric in METRICS]
            yield f"| before training | {' | '.join(cells)} |"
        for name, seeds in named.items():
            values = [[of[f"{OF}/{metric}"] for of in seeds.values()] for metric in METRICS]
            yield f"| {name} | {' | '.join(f'{np.mean(of):.4f} ± {np.std(of, ddof=1):.4f}' for of in values)} |"
        yield ""
        for name, seeds in named.items():
            if name != BASE:
                yield f"- {pooler}: {conclude_further(name, BASE, rows(seeds, named[BASE]))}"
        yield ""


def rows(a: Scores, b: Scores) -> list[Row]:
    shared = sorted(a.keys() & b.keys())
    made = []
    for metric in METRICS:
        one, other = ([of[seed][f"{OF}/{metric}"] for seed in shared] for of in (a, b))
        made.append(Row(f"{OF}/{metric}", f"{OF} {metric}", one, other, compare_seeds(one, other), None))
    corrected = holm([row.over_seeds.p for row in made])
    return [replace(row, p_holm=p) for row, p in zip(made, corrected, strict=True)]


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        raise SystemExit("python studies/geometry.py FILE: give the results.json of a study")
    print("\n".join(lines(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
