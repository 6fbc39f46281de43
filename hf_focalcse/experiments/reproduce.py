"""``focalcse reproduce``: the runs of a paper's table or figure as a sweep, and a page of what came of them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..encoder.packaged import ENCODER_PACKAGE
from ..errors import UserError
from ..options.experiments import ReproduceOptions, SweepOptions
from ..parsing.settings import training_parser
from ..parsing.shipped import RECIPES, as_flags, load_yaml
from ..quickstart import NAME
from ..runs.atomic import write_json
from ..runs.record import RUN_FILE, RunRecord
from ..runs.scores import RESULTS_FILE
from .estimate import work_of
from .grid import Grid, plan_grid
from .papers import PAPERS, Item, item_names, paper_names, read_item
from .progress import duration
from .reproduced import write_page
from .states import FINISHED, state_of
from .sweep import run_grid

SCRIPT = "focalcse reproduce"
QUICKSTART = "quickstart"  # as --scale
SMALL = {  # what the small scale puts in the place of the paper's setting
    "model_name_or_path": ENCODER_PACKAGE,
    "train_file": NAME,
    "max_steps": 40,
    "eval_steps": 20,
    "logging_steps": 5,
    "per_device_train_batch_size": 64,
    "measure_steps": 5,
}
SMALL_SEEDS = (1, 2)
ASKED = "asked.json"  # in the folder of an encoder that is judged alone: the flags that it was judged with
BY_STEPS = ("measure_steps", "eval_steps", "num_train_epochs")  # keys of rows that mean nothing in 40 steps
TEACHERS = ("reference", "distillation")  # values of dclr's weighting that ask a frozen encoder


def list_items(paper: str | None = None) -> str:
    """Every item with its title, of one paper or of all."""
    lines = []
    for name in [paper] if paper is not None else paper_names():
        items = [read_item(name, item) for item in item_names(name)] if name in paper_names() else []
        items = items or [read_item(name, "")]  # refuses, with the names that there are
        lines += [f"{items[0].of}", *(f"  {SCRIPT} {name} {item.name:18} {item.title}" for item in items), ""]
    return "\n".join([*lines, "With --dry_run: the commands and an estimate of the hours on this machine."])


def reproduce(args: ReproduceOptions) -> None:
    """Run what an item still lacks and write its page.

    Raises:
        UserError: there is no such item, or a setting is not valid; nothing was started.
        Stopped: a signal ended the runs; the same command continues them.
        SystemExit: with code 1 if runs failed; the page has the others.
    """
    item = at_scale(read_item(str(args.paper), str(args.item)), args)
    folder = Path(args.runs or f"runs/{item.paper}{'-quickstart' if args.scale == QUICKSTART else ''}")
    if args.dry_run:
        print("\n".join(described(item, folder, args)))
        return
    failed: SystemExit | None = None
    grid = plan(item, args) if item.rows else None
    if grid is not None:
        options = SweepOptions(grid=item.name, runs=str(folder), jobs=args.jobs, launch=args.launch)
        try:
            run_grid(grid, folder, options)
        except SystemExit as end:
            failed = end
    for label, flags in item.judged.items():
        judge(folder / label, flags)
    print(f"\nWritten to {write_page(item, folder, args)}")
    if failed is not None:
        raise failed


# ---- planning


def at_scale(item: Item, args: ReproduceOptions) -> Item:
    """The item as ``--scale``, ``--seeds`` and ``--rerank_file`` ask for it."""
    if args.seeds is not None:
        item = replace(item, seeds=tuple(args.seeds))
    elif args.scale == QUICKSTART and len(item.seeds) > 1:
        item = replace(item, seeds=SMALL_SEEDS)
    if "rerank_file" in item.evaluate and args.rerank_file is not None:
        kept = {key: value for key, value in item.evaluate.items() if key != "rerank_split"}
        item = replace(item, evaluate=kept | {"rerank_file": args.rerank_file})
    elif args.rerank_file is not None:
        raise UserError(f"{item.paper} {item.name} is not scored by reranking; leave --rerank_file out")
    if args.pairs_file is not None and item.picture != "hard-negatives":
        raise UserError(f"{item.paper} {item.name} looks at no pairs; leave --pairs_file out")
    if args.scale != QUICKSTART:
        return item
    kept_rows = item.quickstart.get("rows", {label: {} for label in item.rows})
    rows = {label: smaller(row) | kept_rows[label] for label, row in item.rows.items() if label in kept_rows}
    judged = {label: row for label, row in item.judged.items() if label in item.quickstart.get("judged", item.judged)}
    return replace(item, rows=rows, judged=judged, published={}, compare=among(item.compare, rows))


def among(compare: dict[str, str], rows: dict[str, Any]) -> dict[str, str]:
    return {a: b for a, b in compare.items() if a in rows and b in rows}


def smaller(row: dict[str, Any]) -> dict[str, Any]:
    """A row at the small scale: its own flags, and a frozen encoder that is at hand where its loss needs one."""
    own = {key: value for key, value in row.items() if key not in BY_STEPS}
    recipe = load_yaml("recipe", RECIPES / f"{row['recipe']}.yaml")
    needed = "reference_model" in recipe and row.get("weighting", TEACHERS[0]) in TEACHERS
    if needed:
        own |= {"reference_model": ENCODER_PACKAGE, "reference_pooler": "mean"}
    batch = row.get("per_device_train_batch_size")
    if batch is not None:  # the ratio to the recipe's batch stays
        own["per_device_train_batch_size"] = max(SMALL["per_device_train_batch_size"] * batch // 512, 16)
    return own


def content_of(item: Item, args: ReproduceOptions) -> dict[str, Any]:
    """The item as the content of a grid."""
    base: dict[str, Any] = {}
    evaluate = dict(item.evaluate)
    given = training_parser(SCRIPT).named(args.overrides)
    if args.scale == QUICKSTART:
        base |= SMALL
        if not given & {"sts_dir", "eval_file", "dataset_name"}:
            base["eval_file"] = NAME
            evaluate = evaluate or {"eval_file": NAME}
    if "bf16" in given:
        evaluate["bf16"] = True
    axes = {"row": item.rows, "seed": list(item.seeds)}
    return {"name": item.name, "base": base, "axes": axes, "evaluate": evaluate}


def plan(item: Item, args: ReproduceOptions) -> Grid:
    """The runs of an item, each checked; raises as `read_grid` does."""
    file = PAPERS / item.paper / f"{item.name}.yaml"
    return plan_grid(content_of(item, args), file, args.overrides, SCRIPT)


def described(item: Item, folder: Path, args: ReproduceOptions) -> Iterator[str]:
    """What would be run, and how long it would take here."""
    yield f"{item.of}, {item.title}"
    yield from (f"left out: {reason}" for reason in item.missing)
    if not item.rows and not item.judged:
        yield "No run is needed."
        return
    try:
        grid = plan(item, args) if item.rows else Grid(item.name, "", (), None)
    except UserError as error:  # a text or a set is not here yet
        yield f"Before it can start: {error}"
        base = content_of(item, args)["base"]
        for label, row in item.rows.items():
            command = shlex.join([*as_flags(base | row), *args.overrides])
            yield f"{label} x {len(item.seeds)} seeds  focalcse train {command}"
        return
    seconds, unknown, left = 0.0, 0, 0
    for run in grid.runs:
        state = state_of(run, folder / run.name, grid)
        yield f"{run.name}  {state}  focalcse train {shlex.join(run.argv)} --output_dir {folder / run.name}"
        if grid.evaluate is not None:
            yield f"    focalcse eval {folder / run.name} {shlex.join(grid.evaluate)}"
        if state != FINISHED:
            left += 1
            took = finished_seconds(grid, folder, run.values["row"]) or (
                work.seconds() if (work := work_of(run.asked)) else None
            )
            seconds, unknown = seconds + (took or 0.0), unknown + (took is None)
    for label, flags in item.judged.items():
        yield f"{label}  focalcse eval {shlex.join(as_flags(flags))} --output_dir {folder / label}"
    more = f", without {unknown} runs of encoders whose size is not known" if unknown else ""
    yield (
        f"\n{left} of {len(grid.runs)} runs are left; about {seconds / 3600:.1f} hours ({duration(seconds)}) on this "
        f"machine, one at a time{more}: finished runs as they took, others by one encoder layer that was timed here."
    )


def finished_seconds(grid: Grid, folder: Path, row: str) -> float | None:
    """The mean time of the finished runs of a row; None where there is none."""
    took = []
    for run in grid.runs:
        if run.values["row"] == row and (folder / run.name / RUN_FILE).exists():
            try:
                took.append(RunRecord.load(folder / run.name).seconds)
            except UserError:
                continue
    known = [seconds for seconds in took if seconds is not None]
    return sum(known) / len(known) if known else None


# ---- encoders that are judged alone


def judge(folder: Path, flags: dict[str, Any]) -> None:
    """Score an encoder that is not trained, unless it was with these flags.

    Raises:
        SystemExit: the evaluation failed, with its exit code.
    """
    asked = folder / ASKED
    if (folder / RESULTS_FILE).exists() and asked.exists() and json.loads(asked.read_text(encoding="utf-8")) == flags:
        return
    command = [sys.executable, "-m", "hf_focalcse", "eval", *as_flags(flags), "--output_dir", str(folder)]
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    write_json(asked, flags)
