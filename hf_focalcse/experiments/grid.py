"""A grid of settings and seeds (yaml) -> the runs it asks for, each checked before anything starts."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..encoder.augment import build_augmentations
from ..encoder.poolers import resolve_pooler
from ..errors import UserError, suggest
from ..evaluation import STS_TASKS, load_tasks, read_pairs
from ..evaluation.tasks import find_sets, open_source
from ..options.evaluation import Evaluation
from ..options.tables import grid_evaluation, replaces, set_by_sweep
from ..parsing.evaluation import check_eval, parse_eval
from ..parsing.legacy import RENAMED, translate
from ..parsing.recipes import GRIDS
from ..parsing.settings import Settings, parse, training_parser
from .asked import settings_asked

KEYS = ("name", "note", "base", "axes", "evaluate")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=,-]*")


@dataclass(frozen=True)
class PlannedRun:
    """One training run. values: what each axis chose, by axis; argv: its flags without the output folder."""

    name: str
    values: dict[str, str]
    argv: tuple[str, ...]
    asked: dict[str, Any]  # every setting that matters, defaults and the recipe's included, as JSON has it


@dataclass(frozen=True)
class Grid:
    """evaluate: the flags of run_eval.py for a trained folder, or None where the dev score is enough."""

    name: str
    note: str
    runs: tuple[PlannedRun, ...]
    evaluate: tuple[str, ...] | None


def grid_names() -> list[str]:
    return sorted(file.stem for file in GRIDS.glob("*.yaml"))


def read_grid(grid: str, overrides: list[str] | None = None, script: str = "focalcse sweep") -> Grid:
    """The runs of a shipped grid or of a yaml file; ``overrides`` are flags that take the place of its base.

    Raises:
        UserError: no such grid, no valid yaml, an unknown key or flag, a value that training would refuse, two runs of
            one name, or a flag that an axis varies.
    """
    file = find_grid(grid)
    content = _mapping(_load(file), str(file), KEYS)
    base = _mapping(content.get("base", {}), f"{file}: base")
    axes = read_axes(_mapping(content.get("axes"), f"{file}: axes"), str(file))
    overrides = overrides or []
    parser = training_parser(script)
    given = parser.named(translate(overrides, []))  # an older name of a flag is that flag
    known = parser.destinations()
    known |= {older: known[name] for older, name in RENAMED.items()}

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
            f"--{flag} is what axis {varied[flag]!r} of grid {file.stem} varies; leave it out or edit a copy"
        )
    for flag, reason in set_by_sweep().items():
        if flag in given or flag in varied or flag in {known.get(key, key) for key in base}:
            raise UserError(f"{flag} is set by the sweep itself: {reason}; leave it out")
    taken = replaces()
    replaced = given | {key for flag in given for key in taken.get(flag, ())}
    base = {flag: value for flag, value in base.items() if known.get(flag, flag) not in replaced}

    runs: dict[str, PlannedRun] = {}
    combinations = list(itertools.product(*axes.values()))
    if "seed" in axes:  # seed by seed, so that what is done at any time can be compared
        place, order = list(axes).index("seed"), list(axes["seed"])
        combinations.sort(key=lambda labels: order.index(labels[place]))
    for labels in combinations:
        picked = dict(zip(axes, labels, strict=True))
        own = {flag: value for axis, label in picked.items() for flag, value in axes[axis][label].items()}
        set_here = {known.get(flag, flag) for flag in own}
        kept = {flag: value for flag, value in base.items() if known.get(flag, flag) not in set_here}
        argv = (*as_flags(kept | own, str(file)), *overrides)
        name = "-".join(labels)
        if name in runs:
            raise UserError(f"{file} makes two runs called {name}; give their values other names")
        try:
            settings = parse(list(argv), script)
            check_values(settings)
        except UserError as error:
            raise UserError(f"{file}, run {name}: {error}") from error
        runs[name] = PlannedRun(name, picked, argv, settings_asked(settings))
    name = str(content.get("name", file.stem))
    _check_name(name, f"{file}: name")
    evaluate = content.get("evaluate")
    if evaluate is not None:
        evaluate = _mapping(evaluate, f"{file}: evaluate", grid_evaluation())
        if "sts_dir" in given or "eval_file" in given:  # what judges during training judges afterwards too
            chosen = parse(list(next(iter(runs.values())).argv), script).dev
            if chosen.eval_file:  # a file of pairs stands for all sets
                evaluate = {k: v for k, v in evaluate.items() if k not in ("sts_dir", "tasks", "splits")}
            else:
                evaluate.pop("eval_file", None)
            evaluate |= {"eval_file": chosen.eval_file} if chosen.eval_file else {"sts_dir": chosen.sts_dir}
        evaluate = tuple(as_flags(evaluate, f"{file}: evaluate"))
        try:
            check_evaluation(parse_eval(list(evaluate), script))
        except UserError as error:
            raise UserError(f"{file}: evaluate: {error}") from error
    return Grid(name, " ".join(str(content.get("note", "")).split()), tuple(runs.values()), evaluate)


def check_values(settings: Settings) -> None:
    """Refuse now what every run would refuse after it has loaded its model.

    Raises:
        UserError: there is no such pooler, augmentation or file, or the loss refuses its settings.
    """
    from ..encoder.loading import require_folder
    from ..losses import build_loss  # torch

    build_loss(settings.loss.loss, **settings.loss_settings)
    if settings.model.pooler is not None:
        resolve_pooler(settings.model.pooler)
    build_augmentations(settings.views.augmentation)
    for name in (settings.model.model_name_or_path, settings.reference.reference_model):
        if name is not None:
            require_folder(name)
    places = {
        "train_file": settings.data.train_file,
        "eval_file": settings.dev.eval_file,
        "sts_dir": settings.dev.sts_dir,
    }
    for flag, path in places.items():
        if path is not None and path != "quickstart" and not Path(path).exists():
            raise UserError(
                f"--{flag} {path} is not there; paths are taken from the folder that the sweep is started in"
            )


def check_evaluation(args: Evaluation) -> None:
    """Refuse now what every evaluation would refuse after its run was trained; sets that are files are read.

    Raises:
        UserError: a value, a name or a file is not as it must be.
    """
    check_eval(args)
    for task in args.tasks or ():
        if task.partition("/")[0] not in {*STS_TASKS, *(row.title for row in STS_TASKS.values())}:
            raise UserError(f"there is no task {task!r}{suggest(task, STS_TASKS)}; allowed: {', '.join(STS_TASKS)}")
    if args.eval_file:
        if args.eval_file != "quickstart":
            read_pairs(args.eval_file)
    elif args.sts_dir:
        load_tasks(args.sets(), args.sts_dir)
    else:
        find_sets(args.sets(), open_source())  # the Hub: names alone


def find_grid(grid: str) -> Path:
    file = GRIDS / f"{grid}.yaml"
    if file.is_file():
        return file
    file = Path(grid)
    if file.suffix not in (".yaml", ".yml"):
        names = grid_names()
        raise UserError(
            f"there is no grid {grid!r}{suggest(grid, names)}; shipped are {', '.join(names)}, "
            "and a path must end in .yaml"
        )
    if not file.is_file():
        raise UserError(f"there is no grid file {grid!r}; give the path of a .yaml with name, base and axes")
    return file


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, which yaml drops without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            line = node.start_mark.line + 1
            raise UserError(f"{self.name}: {twice!r} is there twice in the mapping that begins in line {line}")
        return super().construct_mapping(node, deep)


def _load(file: Path) -> Any:
    try:
        with open(file, encoding="utf-8") as stream:
            return yaml.load(stream, _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"grid {file} is no valid yaml: {' '.join(str(error).split())}") from error


def _mapping(value: Any, where: str, allowed: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where} must be a mapping, not {value!r}")
    value = {str(key): item for key, item in value.items()}
    for key in value:
        if allowed is not None and key not in allowed:
            raise UserError(f"{where}: there is no key {key!r}{suggest(key, allowed)}; allowed: {', '.join(allowed)}")
    return value


def _check_name(text: str, where: str) -> None:
    if not NAME.fullmatch(text):
        raise UserError(
            f"{where}: {text!r} cannot be part of a folder's name; name it with letters, digits, _ . + = , and -"
        )


def read_axes(axes: dict[str, Any], file: str) -> dict[str, dict[str, dict[str, Any]]]:
    """{axis: {label: {flag: value}}}; a list is the values of one flag, labelled flag + value."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for axis, values in axes.items():
        where = f"{file}: axis {axis}"
        if isinstance(values, list):
            named = [(f"{axis}{value}", {axis: value}) for value in values]
        elif isinstance(values, dict):
            named = [(str(label), _mapping(flags, f"{where}, {label}")) for label, flags in values.items()]
        else:
            raise UserError(f"{where} must be a list of values of --{axis}, or a mapping of names to flags")
        if not named:
            raise UserError(f"{where} has no value; give at least one, or leave the axis out")
        for label, _ in named:
            _check_name(label, where)
            if [other for other, _ in named].count(label) > 1:
                raise UserError(f"{where}: {label} is there twice")
        found[axis] = dict(named)
    if not found:
        raise UserError(f"{file}: axes is empty; give at least one, for instance 'seed: [1, 2, 3]'")
    return found


def as_flags(values: dict[str, Any], where: str) -> list[str]:
    flags: list[str] = []
    for key, value in values.items():
        if value is None or isinstance(value, dict) or value == []:
            raise UserError(
                f"{where}: {key} is {value!r}; it must be a number, a text, true, false, or a list of these"
            )
        if isinstance(value, list):
            flags += [f"--{key}", *map(str, value)]
        else:
            flags.append(f"--{key}={'no' if value is False else value}")
    return flags
