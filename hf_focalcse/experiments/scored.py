"""A folder with run.json, results.json or both -> a `ScoredEncoder`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..evaluation.identity import as_embedded, describe
from ..options.tables import is_factor
from ..runs.folder import Run
from ..runs.record import AS_PUBLISHED, RunRecord, without_paths
from ..runs.scores import RESULTS_FILE, Results, headlines, set_of
from .differences import LOSS_TEXTS, settings_of
from .study import ScoredEncoder

POOLING = ("pooler", "projection")


def read_run(folder: Path, name: str) -> ScoredEncoder:
    """run.json and, if present, results.json of a folder; without it, the scores are those of training.

    Raises:
        UserError: the files are damaged, or the scores are not of the trained weights, pooled as in training.
    """
    run = Run.read(folder)
    raw, record = run.record.model, run.record.publishable()
    evaluated = run.results.metadata["model"] if run.results else {}
    check_pooling(evaluated, raw)
    baseline, start = _numbers(record.baseline), _numbers(record.start)
    before = start or baseline
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
        "scored in": _precision(
            evaluated.get("precision"), record.final.keys() - run.results.scores.keys() if run.results else ()
        ),
    }
    return ScoredEncoder(
        name=name,
        seed=record.seed,
        factors=_factors(record),
        scores=_numbers(run.scores),
        before=before,
        curves=_curves(record.log, before),
        sets=run.data,
        budget=steps * batch * record.world_size,
        facts=facts,
        loss_settings=frozenset({*record.loss, "reference"} - {"name", "temperature", *LOSS_TEXTS}),
        models={name: (_same_path(of), _text(shown)) for name, (of, shown) in models.items() if of},
        text_sha256="" if data.get("fraction") or data.get("max_samples") else str(data.get("sha256")),
        notes=(*map(str, record.notes), *(f"ALARM {alarm}" for alarm in record.alarms)),
        published=baseline if start else {},
        before_is=AS_PUBLISHED if record.baseline_of == AS_PUBLISHED and not start else "before training",
        record=record,
    )


def check_pooling(evaluated: dict[str, Any], trained: dict[str, Any]) -> None:
    """Refuse scores of vectors that were pooled otherwise than in training; what one description lacks is not checked.

    Raises:
        UserError: with both ways.
    """
    asked, used = ([of.get(key) for key in POOLING] for of in (evaluated, trained))
    known = [(one or other, other or one) for one, other in zip(asked, used, strict=True)]
    theirs, ours = (as_embedded(*of) for of in zip(*known, strict=True))
    if evaluated.get("whitening") or theirs != ours:
        how = "whitened" if evaluated.get("whitening") else f"with pooler {asked[0]}, projection {asked[1]}"
        raise UserError(
            f"{RESULTS_FILE} was measured {how}, while training used pooler {used[0]}, projection {used[1]}; "
            "evaluate the folder without --pooler and --whiten"
        )


def _curves(log: list[dict[str, Any]], before: dict[str, float]) -> dict[str, dict[int, float]]:
    """Key -> step -> value of everything that was measured during training, and as step 0 before it."""
    curves: dict[str, dict[int, float]] = {}
    for line in log:
        for key, value in _numbers(line).items():
            if key.startswith(("eval_", "measured_")) and not key.endswith("/gain"):
                curves.setdefault(key.removeprefix("eval_"), {})[int(line["step"])] = value
    starts = {key: {0: before[key]} if key in before else {} for key in curves}
    return {key: dict(sorted((starts[key] | curve).items())) for key, curve in curves.items()}


def read_other(folder: Path, name: str) -> ScoredEncoder:
    """The scores of an encoder that was not trained here."""
    results = Results.read(folder / RESULTS_FILE)
    model = results.metadata["model"]
    pooling = {key: _text(model.get(key)) for key in POOLING}
    if model.get("whitening"):
        pooling["pooler"] += ", whitened"  # no run starts from whitened vectors
    title = f"{without_paths(describe(results, folder / RESULTS_FILE))} in {name}"
    encoder = {"encoder": (_same_path(model.get("name_or_path")), "")}
    return ScoredEncoder(
        title, 0, pooling, _numbers(results.scores), {}, {}, results.metadata["data"], 0, models=encoder
    )


def _factors(record: RunRecord) -> dict[str, str]:
    """Every setting that may change a score, as text, each under one name."""
    model, data, settings = record.model, record.data, settings_of(record, is_factor)
    projection, processes = settings.pop("projection"), settings.pop("world_size")
    rates = sorted({*model.get("dropout", {}).values()})
    reference = {k: (model.get("reference") or {}).get(k) for k in ("name_or_path", "pooler", "revision")}
    found = {
        "encoder": settings.pop("model_name_or_path") or "encoder without a name",
        "pooler": model["pooler"],
        **settings,
        "dropout": rates[0] if len(rates) == 1 else model.get("dropout"),
        "augmentation": model.get("augmentation"),
        "projection": projection,
        "reference": ", ".join(_text(value) for value in reference.values() if value),  # the name comes first
        "processes": processes,
        "data": f"{data.get('source')} ({data.get('lines_read', data.get('kept'))} lines)",
        "sentences": data.get("kept"),
    }
    return {key: _text(value) for key, value in found.items() if value not in (None, "", {}, [])}


def _precision(evaluated: str | None, of_training: Iterable[str]) -> str:
    """The precision of the scores; those of training are in float32, independent of the precision of an evaluation."""
    sets = sorted(set_of(key) for key in headlines(dict.fromkeys(of_training, 0.0)))
    return (
        f"{evaluated}, but {', '.join(sets)} by training in float32" if evaluated and sets else evaluated or "float32"
    )


def _same_path(path: Any) -> str:
    """The same text for ``runs/a``, ``./runs/a`` and ``runs/a/``."""
    return os.path.normpath(_text(path))


def _numbers(content: dict[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in content.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
