"""A folder with run.json, results.json or both -> a `ScoredEncoder`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..evaluation import Results
from ..evaluation.identity import as_embedded, describe
from ..options.tables import is_factor
from ..runs.record import RunRecord, without_paths
from .study import SPEARMAN, ScoredEncoder

POOLING = ("pooler", "projection")
LOSS_TEXTS = ("name", "formula", "paper", "citation")


def read_run(folder: Path, name: str) -> ScoredEncoder:
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
    return ScoredEncoder(
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


def read_other(folder: Path, name: str) -> ScoredEncoder:
    """Scores of an encoder that was not trained here."""
    results = Results.read(folder / "results.json")
    model = results.metadata["model"]
    pooling = {key: _text(model.get(key)) for key in POOLING}
    if model.get("whitening"):
        pooling["pooler"] += ", whitened"  # no run starts so
    title = f"{without_paths(describe(results, folder / 'results.json'))} in {name}"
    encoder = {"encoder": (_same_path(model.get("name_or_path")), "")}
    return ScoredEncoder(
        title, 0, pooling, _numbers(results.scores), {}, {}, results.metadata["data"], 0, models=encoder
    )


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
        **{key: value for key, value in record.settings.items() if is_factor(key)},
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


def _precision(judged: str | None, of_training: Iterable[str]) -> str:
    """Training judges in float32, whatever `focalcse eval` was told."""
    sets = sorted(key.removesuffix(SPEARMAN) for key in of_training if key.endswith(SPEARMAN))
    return f"{judged}, but {', '.join(sets)} by training in float32" if judged and sets else judged or "float32"


def _same_path(path: Any) -> str:
    """One text for ``runs/a``, ``./runs/a`` and ``runs/a/``."""
    return os.path.normpath(_text(path))


def _numbers(content: dict[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in content.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
