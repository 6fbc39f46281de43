"""Folders of runs -> a `Study`, in which runs that differ only in the seed are one group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import UserError
from ..evaluation.identity import as_embedded
from ..runs.record import RUN_FILE, last_part, without_paths
from ..runs.scores import RESULTS_FILE
from .names import tell_apart, with_folders_above
from .scored import POOLING, read_other, read_run
from .study import Group, ScoredEncoder, Study

REPORT = "report.html"  # identifies a folder that `focalcse report` wrote


def read_study(folders: Iterable[str | Path]) -> Study:
    """Read ``folders``, each the folder of a run or one that contains runs at any depth.

    Raises:
        UserError: a folder is missing, or no folder contains a finished run.
    """
    study, runs, others, shown = Study([], {}), [], [], []
    places: dict[Path, tuple[Path, str]] = {}  # a folder that is given twice is read once
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give output folders of training runs, or one above them")
        shown.append(str(folder))
        for place in _places(folder):
            name = str(place.relative_to(folder.parent if place == folder else folder))
            places.setdefault(place.resolve(), (place, name))
    names = tell_apart([name for _, name in places.values()], [with_folders_above(*of) for of in places.values()])
    for (place, _), name in zip(places.values(), names, strict=True):
        try:
            if (place / RUN_FILE).exists():
                runs.append(read_run(place, name))
            elif (place / RESULTS_FILE).exists():
                others.append(read_other(place, name))
            else:
                study.skipped[name] = "no run.json: the run is not finished or failed, or this is not a run"
        except UserError as error:
            study.skipped[name] = without_paths(str(error), [str(place)])
        except (OSError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            study.skipped[name] = f"its records cannot be read ({type(error).__name__}: {error})"
    if not runs:
        why = "".join(f"; {name}: {reason}" for name, reason in study.skipped.items())
        raise UserError(f"no finished run (run.json) in {', '.join(shown)}{why}; give the output folders of training")
    study.groups = _group(runs, study.skipped)
    for other in others:
        start = _adopt(other, study.runs)
        study.others[start or f"{other.name}, not trained here"] = other
    return study


def _adopt(other: ScoredEncoder, runs: Sequence[ScoredEncoder]) -> str | None:
    """Add an encoder's scores to the runs that started from it; return the name of its row, or None.

    They started from it if its pooling, the last part of its path, and its scores on shared sets agree. If several
    starts fit, shared scores decide, then the whole path.
    """
    starts: dict[str, list[ScoredEncoder]] = {}
    for run in runs:
        if as_embedded(*map(run.factors.get, POOLING)) == as_embedded(*map(other.factors.get, POOLING)):
            starts.setdefault(Group("", [run]).start, []).append(run)
    ranks: dict[str, tuple[bool, bool]] = {}
    path = other.models["encoder"][0]
    for start, same in starts.items():
        shared = [(run.before[key], other.scores[key]) for run in same for key in run.before if key in other.scores]
        theirs = same[0].models.get("encoder", ("",))[0]
        if all(abs(one - two) <= 0.01 for one, two in shared) and last_part(path) == last_part(theirs):
            # a path may be relative to another folder: then it is the end of the other path
            ranks[start] = bool(shared), path == theirs or path.endswith(f"/{theirs}") or theirs.endswith(f"/{path}")
    best = [start for start, rank in ranks.items() if rank == max(ranks.values())]
    if len(best) != 1 or not any(ranks[best[0]]):
        return None
    for run in starts[best[0]]:
        run.before.update(other.scores)
    return f"{best[0]}, {starts[best[0]][0].before_is}"


def _group(runs: list[ScoredEncoder], skipped: dict[str, str]) -> list[Group]:
    """Groups in the order of their first run, named by their folders without the seed, or by what differs."""
    _tell_models_apart(runs)
    texts: dict[str, set[str]] = {}
    for run in runs:  # two texts of the same name are different factors
        texts.setdefault(run.factors["data"], set()).update(filter(None, [run.text_sha256]))
    found: dict[tuple, list[ScoredEncoder]] = {}
    for run in runs:
        if len(texts.get(run.factors["data"], ())) > 1:
            run.factors["data"] += f", sha256 {run.text_sha256[:12] or 'of a sample'}"
        models = tuple(sorted((name, recorded) for name, (recorded, _) in run.models.items()))
        same = found.setdefault((*models, *sorted(run.factors.items())), [])
        twin = next((other.name for other in same if other.seed == run.seed), None)
        if twin:
            skipped[run.name] = f"same settings and seed as {twin}: counting it too would understate the spread"
        else:
            same.append(run)
    groups = [Group("", sorted(same, key=lambda run: run.seed)) for same in found.values()]
    names = [{re.sub(r"[-_.,]?seed[-_=]?\d+", "", Path(run.name).name) for run in group.runs} for group in groups]
    varied = Study(groups, {}).varied()
    for group, own in zip(groups, names, strict=True):
        shared = len(own) == 1 and "" not in own and sum(own == other for other in names) == 1
        settings = ", ".join(f"{name} {group.factors[name]}" for name in varied if name in group.factors)
        group.name = own.pop() if shared else settings or "all runs"
    return groups


def _tell_models_apart(runs: Sequence[ScoredEncoder]) -> None:
    """Give different names to different models whose paths end in the same part, which alone is shown."""
    for factor in ("encoder", "reference"):
        found = sorted({run.models[factor] for run in runs if factor in run.models})
        told = tell_apart([shown for _, shown in found], [recorded for recorded, _ in found], private=True)
        names = dict(zip(found, told, strict=True))
        for run in runs:
            if factor in run.models:
                details = run.factors[factor].removeprefix(run.models[factor][1])
                run.factors[factor] = without_paths(names[run.models[factor]]) + details


def _places(folder: Path) -> list[Path]:
    """The folders with records, and those that contain no folder; not those inside a run, and no reports."""
    if any((folder / name).exists() for name in (RUN_FILE, RESULTS_FILE)):
        return [folder]
    if (folder / REPORT).exists():
        return []
    inner = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "checkpoint-", "plots")))
    return [place for path in inner for place in _places(path)] or [folder]
