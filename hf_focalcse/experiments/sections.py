"""The sections of a report: tables, pictures and sentences, all made from the data of a `Study`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..runs.scores import PAPERS_FIRST, SICK_SPLITS, SUBSET, headline, is_headline, measures, set_of
from ..runs.tables import Table
from . import figures
from .page import Finding, Part, Picture, slug
from .study import DEV, Group, Series, Study, Summary

AVERAGES = tuple(headline(SICK_SPLITS[whose].average) for whose in PAPERS_FIRST)
FEW_SHOT = "sentences"
SAMPLES = {  # what training measures between evaluations
    "measured_pairs": "a fixed sample of the dev pairs",
    "measured_views": "two views of fixed training sentences, as the loss sees them",
}
MOST_HISTOGRAMS = 8  # the table shows the groups beyond
MOST_M = 6  # curves of the negative logit


class NoData(Exception):
    """The reason why a section is left out."""


def settings(study: Study) -> Iterator[Part]:
    """What differs between the groups, what does not, and where the runs come from."""
    runs, groups = study.runs, study.groups
    varied = study.varied()
    facts = {name: [_several(run.facts[name] for run in group.runs) for group in groups] for name in runs[0].facts}
    told = [name for name, of in facts.items() if len(set(of)) > 1 and name not in ("versions", "started")]
    rows = [[g.name, str(len(g.runs)), " ".join(str(run.seed) for run in g.runs),
             *(g.factors.get(name, "-") for name in varied), *(facts[name][i] for name in told)]
            for i, g in enumerate(groups)]  # fmt: skip
    yield Table(["group", "n", "seeds", *varied, *told], rows, caption="The groups and what differs between them")
    equal: dict[str, str] = {}
    for name in dict.fromkeys(name for group in groups for name in group.factors if name not in varied):
        some = [group for group in groups if name in group.factors]
        where = "" if len(some) == len(groups) else f" (a setting of {len(some)} of the {len(groups)} groups)"
        equal[name] = some[0].factors[name] + where
    equal |= {name: _several(run.facts[name] for run in runs) for name in facts if name not in told}
    yield Table(["", "value"], [*equal.items()], caption="Equal in all groups")
    for note, count in _count(note for run in runs for note in run.notes).items():
        yield f"Noted by {count} of {len(runs)} runs: {note}"


def scores(study: Study) -> Iterator[Part]:
    """The table of scores, and the highest mean."""
    keys = study.keys()
    yield (
        f"{len(study.runs)} runs in {len(study.groups)} groups. The runs of a group have equal settings and differ in "
        f"the seed. Scores are {measures(keys) or 'Spearman'} x 100 over all of a set: mean ± standard deviation over "
        "seeds (n - 1). A score without ± is that of one seed, whose spread is unknown."
    )
    columns = {key: keys[key] for key in (*AVERAGES, *keys) if key in keys}  # the averages first
    if not columns:
        raise NoData("no run has a score; evaluate the runs with `focalcse eval`")
    chosen = next((key for key in AVERAGES if any(g.values(key) for g in study.groups)), None)
    chosen = chosen or (DEV if DEV in columns else next(iter(columns)))
    for start, groups in study.starts().items():
        if text := _highest(start, groups, chosen, columns[chosen]):
            yield Finding(text)
    alone: dict[str, dict[str, float | None]] = {}
    for start, groups in study.starts().items():
        first = groups[0].runs[0]
        published = {key: groups[0].published(key) for key in columns}
        if first.published:
            alone[f"{first.factors['encoder']}, as published"] = published
        alone[f"{start}, {first.before_is}"] = {key: groups[0].before(key) for key in columns}
    alone |= {name: dict(run.scores) for name, run in study.others.items() if name not in alone}  # type: ignore[arg-type]
    rows = [[name, "-", *(_plain(of.get(key)) for key in columns)] for name, of in alone.items()]
    rows += [[g.name, str(len(g.runs)), *(_cell(g.summary(key), len(g.runs)) for key in columns)]
             for groups in study.starts().values() for g in groups]  # fmt: skip
    bold = _highest_cells(rows)
    labels = ", ".join(f"{of.label} pairs" for of in SICK_SPLITS.values())
    splits = f"SICK-R and Avg name the test pairs that were scored: {labels}. "
    sick = splits if any(key.startswith("SICK-R") for key in columns) else ""
    about = "Avg is the mean of the seven test sets, each rounded to two decimals first" if chosen in AVERAGES else (
        "No average: not all seven test sets were scored")  # fmt: skip
    caption = f"{measures(columns)} x 100. Bold: the highest of a column. {sick}{about}."
    yield Table(["", "n", *columns.values()], rows, caption=caption, bold=bold)
    for key, title in columns.items():
        hashes = {run.sets[k]["sha256"] for run in [*study.runs, *study.others.values()]
                  if (k := set_of(key)) in run.sets}  # fmt: skip
        if len(hashes) > 1:
            yield f"{title} was measured on {len(hashes)} different versions of the set: they cannot be compared."


def seed_spread(study: Study) -> Iterator[Part]:
    """Every seed of every group as a dot."""
    columns = study.keys()
    scored = [key for key in (*AVERAGES, DEV) if any(g.values(key) for g in study.groups)]
    drawn = [key for key in scored if key not in AVERAGES or key == scored[0]]  # one average, of the split of papers
    if not drawn:
        raise NoData("no run has a dev score or the average of the seven test sets")
    if all(len(group.runs) == 1 for group in study.groups):
        yield Finding("Every group has one seed, so the spread of no score is known.")
    for key in drawn:
        found = [s for g in study.groups if (s := g.summary(key)) and s.sd is not None]
        if found:
            low, high = _several(f"{s.sd:.2f}" for s in found), _several(str(s.n) for s in found)
            yield Finding(
                f"{columns[key]}: the standard deviation over seeds is {low} ({len(found)} groups of {high} seeds); a "
                "difference of that size between two single runs means nothing."
            )
    for start, groups in study.starts().items():
        for key in drawn:
            yield Picture(
                f"seeds-{slug(start)}-{slug(columns[key])}",
                figures.seed_spread(groups, key, f"{measures([key])} x 100, {columns[key]}"),
                f"{columns[key]}: " + "; ".join(f"{g.name} {_cell(g.summary(key), len(g.runs))}" for g in groups),
                f"{start}: {columns[key]}. Dot: a seed; line: the mean; band: its 95 % interval (Student's t; none "
                "for one seed); grey diamond: before training.",
            )


def dev_curves(study: Study) -> Iterator[Part]:
    """The dev score against steps."""
    key = _curve_key(study, is_headline, "spearman")
    title = study.keys().get(key, set_of(key))
    ends = {g.name: list(g.curve(key).items()) for g in study.groups if len(g.curve(key)) > 1}
    rising = [name for name, curve in ends.items() if max(curve, key=lambda point: point[1]) == curve[-1]]
    yield Finding(
        f"In {len(rising)} of {len(ends)} groups the mean {title} is highest at the last evaluation"
        + (": there the end of training, not the method, may have ended the rise." if rising else ".")
    )
    for label, groups in _panels(study, lambda group: bool(group.curve(key))):
        yield Picture(f"dev-{slug(label)}", figures.curves(groups, key, title), _alt_curves(title, groups, key),
                      f"{label}: {title} by step; thin: a seed, thick: the mean.")  # fmt: skip


def alignment_uniformity(study: Study) -> Iterator[Part]:
    """Alignment and uniformity against steps."""
    sample = _curve_key(study, lambda key: key.endswith("/uniformity"), "uniformity").removesuffix("/uniformity")
    keys = {name: f"{sample}/{name}" for name in ("alignment", "uniformity")}
    keys = {name: key for name, key in keys.items() if any(group.curve(key) for group in study.groups)}
    changes = []
    for name, key in keys.items():
        ends = [list(g.curve(key).values()) for g in study.groups if len(g.curve(key)) > 1]
        changes.append(f"{name} fell in {sum(of[-1] < of[0] for of in ends)} of {len(ends)} groups")
    yield Finding(f"From the first to the last measurement {' and '.join(changes)} (lower is better for both).")
    for label, groups in _panels(study, lambda group: bool(group.curve(keys["uniformity"]))):
        for name, key in keys.items():
            yield Picture(f"{name}-{slug(label)}", figures.curves(groups, key, name), _alt_curves(name, groups, key),
                          f"{label}: {name} of {SAMPLES.get(sample, sample)} by step; thin: a seed, thick: the mean.",
                          )  # fmt: skip


def plane(study: Study) -> Iterator[Part]:
    """Alignment against uniformity of the trained encoders."""
    of = next((s for s in ("STSBenchmark/test", "STSBenchmark/dev") if any(g.values(f"{s}/alignment")
               for g in study.groups)), None)  # fmt: skip
    if of is None:
        raise NoData("no run has alignment and uniformity, which `focalcse eval` measures on STS-B")
    alignment, uniformity = f"{of}/alignment", f"{of}/uniformity"
    placed = [g for g in study.groups if g.values(alignment) and g.values(uniformity)]
    both_known = [g for g in placed if g.before(alignment) is not None and g.before(uniformity) is not None]
    gains = [tuple(float(np.mean(g.values(k))) < (g.before(k) or 0) for k in (alignment, uniformity))
             for g in both_known]  # fmt: skip
    if gains:
        both, one, other, neither = map(gains.count, ((True, True), (False, True), (True, False), (False, False)))
        without = len(placed) - len(gains)
        yield Finding(
            f"Means of {len(gains)} groups against the encoder before training, on {of}: {both} have both lower "
            f"(better), {one} uniformity alone, {other} alignment alone, {neither} neither."
            + (f" For {without} more, the encoder before training was not measured on it." if without else "")
        )
    for label, groups in _panels(study, lambda group: group in placed):
        means = [[g.name, *(_plain(g.summary(key), 3) for key in (alignment, uniformity))] for g in groups]
        yield Picture(f"plane-{slug(label)}", figures.plane(groups, alignment, uniformity),
                      "alignment and uniformity: " + "; ".join(map(" ".join, means)),
                      f"{label}: the plane of Wang & Isola (2020) on {of}. Large: the mean, small: a seed, diamond: "
                      "before training; better is to the lower left.")  # fmt: skip


def negative_logits(study: Study) -> Iterator[Part]:
    """Figure 1 of the paper."""
    focal = [group for group in study.groups if "m" in group.factors]
    if not focal:
        raise NoData("no run has a loss with m")
    tried = {float(group.factors["m"]) for group in focal}
    temperature = max(temperatures := [float(g.factors["temperature"]) for g in focal], key=temperatures.count)
    ms = sorted(tried | set(([m for m in (0.0, 0.3, 0.5) if m not in tried])[: max(0, 4 - len(tried))]))[:MOST_M]
    m = max(ms)
    # s(s + m) > s where s(s + m - 1) > 0: on both sides of what lies between 0 and 1 - m
    above = (f"above 1 - m ({1 - m:g}), the paper's bound of a hard negative, and at every negative cosine" if m <= 1
             else f"at every positive cosine and below 1 - m ({1 - m:g})")  # fmt: skip
    yield Finding(
        f"A formula, not a measurement: with margin m the logit of a negative is lowest at cosine -m/2 (m = {m:g}: "
        f"{-m / 2:g}); below it training pulls the pair together. It exceeds InfoNCE's logit {above}; "
        f"its slope exceeds InfoNCE's from (1 - m)/2 ({(1 - m) / 2:g})."
    )
    lowest = "lowest at " + ", ".join(f"{-m / 2 + 0.0:g} for m {m:g}" for m in ms)
    for name, near in (("", None), ("-near-0", max(ms) + 0.1)):
        yield Picture(f"negative-logits{name}", figures.negative_logits(ms, temperature, near, m),
                      f"s(s+m)/τ against s{', near 0' if near else ''}; {lowest}",
                      "Figure 1 of Hou & Li (2023) from the formula: the rescaled logit of a negative against its "
                      f"cosine{', near 0' if near else ''}; dots: the turning points at -m/2. Shaded for "
                      f"m {m:g}: orange where the logit exceeds InfoNCE's, green where it lies below.")  # fmt: skip


def histograms(study: Study) -> Iterator[Part]:
    """Cosines of pairs by how similar people rated them."""
    candidates = ("STSBenchmark/test", "STSBenchmark/dev", *{k: 0 for run in study.runs for k in run.sets})
    of = next((k for k in candidates if any(figures.cosine_counts(g, k) for g in study.groups)), None)
    if of is None:
        raise NoData("no results.json has counts of cosines")
    groups = sorted((g for g in study.groups if figures.cosine_counts(g, of)), key=lambda g: -len(g.runs))
    encoders = {name: Group(name, [run]) for name, run in study.others.items()} | {g.name: g for g in groups}
    counts = {name: found for name, group in encoders.items() if (found := figures.cosine_counts(group, of))}
    bands = list(dict.fromkeys(band for found in counts.values() for band in found))
    rows = [[name, *(_plain(figures.mean_cosine(found.get(band, [0]))) for band in bands)]
            for name, found in counts.items()]  # fmt: skip
    kind = "fifths of the pairs by gold score" if "lowest fifth" in bands else "bands of the gold score"
    yield f"Pairs of {of} by {kind}, and random sentences of the set; the seeds of a group are added up."
    yield Table(["", *bands], rows, caption=f"Mean cosine on {of}")
    if len(counts) > MOST_HISTOGRAMS:
        yield f"The pictures show the {MOST_HISTOGRAMS} with most seeds; the table shows all."
    for name in list(counts)[:MOST_HISTOGRAMS]:
        means = ", ".join(f"{b} {_plain(figures.mean_cosine(c))}" for b, c in counts[name].items())
        yield Picture(f"cosines-{slug(name)}", figures.cosine_histogram(counts[name], f"cosine, {of}"),
                      f"histogram of cosines of {name}; means: {means}", f"{name}: cosines on {of}.")  # fmt: skip


def ablations(study: Study) -> Iterator[Part]:
    """The score against every setting in which alone groups differ."""
    found = [series for series in study.ablations() if series.setting != FEW_SHOT]
    yield from _ablations(study, found, "no two groups differ in one setting alone")


def few_shot(study: Study) -> Iterator[Part]:
    """The score against the number of training sentences."""
    found = [series for series in study.ablations() if series.setting == FEW_SHOT]
    yield from _ablations(study, found, "no two groups differ in the number of training sentences alone")


SECTIONS = {
    "Scores": scores,
    "Spread over seeds": seed_spread,
    "Dev score during training": dev_curves,
    "Alignment and uniformity during training": alignment_uniformity,
    "The plane of alignment and uniformity": plane,
    "What focal does to a negative": negative_logits,
    "Cosines by gold score": histograms,
    "One setting at a time": ablations,
    "Few training sentences": few_shot,
    "Settings, budget and origin": settings,
}


def _ablations(study: Study, found: list[Series], reason: str) -> Iterator[Part]:
    titles, drawn = study.keys(), 0
    for series in found:
        groups = [group for _, group in series.points]
        # the dev score first: settings are chosen on dev, and only the chosen one is tested
        key = next((key for key in (DEV, *AVERAGES, *titles) if all(g.values(key) for g in groups)), None)
        if key is None:
            continue
        cells = [(g.name if series.setting == "loss" else v if isinstance(v, str) else f"{v:g}", g.summary(key))
                 for v, g in series.points]  # fmt: skip
        best = max(cells, key=lambda cell: cell[1].mean if cell[1] else 0)
        seeds = sorted({len(group.runs) for group in groups})
        budget = len({run.budget for group in groups for run in group.runs}) > 1
        low, high = (pick(s.mean for _, s in cells if s) for pick in (min, max))
        yield Finding(
            f"{series.setting} ({groups[0].start}): of {', '.join(v for v, _ in cells)} the highest mean "
            f"{titles[key]} is at {best[0]} ({_cell(best[1])}), over a range of {high - low:.2f}; "
            f"{_several(map(str, seeds))} seed{'s' if seeds != [1] else ''} a value"
            + ("" if min(seeds) > 1 else ", so an effect cannot be told from chance")
            + ("; the values saw different numbers of sentences" if budget and series.setting != FEW_SHOT else "")
            + "."
        )
        drawn += 1
        same = {k: {g.factors.get(k) for g in groups} for k in study.varied()}
        others = [f"{k} {v}" for k, of in same.items() if len(of) == 1 and (v := of.pop())]
        yield Picture(
            f"ablation-{slug(series.setting)}-{drawn}", figures.ablation(series, key, titles[key]),
            f"{titles[key]} by {series.setting}: " + "; ".join(f"{v}: {_cell(s)}" for v, s in cells),
            f"{series.setting}, at " + (", ".join(others) or "equal settings")
            + ". Line or bar: mean and standard deviation; dot: a seed; dashed: before training.",
        )  # fmt: skip
    if not drawn:
        raise NoData(reason)


def _highest(start: str, groups: Sequence[Group], key: str, title: str) -> str | None:
    """A sentence on the highest mean among groups of one start; groups of one seed count only if there is no other."""
    found = [(s, g) for g in groups if (s := g.summary(key))]
    several = [pair for pair in found if pair[0].n > 1]
    ranked = sorted(several or found, key=lambda pair: -pair[0].mean)
    if not ranked:
        return None
    (best, group), *rest = ranked

    def told(summary: Summary) -> str:
        spread = "one seed" if summary.sd is None else f"± {summary.sd:.2f}, {summary.n} seeds"
        return f"{summary.mean:.2f}, {spread}"

    before = group.before(key)
    text = f"{start}: the highest mean {title} is that of {group.name} ({told(best)})"
    if before is not None:
        text += f", {best.against(before, 'its start')}"
        if (published := group.published(key)) is not None:
            text += f" and {best.against(published, 'the encoder as published')}"
        if verdicts := group.verdicts(key):
            text += f"; over the pairs, it was {verdicts}"
        worse = [g.name for s, g in found if s.sd is not None and s.interval()[1] < before]
        text += f"; below the start: {', '.join(worse)}" if worse and best.mean >= before else ""
    if not rest:
        return f"{text}; no other group compares with it."
    (next_best, next_group), gap = rest[0], best.mean - rest[0][0].mean
    spread = max(best.sd or 0, next_best.sd or 0)
    weight = ("one seed each says nothing about chance" if not several else "less than the spread over seeds"
              if gap < spread else "more than the spread over seeds, which is still no test")  # fmt: skip
    one = len(found) - len(several)
    aside = f" Groups of one seed ({one}) are left out of this sentence." if several and one else ""
    return f"{text}. Next is {next_group.name} ({told(next_best)}), {gap:.2f} lower: {weight}.{aside}"


def _highest_cells(rows: Sequence[Sequence[str]]) -> frozenset[tuple[int, int]]:
    """The places of the highest mean of each column of scores, by the two decimals that are shown."""
    means = [[None if cell == "-" else float(cell.split()[0]) for cell in row[2:]] for row in rows]
    best = [max((mean for mean in column if mean is not None), default=None) for column in zip(*means, strict=True)]
    places = (
        (i, j) for i, row in enumerate(means) for j, mean in enumerate(row) if mean is not None and mean == best[j]
    )
    return frozenset((i, j + 2) for i, j in places) if len(rows) > 1 else frozenset()


def _curve_key(study: Study, wanted: Callable[[str], bool], what: str) -> str:
    """The series that was measured most often, of those whose key is ``wanted``."""
    points: dict[str, int] = {}
    for run in study.runs:
        for key, curve in run.curves.items():
            if wanted(key) and f"/{SUBSET}" not in key and len(curve) > 1:
                points[key] = points.get(key, 0) + len(curve)
    if not points:
        raise NoData(f"no run measured {what} twice during training (--eval_steps)")
    return max(points, key=lambda key: points[key])


def _panels(study: Study, wanted: Any) -> Iterator[tuple[str, list[Group]]]:
    """Groups of one start, at most MOST in a picture; groups of one seed are not mixed with others."""
    for start, groups in study.starts().items():
        panels = []
        for several in (True, False):
            chosen = [group for group in groups if wanted(group) and (len(group.runs) > 1) == several]
            size = -(-len(chosen) // max(1, -(-len(chosen) // figures.MOST)))  # of about equal numbers
            panels += [chosen[i : i + size] for i in range(0, len(chosen), size or 1)]
        for i, panel in enumerate(panels, 1):
            yield start + (f" ({i} of {len(panels)})" if len(panels) > 1 else ""), panel


def _alt_curves(title: str, groups: Sequence[Group], key: str) -> str:
    ends = [(g.name, list(g.curve(key).items())) for g in groups]
    return f"{title}: " + "; ".join(
        f"{name} from {c[0][1]:.2f} at step {c[0][0]} to {c[-1][1]:.2f} at step {c[-1][0]}" for name, c in ends if c
    )


def _cell(summary: Summary | None, runs: int | None = None) -> str:
    """``79.58 ± 0.42``, followed by (k) if only k of the runs have the score."""
    if summary is None:
        return "-"
    spread = "" if summary.sd is None else f" ± {summary.sd:.2f}"
    return f"{summary.mean:.2f}{spread}" + ("" if summary.n == (runs or summary.n) else f" ({summary.n})")


def _plain(value: float | Summary | None, digits: int = 2) -> str:
    value = value.mean if isinstance(value, Summary) else value
    return "-" if value is None else f"{value:.{digits}f}"


def _several(values: Any) -> str:
    """The value that several runs share, else the range of numbers or times, else all values."""
    found = sorted(set(values))
    if len(found) > 1 and all(re.fullmatch(r"[\d,.]+|20\d\d-[\d-]+T.*", value) for value in found):
        if "T" not in "".join(found):
            found.sort(key=lambda value: float(value.replace(",", "")))
        return f"{found[0]} to {found[-1]}"
    return "; ".join(found)


def _count(texts: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts:
        found[text] = found.get(text, 0) + 1
    return found
