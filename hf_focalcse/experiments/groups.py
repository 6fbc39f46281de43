"""Run folders -> groups of runs whose settings are equal but for the seed, and what may be compared between them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ..errors import UserError
from ..evaluation import Results
from ..evaluation.table import as_embedded, describe
from ..evaluation.tasks import STS_TASKS
from ..runs.record import RUN_FILE, RunRecord, last_part, without_paths
from ..runs.scores import SICK_SPLITS

SPEARMAN = "/all/spearman"
DEV = "STSBenchmark/dev" + SPEARMAN
REPORT = "report.html"  # marks a folder that `focalcse report` wrote
# What cannot change a score, and what the factors below say under another name.
NO_FACTOR = re.compile(
    "seed|data_seed|output_dir|overwrite_output_dir|recipe|resume_from_checkpoint|allow_resume_mismatch|disable_tqdm|"
    "report_to|run_name|project|logging_.*|log_.*|save_.*|hub_.*|push_to_hub|dataloader_.*|debug|do_.*|train_file|"
    "dataset_.*|sts_dir|train_fraction|max_train_samples|dropout|augmentation|reference_.*|use_cpu|"
    "greater_is_better|activation_checkpointing|gradient_checkpointing|accelerator_config|measure_steps"
)
POOLING = ("pooler", "projection")
LOSS_TEXTS = ("name", "formula", "paper", "citation")


@dataclass(frozen=True)
class Summary:
    """Of n runs that differ in the seed; ``sd`` (n - 1) is None for one run."""

    n: int
    mean: float
    sd: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary | None:
        if not values:
            return None
        return cls(len(values), float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean, Student's t; the mean itself for one run."""
        half = 0.0 if self.sd is None else float(stats.t.ppf(0.975, self.n - 1)) * self.sd / math.sqrt(self.n)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Run:
    """One trained encoder. Scores under the keys of results.json; factors: every setting that may change a score."""

    name: str
    seed: int
    factors: dict[str, str]
    scores: dict[str, float]
    before: dict[str, float]  # scores of the encoder that training started from
    curves: dict[str, dict[int, float]]  # key -> step -> value, step 0 before training
    sets: dict[str, Any]  # what results.json says of the data, with the counts of cosines
    budget: int  # sentences seen
    facts: dict[str, str] = field(default_factory=dict)  # where the run comes from
    loss_settings: frozenset[str] = frozenset()  # the factors that belong to its loss alone
    text_sha256: str = ""  # of the training text; empty for a sample, which the seed draws
    models: dict[str, tuple[str, str]] = field(default_factory=dict)  # of encoder and reference: path, as shown
    notes: tuple[str, ...] = ()


@dataclass
class Group:
    """Runs that differ in the seed only."""

    name: str
    runs: list[Run]

    @property
    def factors(self) -> dict[str, str]:
        return self.runs[0].factors

    @property
    def start(self) -> str:
        """The encoder before training, as it is pooled: groups with one start compare."""
        revision = self.factors.get("model_revision")
        return f"{self.factors['encoder']}{f' at {revision}' if revision else ''} ({self.factors['pooler']})"

    def values(self, key: str) -> list[float]:
        return [run.scores[key] for run in self.runs if key in run.scores]

    def summary(self, key: str) -> Summary | None:
        return Summary.of(self.values(key))

    def before(self, key: str) -> float | None:
        found = [run.before[key] for run in self.runs if key in run.before]
        return float(np.mean(found)) if found else None

    def curve(self, key: str) -> dict[int, float]:
        """The mean over the runs at the steps that all of them have."""
        curves = [run.curves[key] for run in self.runs if run.curves.get(key)]
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        return {step: float(np.mean([curve[step] for curve in curves])) for step in steps}


@dataclass(frozen=True)
class Series:
    """Groups that differ in one setting: (its value, group), ascending where they are numbers."""

    setting: str
    points: list[tuple[float | str, Group]]

    @property
    def numeric(self) -> bool:
        return not any(isinstance(value, str) for value, _ in self.points)


@dataclass
class Study:
    """All that was found in the folders."""

    groups: list[Group]
    others: dict[str, Run]  # encoders with results.json but no run.json, such as baselines
    skipped: dict[str, str] = field(default_factory=dict)  # folder -> why it counts for nothing

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    def keys(self) -> dict[str, str]:
        """Score key -> title of each set that any run or other encoder was scored on, in the order of papers."""
        sick = {of.set: f"SICK-R ({of.owner})" for of in SICK_SPLITS.values()}
        titles = {f"{name}/test": task.title for name, task in STS_TASKS.items() if name != "SICK-R"} | sick
        titles |= {of.average: f"Avg ({of.owner})" for of in SICK_SPLITS.values()}
        titles["STSBenchmark/dev"] = "STS-B dev"
        held = dict.fromkeys(k.removesuffix(SPEARMAN) for run in [*self.runs, *self.others.values()]
                             for k in run.scores if k.endswith(SPEARMAN))  # fmt: skip
        order = [*(key for key in titles if key in held), *(key for key in held if key not in titles)]
        return {key + SPEARMAN: titles.get(key, key) for key in order}

    def starts(self) -> dict[str, list[Group]]:
        """Groups by the encoder they start from, those of most seeds first."""
        found: dict[str, list[Group]] = {}
        for group in sorted(self.groups, key=lambda group: -len(group.runs)):
            found.setdefault(group.start, []).append(group)
        return found

    def varied(self) -> list[str]:
        """Settings of which two groups hold different values."""
        names = dict.fromkeys(name for group in self.groups for name in group.factors)
        return [n for n in names if len({g.factors[n] for g in self.groups if n in g.factors}) > 1]

    def ablations(self) -> list[Series]:
        """Every largest set of groups that differ in one setting; in the loss: in all that belongs to it alone."""
        found = []
        for setting in self.varied():
            beside: dict[tuple, list[tuple[float | str, Group]]] = {}
            for group in self.groups:
                own = {setting, *(group.runs[0].loss_settings if setting == "loss" else ())}
                if setting in group.factors:
                    rest = tuple(sorted((key, value) for key, value in group.factors.items() if key not in own))
                    beside.setdefault(rest, []).append((_number(group.factors[setting]), group))
            for points in beside.values():
                if len({value for value, _ in points}) > 1:
                    mixed = any(isinstance(value, str) for value, _ in points)
                    found.append(Series(setting, points if mixed else sorted(points, key=lambda point: point[0])))
        return found


def read_study(folders: Iterable[str | Path]) -> Study:
    """The runs of ``folders``, each a run or a folder of runs, however deep.

    Raises:
        UserError: a folder is missing, or none holds a finished run.
    """
    study, runs, others, shown = Study([], {}), [], [], []
    places: dict[Path, tuple[Path, str]] = {}  # a folder once, though it is given twice
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give output folders of training runs, or one above them")
        shown.append(str(folder))
        for place in _places(folder):
            name = str(place.relative_to(folder.parent if place == folder else folder))
            places.setdefault(place.resolve(), (place, name))
    names = tell_apart([name for _, name in places.values()], [_above(*of) for of in places.values()])
    for (place, _), name in zip(places.values(), names, strict=True):
        try:
            if (place / RUN_FILE).exists():
                runs.append(read_run(place, name))
            elif (place / "results.json").exists():
                others.append(_read_other(place, name))
            else:
                study.skipped[name] = "no run.json: not finished, failed, or no run"
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
        study.others[f"{start}, before training" if start else f"{other.name}, not trained here"] = other
    return study


def _adopt(other: Run, runs: Sequence[Run]) -> str | None:
    """Gives an encoder's scores to the runs that started from it; the name of that start, or None.

    It is theirs by its pooling, its name and its scores, where both were scored on a set; of several such starts by
    the scores, else by the whole path.
    """
    starts: dict[str, list[Run]] = {}
    for run in runs:
        if as_embedded(*map(run.factors.get, POOLING)) == as_embedded(*map(other.factors.get, POOLING)):
            starts.setdefault(Group("", [run]).start, []).append(run)
    ranks: dict[str, tuple[bool, bool]] = {}
    path = other.models["encoder"][0]
    for start, same in starts.items():
        shared = [(run.before[key], other.scores[key]) for run in same for key in run.before if key in other.scores]
        theirs = same[0].models.get("encoder", ("",))[0]
        if all(abs(one - two) <= 0.01 for one, two in shared) and last_part(path) == last_part(theirs):
            # one of two paths may begin in another folder: then it is the end of the other
            ranks[start] = bool(shared), path == theirs or path.endswith(f"/{theirs}") or theirs.endswith(f"/{path}")
    best = [start for start, rank in ranks.items() if rank == max(ranks.values())]
    if len(best) != 1 or not any(ranks[best[0]]):
        return None
    for run in starts[best[0]]:
        run.before.update(other.scores)
    return best[0]


def read_run(folder: Path, name: str) -> Run:
    """run.json and, where there is one, results.json of a folder.

    Raises:
        UserError: they are damaged, or the scores are not of the weights that were trained.
    """
    record = RunRecord.load(folder)
    raw, record = record.model, record.publishable()
    file = folder / "results.json"
    results = Results.read(file) if file.exists() else Results(record.final, {"data": {}, "model": {}})
    mine, theirs = (of.get("weights_sha256") for of in (record.model, results.metadata["model"]))
    if mine and theirs and mine != theirs:
        raise UserError("results.json was measured on other weights than run.json names; evaluate again")
    judged = results.metadata["model"]
    asked, trained = ([of.get(key) for key in POOLING] for of in (judged, raw))
    known = [(one or other, other or one) for one, other in zip(asked, trained, strict=True)]
    theirs, ours = (as_embedded(*of) for of in zip(*known, strict=True))
    if judged.get("whitening") or theirs != ours:
        how = "whitened" if judged.get("whitening") else f"with pooler {asked[0]}, projection {asked[1]}"
        raise UserError(
            f"results.json was measured {how}, where training used pooler {trained[0]}, projection {trained[1]}; "
            "evaluate it without --pooler and --whiten"
        )
    curves: dict[str, dict[int, float]] = {}
    for line in record.log:
        for key, value in _numbers(line).items():
            if key.startswith(("eval_", "measured_")) and not key.endswith("/gain"):
                curves.setdefault(key.removeprefix("eval_"), {})[int(line["step"])] = value
    before = _numbers(record.baseline)
    curves = {key: dict(sorted(({0: before[key]} if key in before else {}).items() | curve.items()))
              for key, curve in curves.items()}  # fmt: skip
    settings, data = record.settings, record.data
    batch = (settings.get("per_device_train_batch_size") or 0) * (settings.get("gradient_accumulation_steps") or 1)
    steps = max((int(line["step"]) for line in record.log if "step" in line), default=0)
    named = {"encoder": (raw, record.model), "reference": (raw.get("reference"), record.model.get("reference"))}
    models = {name: [(of or {}).get("name_or_path") for of in both] for name, both in named.items()}
    hardware = {key: value for key, value in record.hardware.items() if value not in ([], None)}
    facts = {
        "steps": str(steps),
        "sentences seen": f"{steps * batch * record.world_size:,}",
        "data": f"{data.get('source')}, {data.get('kept', 0):,} sentences, sha256 {str(data.get('sha256'))[:12]}",
        "commit": str(record.git_commit or "not recorded")[:12],
        "machine": ", ".join(f"{key} {_text(value)}" for key, value in hardware.items()),
        "versions": ", ".join(f"{key} {value}" for key, value in record.versions.items()),
        "seconds": "" if record.seconds is None else f"{record.seconds:.0f}",
        "started": record.started,
        "scored in": _precision(judged.get("precision"), record.final.keys() - results.scores.keys()),
    }
    return Run(
        name=name,
        seed=record.seed,
        factors=_factors(record),
        scores=_numbers(record.final) | _numbers(results.scores),
        before=before,
        curves=curves,
        sets=results.metadata["data"],
        budget=steps * batch * record.world_size,
        facts=facts,
        loss_settings=frozenset({*record.loss, "reference"} - {"temperature"}),
        models={name: (_same_path(of), _text(shown)) for name, (of, shown) in models.items() if of},
        text_sha256="" if data.get("fraction") or data.get("max_samples") else str(data.get("sha256")),
        notes=(*map(str, record.notes), *(f"ALARM {alarm}" for alarm in record.alarms)),
    )


def _read_other(folder: Path, name: str) -> Run:
    """Scores of an encoder that was not trained here."""
    results = Results.read(folder / "results.json")
    model = results.metadata["model"]
    pooling = {key: _text(model.get(key)) for key in POOLING}
    if model.get("whitening"):
        pooling["pooler"] += ", whitened"  # no run starts so
    title = f"{without_paths(describe(results, folder / 'results.json'))} in {name}"
    encoder = {"encoder": (_same_path(model.get("name_or_path")), "")}
    return Run(title, 0, pooling, _numbers(results.scores), {}, {}, results.metadata["data"], 0, models=encoder)


def _factors(record: RunRecord) -> dict[str, str]:
    """Every setting that may change a score, as text, under one name each."""
    model, data, loss = record.model, record.data, record.loss
    rates = sorted({*model.get("dropout", {}).values()})
    reference = {k: (model.get("reference") or {}).get(k) for k in ("name_or_path", "pooler", "revision")}
    found = {
        "encoder": model["name_or_path"] or "encoder without a name",
        "pooler": model["pooler"],
        "loss": loss["name"],
        **{key: value for key, value in loss.items() if key not in LOSS_TEXTS},
        "model_revision": model.get("revision"),
        **{key: value for key, value in record.settings.items() if not NO_FACTOR.fullmatch(key)},
        "dropout": rates[0] if len(rates) == 1 else model.get("dropout"),
        "augmentation": model.get("augmentation"),
        "projection": model.get("projection"),
        "reference": ", ".join(_text(value) for value in reference.values() if value),  # begins with its name
        "processes": record.world_size,
        "data": f"{data.get('source')} ({data.get('lines_read', data.get('kept'))} lines)",
        "sentences": data.get("kept"),
    }
    found.pop("model_name_or_path", None)
    return {key: _text(value) for key, value in found.items() if value not in (None, "", {}, [])}


def _group(runs: list[Run], skipped: dict[str, str]) -> list[Group]:
    """Groups in the order of their first run, named by the folders without the seed, or by what differs."""
    _tell_models_apart(runs)
    texts: dict[str, set[str]] = {}
    for run in runs:  # two texts under one name are two factors
        texts.setdefault(run.factors["data"], set()).update(filter(None, [run.text_sha256]))
    found: dict[tuple, list[Run]] = {}
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


def _tell_models_apart(runs: Sequence[Run]) -> None:
    """Other models that are shown alike, because paths are cut to their last part, get names of their own."""
    for factor in ("encoder", "reference"):
        found = sorted({run.models[factor] for run in runs if factor in run.models})
        told = tell_apart([shown for _, shown in found], [recorded for recorded, _ in found], private=True)
        names = dict(zip(found, told, strict=True))
        for run in runs:
            if factor in run.models:
                details = run.factors[factor].removeprefix(run.models[factor][1])
                run.factors[factor] = without_paths(names[run.models[factor]]) + details


def tell_apart(names: Sequence[str], paths: Sequence[str], private: bool = False) -> list[str]:
    """The names of different paths; equal ones get one or two folders of their paths before, or a short hash behind.

    private: the first folder of a path, from the root the first two, are not shown.
    """
    told = list(names)
    for depth in (1, 2):
        for i in [i for i, name in enumerate(told) if told.count(name) > 1]:
            told[i] = "/".join([*_folders(paths[i], private)[-depth:], names[i]])
    for i, name in enumerate(names):
        if told.count(told[i]) > 1 or (names.count(name) > 1 and told[i] == name):
            told[i] = f"{name} (path {sha256(paths[i].encode()).hexdigest()[:6]})"
    return told


def _above(place: Path, name: str) -> str:
    """``place`` as the path whose last part is all of ``name``."""
    return "/".join([*place.parts[: -len(Path(name).parts)], "_"])


def _folders(path: str, private: bool) -> list[str]:
    """Those above the last part, that may be shown."""
    rooted = re.match(r"[/\\~.]|\w:", path) is not None
    named = [part for part in re.split(r"[/\\]", path)[:-1] if not re.fullmatch(r"\.*|~.*|\w:", part)]
    return named[rooted + private :]


def _precision(judged: str | None, of_training: Iterable[str]) -> str:
    """Training judges in float32, whatever `focalcse eval` was told."""
    sets = sorted(key.removesuffix(SPEARMAN) for key in of_training if key.endswith(SPEARMAN))
    return f"{judged}, but {', '.join(sets)} by training in float32" if judged and sets else judged or "float32"


def _same_path(path: Any) -> str:
    """One text for ``runs/a``, ``./runs/a`` and ``runs/a/``."""
    return os.path.normpath(_text(path))


def _places(folder: Path) -> list[Path]:
    """Folders with records, and folders without any folder in them; not below a run, nor reports."""
    if any((folder / name).exists() for name in (RUN_FILE, "results.json")):
        return [folder]
    if (folder / REPORT).exists():
        return []
    inner = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "checkpoint-", "plots")))
    return [place for path in inner for place in _places(path)] or [folder]


def _numbers(content: dict[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in content.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
