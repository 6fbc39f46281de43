"""Run folders -> the arms of a comparison: runs that differ in the factor and, within an arm, in the seed."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from ..options.tables import identity, together, told_otherwise
from ..options.training import DEV, TEXT
from ..parsing.losses import loss_settings, objective_settings
from ..runs.differing import differing
from ..runs.folder import Run
from ..runs.record import RUN_FILE, RunRecord
from ..runs.scores import Results, headlines, set_of
from .differences import settings_of

HASH = re.compile(r"[0-9a-f]{40}\+?|[0-9a-f]{64}")
COMMIT = "commit"


@dataclass(frozen=True)
class Trained:
    """A finished run with its scores. about: everything by which it may differ from another run, except the seed."""

    folder: Path
    record: RunRecord
    results: Results
    about: dict[str, Any]

    @property
    def seed(self) -> int:
        return self.record.seed

    @property
    def place(self) -> Path:
        """The folder, independent of how its path was written."""
        return self.folder.resolve()


# ---- reading


def is_path(text: str) -> bool:
    return any(c in text for c in "*?[/") or bool(_run_folders(Path(text)))


def read_runs(texts: Iterable[str]) -> list[Trained]:
    """Folders of runs, patterns and folders of such folders -> the runs in them, each once.

    Raises:
        UserError: there is no run, or a run has no scores of its own weights.
    """
    folders: dict[Path, Path] = {}
    for text in texts:
        found = [Path(path) for path in sorted(glob.glob(text))] if any(c in text for c in "*?[") else [Path(text)]
        inside = [folder for path in found for folder in _run_folders(path)]
        if not inside:
            raise UserError(f"there is no finished run in {text}; give folders with a run.json, or folders of these")
        for folder in inside:
            folders.setdefault(folder.resolve(), folder)
    return [read_run(folder) for folder in folders.values()]


def _run_folders(path: Path) -> list[Path]:
    if (path / RUN_FILE).exists():
        return [path]
    return sorted(file.parent for file in path.glob(f"*/{RUN_FILE}"))


def read_run(folder: Path) -> Trained:
    run = Run.read(folder)
    if not run.finished:
        raise UserError(f"the run in {folder} is not finished; finish it before you compare it")
    results = run.judged()
    return Trained(folder, run.record, results, describe(run.record, results))


def describe(record: RunRecord, results: Results) -> dict[str, Any]:
    """Everything by which two runs can differ, by name, except the seed and the places of files."""
    told = told_otherwise()
    data, evaluated = results.metadata["data"], results.metadata["model"]
    dev = sorted({set_of(key) for key in headlines(record.final)})
    return settings_of(record, lambda name: bool(identity({name: None})) and name not in told) | {
        TEXT: record.data.get("sha256"),
        DEV: [f"{key} {record.dev_sets.get(key) or data.get(key, {}).get('sha256')}" for key in dev],
        COMMIT: record.git_commit,
        "engine": record.hardware.get("engine"),
        "device": record.hardware.get("device"),
        **{f"{key} of the evaluation": evaluated.get(key) for key in ("precision", "max_length", "whitening")},
        **{
            f"{key} of the evaluation": None if evaluated.get(key) == record.model.get(key) else evaluated.get(key)
            for key in ("pooler", "projection")
        },
        **{f"version of {name}": version for name, version in record.versions.items()},
        **{
            f"version of {name} in the evaluation": version
            for name, version in results.metadata.get("versions", {}).items()
            if version != record.versions.get(name, version)
        },
    }


# ---- the factor


def expand(names: Iterable[str], runs: Sequence[Trained]) -> set[str]:
    """The names that ``names`` stand for: a factor such as ``loss`` includes the settings that vary with it.

    Raises:
        UserError: no run has a setting of that name.
    """
    losses = {setting.name for settings in loss_settings().values() for setting in settings}
    objectives = {setting.name for settings in objective_settings().values() for setting in settings}
    varying = together()
    varying["loss"] |= losses
    varying["objective"] |= objectives
    varying["versions"] = {key for run in runs for key in run.about if key.startswith("version of ")}
    known = {key for run in runs for key in run.about} | set(varying) | losses | objectives
    found: set[str] = set()
    for name in names:
        if name not in known:
            raise UserError(f"there is no setting {name!r}{suggest(name, known)}; allowed: {', '.join(sorted(known))}")
        found |= {name} | varying.get(name, set())
    return found


def factor_settings(names: list[str], runs: Sequence[Trained]) -> set[str]:
    """What may differ between arms: `expand` of the factor, which cannot be the seed."""
    if "seed" in names:
        raise UserError("--factor seed: the tests are made over seeds; name the setting that you compare")
    return expand(names, runs)


# ---- arms


def make_arms(runs: Sequence[Trained], factor: set[str], names: list[str]) -> dict[str, list[Trained]]:
    """Name -> the runs of one value of the factor; the name says what differs.

    Raises:
        UserError: all runs have the same value, or two runs of an arm have the same seed.
    """
    groups: dict[str, list[Trained]] = {}
    for run in runs:
        if not any(run.place == other.place for group in groups.values() for other in group):
            groups.setdefault(_value(run, factor), []).append(run)
    if len(groups) < 2:
        raise UserError(f"all {len(runs)} runs have the same {' and '.join(names)}; there is nothing to compare")
    made: dict[str, list[Trained]] = {}
    for group in groups.values():
        name = _name(group, list(groups.values()), factor, names)
        if name in made:
            raise UserError(f"two arms would both have the name {name!r}; leave out the runs of one of them")
        made[name] = group
    for name, group in made.items():
        seeds = [run.seed for run in group]
        twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
        if twice is not None:
            one, other = (run for run in group if run.seed == twice)
            found = ", ".join(differences_between(one, other).values()) or "nothing that is recorded"
            raise UserError(
                f"{one.folder} and {other.folder} are both {name} with seed {twice} and differ in: {found}; "
                "leave one out, or name what differs in --factor"
            )
    return made


def _name(group: list[Trained], groups: list[list[Trained]], factor: set[str], names: list[str]) -> str:
    """The values of the settings ``names``, and of the rest of the factor where groups would be named alike."""

    def shown(key: str, of: list[Trained]) -> str:
        return _show(of[0].about.get(key))

    alike = [other for other in groups if all(shown(name, other) == shown(name, group) for name in names)]
    more = [key for key in sorted(factor - set(names)) if any(shown(key, o) != shown(key, group) for o in alike)]
    main = [shown(name, group) if name == "loss" else f"{name} {shown(name, group)}" for name in names]
    return " ".join([*main, *(f"{key} {shown(key, group)}" for key in more)])


def choose_base(arms: dict[str, list[Trained]], to: list[str] | None, others: list[Trained]) -> str:
    """The arm that the others are compared with: the one of ``--to``, else InfoNCE if present, else the first."""
    if others:
        base = [name for name, arm in arms.items() if any(run.place == o.place for run in arm for o in others)]
        if len(base) > 1:
            raise UserError(f"--to names runs of several arms ({', '.join(base)}); give those of one")
        return base[0]
    if to:
        wanted = " ".join(to)
        found = [name for name in arms if name == wanted] or [name for name in arms if name.startswith(wanted)]
        if len(found) != 1:
            what = "several arms begin with" if found else "there is no arm"
            raise UserError(f"--to: {what} {wanted!r}; there are: {'; '.join(arms)}")
        return found[0]
    return "infonce" if "infonce" in arms else next(iter(arms))


def check_arm(arm: list[Trained], allowed: set[str]) -> None:
    """Refuse an arm whose runs differ in more than the seed, which also draws a sample of the training text."""
    for run in arm[1:]:
        refuse_differences(arm[0], run, allowed | {TEXT})


def refuse_differences(one: Trained, other: Trained, allowed: set[str]) -> None:
    """Refuse two runs that differ in more than ``allowed``.

    Raises:
        UserError: with every other difference.
    """
    found = [text for key, text in differences_between(one, other).items() if key not in allowed]
    if found:
        raise UserError(
            f"{one.folder} and {other.folder} differ in more than the factor: {'; '.join(found)}; leave one of them "
            "out, name the setting in --factor if it is what you compare, or accept the difference with --allow"
        )


def differences_between(one: Trained, other: Trained) -> dict[str, str]:
    """Name -> text of everything in which two runs differ."""
    found = differing(one.about, other.about)
    return {key: f"{key} ({_show(here)}, {_show(there)})" for key, (here, there) in found.items()}


def _value(run: Trained, factor: set[str]) -> str:
    return json.dumps({key: run.about.get(key) for key in sorted(factor)}, sort_keys=True, default=str)


def _show(value: Any) -> str:
    if isinstance(value, str) and HASH.fullmatch(value):
        return value[:12]
    return f"{value:g}" if isinstance(value, float) else str(value)
