"""``focalcse compare``: what one setting changes, tested over seeds and sentence pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..evaluation import STS_TASKS
from ..options.experiments import CompareOptions
from ..runs.atomic import require_writable, write_json
from ..runs.cosines import read_cosines, read_fingerprints
from .arms import (
    ALL,
    Trained,
    check_arm,
    choose_base,
    differences,
    differing,
    expand,
    factor_settings,
    is_path,
    make_arms,
    read_runs,
    refuse,
)
from .conclusions import Comparison, Row, conclude, report
from .statistics import compare_seeds, holm, resample, summarise


def compare(args: CompareOptions) -> None:
    """Run folders -> tables, sentences, and a JSON file where one was asked for.

    Raises:
        UserError: there is nothing to compare, or more differs than the factor.
    """
    require_writable(args.json, "--json")
    runs = read_runs(args.runs)
    others = read_runs(args.to) if args.to and any(is_path(text) for text in args.to) else []
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


def compare_arms(
    name: str, arm: list[Trained], base_name: str, base: list[Trained], allowed: set[str], args: CompareOptions
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
        refuse(differences(one, other, allowed), one, other)
    accepted = {
        text
        for one, other in pairs
        for key, text in differing(one, other).items()
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
