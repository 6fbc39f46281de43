"""Seconds from the imports to the end of the first training step on a file of a million lines, and peak memory.

python -m benchmarks.startup --train_file sentences.txt --turns 7 --json startup.json

The file is made of the lines of --train_file, repeated with the number of the copy, so that all differ. Each contender
is a fresh process with fresh caches, and all take turns: ours; ours on a file of one batch, to tell the file's cost
from that of the first step; loading the model alone, the base of the memory; and, with --peer, sentence-transformers:
`load_dataset("text")`, MultipleNegativesRankingLoss, its trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ratios import Measured, write

WANTED_SECONDS = 10
OURS, SMALL, MODEL, PEER = "hf_focalcse", "hf_focalcse, one batch", "the model alone", "sentence-transformers"


def make_file(source: Path, target: Path, count: int) -> None:
    """``count`` different lines."""
    lines = [line for line in dict.fromkeys(source.read_text(encoding="utf-8").splitlines()) if line.strip()]
    with target.open("w", encoding="utf-8") as file:
        file.writelines(f"{lines[i % len(lines)]} {i // len(lines) or ''}".strip() + "\n" for i in range(count))


# ---- what a child process does; each gives the seconds of its phases


def model_alone(options: argparse.Namespace, mark: Callable[[str], None]) -> None:
    from hf_focalcse import FocalCSETrainer, load_model  # noqa: F401  the same imports as ours
    from hf_focalcse.quickstart import encoder_path

    mark("imports")
    load_model(str(encoder_path()), "cls").tokenizer  # noqa: B018
    mark("model")


def ours(options: argparse.Namespace, mark: Callable[[str], None]) -> None:
    from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model, read_sentences
    from hf_focalcse.quickstart import encoder_path

    mark("imports")
    model = load_model(str(encoder_path()), "cls")
    mark("model")
    sentences = read_sentences(options.train_file, tokenizer=model.tokenizer)
    mark("reading")
    args = FocalCSETrainingArguments(
        output_dir=options.folder, per_device_train_batch_size=options.batch, max_steps=1, eval_strategy="no",
        save_strategy="no", load_best_model_at_end=False, use_cpu=True, disable_tqdm=True, report_to="none",
        dataloader_num_workers=options.workers,
    )  # fmt: skip
    trainer = FocalCSETrainer(model, args, build_loss("focal"), sentences)
    mark("trainer")
    trainer.train()
    mark("first step")


def peer(options: argparse.Namespace, mark: Callable[[str], None]) -> None:
    from datasets import load_dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    from hf_focalcse.quickstart import encoder_path

    mark("imports")
    model = SentenceTransformer(str(encoder_path()), device="cpu")
    model.max_seq_length = 32
    mark("model")
    table = load_dataset("text", data_files=options.train_file, split="train", cache_dir=options.folder)
    table = table.add_column("positive", table["text"])
    mark("reading")
    args = SentenceTransformerTrainingArguments(
        output_dir=options.folder, per_device_train_batch_size=options.batch, max_steps=1, save_strategy="no",
        use_cpu=True, disable_tqdm=True, report_to="none", dataloader_num_workers=options.workers,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(model, args, table, loss=MultipleNegativesRankingLoss(model))
    mark("trainer")
    trainer.train()
    mark("first step")


CHILDREN = {OURS: ours, SMALL: ours, MODEL: model_alone, PEER: peer}


def child(options: argparse.Namespace) -> None:
    """Run one contender; its phases in seconds and its peak memory in MB go to stdout."""
    before, phases, peaks = time.perf_counter(), {}, {}

    def mark(name: str) -> None:
        nonlocal before
        now = time.perf_counter()
        phases[name], before = now - before, now
        peaks[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    CHILDREN[options.child](options, mark)
    print(json.dumps({"phases": phases, "peaks": peaks}))


def run(name: str, file: Path, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.startup", "--child", name, "--train_file", str(file)]
        command += ["--folder", folder, "--batch", str(options.batch), "--workers", str(options.workers)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"HF_HOME": folder})
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True, help="text, one sentence a line")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="dataloader_num_workers")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--peer", action="store_true", help="sentence-transformers beside it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=list(CHILDREN), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options)
    names = [OURS, SMALL, MODEL] + [PEER] * options.peer
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        file, small = Path(folder) / "million.txt", Path(folder) / "small.txt"
        make_file(Path(options.train_file), file, options.lines)
        make_file(Path(options.train_file), small, options.batch)
        for turn in range(options.turns):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                results[name].append(run(name, small if name == SMALL else file, options))

    def median(name: str, kind: str, phase: str) -> float:
        return float(np.median([one[kind][phase] for one in results[name]]))

    phases = ["imports", "model", "reading", "trainer", "first step"]
    print(f"{options.lines:,} lines, median of {options.turns} processes each; seconds")
    print(f"{'':26}" + "".join(f"{phase:>12}" for phase in phases) + f"{'after imports':>15}{'MB above model':>16}")
    rows, seconds = {}, {}
    for name in names:
        known = [phase for phase in phases if phase in results[name][0]["phases"]]
        seconds[name] = [sum(one["phases"][phase] for phase in known[1:]) for one in results[name]]
        above = [
            one["peaks"][known[-1]] - base["peaks"]["model"]
            for one, base in zip(results[name], results[MODEL], strict=True)
        ]
        read = [
            one["peaks"].get("reading", one["peaks"]["model"]) - base["peaks"]["model"]
            for one, base in zip(results[name], results[MODEL], strict=True)
        ]
        rows[name] = {phase: median(name, "phases", phase) for phase in known} | {
            "after_imports": float(np.median(seconds[name])),
            "mb_above_model": float(np.median(above)),
            "mb_above_model_after_reading": float(np.median(read)),
        }
        cells = "".join(f"{rows[name][phase]:12.2f}" if phase in known else f"{'':>12}" for phase in phases)
        print(f"{name:26}{cells}{rows[name]['after_imports']:15.2f}{rows[name]['mb_above_model']:16.0f}")
    longest = rows[OURS]["after_imports"]
    print(f"{longest:.1f} s to the first step (at most {WANTED_SECONDS}: {longest <= WANTED_SECONDS}); "
          f"the file costs {rows[OURS]['mb_above_model'] - rows[SMALL]['mb_above_model']:.0f} MB at the peak, "
          f"{rows[OURS]['mb_above_model_after_reading']:.0f} MB while it is read")  # fmt: skip
    ratios = Measured({name: seconds[name] for name in names if name != MODEL}).summary(OURS)
    write(options.json, {"options": vars(options) | {"json": None}, "rows": rows, "ratios": ratios, "runs": results})


if __name__ == "__main__":
    main()
