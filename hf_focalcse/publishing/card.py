"""run.json + results.json of a folder -> README.md, a model card; nothing else is looked at."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from ..evaluation import Results
from ..record import RunRecord

TEMPLATE = Path(__file__).with_name("card.md")
USAGE = {  # pooling as a reader of transformers would write it: hidden states (B, L, D), mask (B, L) -> (B, D)
    "cls_before_pooler": "vectors = output.last_hidden_state[:, 0]",
    "cls": "vectors = output.pooler_output",
    "mean": "mask = batch['attention_mask'].unsqueeze(-1)\n"
    "    vectors = (output.last_hidden_state * mask).sum(1) / mask.sum(1)",
}


def write_card(folder: str | Path) -> Path:
    """Write README.md of a training folder, whole or not at all.

    Raises:
        UserError: the folder has no run.json.
    """
    folder = Path(folder)
    record = RunRecord.load(folder)
    results = Results.read(folder / "results.json") if (folder / "results.json").exists() else None
    path, part = folder / "README.md", folder / f".README.md.{os.getpid()}"
    part.write_text(str(make_card(record, results)), encoding="utf-8")
    os.replace(part, path)
    return path


def make_card(record: RunRecord, results: Results | None) -> ModelCard:
    """The card as a value: metadata and text."""
    model, loss = record.model, record.loss
    base = model["base_model"]
    start = base or Path(model["name_or_path"]).name
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="feature-extraction",
        tags=["sentence-similarity", "feature-extraction", f"loss:{loss['name']}"],
        base_model=base,
    )
    settings = ", ".join(f"{k} = {v}" for k, v in loss.items() if k not in ("name", "formula", "paper", "citation"))
    return ModelCard.from_template(
        data,
        template_str=_fill(
            TEMPLATE.read_text(encoding="utf-8"),
            title=f"{Path(start).name} trained with {loss['name']}",
            verdict=verdict(record),
            dimensions=str(model["embedding_dimensions"]),
            loss_name=loss["name"],
            paper=loss["paper"],
            start=start,
            notes="".join(f"\n**Note:** {note}\n" for note in record.notes),
            scores=score_table(record, results),
            usage=usage(model),
            training=training_table(record),
            formula=loss["formula"],
            loss_settings=settings,
            command=shlex.join(["python"] * record.command[0].endswith(".py") + record.command),
            alarms="".join(f"> **Alarm:** {alarm}\n\n" for alarm in record.alarms),
            limits=limits(record),
            citation=loss["citation"],
        ),
    )


def verdict(record: RunRecord) -> str:
    """One sentence on what training did to the dev score: a loss is said as loudly as a gain."""
    gains = {
        name: value - record.baseline[name]
        for name, value in record.final.items()
        if name.endswith("/all/spearman") and name in record.baseline
    }
    if not gains:
        return "**Not judged: this run had no labelled data.**"
    name, gain = next(iter(gains.items()))
    base, now = record.baseline[name], record.final[name]
    words = "RAISED" if gain > 0 else "LOWERED" if gain < 0 else "did not change"
    warning = " This encoder is worse on it than the one it started from." if gain < 0 else ""
    change = f"from {base:.2f} to {now:.2f} ({gain:+.2f}; x 100, one seed)"
    return f"**Contrastive training {words} {name} {change}.**{warning}"


def score_table(record: RunRecord, results: Results | None) -> str:
    rows = [
        "| Score (Spearman x 100, one over all pairs of the set) | pairs | before training | after |",
        "|---|---|---|---|",
    ]
    scores = dict(results.scores) if results else {}
    for name, value in {**record.final, **scores}.items():
        if name.endswith("/all/spearman"):
            key = name.removesuffix("/all/spearman")
            pairs = (results.metadata["data"].get(key, {}) if results else {}).get("pairs", "")
            before = f"{record.baseline[name]:.2f}" if name in record.baseline else ""
            rows.append(f"| {name} | {pairs} | {before} | {value:.2f} |")
    return "\n".join(rows) if len(rows) > 2 else "No scores: run `python run_eval.py --model_name_or_path FOLDER`."


def usage(model: dict[str, Any]) -> str:
    embedded = (
        "cls_before_pooler" if model["pooler"] == "cls" and model["projection"] == "training" else model["pooler"]
    )
    pooling = USAGE.get(embedded)
    if pooling is None:
        return (
            "from hf_focalcse import load_model\n\n"
            "model = load_model('FOLDER')  # pools as it was trained\n"
            "vectors = model.encode(['A man plays the guitar.', 'Someone makes music.'])"
        )
    return (
        "import torch\n"
        "from transformers import AutoModel, AutoTokenizer\n\n"
        "tokenizer, model = AutoTokenizer.from_pretrained('FOLDER'), AutoModel.from_pretrained('FOLDER')\n"
        "batch = tokenizer(['A man plays the guitar.', 'Someone makes music.'], padding=True, return_tensors='pt')\n"
        "with torch.no_grad():\n"
        "    output = model(**batch)\n"
        f"    {pooling}\n"
        "print(torch.cosine_similarity(vectors[0], vectors[1], dim=0))"
    )


def training_table(record: RunRecord) -> str:
    model, data, hardware = record.model, record.data, record.hardware
    rows = {
        "Text": f"{Path(data['source']).name}: {data['kept']:,} sentences, sha256 `{data['sha256'][:16]}`",
        "Cut at": f"{data['max_seq_length']} tokens",
        "Pooler": f"{model['pooler']}, projection: {model['projection']}",
        "Noise": ", ".join(f"{k} {v}" for k, v in model["dropout"].items()),
        "Batch": f"{record.settings['per_device_train_batch_size']} sentences x {record.world_size} process(es)",
        "Steps": max((line.get("step", 0) for line in record.log), default=0),
        "Best checkpoint": f"step {record.best['step']}, by {record.best['metric']}" if record.best else "the last",
        "Seed": record.seed,
        "Weights": f"sha256 `{model.get('weights_sha256', '')}`",
        "Time": f"{record.seconds:.0f} s in all",
        "Hardware": f"{hardware['cpu_cores']} CPU cores, GPUs: {', '.join(hardware['gpus']) or 'none'}",
        "Versions": ", ".join(f"{k} {v}" for k, v in record.versions.items()),
        "Code": record.git_commit or "no checkout",
    }
    return "\n".join(f"| {key} | {value} |" for key, value in rows.items())


def limits(record: RunRecord) -> str:
    return (
        f"Trained on sentences cut at {record.data['max_seq_length']} tokens; longer text is read but was not trained "
        "on. A cosine has no fixed threshold: choose one on your own pairs. One seed; other seeds move STS scores by "
        "up to two points. It inherits what its base encoder and its text know and get wrong."
    )


def _fill(template: str, **values: str) -> str:
    """Template with ``{name}`` filled in; metadata go where huggingface_hub expects them."""
    for name, value in values.items():
        template = template.replace("{" + name + "}", value)
    # The text is data, not a Jinja template: braces in citations must survive.
    return "---\n{{ card_data }}\n---\n\n{% raw %}" + template + "{% endraw %}\n"
