"""Groups of runs -> svg pictures with one axis each, readable on a phone; the same runs give the same bytes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from .study import Group, Series

WIDTH = 4.4  # inches, so that text of 9 points is 10 pixels high on a phone 390 pixels wide
# The colours of Okabe & Ito for colour-blind readers, without yellow, which is hard to read on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#AA3377", "#56B4E9", "#E69F00", "#333333")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
GREY = "#595959"
MOST = 6  # groups in one picture
NOT_XML = re.compile(
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f]"
)  # control characters in a name, for which no browser shows a file
STYLE: Any = {
    "text.parse_math": False,  # a $ in a name is not mathematics
    "svg.hashsalt": "hf_focalcse",  # without it, ids inside the file are random
    "font.size": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "figure.constrained_layout.use": True,
}


# ---- what is drawn, as numbers


def negative_logit(cosine: Any, m: float, temperature: float) -> Any:
    """The logit s(s + m)/τ that focal gives a negative, in place of s/τ."""
    return cosine * (cosine + m) / temperature


def turning_point(m: float, temperature: float) -> tuple[float, float]:
    """(cosine, logit) at which the derivative (2s + m)/τ is 0; below it, a negative is pulled nearer."""
    return -m / 2, -(m**2) / (4 * temperature)


def mean_cosine(counts: Sequence[int]) -> float | None:
    """The mean of a histogram with equal bins from -1 to 1; None if it is empty."""
    if not sum(counts):
        return None
    width = 2 / len(counts)
    return float(np.average([-1 + width * (i + 0.5) for i in range(len(counts))], weights=counts))


def cosine_counts(group: Group, key: str) -> dict[str, list[int]]:
    """Band of gold scores -> counts of cosines, added up over the runs that have them."""
    found: dict[str, list[int]] = {}
    for run in group.runs:
        spread = run.sets.get(key, {}).get("cosines", {})
        bands = spread.get("bands") or {k: v for k, v in spread.get("counts", {}).items() if k != "random"}
        random = {"random": spread["counts"]["random"]} if "counts" in spread else {}
        for band, counts in (random | bands).items():
            found[band] = [a + b for a, b in zip(found.get(band, [0] * len(counts)), counts, strict=True)]
    return found


def on_log_axis(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 8


# ---- pictures


def seed_spread(groups: Sequence[Group], key: str, label: str) -> bytes:
    """A dot for each seed, a line for the mean with its 95 % interval, and a diamond for the score before training."""
    with rc_context(STYLE):
        figure, axis = _figure(0.9 + 0.32 * len(groups))
        for row, group in enumerate(groups):
            summary, colour = group.summary(key), COLOURS[0]
            if summary is None:
                continue
            low, high = summary.interval()
            axis.plot([low, high], [row, row], color=colour, linewidth=5, alpha=0.3, solid_capstyle="butt")
            axis.plot([summary.mean], [row], "|", color=colour, markersize=13, markeredgewidth=2.5)
            axis.plot(group.values(key), [row] * summary.n, "o", color=COLOURS[1], markersize=4, alpha=0.85)
            if (before := group.before(key)) is not None:
                axis.plot([before], [row], "d", color=GREY, markersize=5)
        axis.set_yticks(range(len(groups)), [_short(group.name, 24) for group in groups])
        axis.set_ylim(len(groups) - 0.5, -0.5)
        axis.set_xlabel(label)
        return _svg(figure)


def curves(groups: Sequence[Group], key: str, label: str) -> bytes:
    """A curve for each group against steps: thin for the seeds, thick for their mean."""
    with rc_context(STYLE):
        figure, axis = _figure(3.1 + 0.19 * len(groups))
        handles = []
        for group, colour, mark, line in _styled(groups):
            for run in group.runs:
                axis.plot(*_xy(run.curves.get(key, {})), color=colour, linewidth=0.6, alpha=0.55)
            handles += axis.plot(
                *_xy(group.curve(key)), color=colour, linewidth=2, linestyle=line, marker=mark, markersize=4
            )
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        _legend(figure, handles, groups)
        return _svg(figure)


def plane(groups: Sequence[Group], alignment: str, uniformity: str) -> bytes:
    """Alignment against uniformity: small marks for seeds, large ones for means, arrows from the start of training."""
    with rc_context(STYLE):
        figure, axis = _figure(3.3 + 0.19 * len(groups))
        handles = []
        for group, colour, mark, _ in _styled(groups):
            end = [float(np.mean(group.values(key))) for key in (uniformity, alignment)]
            axis.plot(group.values(uniformity), group.values(alignment), mark, color=colour, markersize=3, alpha=0.5)
            handles += axis.plot(*([v] for v in end), mark, color=colour, markersize=8, linestyle="none")
            start = [group.before(key) for key in (uniformity, alignment)]
            if None not in start:
                axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "alpha": 0.5})
                axis.plot(*([v] for v in start), "d", color=GREY, markersize=7)
        axis.set_xlabel("uniformity (lower: spread more evenly)")
        axis.set_ylabel("alignment (lower: positives nearer)")
        axis.margins(0.1)
        _legend(figure, handles, groups)
        return _svg(figure)


UP, DOWN = "#E69F00", "#009E73"  # orange and green, as in the paper


def negative_logits(
    ms: Sequence[float], temperature: float, near: float | None = None, shaded: float | None = None
) -> bytes:
    """Figure 1 of Hou & Li (2023): s(s + m)/τ against s for each m, with its turning point, and InfoNCE's s/τ.

    near: show only cosines from -near to near. shaded: the m for which the regions are shaded where the logit exceeds
    InfoNCE's (up-weighted) and where it lies below.
    """
    cosine = np.linspace(-(near or 1), near or 1, 401)
    with rc_context(STYLE):
        figure, axis = _figure(3.9)
        handles = axis.plot(cosine, cosine / temperature, color=GREY, linestyle=":", linewidth=1.5)
        if shaded is not None:
            ours, theirs = negative_logit(cosine, shaded, temperature), cosine / temperature
            for where, region in ((ours >= theirs, UP), (ours <= theirs, DOWN)):
                axis.fill_between(cosine, ours, theirs, where=where, color=region, alpha=0.25, linewidth=0)
        for m, colour, line in zip(ms, COLOURS, LINES, strict=False):
            handles += axis.plot(cosine, negative_logit(cosine, m, temperature), color=colour, linestyle=line)
            axis.plot(*([value] for value in turning_point(m, temperature)), "o", color=colour, markersize=6)
        if near:
            lowest = min(turning_point(m, temperature)[1] for m in ms)
            axis.set_ylim(2 * lowest - 0.5, -4 * lowest + 1)
        axis.set_xlabel("cosine s of a negative")
        axis.set_ylabel(f"logit at τ = {temperature:g}")
        names = ["InfoNCE: s/τ", *(f"m = {m:g}: lowest at {turning_point(m, temperature)[0] + 0.0:g}" for m in ms)]
        figure.legend(handles, names, loc="outside lower center", ncols=2)
        return _svg(figure)


def cosine_histogram(counts: Mapping[str, Sequence[int]], label: str) -> bytes:
    """The share of pairs by cosine: a step curve for each band of gold scores, filled for random sentences."""
    with rc_context(STYLE):
        figure, axis = _figure(2.9)
        bands = {band: of for band, of in counts.items() if sum(of)}
        handles, used = [], []
        colours = iter(("#3B0F70", "#B5367A", "#E65F2B", "#0072B2", "#009E73"))
        for band, of in bands.items():
            edges = np.linspace(-1, 1, len(of) + 1)
            fill = band == "random"
            shares = 100 * np.array(of) / sum(of)
            handles.append(axis.stairs(shares, edges, color="#999999" if fill else next(colours, GREY), fill=fill,
                                       alpha=0.5 if fill else 1, linewidth=1.6))  # fmt: skip
            used += [edge for edge, count in zip(edges, of, strict=False) if count]
        axis.set_xlim(min(used) - 0.03, max(used) + 0.08)
        axis.set_xlabel(label)
        axis.set_ylabel("share of pairs, %")
        names = [band if "fifth" in band or band == "random" else f"rated {band}" for band in bands]
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        return _svg(figure)


def against(points: Sequence[tuple[float, Sequence[float]]], name: str, label: str) -> bytes:
    """Scores against a setting: a dot for each seed, and a line of the means with their standard deviations."""
    values = [value for value, _ in points]
    means = [float(np.mean(of)) for _, of in points]
    deviations = [float(np.std(of, ddof=1)) if len(of) > 1 else 0.0 for _, of in points]
    with rc_context(STYLE):
        figure, axis = _figure(2.8)
        order = np.argsort(values)
        line, spread = np.array([values, means])[:, order], np.array(deviations)[order]
        axis.errorbar(*line, spread, color=COLOURS[0], marker="o", markersize=4, capsize=3)
        for value, of in points:
            axis.plot([value] * len(of), of, "o", color=COLOURS[1], markersize=3, alpha=0.8)
        if on_log_axis(values):
            axis.set_xscale("log")
        axis.set_xticks(values, [f"{value:g}" for value in values], minor=False)
        axis.set_xticks([], minor=True)
        axis.set_xlabel(name)
        axis.set_ylabel(label)
        return _svg(figure)


def ablation(series: Series, key: str, label: str) -> bytes:
    """The score against a setting: means and deviations, joined by a line if the setting is a number, else as bars."""
    groups = [group for _, group in series.points]
    summaries = [group.summary(key) for group in groups]
    means = [summary.mean for summary in summaries if summary]
    deviations = [summary.sd or 0.0 for summary in summaries if summary]
    befores = {round(b, 4) for group in groups if (b := group.before(key)) is not None}
    with rc_context(STYLE):
        figure, axis = _figure(2.8 if series.numeric else 1.1 + 0.34 * len(groups))
        if series.numeric:
            values: list[Any] = [value for value, _ in series.points]
            axis.errorbar(values, means, deviations, color=COLOURS[0], marker="o", markersize=4, capsize=3)
            for value, group in series.points:
                axis.plot([value] * len(group.runs), group.values(key), "o", color=COLOURS[1], markersize=3, alpha=0.8)
            if on_log_axis(values):
                axis.set_xscale("log")
            axis.set_xticks(values, [f"{value:g}" for value in values], minor=False)
            axis.set_xticks([], minor=True)
            axis.set_xlabel(series.setting)
            axis.set_ylabel(label)
        else:
            rows = range(len(groups))
            if len(befores) == 1:  # the length of a bar is the gain
                start = befores.copy().pop()
                axis.barh(rows, [mean - start for mean in means], left=start, height=0.6, color=COLOURS[0], alpha=0.4)
            axis.errorbar(means, rows, xerr=deviations, color=COLOURS[0], fmt="|", markersize=13, capsize=3)
            for row, group in enumerate(groups):
                axis.plot(group.values(key), [row] * len(group.runs), "o", color=COLOURS[1], markersize=3.5)
            names = [str(group.name if series.setting == "loss" else value) for value, group in series.points]
            axis.set_yticks(rows, [_short(name, 24) for name in names])
            axis.invert_yaxis()
            axis.set_xlabel(label)
        for before in befores if len(befores) == 1 else ():
            draw = axis.axhline if series.numeric else axis.axvline
            draw(before, color=GREY, linestyle="--", linewidth=1.2)
        return _svg(figure)


def _figure(height: float) -> tuple[Any, Any]:
    figure = Figure(figsize=(WIDTH, height))  # pyplot would need a window system and has global state
    return figure, figure.subplots()


def _svg(figure: Any) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # the font lacks a character: the caption and the alternative text have the name too
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from")
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return NOT_XML.sub(b"?", file.getvalue())


def _styled(groups: Sequence[Group]) -> Any:
    return zip(groups, COLOURS, MARKS, LINES, strict=False)


def _xy(curve: Mapping[int, float]) -> tuple[list[int], list[float]]:
    return list(curve), list(curve.values())


def _legend(figure: Any, handles: Sequence[Any], groups: Sequence[Group]) -> None:
    names = [_short(group.name, 44) + (f" (n = {len(group.runs)})") for group in groups]
    columns = 2 if len(names) > 1 and max(map(len, names)) <= 24 else 1
    figure.legend(handles, names, loc="outside lower center", ncols=columns)


def _short(name: str, length: int) -> str:
    """``name`` cut to ``length``; a space before a first _ keeps matplotlib from leaving it out of the legend."""
    return (name if len(name) <= length else name[: length - 1] + "…").replace("_", " _", name.startswith("_"))
