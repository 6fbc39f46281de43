"""run.json and results.json -> plots/*.png of a folder; the same records give the same pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UserError
from ..runs.atomic import draft
from ..runs.folder import Run
from ..runs.record import AS_PUBLISHED, RunRecord
from ..runs.scores import is_headline

SIZE, DOTS = (7.0, 3.2), 130  # inches, dots an inch
BLUE, RED, GREEN, GREY = "#2563a8", "#c0392b", "#2e8b57", "#8a8a8a"
COSINES = {  # key of a log line -> name, colour
    "positive_cosine_mean": ("views of one sentence", GREEN),
    "hardest_negative_cosine_mean": ("hardest negative", RED),
    "negative_cosine_mean": ("different sentences", GREY),
}
GROUPS = {"random": GREY, "lowest fifth": RED, "highest fifth": GREEN}


def draw_plots(folder: str | Path) -> list[str]:
    """Write the pictures that the folder's records have data for; their names, relative to the folder.

    Raises:
        UserError: matplotlib or run.json is missing.
    """
    folder = Path(folder)
    run = Run.read(folder)
    pictures = {"plots/training.png": _training(run.record), "plots/cosines.png": _cosines(run.data)}
    drawn = []
    for name, picture in pictures.items():
        if picture is None:
            (folder / name).unlink(missing_ok=True)
            continue
        (folder / name).parent.mkdir(exist_ok=True)
        # without the version of the library in the file, equal pictures are equal files
        with draft(folder / name) as part:
            for text in picture.findobj(lambda artist: hasattr(artist, "set_parse_math")):
                text.set_parse_math(False)  # a $ in the name of a file is not mathematics
            picture.savefig(part, format="png", dpi=DOTS, metadata={"Software": None})
        drawn.append(name)
    return drawn


def _figure(columns: int) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure  # without pyplot: no window system, no global state
    except ImportError as error:
        raise UserError("the pictures of the model card need matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=8)
    return figure, axes


def _training(record: RunRecord) -> Any:
    """Loss, cosines and dev score by step; None for a run without log lines."""
    losses = [(line["step"], line["loss"]) for line in record.log if line.get("loss") is not None]
    if not losses:
        return None
    dev = next((key for line in record.log for key in line if is_headline(key)), None)
    figure, axes = _figure(3 if dev else 2)
    axes[0].plot(*zip(*losses, strict=True), color=BLUE)
    axes[0].set_title("loss", fontsize=9)
    for key, (label, colour) in COSINES.items():
        points = [(line["step"], line[key]) for line in record.log if line.get(key) is not None]
        if points:
            axes[1].plot(*zip(*points, strict=True), color=colour, label=label)
    axes[1].set_title("cosine", fontsize=9)
    if axes[1].lines:
        low, high = axes[1].get_ylim()
        axes[1].set_ylim(low - 0.4 * (high - low), high)  # room for the names below the curves
        axes[1].legend(fontsize=7, frameon=False, loc="lower left")
    if dev:
        points = [(line["step"], line[dev]) for line in record.log if dev in line]
        name = dev.removeprefix("eval_")
        before = record.baseline.get(name)
        start = record.start.get(name, before)
        points = [(0, start), *points] if start is not None else points
        axes[2].plot(*zip(*points, strict=True), color=BLUE, marker="o", markersize=3)
        if before is not None:
            axes[2].axhline(before, color=GREY, linestyle="--", linewidth=1)
            axes[2].annotate(
                AS_PUBLISHED if record.baseline_of == AS_PUBLISHED else "before",
                (points[-1][0], before),
                fontsize=7,
                color=GREY,
                va="bottom",
                ha="right",
            )
        axes[2].set_title(f"Spearman, {name.split('/')[0][:20]}", fontsize=9)
    for axis in axes:
        axis.set_xlabel("step", fontsize=8)
    return figure


def _cosines(data: dict[str, Any]) -> Any:
    """Histogram of the cosines of random pairs and of pairs rated low and high; None without any."""
    found = {key: of["cosines"] for key, of in data.items() if "cosines" in of}
    if not found:
        return None
    key = "STSBenchmark/test" if "STSBenchmark/test" in found else next(iter(found))
    figure, (axis,) = _figure(1)
    used = []
    for name, counts in found[key]["counts"].items():
        total, width = sum(counts), 2 / len(counts)
        if not total:
            continue
        edges = [-1 + width * i for i in range(len(counts) + 1)]
        label = f"{name} pairs" if name == "random" else f"pairs in the {name} of the scale"
        shares = [100 * count / total for count in counts]
        axis.stairs(shares, edges, color=GROUPS[name], fill=True, alpha=0.35, label=label)
        axis.stairs(shares, edges, color=GROUPS[name])
        used += [edge for edge, count in zip(edges, counts, strict=False) if count]
    axis.set_xlim(min(used) - 0.05, max(used) + 0.1)
    axis.set_xlabel(f"cosine, {key}", fontsize=8)
    axis.set_ylabel("share of pairs, %", fontsize=8)
    axis.legend(fontsize=8, frameon=False)
    return figure
