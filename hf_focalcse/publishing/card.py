"""run.json, results.json and the names of the plots -> README.md, a model card; nothing else is read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from ..data.template import Template
from ..errors import UserError, on_one_line
from ..evaluation.verdict import verdict
from ..losses.infonce import InfoNCE
from ..runs.atomic import write_text
from ..runs.escaping import code_block, code_span, escape_markdown
from ..runs.folder import Run
from ..runs.record import RUN_FILE, RunRecord
from ..runs.scores import RESULTS_FILE, Results
from ..runs.tables import Table
from .card_scores import scores, similarity
from .eval_results import eval_results, metrics_of
from .usage import EXAMPLES, WIDGET, usage

TEMPLATE = Path(__file__).with_name("card.md")
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "transformers"]
TAGS += ["text-embeddings-inference"]


def write_card(folder: str | Path) -> Path:
    """Write README.md of a training folder or an export.

    Raises:
        UserError: the folder has no run.json, or its scores are of other weights.
    """
    folder = Path(folder)
    return write_text(folder / "README.md", render(folder))


def render(folder: Path) -> str:
    """The card of what lies in a folder."""
    run = Run.read(folder)
    plots = [file.relative_to(folder).as_posix() for file in sorted(folder.glob("plots/*.png"))]
    try:
        return make_card(run.record, run.results, plots)
    except (KeyError, IndexError, TypeError, AttributeError) as error:  # within what the reader of the files checks
        raise UserError(
            f"{folder / RUN_FILE} or {RESULTS_FILE} is damaged, so that no card can be made ({on_one_line(error)})"
        ) from error


def make_card(record: RunRecord, results: Results | None, plots: Sequence[str] = ()) -> str:
    """Metadata and text; the same arguments give the same card, and no path of this machine is in it."""
    record = record.publishable()
    model, loss, publication = record.model, record.loss, record.publication
    base, name = model["base_model"], model_name(record)
    settings = {k: v for k, v in loss.items() if k not in ("name", "formula", "networks", "paper", "citation")}
    citations = list(dict.fromkeys([loss["citation"], InfoNCE.citation]))  # every loss here builds on SimCSE
    values = {
        "title": escape_markdown(name),
        "verdict": verdict(record),
        "dimensions": str(model["embedding_dimensions"]),
        "supervision": "on pairs of texts that are said to mean the same"
        if record.data.get("columns")
        else "without labels",
        "loss_name": loss["name"] + (f" within {loss['objective']}" if "objective" in loss else ""),
        "paper": loss["paper"],
        "start": link(base) if base else code_span(Path(str(model["name_or_path"])).name),
        "notes": "".join(f"\n**Note:** {sentence(note)}\n" for note in record.notes),
        "usage": "\n".join(usage(record, results)),
        "scores": "\n\n".join(scores(record, results)),
        "similarity": similarity(results, plots),
        "curves": "![Loss, cosines and dev score by step](plots/training.png)\n\n" * ("plots/training.png" in plots),
        "training": training_table(record),
        "formula": loss["formula"],
        "loss_settings": escape_markdown(", ".join(f"{k} = {v}" for k, v in settings.items())),
        "networks": f"\nIn training alone there were, besides the encoder: {sentence(loss['networks'])}\n"
        if loss.get("networks")
        else "",
        "repeat": repeat(record),
        "alarms": "".join(f"\n> **Alarm:** {sentence(alarm)}\n\n" for alarm in record.alarms) or "\n",
        "limits": limits(record),
        "citation": "\n\n".join(citations),
    }
    # in one pass, so that a name such as {alarms} stays a name
    text = re.sub(r"\{(\w+)\}", lambda found: values[found[1]], TEMPLATE.read_text(encoding="utf-8"))
    complete = bool(publication.get("sentence_transformers"))
    metadata = ModelCardData(
        language=publication.get("language"),
        license=publication.get("license"),
        license_name=publication.get("license_name") if publication.get("license") == "other" else None,
        license_link=publication.get("license_link") if publication.get("license") == "other" else None,
        library_name="sentence-transformers" if complete else "transformers",
        pipeline_tag="sentence-similarity" if complete else "feature-extraction",
        tags=tags_of(publication, loss["name"]),
        base_model=publication.get("adapter_of") or base,
        base_model_relation="adapter" if publication.get("adapter_of") else None,
        datasets=[record.settings["dataset_name"]] if record.settings.get("dataset_name") else None,
        metrics=metrics_of(results) if results else None,
        model_name=name if results else None,
        eval_results=eval_results(results) if results else None,
        widget=WIDGET if complete else [{"text": text} for text in EXAMPLES],
    )
    return f"---\n{metadata.to_yaml(line_break=chr(10))}\n---\n\n{text}"


def tags_of(publication: dict[str, Any], loss: str) -> list[str]:
    complete, adapter = publication.get("sentence_transformers"), publication.get("adapter_of")
    tags = TAGS if complete and not adapter else TAGS[:-1] if complete else TAGS[1:3]  # TEI loads no adapters
    return [*tags, *(["lora", "peft"] if adapter else []), f"loss:{loss}"]


def model_name(record: RunRecord) -> str:
    """The repository's name, or where there is none yet, what was trained with which loss."""
    repository = record.publication.get("repo_id")
    start = record.model["base_model"] or str(record.model["name_or_path"])
    return repository.split("/")[-1] if repository else f"{Path(start).name} trained with {record.loss['name']}"


def link(base: str) -> str:
    """To a repository of the Hub; what is no name of one is shown as text."""
    fitting = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base, re.ASCII)
    return f"[{base}](https://huggingface.co/{base})" if fitting else code_span(base)


def sentence(text: str) -> str:
    """A note or an alarm with one full stop at its end."""
    return f"{escape_markdown(text, keep='`').rstrip('.')}."


def training_table(record: RunRecord) -> str:
    """Settings and circumstances of the training, a row each."""
    model, data, hardware, settings = record.model, record.data, record.hardware, record.settings
    revision = settings.get("dataset_revision")
    batch = settings.get("per_device_train_batch_size")
    steps = settings.get("gradient_accumulation_steps", 1)
    source = str(data["source"]) if "/" in str(data["source"]) else Path(str(data["source"])).name
    rows = {
        "Text": escape_markdown(source + (f" at revision {revision}" if revision else ""))
        + f": {data['kept']:,} sentences, sha256 `{str(data['sha256'])[:16]}`",
        "Cut at": f"{data['max_seq_length']} tokens",
        "Pooler": escape_markdown(f"{model['pooler']}, projection: {model['projection']}"),
        **({"Prompt": f"{code_span(model['prompt'])} before every text"} if model.get("prompt") else {}),
        **({"Template": template_cell(model["prompt_template"])} if model.get("prompt_template") else {}),
        "Noise": escape_markdown(", ".join(f"{k} {v}" for k, v in model["dropout"].items())),
        "Batch": f"{batch} sentences x {record.world_size} process(es)" + (f", {steps} accumulated" * (steps > 1)),
        "Learning rate": escape_markdown(f"{settings.get('learning_rate')}, {settings.get('lr_scheduler_type')}"),
        "Steps": str(max((line.get("step", 0) for line in record.log), default=0)),
        "Best checkpoint": escape_markdown(
            f"step {record.best['step']}, by {record.best['metric']}" if record.best else "the last"
        ),
        **stages_row(record),
        "Recipe": escape_markdown(record.recipe or "none"),
        **adapter_row(record),
        "Seed": str(record.seed),
        "Weights": f"sha256 `{model.get('weights_sha256', '')}`",
        "Time": f"{record.seconds:.0f} s in all" if record.seconds is not None else "not recorded",
        "Hardware": escape_markdown(
            f"{hardware['cpu_cores']} CPU cores, GPUs: {', '.join(hardware['gpus']) or 'none'}"
        ),
        "Versions": escape_markdown(", ".join(f"{k} {v}" for k, v in record.versions.items())),
        "Code": f"git commit `{record.git_commit}`" if record.git_commit else "an installed package, not a checkout",
    }
    return Table(["", ""], [[key, value] for key, value in rows.items()], align="ll").markdown(marked_up=True)


def stages_row(record: RunRecord) -> dict[str, str]:
    """What the encoder was trained with before, where that is known."""
    said = []
    for row in record.stages:
        source = f" ({row['paper']})" if row.get("paper") else ""
        text = (
            f"{row['steps']} steps on {row['text']}, {row['sentences']:,} sentences, sha256 {str(row['sha256'])[:16]}"
        )
        rate = f"learning rate {row['learning_rate']}, seed {row['seed']}"
        said.append(f"{row['objective']}{source}: {text}, {rate}")
    return {"Stages before": escape_markdown("; then ".join(said))} if said else {}


def adapter_row(record: RunRecord) -> dict[str, str]:
    """What was trained, where that is an adapter."""
    lora = record.model.get("lora")
    if not lora:
        return {}
    said = (
        f"rank {lora['rank']}, alpha {lora['alpha']:g}, dropout {lora['dropout']:g}, on "
        f"{', '.join(lora['target_modules'])}; {lora['trained_parameters']:,} trained parameters"
    )
    return {"LoRA": escape_markdown(said)}


def template_cell(recorded: Any) -> str:
    return code_span(Template.of(recorded).text)


def repeat(record: RunRecord) -> str:
    """The command that repeats the run."""
    if not record.command:
        return "Trained from Python with `FocalCSETrainer`: `run.json` has the settings."
    start = ["python"] if record.command[0].endswith(".py") else []
    if record.world_size > 1 and start:
        start = ["torchrun", "--nproc_per_node", str(record.world_size)]
    command = [*start, *record.command]
    return (
        "To repeat the run, put the files that the command names into the working folder (`run.json` has every "
        f"setting):\n\n{code_block(shlex.join(command), 'bash')}"
    )


def limits(record: RunRecord) -> str:
    """What the encoder should not be relied on for."""
    limit = record.publication.get("max_seq_length")
    longer = f" Text beyond {limit} tokens is cut." if limit else ""
    return (
        f"Trained on sentences cut at {record.data['max_seq_length']} tokens; longer text is read but was not trained "
        f"on.{longer} A cosine has no fixed threshold: choose one on your own pairs. One seed; other seeds move STS "
        "scores by up to two points. Negation, numbers and names are weak points of encoders of this kind. It "
        "inherits what its base encoder and its text know and get wrong, social biases included."
    )
