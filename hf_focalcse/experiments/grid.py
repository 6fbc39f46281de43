"""A grid of settings and seeds -> the runs that it asks for, each checked before anything starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import quickstart
from ..data.places import exists
from ..errors import UserError, suggest
from ..evaluation import STS_TASKS, load_rerank, load_tasks, read_tasks
from ..evaluation.tasks import find_sets, open_source
from ..options.evaluation import Evaluation
from ..options.field import PATH, listed, options_of
from ..options.tables import grid_evaluation, own_options, replaces, set_by_sweep
from ..options.training import Dev
from ..parsing.evaluation import RERANK, parse_eval
from ..parsing.legacy import RENAMED, translate
from ..parsing.settings import Settings, parse, training_parser
from ..parsing.shipped import load_yaml
from .asked import settings_asked
from .gridfile import KEYS, as_flags, check_name, find_grid, mapping, name_before, name_of, read_axes

Axes = dict[str, dict[str, dict[str, Any]]]  # axis -> label -> flag -> value


@dataclass(frozen=True)
class PlannedRun:
    """A training run of a grid. values: the label that each axis has; argv: its flags without the output folder.

    before: the name that version 0.1 gave it.
    asked: every setting that can change what is learnt, including the defaults and those of its recipe, as JSON.
    """

    name: str
    values: dict[str, str]
    argv: tuple[str, ...]
    asked: dict[str, Any]
    before: str = ""

    def in_folder(self, folder: Path) -> PlannedRun:
        """The run under the name that it has in the folder of a sweep: a run of version 0.1 keeps its name."""
        is_old = self.before and (folder / self.before).exists() and not (folder / self.name).exists()
        return replace(self, name=self.before) if is_old else self


@dataclass(frozen=True)
class Grid:
    """evaluate: the flags of run_eval.py for a trained folder, or None if the dev scores of training are enough."""

    name: str
    note: str
    runs: tuple[PlannedRun, ...]
    evaluate: tuple[str, ...] | None


def read_grid(grid: str, overrides: list[str] | None = None, script: str = "focalcse sweep") -> Grid:
    """The runs of a grid, shipped or in a yaml file. ``overrides`` are flags that replace those of its base.

    Raises:
        UserError: there is no such grid, the yaml is not valid, a key, a flag or a value is not allowed, two runs have
            the same name, or a flag is given that an axis varies.
    """
    file = find_grid(grid)
    return plan_grid(mapping(load_yaml("grid", file), str(file), KEYS), file, overrides, script)


def plan_grid(content: dict[str, Any], file: Path, overrides: list[str] | None, script: str) -> Grid:
    """The runs of a grid's ``content``; file: its place, for messages. Raises as `read_grid` does."""
    base = mapping(content.get("base", {}), f"{file}: base")
    named = mapping(content.get("axes"), f"{file}: axes")
    axes = read_axes(named, str(file))
    parser = training_parser(script)
    overrides = parser.spelled_out(translate(overrides or [], []))  # older and short names count as the flags in full
    given = parser.named(overrides)
    parser.refuse_short((flag for flags in every_set(base, axes) for flag in flags), str(file))
    known = parser.destinations()
    known |= {older: known[name] for older, name in RENAMED.items()}
    check_flags(file, axes, base, given, known)
    taken = replaces()
    replaced = given | {key for flag in given for key in taken.get(flag, ())}
    base = {flag: value for flag, value in base.items() if known.get(flag, flag) not in replaced}

    runs: dict[str, PlannedRun] = {}
    for picked in combinations(axes):
        own = {flag: value for axis, label in picked.items() for flag, value in axes[axis][label].items()}
        set_here = {known.get(flag, flag) for flag in own}
        kept = {flag: value for flag, value in base.items() if known.get(flag, flag) not in set_here}
        argv = (*as_flags(kept | own, str(file)), *overrides)
        name = name_of(picked)
        if name in runs:
            raise UserError(f"{file} makes two runs called {name}; give their values other names")
        try:
            settings = parse(list(argv), script)
            check_values(settings)
        except UserError as error:
            raise UserError(f"{file}, run {name}: {error}") from error
        runs[name] = PlannedRun(name, picked, argv, settings_asked(settings), name_before(picked, named))
    name = str(content.get("name", file.stem))
    check_name(name, f"{file}: name")
    evaluate = None
    if content.get("evaluate") is not None:
        first = next(iter(runs.values()))
        evaluate = evaluation_flags(content["evaluate"], str(file), given, first, script)
    return Grid(name, " ".join(str(content.get("note", "")).split()), tuple(runs.values()), evaluate)


def check_flags(file: Path, axes: Axes, base: dict[str, Any], given: set[str], known: dict[str, str]) -> None:
    """Refuse flags that two axes set, that are ``given`` though an axis varies them, or that a sweep sets itself.

    Raises:
        UserError: with the flag and what to do.
    """
    varied: dict[str, str] = {}  # flag -> the axis that sets it
    for axis, values in axes.items():
        for flag in dict.fromkeys(known.get(flag, flag) for flags in values.values() for flag in flags):
            if flag in varied:
                raise UserError(
                    f"{file}: the axes {varied[flag]!r} and {axis!r} both set {flag}; leave one of them out"
                )
            varied[flag] = axis
    for flag in sorted(given & set(varied)):
        raise UserError(
            f"--{flag} is what axis {varied[flag]!r} of grid {file.stem} varies; leave it out, or edit a copy"
        )
    for flag, reason in set_by_sweep().items():
        if flag in given or flag in varied or flag in {known.get(key, key) for key in base}:
            raise UserError(f"{flag} is set by the sweep itself: {reason}; leave it out")


def every_set(base: dict[str, Any], axes: Axes) -> list[dict[str, Any]]:
    """The flags of the base and of every value of an axis."""
    return [base, *(flags for values in axes.values() for flags in values.values())]


def combinations(axes: Axes) -> Iterator[dict[str, str]]:
    """Every combination of labels, by axis; one seed after the other, so that finished runs can be compared early."""
    made = list(itertools.product(*axes.values()))
    if "seed" in axes:
        place, order = list(axes).index("seed"), list(axes["seed"])
        made.sort(key=lambda labels: order.index(labels[place]))
    for labels in made:
        yield dict(zip(axes, labels, strict=True))


def evaluation_flags(content: Any, file: str, given: set[str], run: PlannedRun, script: str) -> tuple[str, ...]:
    """The flags of run_eval.py; dev sets that were ``given`` on the command line are the test sets too.

    Raises:
        UserError: a key or a value is not allowed.
    """
    evaluate = mapping(content, f"{file}: evaluate", grid_evaluation())
    shared = options_of(Dev).keys() & set(grid_evaluation())  # the dev set of training and the sets of evaluation
    if given & shared:
        chosen = vars(parse(list(run.argv), script).dev)
        sets = {name: value for name, value in chosen.items() if name in shared and value is not None}
        if RERANK in listed(evaluate.get("tasks")):  # the dev set is none of the sets to rerank
            of_pairs = len(listed(evaluate["tasks"])) > 1
            sets = {name: value for name, value in sets.items() if name == "sts_dir" and of_pairs}
        taken = {key for name in sets for key in options_of(Evaluation)[name].replaces}
        evaluate = {key: value for key, value in evaluate.items() if key not in taken} | sets
    flags = tuple(as_flags(evaluate, f"{file}: evaluate"))
    try:
        check_evaluation(parse_eval(list(flags), script))
    except UserError as error:
        raise UserError(f"{file}: evaluate: {error}") from error
    return flags


def check_values(settings: Settings) -> None:
    """Refuse before the start what every run would refuse after loading its model.

    Raises:
        UserError: there is no such model folder or file, or the loss refuses its settings.
    """
    from ..encoder.loading import require_folder
    from ..losses import build_loss  # torch

    build_loss(settings.loss.loss, **settings.loss_settings)
    own = settings.own()
    for name, found in own_options().items():
        for value in listed(own.get(name)):
            if found.encoder:
                require_folder(value)
            elif found.role == PATH and not found.harmless and value != quickstart.NAME and not exists(value):
                raise UserError(
                    f"--{name} {value} does not exist; paths are relative to the folder in which the sweep is started"
                )


def check_evaluation(args: Evaluation) -> None:
    """Refuse before the start what every evaluation would refuse after training; sets that are files are read.

    Raises:
        UserError: a value, a name or a file is not valid.
    """
    named = [task for task in args.tasks or () if task != RERANK]
    for task in named:
        if task.partition("/")[0] not in {*STS_TASKS, *(row.title for row in STS_TASKS.values())}:
            raise UserError(f"there is no task {task!r}{suggest(task, STS_TASKS)}; allowed: {', '.join(STS_TASKS)}")
    if len(named) < len(args.tasks or ()):
        load_rerank(args.rerank_file, args.rerank_split, args.rerank_scorer)
    if args.tasks and not named:
        return
    if args.eval_file:
        read_tasks(args.eval_file)
    elif args.sts_dir:
        load_tasks(named or args.sets(), args.sts_dir)
    else:
        find_sets(named or args.sets(), open_source())  # on the Hub: only their names are checked
