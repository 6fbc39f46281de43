"""``focalcse compare``: what one setting changes, tested over seeds and sentence pairs, said in a sentence."""

from __future__ import annotations

import glob
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, suggest
from ..evaluation import STS_TASKS, Results
from ..evaluation.table import Table
from ..parsing.arguments import CompareArguments, loss_settings
from ..runs.atomic import require_writable, write_json
from ..runs.cosines import read_cosines, read_fingerprints
from ..runs.record import RUN_FILE, RunRecord
from .grid import HARMLESS
from .statistics import PairTest, SeedTest, compare_seeds, holm, resample, summarise

ALPHA = 0.05
HASH = re.compile(r"[0-9a-f]{40}\+?|[0-9a-f]{64}")
ALL = "/all/spearman"
TEXT, DEV, COMMIT = "training text", "dev set", "commit"
TOLD_OTHERWISE = {  # settings that run.json says better in another place
    *("train_file", "dataset_name", "dataset_file", "dataset_split", "dataset_revision", "text_column"),
    *("eval_file", "sts_dir", "seed", "loss", "mask_duplicates"),
}
TOGETHER = {  # what belongs to a factor, besides the setting of its name
    "pooler": {"mlp_only_train", "reinit_projection"},
    "model_name_or_path": {"model_revision"},
    "reference_model": {"reference_revision", "reference_pooler"},
    "train_file": {TEXT},
    "dataset_name": {TEXT},
    "drop_duplicates": {TEXT},
    "train_fraction": {TEXT},
    "max_train_samples": {TEXT},
    "eval_file": {DEV},
    "sts_dir": {DEV},
}


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


@dataclass(frozen=True)
class Row:
    """One set, or the average: scores x 100 of both arms by seed, and what the tests say of their difference."""

    key: str
    title: str
    a: list[float]
    b: list[float]
    over_seeds: SeedTest
    over_pairs: PairTest | None
    p_holm: float | None = None
    p_pairs_holm: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Arm a against arm b on the same seeds."""

    a: str
    b: str
    seeds: list[int]
    rows: list[Row]
    average: Row
    conclusion: str
    notes: list[str]


def compare(args: CompareArguments) -> None:
    """Run folders -> tables, sentences, and a JSON file where one was asked for.

    Raises:
        UserError: there is nothing to compare, or more differs than the factor.
    """
    require_writable(args.json, "--json")
    runs = read_runs(args.runs)
    others = read_runs(args.to) if args.to and any(_is_path(text) for text in args.to) else []
    factor = factor_settings(args.factor, [*runs, *others])
    arms = make_arms([*runs, *others], factor, args.factor)
    base = choose_base(arms, args.to, others)
    allowed = factor | expand(args.allow, [*runs, *others])
    for arm in arms.values():
        check_arm(arm, allowed)
    found = [
        compare_arms(name, arm, base, arms[base], allowed, args) for name, arm in arms.items() if name != base
    ]  # fmt: skip
    print("\n\n".join(report(one, args.markdown) for one in found))
    if len(found) > 1:
        print(
            f"\nThese are {len(found)} comparisons; the p values of their averages are not corrected for that number."
        )
    if args.json:
        content = {"format": 1, "factor": args.factor, "allowed": args.allow, "resamples": args.resamples}
        file = write_json(Path(args.json), content | {"comparisons": [asdict(one) for one in found]})
        print(f"\nWritten to {file}")


# ---- which runs


def _is_path(text: str) -> bool:
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
    skipped = HARMLESS | TOLD_OTHERWISE
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
    together = TOGETHER | {
        "loss": losses | {"mask_duplicates", "reference_model", "reference_revision", "reference_pooler"},
        "pooler": TOGETHER["pooler"] | {"projection"},
        "versions": {key for run in runs for key in run.about if key.startswith("version of ")},
    }
    known = {key for run in runs for key in run.about} | set(together) | losses
    found: set[str] = set()
    for name in names:
        if name not in known:
            raise UserError(f"there is no setting {name!r}{suggest(name, known)}; allowed: {', '.join(sorted(known))}")
        found |= {name} | together.get(name, set())
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
            differing = ", ".join(_differences(one, other, set())) or "in nothing that is recorded"
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
        _refuse(_differences(arm[0], run, allowed | {TEXT}), arm[0], run)


def _refuse(found: list[str], one: Trained, other: Trained) -> None:
    if found:
        raise UserError(
            f"{one.folder} and {other.folder} differ in more than the factor: {'; '.join(found)}; leave one of them "
            "out, name it in --factor if it is what you compare, or accept it with --allow"
        )


def _differences(one: Trained, other: Trained, allowed: set[str]) -> list[str]:
    return [text for key, text in _differing(one, other).items() if key not in allowed]


def _differing(one: Trained, other: Trained) -> dict[str, str]:
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


# ---- one comparison


def compare_arms(
    name: str, arm: list[Trained], base_name: str, base: list[Trained], allowed: set[str], args: CompareArguments
) -> Comparison:
    """Both arms on the seeds that both have.

    Raises:
        UserError: they have no seed and no set in common, or differ in more than the factor.
    """
    a, b = ({run.seed: run for run in group} for group in (arm, base))
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        raise UserError(
            f"{name} has the seeds {sorted(a)}, {base_name} {sorted(b)}: none is in both, nothing is paired"
        )
    notes = [
        f"seed {', '.join(map(str, sorted(only)))} is in {where} alone and left out"
        for only, where in ((a.keys() - b.keys(), name), (b.keys() - a.keys(), base_name))
        if only
    ]
    pairs = [(a[seed], b[seed]) for seed in seeds]
    for one, other in pairs:
        _refuse(_differences(one, other, allowed), one, other)
    accepted = {
        text
        for one, other in pairs
        for key, text in _differing(one, other).items()
        if key in expand(args.allow, [one, other]) - expand(args.factor, [one, other])
    }
    notes += [f"accepted besides the factor: {'; '.join(sorted(accepted))}"] if accepted else []
    sets, more = common_sets([run for pair in pairs for run in pair], args.sick)
    notes += more
    units, universe = number_units(list(sets), pairs[0][0])
    cosines = [[read_cosines(run.folder, run.results) for run in pair] for pair in pairs]
    rows, draws = [], []
    for place, (key, title) in enumerate(sets.items()):
        of_set = [[kept.get(key) for kept in pair] for pair in cosines]
        row, drawn = compare_set(key, title, pairs, of_set, args.resamples, place, units.get(key), universe)
        rows.append(row)
        draws.append(drawn)
    lacking = [row.title for row in rows if row.over_pairs is None]
    if lacking:
        notes.append(
            f"no cosines of single pairs are kept for {', '.join(lacking)}, so nothing is tested over sentence pairs "
            "there; evaluate again with this version to keep them"
        )
    elif len(units) < len(sets):
        apart = ", ".join(row.title for row in rows if row.key not in units)
        notes.append(
            f"which pairs these are is not kept for {apart}: a pair that several sets have is drawn for each of them"
        )
    average = average_row(rows, draws, universe if len(units) == len(sets) else None)
    corrected = holm([row.over_seeds.p for row in rows])
    by_pairs = holm([row.over_pairs.p if row.over_pairs else None for row in rows])
    rows = [
        Row(**(vars(row) | {"p_holm": p, "p_pairs_holm": q}))
        for row, p, q in zip(rows, corrected, by_pairs, strict=True)
    ]
    made = Comparison(name, base_name, seeds, rows, average, "", notes)
    return Comparison(**(vars(made) | {"conclusion": conclude(made)}))


def common_sets(runs: list[Trained], sick: str | None) -> tuple[dict[str, str], list[str]]:
    """{set: title} of the test sets that all runs were judged on, else of the dev sets; and what must be said.

    Raises:
        UserError: there is none, or a set is not the same for all.
    """
    held = [run.results.metadata["data"] for run in runs]
    common = [key for key in held[0] if all(key in data for data in held)]
    for key in common:
        if len({data[key]["sha256"] for data in held}) > 1:
            raise UserError(f"{key} is not the same set of pairs for all runs; evaluate them again on one --sts_dir")
    if len({run.results.metadata["protocol"] for run in runs}) > 1:
        raise UserError("the runs were judged by different protocols; evaluate them again with one version")
    sicks = [s for s in ("senteval", "mteb") if f"SICK-R/{s}-test" in common]
    if sick is not None and sicks and sick not in sicks:
        raise UserError(f"--sick {sick}: the runs were not all judged on those pairs; there is {sicks[0]}")
    if sick is not None and not sicks:
        raise UserError(f"--sick {sick}: the runs were not all judged on SICK-R; leave --sick out")
    chosen = sick or (sicks[0] if sicks else "mteb")
    order = {f"{name}/{f'{chosen}-' if name == 'SICK-R' else ''}test": task.title for name, task in STS_TASKS.items()}
    seven = {key: title for key, title in order.items() if key in common}
    notes = []
    everywhere = {key for data in held for key in data}
    missing = [key for key in order if key in everywhere and key not in common]
    if missing:
        without = sorted({str(run.folder) for run, data in zip(runs, held, strict=True) if set(missing) - data.keys()})
        notes.append(f"left out: {', '.join(missing)}, which {', '.join(without)} was not judged on")
    if seven:
        return seven, notes
    dev = {run_key for run in runs for run_key in (k.removesuffix(ALL) for k in run.record.final if k.endswith(ALL))}
    others = {key: key for key in common if key not in dev} or {key: key for key in common}
    if not others:
        raise UserError("the runs were judged on no set in common; run focalcse eval on each of them")
    if set(others) <= dev:
        notes.append("these are dev scores, by which checkpoints were chosen: judge the runs on test sets for a claim")
    return others, notes


Draws = tuple[float, np.ndarray, np.ndarray] | None


def number_units(sets: Sequence[str], run: Trained) -> tuple[dict[str, np.ndarray], int]:
    """{set: (N,) number of the two texts of each pair}, and how many numbers there are; equal texts have one.

    STS-B's test pairs are mostly those of STS12 to STS16, and a pair may stand twice in a set.
    """
    kept = read_fingerprints(run.folder, run.results)
    found = {key: kept[key] for key in sets if key in kept}
    distinct = np.unique(np.concatenate([*found.values(), np.array([], dtype=np.int64)]))
    return {key: np.searchsorted(distinct, texts) for key, texts in found.items()}, len(distinct)


def compare_set(
    key: str,
    title: str,
    pairs: list[tuple[Trained, Trained]],
    cosines: list[list[np.ndarray | None]],
    resamples: int,
    place: int,
    units: np.ndarray | None = None,
    universe: int = 0,
) -> tuple[Row, Draws]:
    """One set on all seeds; no test over pairs where a run kept no cosines. units, universe: see `resample`."""
    a, b = ([pair[side].results.scores[key + ALL] for pair in pairs] for side in (0, 1))
    drawn: Draws = None
    test = None
    if all(one is not None for pair in cosines for one in pair):
        stacked = np.array(cosines)  # (S, 2 systems, 2 gold and cosine, N)
        gold = stacked[0, 0, 0]
        if (stacked[:, :, 0] == gold).all():
            seed = place if units is None else 0  # with units the draws of all sets are one
            drawn = resample(gold, stacked[:, 0, 1], stacked[:, 1, 1], resamples, seed, units, universe)
            test = summarise(len(gold), *drawn)
    return Row(key, title, a, b, compare_seeds(a, b), test), drawn


def average_row(rows: list[Row], draws: list[Draws], distinct: int | None) -> Row:
    """The mean of the sets, tested by itself; distinct: pairs of all sets, a pair that two have counted once."""
    a, b = (np.mean([getattr(row, side) for row in rows], axis=0).tolist() for side in ("a", "b"))
    test = None
    kept = [drawn for drawn in draws if drawn is not None]
    if len(kept) == len(rows):
        observed = float(np.mean([draw[0] for draw in kept]))
        drawn, swapped = (np.mean(np.stack(of), axis=0) for of in zip(*(draw[1:] for draw in kept), strict=True))
        pairs = distinct or sum(row.over_pairs.pairs for row in rows if row.over_pairs)
        test = summarise(pairs, observed, drawn, swapped)
    return Row("average", "Avg", a, b, compare_seeds(a, b), test)


# ---- in words


def conclude(made: Comparison) -> str:
    """What may and what may not be concluded, in plain sentences."""
    test, n = made.average.over_seeds, len(made.seeds)
    over = f"on average over {len(made.rows)} sets" if len(made.rows) > 1 else f"on {made.rows[0].title}"
    word = f"{abs(test.mean):.2f} points {'above' if test.mean > 0 else 'below'}" if test.mean else "equal to"
    said = []
    if n < 2:
        said.append(
            f"One seed ({made.seeds[0]}): nothing may be concluded about {made.a} and {made.b} in general. This "
            f"{made.a} model is {word} this {made.b} model {over}; another seed may turn that around."
        )
    elif test.p is None:
        said.append(
            f"{made.a} against {made.b}: all {n} seeds differ by the same {test.mean:+.2f} {over}; no test is "
            "possible, and none is claimed."
        )
    elif test.p < ALPHA:
        said.append(
            f"{made.a} is {word} {made.b} {over} ({n} seeds, 95 % confidence interval {_interval(test)}, paired "
            f"t-test {_p(test.p)}): all else as it is here, the difference is larger than seed noise."
        )
    else:
        said.append(
            f"No difference between {made.a} and {made.b} may be claimed {over}: {test.mean:+.2f} points over {n} "
            f"seeds, 95 % confidence interval {_interval(test)}, paired t-test {_p(test.p)}. That proves no equality: "
            "every difference inside the interval remains possible."
        )
    if n > 1 and len(made.rows) > 1:
        found: dict[str, list[str]] = {"above": [], "below": []}
        for row in made.rows:
            if _below(row.p_holm):
                found["above" if row.over_seeds.mean > 0 else "below"].append(
                    f"{row.title} ({row.over_seeds.mean:+.2f})"
                )
        parts = [f"{side} on {', '.join(sets)}" for side, sets in found.items() if sets]
        others = [row.title for row in made.rows if not _below(row.p_holm)]
        nowhere = f"no difference may be claimed on {', '.join(others) if parts else 'any of them'}"
        said.append(
            f"Set by set, corrected for {len(made.rows)} tests, "
            + (f"{made.a} is {' and '.join(parts)}" if parts else "")
            + ("; " if parts and others else "")
            + (f"{nowhere}." if others else ".")
        )
    pairs = made.average.over_pairs
    if pairs is not None:
        beyond = "larger" if pairs.p < ALPHA else "not larger"
        said.append(
            f"For the {'models' if n > 1 else 'two models'} trained here, the difference {over} is {beyond} than "
            f"what the choice of sentence pairs explains ({_interval(pairs)} on pairs drawn anew, "
            f"permutation {_p(pairs.p)})" + (", which says nothing about other seeds." if n < 2 else ".")
        )
    return " ".join(said)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _below(p: float | None) -> bool:
    return p is not None and p < ALPHA


def _interval(test: SeedTest | PairTest) -> str:
    return "-" if test.low is None or test.high is None else f"{test.low:+.2f} to {test.high:+.2f}"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _number(value: float | None, digits: int = 2, sign: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:{'+' if sign else ''}.{digits}f}"


def _small(p: float | None) -> str:
    return "-" if p is None else "<.001" if p < 0.001 else f"{p:.3f}"


def _spread(scores: list[float]) -> str:
    return f"{np.mean(scores):.2f}" + (f" ±{np.std(scores, ddof=1):.2f}" if len(scores) > 1 else "")


def report(made: Comparison, markdown: bool) -> str:
    """A table, notes on it, and the conclusion."""
    header = ["Set", made.a, made.b, "diff", "95 % seeds", "p", "Holm", "g", "95 % pairs", "p", "Holm"]
    rows = []
    for row in (*made.rows, *([made.average] if len(made.rows) > 1 else [])):
        seeds, pairs = row.over_seeds, row.over_pairs
        cells = [row.title, _spread(row.a), _spread(row.b)]
        cells += [_number(seeds.mean, sign=True), _interval(seeds), _small(seeds.p), _small(row.p_holm)]
        cells += [_number(seeds.g, sign=True), _interval(pairs) if pairs else "-"]
        rows.append([*cells, _small(pairs.p if pairs else None), _small(row.p_pairs_holm)])
    resamples = next((row.over_pairs.resamples for row in made.rows if row.over_pairs), None)
    notes = [
        f"Spearman x 100, mean ± standard deviation over seed{'s' * (len(made.seeds) > 1)} "
        f"{', '.join(map(str, made.seeds))}. "
        "Over seeds: paired t-test and its interval, Hedges' g of the paired differences. Holm: corrected for "
        f"{_counted(len(made.rows), 'set')}."
        + (
            f" Over sentence pairs: percentile interval of {resamples:,} bootstrap resamples, p of as many swaps."
            if resamples
            else ""
        ),
        *(f"Note: {note}." for note in made.notes),
        made.conclusion,
    ]
    table = Table(header, rows, notes)
    title = f"{made.a} against {made.b}"
    return f"### {title}\n\n{table.markdown()}" if markdown else f"{title}\n\n{table.plain()}"
