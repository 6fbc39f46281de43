"""``focalcse compare``: what one setting changes, tested over seeds and sentence pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..evaluation.verdict import arm_against_start
from ..options.experiments import CompareOptions
from ..runs.atomic import require_writable, write_json
from ..runs.cosines import read_fingerprints, recall
from ..runs.scores import (
    LOWER_IS_BETTER,
    PAPERS_FIRST,
    SICK_SPLITS,
    Results,
    ScoreKey,
    headline,
    headlines,
    is_headline,
    score_of,
    set_of,
)
from .arms import (
    Trained,
    check_arm,
    choose_base,
    differences_between,
    expand,
    factor_settings,
    is_path,
    make_arms,
    read_runs,
    refuse_differences,
)
from .conclusions import Comparison, Row, conclude, report
from .statistics import PairTest, compare_seeds, holm, resample, resample_units, summarise

Draws = tuple[float, np.ndarray, np.ndarray] | None  # what `resample` returns; None where nothing was resampled


def compare(args: CompareOptions) -> None:
    """Compare the arms in the run folders, and print tables and conclusions; ``--json`` writes them to a file too.

    Raises:
        UserError: there is nothing to compare, or runs differ in more than the factor.
    """
    require_writable(args.json, "--json")
    runs = read_runs(args.runs)
    others = read_runs(args.to) if args.to and any(is_path(text) for text in args.to) else []
    factor = factor_settings(args.factor, [*runs, *others])
    arms = make_arms([*runs, *others], factor, args.factor)
    base = choose_base(arms, args.to, others)
    allowed = expand(args.allow, [*runs, *others])
    for arm in arms.values():
        check_arm(arm, factor | allowed)
    found = [
        compare_arms(name, arm, base, arms[base], factor, allowed, args.resamples, args.sick)
        for name, arm in arms.items()
        if name != base
    ]
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
    name: str,
    arm: list[Trained],
    base_name: str,
    base: list[Trained],
    factor: set[str],
    allowed: set[str],
    resamples: int,
    sick: str | None,
) -> Comparison:
    """Compare two arms on the seeds that both have; their runs may differ in ``factor`` and ``allowed``.

    Raises:
        UserError: the arms share no seed or no set, or differ in more.
    """
    a, b = ({run.seed: run for run in group} for group in (arm, base))
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        raise UserError(
            f"{name} has the seeds {sorted(a)}, {base_name} {sorted(b)}: none is in both, so no runs can be paired; "
            "train both with the same seeds"
        )
    notes = [
        f"seed {', '.join(map(str, sorted(only)))} is in {where} alone and left out"
        for only, where in ((a.keys() - b.keys(), name), (b.keys() - a.keys(), base_name))
        if only
    ]
    pairs = [(a[seed], b[seed]) for seed in seeds]
    accepted = set()
    for one, other in pairs:
        refuse_differences(one, other, factor | allowed)
        accepted |= {text for key, text in differences_between(one, other).items() if key in allowed - factor}
    for arm_name, side in ((name, 0), (base_name, 1)):
        notes += arm_against_start(arm_name, [pair[side].record for pair in pairs])
    notes += [f"accepted besides the factor: {'; '.join(sorted(accepted))}"] if accepted else []
    sets, more = common_sets([run for pair in pairs for run in pair], sick)
    notes += more
    units, universe = number_units(list(sets), pairs[0][0])
    kept = [[recall(run.folder, run.results) for run in pair] for pair in pairs]
    rows, draws = [], []
    for place, (key, title) in enumerate(sets.items()):
        row, drawn = compare_set(key, title, kept, resamples, place, units.get(key), universe)
        rows.append(row)
        draws.append(drawn)
    lacking = [row.title for row in rows if row.over_pairs is None]
    if lacking:
        notes.append(
            f"the cosines of the pairs of {', '.join(lacking)} were not kept, so there is no test over their sentence "
            "pairs; evaluate again with this version to keep them"
        )
    elif len(units) < len(sets):
        apart = ", ".join(row.title for row in rows if row.key not in units)
        notes.append(
            f"the texts of the pairs of {apart} were not kept, so a pair that several sets contain is drawn "
            "independently for each of them"
        )
    average = average_row(rows, draws, universe if len(units) == len(sets) else None)
    by_seeds = holm([row.over_seeds.p for row in rows])
    by_pairs = holm([row.over_pairs.p if row.over_pairs else None for row in rows])
    rows = [replace(row, p_holm=p, p_pairs_holm=q) for row, p, q in zip(rows, by_seeds, by_pairs, strict=True)]
    further = further_rows(kept, set(sets), resamples)
    made = Comparison(name, base_name, seeds, rows, average, "", notes, further)
    return replace(made, conclusion=conclude(made))


def common_sets(runs: list[Trained], sick: str | None) -> tuple[dict[str, str], list[str]]:
    """{set: title} of the test sets that all runs were evaluated on, else of the dev sets; and notes on the choice.

    Raises:
        UserError: there is no such set, or a set is not the same for all runs.
    """
    held = [run.results.metadata["data"] for run in runs]
    common = [key for key in held[0] if all(key in data for data in held)]
    for key in common:
        if len({data[key]["sha256"] for data in held}) > 1:
            raise UserError(f"{key} is not the same set of pairs for all runs; evaluate them again on one --sts_dir")
    if len({run.results.metadata["protocol"] for run in runs}) > 1:
        raise UserError("the runs were evaluated by different protocols; evaluate them again with one version")
    sicks = [name for name in PAPERS_FIRST if SICK_SPLITS[name].set in common]
    if sick is not None and sicks and sick not in sicks:
        raise UserError(f"--sick {sick}: not all runs were evaluated on those pairs; all were on {sicks[0]}'s")
    if sick is not None and not sicks:
        raise UserError(f"--sick {sick}: not all runs were evaluated on SICK-R; leave --sick out")
    order = SICK_SPLITS[sick or next(iter(sicks), "mteb")].test_sets()
    seven = {key: title for key, title in order.items() if key in common}
    notes = []
    everywhere = {key for data in held for key in data}
    missing = [key for key in order if key in everywhere and key not in common]
    if missing:
        without = sorted({str(run.folder) for run, data in zip(runs, held, strict=True) if set(missing) - data.keys()})
        notes.append(f"left out: {', '.join(missing)}, which {', '.join(without)} was not evaluated on")
    if seven:
        return seven, notes
    dev = {set_of(key) for run in runs for key in headlines(run.record.final)}
    tested = [key for key in common if key not in dev] or common
    of_pairs = [key for key in tested if all(headline(key) in run.results.scores for run in runs)]
    others = {key: key for key in of_pairs or tested}  # a mean over sets is of one kind of score
    if not others:
        raise UserError("there is no set that all runs were evaluated on; run focalcse eval on each of them")
    if set(others) <= dev:
        notes.append(
            "these are dev scores, by which checkpoints were chosen: evaluate the runs on test sets before you claim "
            "a difference"
        )
    return others, notes


def number_units(sets: Sequence[str], run: Trained) -> tuple[dict[str, np.ndarray], int]:
    """{set: (N,) number of each pair}, and how many numbers there are; pairs of equal texts have one number.

    Most test pairs of STS-B are also in STS12 to STS16, and a set may contain a pair twice.
    """
    kept = read_fingerprints(run.folder, run.results)
    found = {key: kept[key] for key in sets if key in kept}
    distinct = np.unique(np.concatenate([*found.values(), np.array([], dtype=np.int64)]))
    return {key: np.searchsorted(distinct, texts) for key, texts in found.items()}, len(distinct)


def compare_set(
    key: str,
    title: str,
    kept: list[list[Results]],
    resamples: int,
    place: int,
    units: np.ndarray | None = None,
    universe: int = 0,
) -> tuple[Row, Draws]:
    """One set on all seeds, without a test over pairs or queries if a run kept none. units, universe: see `resample`.

    kept: the results of both arms for each seed, with the pairs and queries behind them.
    """
    score = score_of(key, kept[0][0].scores)
    a, b = ([pair[side].scores[score] for pair in kept] for side in (0, 1))
    if score != headline(key):  # a mean over queries, such as MAP
        test, drawn = compare_queries(score, kept, resamples)
        return Row(key, title, a, b, compare_seeds(a, b), test), drawn
    drawn, test = None, None
    cosines = [[of.pairs.get(key) for of in pair] for pair in kept]
    if all(one is not None for pair in cosines for one in pair):
        stacked = np.array(cosines)  # (S, 2 systems, 2 gold and cosine, N)
        gold = stacked[0, 0, 0]
        if (stacked[:, :, 0] == gold).all():
            seed = place if units is None else 0  # with units, all sets share their draws
            drawn = resample(gold, stacked[:, 0, 1], stacked[:, 1, 1], resamples, seed, units, universe)
            test = summarise(len(gold), *drawn)
    return Row(key, title, a, b, compare_seeds(a, b), test), drawn


def compare_queries(score: str, kept: list[list[Results]], resamples: int) -> tuple[PairTest | None, Draws]:
    """The test over queries of a score that is a mean over them; None where a run kept no queries."""
    values = [[of.units.get(score) for of in pair] for pair in kept]
    if any(one is None for pair in values for one in pair):
        return None, None
    stacked = np.array(values)  # (S, 2 systems, N)
    drawn = resample_units(stacked[:, 0], stacked[:, 1], resamples)
    return summarise(stacked.shape[2], *drawn), drawn


def further_rows(kept: list[list[Results]], sets: set[str], resamples: int) -> list[Row]:
    """Alignment and uniformity, and MAP and MRR of the sets that are in no row yet, where all runs have them.

    A claim about them is tested as one about Spearman is: over seeds and, for means over queries, over queries. Dev
    sets count only where there is no test set. Holm's correction is over these rows.
    """
    held = [of.scores for pair in kept for of in pair]
    common = [key for key in held[0] if all(key in scores for scores in held)]
    geometry = [key for key in common if ScoreKey.parse(key).metric in LOWER_IS_BETTER]
    tested = [key for key in geometry if ScoreKey.parse(key).split != "dev"] or geometry
    ranked = [k for k in common if is_headline(k) and ScoreKey.parse(k).title != "Spearman" and set_of(k) not in sets]
    rows = []
    for key in [*tested, *ranked]:
        of = ScoreKey.parse(key)
        a, b = ([pair[side].scores[key] for pair in kept] for side in (0, 1))
        test = compare_queries(key, kept, resamples)[0] if key in ranked else None
        rows.append(Row(key, f"{of.set} {of.title}", a, b, compare_seeds(a, b), test))
    seeds, pairs = (
        holm([row.over_seeds.p for row in rows]),
        holm([row.over_pairs.p if row.over_pairs else None for row in rows]),
    )
    return [replace(row, p_holm=p, p_pairs_holm=q) for row, p, q in zip(rows, seeds, pairs, strict=True)]


def average_row(rows: list[Row], draws: list[Draws], distinct: int | None) -> Row:
    """The mean over the sets, tested like a set. distinct: the number of different pairs in all sets, if known."""
    a, b = (np.mean([getattr(row, side) for row in rows], axis=0).tolist() for side in ("a", "b"))
    test = None
    kept = [drawn for drawn in draws if drawn is not None]
    if len(kept) == len(rows):
        observed = float(np.mean([draw[0] for draw in kept]))
        drawn, swapped = (np.mean(np.stack(of), axis=0) for of in zip(*(draw[1:] for draw in kept), strict=True))
        pairs = distinct or sum(row.over_pairs.pairs for row in rows if row.over_pairs)
        test = summarise(pairs, observed, drawn, swapped)
    return Row("average", "Avg", a, b, compare_seeds(a, b), test)
