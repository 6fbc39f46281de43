"""An item of a paper and its finished runs -> one page: their scores, ours, the difference, and every deviation."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..options.experiments import ReproduceOptions
from ..runs.atomic import write_bytes
from ..runs.folder import read_results
from ..runs.record import RUN_FILE, without_paths
from ..runs.scores import PAPERS_FIRST, SICK_SPLITS, ScoreKey, headline, headlines
from ..runs.tables import Table
from . import figures
from .arms import Trained, differences_between, read_run
from .compare import compare_arms
from .conclusions import Comparison
from .groups import read_study
from .hard_pairs import hard_negatives
from .page import PICTURES, Finding, Part, Picture, Section, to_html, to_markdown
from .papers import AVERAGE, Item
from .study import Summary

NOT_PUBLIC = "not in the public text"
RESAMPLES = 1000
PARTS = {"alignment": "STSBenchmark/test/alignment", "uniformity": "STSBenchmark/test/uniformity"}


@dataclass(frozen=True)
class Found:
    """What the runs of an item left. rows: label -> seed -> finished run; judged: label -> scores."""

    rows: dict[str, dict[int, Trained]]
    judged: dict[str, dict[str, float]]
    unfinished: tuple[str, ...]

    def values(self, label: str, title: str) -> list[float]:
        """The scores of a row, one a seed."""
        if label in self.judged:
            held = [self.judged[label]]
        else:
            held = [run.results.scores for run in self.rows.get(label, {}).values()]
        keys = [key for scores in held if (key := key_of(title, scores)) is not None]
        return [scores[keys[0]] for scores in held if keys and keys[0] in scores]

    def others(self) -> list[str]:
        """The keys of what the runs were scored on, where that is nothing that the paper names."""
        held = [run.results.scores for seeds in self.rows.values() for run in seeds.values()]
        return list(dict.fromkeys(key for scores in held for key in headlines(scores)))


def key_of(title: str, scores: dict[str, float]) -> str | None:
    """The key in ``scores`` of what a paper calls ``title``; SICK-R as in papers where it is there."""
    keys = [title, *([PARTS[title]] if title in PARTS else [])]
    if title == "MAP":
        keys = [key for key in scores if ScoreKey.parse(key).is_ranking and not ScoreKey.parse(key).aggregation]
    elif title == "STS-B dev":
        keys = [headline("STSBenchmark/dev")]
    elif title not in PARTS:
        for whose in PAPERS_FIRST:
            sets = SICK_SPLITS[whose].test_sets() | {SICK_SPLITS[whose].average: AVERAGE}
            keys += [headline(key) for key, name in sets.items() if name == title]
    return next((key for key in keys if key in scores), None)


def find_runs(item: Item, folder: Path) -> Found:
    """The finished runs of an item."""
    rows: dict[str, dict[int, Trained]] = {}
    unfinished = []
    for label in item.rows:
        for seed in item.seeds:
            name = f"{label}_seed-{seed}"
            try:
                if not (folder / name / RUN_FILE).exists():
                    raise UserError("it is not finished")
                rows.setdefault(label, {})[seed] = read_run(folder / name)
            except UserError as error:
                unfinished.append(f"{name}: {without_paths(str(error), [str(folder)])}")
    judged = {}
    for label in item.judged:
        results = read_results(folder / label)
        if results is not None:
            judged[label] = results.scores
    return Found(rows, judged, tuple(unfinished))


def write_page(item: Item, folder: Path, args: ReproduceOptions) -> Path:
    """Write ITEM.html and ITEM.md into the folder of the runs."""
    small = args.scale == "quickstart"
    title = f"{item.of}: {item.title}" + (" (small scale: this is not the paper's setting)" if small else "")
    found = find_runs(item, folder)
    sections = [section for section in sections_of(item, found, folder, args) if section[1]]
    pictures = [part for _, parts in sections for part in parts if isinstance(part, Picture)]
    for picture in pictures:
        write_bytes(made(folder / PICTURES) / f"{picture.name}.svg", picture.svg)
    write_bytes(made(folder) / f"{item.name}.md", to_markdown(title, sections).encode())
    page = folder / f"{item.name}.html"
    write_bytes(page, to_html(title, sections).encode())
    return page


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sections_of(item: Item, found: Found, folder: Path, args: ReproduceOptions) -> Iterator[Section]:
    compared = list(comparisons(item, found))
    if item.rows or item.judged:
        yield "Theirs and ours", [item.about, *scores(item, found, args)]
        yield "What may be concluded", list(concluded(item, found, compared))
    yield "Pictures", ([] if item.rows else [item.about]) + list(pictures(item, found, folder, args))
    yield "What differs from the paper", list(deviations(item, found, args))


# ---- scores


def scores(item: Item, found: Found, args: ReproduceOptions) -> Iterator[Part]:
    if args.scale == "quickstart":
        yield Finding(
            "The small scale: 40 steps of all-MiniLM-L6-v2, which had supervised training, unless flags below say "
            "otherwise. The paper's scores are of other encoders and texts, so none stands beside these."
        )
    elif item.source:
        yield f"Published scores: {item.source}."
    labels = [*item.judged, *item.rows]
    titles = [title for title in item.scores if any(found.values(label, title) for label in labels)]
    titles = titles or found.others() or list(item.scores)
    rows = []
    for label in labels:
        for title in titles:
            theirs, ours = item.published.get(label, {}).get(title), Summary.of(found.values(label, title))
            digits = 3 if title in PARTS else 2
            public = "-" if args.scale == "quickstart" else NOT_PUBLIC
            cells = [label, title, public if theirs is None else f"{theirs:.2f}", *shown(ours, digits)]
            rows.append([*cells, "-" if theirs is None or ours is None else difference(ours, theirs)])
    header = ["row", "score", "theirs", "ours", "seeds", "ours - theirs, 95 % over seeds"]
    caption = "Spearman and MAP x 100, mean ± standard deviation over seeds. Alignment, uniformity: lower is better."
    yield Table(header, rows, caption=caption)


def shown(ours: Summary | None, digits: int) -> list[str]:
    if ours is None:
        return ["not run", "0"]
    spread = "" if ours.sd is None else f" ± {ours.sd:.{digits}f}"
    return [f"{ours.mean:.{digits}f}{spread}", str(ours.n)]


def difference(ours: Summary, theirs: float) -> str:
    """Ours minus theirs, whose own spread is not known."""
    if ours.sd is None:
        return f"{ours.mean - theirs:+.2f} (one seed, no interval)"
    low, high = ours.interval()
    return f"{ours.mean - theirs:+.2f} ({low - theirs:+.2f} to {high - theirs:+.2f})"


# ---- tests


def comparisons(item: Item, found: Found) -> Iterator[Comparison]:
    """The tests of the pairs that the item names, over the seeds that both have."""
    for a, b in item.compare.items():
        one, other = found.rows.get(a, {}), found.rows.get(b, {})
        shared = sorted(one.keys() & other.keys())
        if shared:
            arm, base = ([of[seed] for seed in shared] for of in (one, other))
            differs = {key for x, y in zip(arm, base, strict=True) for key in differences_between(x, y)}
            yield compare_arms(a, arm, b, base, differs, set(), RESAMPLES, None)


def concluded(item: Item, found: Found, compared: Sequence[Comparison]) -> Iterator[Part]:
    rows = []
    for of in compared:
        yield Finding(of.conclusion)
        for row in (*of.rows, *([of.average] if len(of.rows) > 1 else []), *of.further):
            test = row.over_seeds
            p = ["-" if value is None else f"{value:.4f}" for value in (test.p, row.p_holm)]
            interval = "-" if test.low is None or test.high is None else f"{test.low:+.3f} to {test.high:+.3f}"
            rows.append([f"{of.a} - {of.b}", row.title, f"{test.mean:+.3f}", interval, *p])
    if rows:
        header = ["rows", "set", "difference", "95 % over seeds", "p", "p, Holm"]
        yield Table(
            header, rows, caption="Paired t-tests over seeds; Holm's correction is over the sets of a row pair."
        )
    if item.compare and not compared:
        yield "No two rows that are compared have finished runs of one seed, so nothing may be concluded."
    for name, values in item.vary.items():
        means = {label: s for label in values if (s := Summary.of(found.values(label, item.scores[0])))}
        if len(means) > 1:
            best = max(means, key=lambda label: means[label].mean)
            spread = max(s.mean for s in means.values()) - min(s.mean for s in means.values())
            noise = max((s.sd or 0.0) for s in means.values())
            yield Finding(
                f"Of {len(means)} values of {name} the highest mean {item.scores[0]} is at {values[best]:g} "
                f"({means[best].mean:.2f}); the means lie within {spread:.2f}, and the largest standard deviation "
                f"over seeds is {noise:.2f}. This is a choice and no test."
            )
    if found.unfinished:
        yield Table(["runs that are not in this page"], [[name] for name in found.unfinished], caption="Not finished")


# ---- pictures


def pictures(item: Item, found: Found, folder: Path, args: ReproduceOptions) -> Iterator[Part]:
    for name, values in item.vary.items():
        for title in item.scores:
            points = [(v, of) for label, v in values.items() if (of := found.values(label, title))]
            if len(points) > 1:
                alt = "; ".join(f"{v:g}: {sum(of) / len(of):.2f}" for v, of in points)
                yield Picture(
                    f"{item.name}-{name}-{title}".replace(" ", "-").lower(),
                    figures.against(points, name, title),
                    f"{title} against {name}: {alt}",
                    f"{title} against {name}; a dot is a seed, the line the mean with its standard deviation.",
                )
    if item.picture == "negatives":
        for near in (None, 0.4):
            yield Picture(
                f"figure1{'-near-0' if near else ''}",
                figures.negative_logits((0.1, 0.2, 0.3, 0.5), 0.07, near, shaded=0.3),
                "s(s+m)/τ against s; at m = 0.3 negatives above 0.7 and below 0 are up-weighted, those between down",
                "The logit of a negative against its cosine, from the formula, at τ = 0.07. Shaded for m = 0.3: "
                "orange where the logit exceeds InfoNCE's (up-weighted), green where it lies below. Dots: the lowest "
                "point of a curve, at -m/2; left of it the logit rises again, and training pulls the pair together.",
            )
    if item.picture == "uniformity" and found.rows:
        study = read_study([folder / f"{label}_seed-{seed}" for label, runs in found.rows.items() for seed in runs])
        keys = [key for run in study.runs for key in run.curves if key.endswith("/uniformity")]
        if keys:
            key = max(set(keys), key=keys.count)
            yield Picture(
                "uniformity",
                figures.curves(study.groups, key, "uniformity"),
                f"uniformity by step of {key}",
                "Uniformity by step (lower is better); thin: a seed, thick: the mean.",
            )
    if item.picture == "hard-negatives" and found.rows:
        trained = {label: runs[min(runs)].folder for label, runs in found.rows.items()}
        yield from hard_negatives(trained, pairs_of(args))


def pairs_of(args: ReproduceOptions) -> tuple[str | None, str | None]:
    """(file of labelled pairs, folder of the STS sets) that were given."""
    words = args.overrides
    folder = next((after for word, after in itertools.pairwise(words) if word == "--sts_dir"), None)
    folder = next((word.partition("=")[2] for word in words if word.startswith("--sts_dir=")), folder)
    return args.pairs_file, folder


# ---- deviations


def deviations(item: Item, found: Found, args: ReproduceOptions) -> Iterator[Part]:
    """Everything in which the runs differ from what the paper did, as far as it is known."""
    said = [*item.deviations, *(f"Left out: {reason}." for reason in item.missing)]
    if args.scale == "quickstart":
        said.append(
            "The small scale: all-MiniLM-L6-v2 in place of every encoder, 40 steps, batches of 64 where the rows do "
            "not vary them (unless flags say otherwise); rows that would then be equal are left out."
        )
    if args.overrides:
        said.append(f"Flags for all runs: {without_paths(shlex.join(args.overrides))}.")
    runs = [run for seeds in found.rows.values() for run in seeds.values()]
    if runs:
        versions = runs[0].record.versions
        named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions)
        said.append(f"Versions: {named}; the papers' code needs transformers 4.2 and torch 1.7.")
    yield from said
    if runs:
        took = [[run.folder.name, f"{run.record.seconds or 0:.0f}"] for run in runs]
        yield Table(["run", "seconds of training"], took, caption="The runs of this page")
