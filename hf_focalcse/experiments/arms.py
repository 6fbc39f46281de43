"""Run folders -> the arms of a comparison: runs that differ in the factor and in nothing else."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from ..evaluation import Results
from ..options.tables import harmless, together, told_otherwise
from ..options.training import DEV, TEXT
from ..parsing.losses import loss_settings
from ..runs.record import RUN_FILE, RunRecord

HASH = re.compile(r"[0-9a-f]{40}\+?|[0-9a-f]{64}")
ALL = "/all/spearman"
COMMIT = "commit"


@dataclass(frozen=True)
class Trained:
    """A finished run. about: everything that may make it differ from another, but the seed."""

    folder: Path
    record: RunRecord
    results: Results
    about: dict[str, Any]

    @property
    def seed(self) -> int:
        return self.record.seed

    @property
    def place(self) -> Path:
        """The folder, however it was written."""
        return self.folder.resolve()


def is_path(text: str) -> bool:
    return any(c in text for c in "*?[/") or bool(_run_folders(Path(text)))


def read_runs(texts: Iterable[str]) -> list[Trained]:
    """Folders, patterns and folders of folders -> the runs in them, each once.

    Raises:
        UserError: there is no run, or one has no scores of its weights.
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
    record = RunRecord.load(folder)
    if record.seconds is None:
        raise UserError(f"the run in {folder} is not finished; go on with it before it is compared")
    results = Results.read(folder / "results.json")
    scored, trained = results.metadata["model"].get("weights_sha256"), record.model.get("weights_sha256")
    if scored != trained:
        raise UserError(
            f"{folder}/results.json was measured on other weights than run.json tells of; evaluate it again"
        )
    return Trained(folder, record, results, describe(record, results))


def describe(record: RunRecord, results: Results) -> dict[str, Any]:
    """Name -> value of all that can make two runs differ, but the seed and where things lie."""
    skipped = harmless().keys() | told_otherwise()
    found = {key: value for key, value in record.settings.items() if key not in skipped}
    told = {"name": "loss", "formula": "", "paper": "", "citation": ""}
    found |= {told.get(key, key): value for key, value in record.loss.items() if told.get(key, key)}
    dev = {key.removesuffix(ALL) for key in record.final if key.endswith(ALL)}
    data, judged = results.metadata["data"], results.metadata["model"]
    return found | {
        "model_name_or_path": record.model.get("name_or_path"),
        "pooler": record.model.get("pooler"),
        "projection": record.model.get("projection"),
        TEXT: record.data.get("sha256"),
        DEV: sorted(f"{key} {record.dev_sets.get(key) or data.get(key, {}).get('sha256')}" for key in dev),
        COMMIT: record.git_commit,
        "world_size": record.world_size,
        "engine": record.hardware.get("engine"),
        "device": record.hardware.get("device"),
        **{f"{key} of the evaluation": judged.get(key) for key in ("precision", "max_length", "whitening")},
        **{
            f"{key} of the evaluation": None if judged.get(key) == record.model.get(key) else judged.get(key)
            for key in ("pooler", "projection")
        },
        **{f"version of {name}": version for name, version in record.versions.items()},
        **{
            f"version of {name} in the evaluation": version
            for name, version in results.metadata.get("versions", {}).items()
            if version != record.versions.get(name, version)
        },
    }


def expand(names: Iterable[str], runs: Sequence[Trained]) -> set[str]:
    """The settings that ``names`` stand for.

    Raises:
        UserError: no run has such a setting.
    """
    losses = {setting.name for settings in loss_settings().values() for setting in settings}
    varying = together()
    varying["loss"] |= losses
    varying["versions"] = {key for run in runs for key in run.about if key.startswith("version of ")}
    known = {key for run in runs for key in run.about} | set(varying) | losses
    found: set[str] = set()
    for name in names:
        if name not in known:
            raise UserError(f"there is no setting {name!r}{suggest(name, known)}; allowed: {', '.join(sorted(known))}")
        found |= {name} | varying.get(name, set())
    return found


def factor_settings(names: list[str], runs: Sequence[Trained]) -> set[str]:
    if "seed" in names:
        raise UserError("--factor seed: seeds are what the tests are made over; name the setting that is compared")
    return expand(names, runs)


def make_arms(runs: Sequence[Trained], factor: set[str], names: list[str]) -> dict[str, list[Trained]]:
    """The runs by the value of the factor, under a name of what differs.

    Raises:
        UserError: all have the same value, or two runs of an arm have one seed.
    """
    groups: dict[str, list[Trained]] = {}
    for run in runs:
        if not any(run.place == other.place for group in groups.values() for other in group):
            groups.setdefault(_value(run, factor), []).append(run)
    if len(groups) < 2:
        raise UserError(f"all {len(runs)} runs have the same {' and '.join(names)}; there is nothing to compare")
    made = {}
    for group in groups.values():
        main = [_show(group[0].about.get(name)) for name in names]
        alike = [
            other for other in groups.values()
            if other is not group and [_show(other[0].about.get(name)) for name in names] == main
        ]  # fmt: skip
        more = sorted(
            key for key in factor - set(names)
            if any(_show(other[0].about.get(key)) != _show(group[0].about.get(key)) for other in alike)
        )  # fmt: skip
        shown = [text if name == "loss" else f"{name} {text}" for name, text in zip(names, main, strict=True)]
        name = " ".join([*shown, *(f"{key} {_show(group[0].about.get(key))}" for key in more)])
        if name in made:
            raise UserError(f"two arms would both be called {name!r}; leave the runs of one of them out")
        made[name] = group
    for name, group in made.items():
        seeds = [run.seed for run in group]
        twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
        if twice is not None:
            one, other = (run for run in group if run.seed == twice)
            differing = ", ".join(differences(one, other, set())) or "in nothing that is recorded"
            raise UserError(
                f"{one.folder} and {other.folder} are both {name} with seed {twice} and differ in: {differing}; "
                "leave one out, or name what differs in --factor"
            )
    return made


def choose_base(arms: dict[str, list[Trained]], to: list[str] | None, others: list[Trained]) -> str:
    """The arm that all others are compared with: what was asked for, InfoNCE if it is there, else the first."""
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
    """Refuse seeds of an arm that differ in more than their seed (a sample of the text is drawn by it)."""
    for run in arm[1:]:
        refuse(differences(arm[0], run, allowed | {TEXT}), arm[0], run)


def refuse(found: list[str], one: Trained, other: Trained) -> None:
    if found:
        raise UserError(
            f"{one.folder} and {other.folder} differ in more than the factor: {'; '.join(found)}; leave one of them "
            "out, name it in --factor if it is what you compare, or accept it with --allow"
        )


def differences(one: Trained, other: Trained, allowed: set[str]) -> list[str]:
    return [text for key, text in differing(one, other).items() if key not in allowed]


def differing(one: Trained, other: Trained) -> dict[str, str]:
    return {
        key: f"{key} ({_show(one.about.get(key))}, {_show(other.about.get(key))})"
        for key in sorted(one.about.keys() | other.about.keys())
        if one.about.get(key) != other.about.get(key)
    }


def _value(run: Trained, factor: set[str]) -> str:
    return json.dumps({key: run.about.get(key) for key in sorted(factor)}, sort_keys=True, default=str)


def _show(value: Any) -> str:
    if isinstance(value, str) and HASH.fullmatch(value):  # of which the beginning is enough
        return value[:12]
    return f"{value:g}" if isinstance(value, float) else str(value)
