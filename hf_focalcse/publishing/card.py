"""run.json + results.json + the names of the plots -> README.md, a model card; nothing else is looked at."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCardData, eval_result_entries_to_yaml

from ..encoder.poolers import POOLERS
from ..evaluation import STS_TASKS, Results
from ..runs.atomic import write_text
from ..runs.record import RunRecord

TEMPLATE = Path(__file__).with_name("card.md")
EXAMPLES = ("A man plays the guitar.", "Someone makes music.")
WIDGET = [
    {
        "source_sentence": "A man plays the guitar.",
        "sentences": ["Someone makes music.", "A woman is cutting an onion.", "The guitar hangs on the wall."],
        "example_title": "Making music",
    },
    {
        "source_sentence": "The train leaves at noon.",
        "sentences": ["At twelve the train departs.", "The train was late.", "Lunch is served at noon."],
        "example_title": "Departure",
    },
]
SIMCSE = """@inproceedings{gao2021simcse,
  title = {{SimCSE}: Simple Contrastive Learning of Sentence Embeddings},
  author = {Gao, Tianyu and Yao, Xingcheng and Chen, Danqi},
  booktitle = {Empirical Methods in Natural Language Processing (EMNLP)},
  year = {2021}
}"""
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "transformers"]
TAGS += ["text-embeddings-inference"]
SPEARMAN = "/all/spearman"
SICK_NOTES = {
    "SICK-R/mteb-test": "SICK-R (MTEB) is all 9,927 pairs; tables of SimCSE and its successors have SentEval's 4,927, "
    "and the two do not compare.",
    "SICK-R/senteval-test": "SICK-R (SentEval) is the 4,927 test pairs that tables of SimCSE and its successors have.",
}


def write_card(folder: str | Path) -> Path:
    """Write README.md of a training folder or an export, whole or not at all.

    Raises:
        UserError: the folder has no run.json.
    """
    folder = Path(folder)
    return write_text(folder / "README.md", render(folder))


def render(folder: Path) -> str:
    """The card of what lies in a folder."""
    results = Results.read(folder / "results.json") if (folder / "results.json").exists() else None
    plots = [file.relative_to(folder).as_posix() for file in sorted(folder.glob("plots/*.png"))]
    return make_card(RunRecord.load(folder), results, plots)


def make_card(record: RunRecord, results: Results | None, plots: Sequence[str] = ()) -> str:
    """Metadata and text; the same arguments give the same card, and no path of this machine is in it."""
    record = record.publishable()
    model, loss, publication = record.model, record.loss, record.publication
    base = model["base_model"]
    name = model_name(record)
    settings = {k: v for k, v in loss.items() if k not in ("name", "formula", "paper", "citation")}
    citations = [loss["citation"], *([SIMCSE] if "gao2021simcse" not in loss["citation"] else [])]
    text = TEMPLATE.read_text(encoding="utf-8")
    values = {
        "title": name,
        "verdict": verdict(record),
        "dimensions": str(model["embedding_dimensions"]),
        "loss_name": loss["name"],
        "paper": loss["paper"],
        "start": f"[{base}](https://huggingface.co/{base})" if base else f"`{Path(str(model['name_or_path'])).name}`",
        "notes": "".join(f"\n**Note:** {note.rstrip(chr(46))}.\n" for note in record.notes),
        "usage": "\n".join(usage(record, results)),
        "scores": "\n\n".join(scores(record, results)),
        "similarity": similarity(results, plots),
        "curves": "![Loss, cosines and dev score by step](plots/training.png)\n\n" * ("plots/training.png" in plots),
        "training": training_table(record),
        "formula": loss["formula"],
        "loss_settings": ", ".join(f"{k} = {v}" for k, v in settings.items()),
        "repeat": repeat(record),
        "alarms": "".join(f"\n> **Alarm:** {alarm.rstrip(chr(46))}.\n\n" for alarm in record.alarms) or "\n",
        "limits": limits(record, results),
        "citation": "\n\n".join(citations),
    }
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    complete = bool(publication.get("sentence_transformers"))
    metadata = ModelCardData(
        language=publication.get("language"),
        license=publication.get("license"),
        library_name="sentence-transformers" if complete else "transformers",
        pipeline_tag="sentence-similarity" if complete else "feature-extraction",
        tags=[*(TAGS if complete else TAGS[1:3]), f"loss:{loss['name']}"],
        base_model=base,
        datasets=[record.settings["dataset_name"]] if record.settings.get("dataset_name") else None,
        metrics=metrics_of(results) if results else None,
        model_name=name if results else None,
        eval_results=eval_results(results) if results else None,
        widget=WIDGET if complete else [{"text": text} for text in EXAMPLES],
    )
    return f"---\n{metadata.to_yaml(line_break=chr(10))}\n---\n\n{text}"


def model_name(record: RunRecord) -> str:
    """The repository's name, or where there is none yet, what was trained with which loss."""
    repository = record.publication.get("repo_id")
    start = record.model["base_model"] or str(record.model["name_or_path"])
    return repository.split("/")[-1] if repository else f"{Path(start).name} trained with {record.loss['name']}"


# ---- text


def verdict(record: RunRecord) -> str:
    """One sentence on what training did to the dev score: a loss is said as loudly as a gain."""
    gains = {
        name: value - record.baseline[name]
        for name, value in record.final.items()
        if name.endswith(SPEARMAN) and name in record.baseline
    }
    if not gains:
        return "**Not judged: this run had no labelled data.**"
    name, gain = next(iter(gains.items()))
    base, now = record.baseline[name], record.final[name]
    words = "RAISED" if gain > 0 else "LOWERED" if gain < 0 else "did not change"
    warning = " This encoder is worse on it than the one it started from." if gain < 0 else ""
    change = f"from {base:.2f} to {now:.2f} ({gain:+.2f}; x 100, one seed)"
    return f"**Contrastive training {words} {name} {change}.**{warning}"


def usage(record: RunRecord, results: Results | None) -> Iterator[str]:
    """Headed code blocks; each runs as it stands."""
    publication = record.publication
    name = repr(publication.get("repo_id") or ".")
    where = "" if "repo_id" in publication else "In this folder, from Python started in it. "
    texts = "[" + ", ".join(f'"{text}"' for text in EXAMPLES) + "]"
    cosine = publication.get("example_cosine")
    result = f"  # {cosine:.3f}" if cosine is not None else ""
    name = name.replace("'", '"')
    if publication.get("sentence_transformers"):
        yield (
            f"{where}With [sentence-transformers](https://www.sbert.net):\n\n```python\n"
            f"from sentence_transformers import SentenceTransformer\n\n"
            f"model = SentenceTransformer({name})\nvectors = model.encode({texts})\n"
            f'print(f"{{model.similarity(vectors[0], vectors[1]).item():.3f}}"){result}\n```\n'
        )
    yield (
        f"With transformers alone, pooled as it was trained:\n\n```python\n{transformers_usage(record, results)}"
        f'print(f"{{torch.cosine_similarity(vectors[0], vectors[1], dim=0).item():.3f}}"){result}\n```\n'
    )
    if publication.get("sentence_transformers"):
        yield (
            "With [text-embeddings-inference](https://github.com/huggingface/text-embeddings-inference):\n\n"
            "```bash\n"
            f"text-embeddings-router --model-id {name[1:-1]} --port 8080 &\n"
            "curl --silent --retry 60 --retry-connrefused --retry-delay 1 http://127.0.0.1:8080/embed \\\n"
            "    -H 'Content-Type: application/json' \\\n"
            '    -d \'{"inputs": ' + texts + ', "truncate": true}\'\n```\n'
        )
    if publication.get("onnx"):
        yield (
            "`onnx/model.onnx` takes `input_ids` and `attention_mask` and gives `sentence_embedding`, "
            "with the pooling inside, beside `last_hidden_state`.\n"
        )


def transformers_usage(record: RunRecord, results: Results | None) -> str:
    """Python that leaves ``vectors``."""
    model, publication = record.model, record.publication
    name, row = publication.get("repo_id") or ".", POOLERS[model["pooler"]]
    limit = publication.get("max_seq_length") or (results and results.metadata["model"].get("max_length"))
    cut = f", truncation=True, max_length={limit}" if limit else ""
    expression, after = row.code, ""
    if model["projection"] == "always" and model.get("projection_file"):
        after = (
            f'head = load_file(cached_file("{name}", "{model["projection_file"]}"))\n'
            'vectors = torch.tanh(vectors @ head["mlp.dense.weight"].T + head["mlp.dense.bias"])\n'
        )
    elif model["projection"] == "always":
        expression = "output.pooler_output"
    texts = ", ".join(f'"{text}"' for text in EXAMPLES)
    return (
        "import torch\n"
        + ("from safetensors.torch import load_file\n" if after else "")
        + "from transformers import AutoModel, AutoTokenizer\n"
        + ("from transformers.utils import cached_file\n" if after else "")
        + f'\ntokenizer = AutoTokenizer.from_pretrained("{name}")\n'
        f'model = AutoModel.from_pretrained("{name}").eval()\n'
        f'texts = [{texts}]\nbatch = tokenizer(texts, padding=True{cut}, return_tensors="pt")\n'
        + ('mask = batch["attention_mask"].unsqueeze(-1)\n' if "mask" in expression else "")
        + "with torch.no_grad():\n"
        f"    output = model(**batch{', output_hidden_states=True' if row.all_layers else ''})\n"
        f"vectors = {expression}\n{after}"
    )


def scores(record: RunRecord, results: Results | None) -> Iterator[str]:
    """Tables and what must be known to read them."""
    own = {**record.final, **(results.scores if results else {})}
    data = results.metadata["data"] if results else {}
    keys = ordered_keys(own)
    ranked = reranking(own, data)
    if not keys and not ranked:
        yield "None: run `python run_eval.py --model_name_or_path FOLDER`."
        return
    if keys:
        yield from correlations(record, results, own, keys)
    yield from ranked
    shape = [key for key in own if key.endswith("/alignment") or key.endswith("/uniformity")]
    if shape:
        sets = list(dict.fromkeys(set_of(key) for key in shape))
        rows = ["| Lower is better | alignment | uniformity |", "|---|--:|--:|"]
        for name in sets:
            cells = [f"{own[k]:.4f}" if (k := f"{name}/{what}") in own else "" for what in ("alignment", "uniformity")]
            rows.append(f"| {name} | " + " | ".join(cells) + " |")
        yield "\n".join(rows)


def reranking(own: dict[str, float], data: dict[str, Any]) -> list[str]:
    """A table of MAP and MRR with the search engine's, and by whose rules; nothing where nothing was ranked."""
    of_queries = {key: of for key, of in data.items() if "scorer" in of}
    if not of_queries:
        return []
    rows = ["| Reranking by cosine, x 100 | queries | search engine's MAP | MAP | MRR |", "|---|--:|--:|--:|--:|"]
    for key, of in of_queries.items():
        best, first = (own[f"{key}/{metric}_{of['scorer']}"] for metric in ("map", "mrr"))
        known = (of["search_engine"] or {}).get(f"map_{of['scorer']}")
        engine = "" if known is None else f"{known:.2f}"
        rows.append(
            f"| {key} ({of['scorer']}) | {of['queries_scored']:,} | {engine} | **{best:.2f}** | **{first:.2f}** |"
        )
    rules = {of["scorer"]: of["rule"] for of in of_queries.values()}
    return ["\n".join(rows), " ".join(f"{name}: {rule}." for name, rule in rules.items())]


def correlations(record: RunRecord, results: Results | None, own: dict[str, float], keys: list[str]) -> Iterator[str]:
    """The Spearman correlations beside those before training and of others, and what must be known of them."""
    data = results.metadata["data"] if results else {}
    columns: dict[str, dict[str, str]] = {}
    if any(key in record.baseline for key in keys):
        columns["before training"] = {key: f"{value:.2f}" for key, value in record.baseline.items()}
    for name, runs in (results.metadata.get("comparisons", {}) if results else {}).items():
        title = f"{name} ({len(runs)} seeds)" if len(runs) > 1 else name
        columns[title] = {
            key: with_spread([run["scores"][key] for run in runs if key in run["scores"]]) for key in own
        }
    columns["this model"] = {key: f"**{value:.2f}**" for key, value in own.items()}
    rows = ["| Spearman x 100 | pairs | " + " | ".join(columns) + " |", "|---|--:|" + "--:|" * len(columns)]
    for key in keys:
        pairs = data.get(set_of(key), {}).get("pairs")
        cells = [f"{pairs:,}" if pairs else "", *(column.get(key, "") for column in columns.values())]
        rows.append(f"| {row_title(key, data)} | " + " | ".join(cells) + " |")
    yield "\n".join(rows)
    yield " ".join(score_notes(record, keys, data))


def score_notes(record: RunRecord, keys: list[str], data: dict[str, Any]) -> Iterator[str]:
    yield "One Spearman correlation over all pairs of a set, cosine against the gold score, no regressor."
    if any(key.startswith("average/") for key in keys):
        yield "Average: the mean of the seven, each rounded to two decimals first."
    yield from (note for name, note in SICK_NOTES.items() if f"{name}{SPEARMAN}" in keys)
    if f"STSBenchmark/test{SPEARMAN}" in keys and f"STS12/test{SPEARMAN}" in keys:
        yield (
            "1,006 of the 1,379 pairs of STS-B test also occur in STS12-16, so these sets are not independent of "
            "each other, nor of a checkpoint chosen on STS-B dev."
        )
    for name, of in data.items():
        if of["expected_pairs"] not in (None, of["pairs"]):
            yield (
                f"{name} had {of['pairs']:,} pairs where the published set has {of['expected_pairs']:,}: "
                "its scores do not compare with published ones."
            )
    if any(of["text"] == "senteval" for of in data.values()):
        yield "The sentences are tokenised by SentEval; scores on raw text, as in MTEB, differ."
    pinned = {name: of for name, of in data.items() if of["revision"]}
    if pinned:
        yield "Data: " + ", ".join(dataset_link(name, of) for name, of in pinned.items()) + "."
    if record.best:
        yield f"The checkpoint was chosen on {record.best['metric']}."
    yield "This model is one seed."


def similarity(results: Results | None, plots: Sequence[str]) -> str:
    """Where random pairs lie, so that a reader can choose a threshold."""
    found = {
        key: of["cosines"] for key, of in (results.metadata["data"] if results else {}).items() if "cosines" in of
    }
    if not found:
        return ""
    key = main_set(found)
    of = found[key]
    names = [f"{100 * float(q):g} %" for q in of["quantiles"]]
    cells = [f"{value:.3f}" for value in of["quantiles"].values()]
    return (
        "\n## Choosing a threshold\n\n"
        + "![Cosines of random pairs and of pairs rated low and high](plots/cosines.png)\n\n"
        * ("plots/cosines.png" in plots)
        + f"Cosines of {of['random_pairs']:,} random pairs of sentences of {key}; so many of them lie below:\n\n"
        + "| "
        + " | ".join(names)
        + " |\n|"
        + "--:|" * len(names)
        + "\n| "
        + " | ".join(cells)
        + " |\n\n"
        + f"A threshold of {of['quantiles']['0.99']:.2f} lets one random pair in a hundred through. On text of "
        "another kind the figures differ: measure them there.\n"
    )


def training_table(record: RunRecord) -> str:
    model, data, hardware, settings = record.model, record.data, record.hardware, record.settings
    revision = settings.get("dataset_revision")
    batch = settings.get("per_device_train_batch_size")
    steps = settings.get("gradient_accumulation_steps", 1)
    rows = {
        "Text": f"{Path(str(data['source'])).name if '/' not in str(data['source']) else data['source']}"
        + (f" at revision {revision}" if revision else "")
        + f": {data['kept']:,} sentences, sha256 `{str(data['sha256'])[:16]}`",
        "Cut at": f"{data['max_seq_length']} tokens",
        "Pooler": f"{model['pooler']}, projection: {model['projection']}",
        "Noise": ", ".join(f"{k} {v}" for k, v in model["dropout"].items()),
        "Batch": f"{batch} sentences x {record.world_size} process(es)" + (f", {steps} accumulated" * (steps > 1)),
        "Learning rate": f"{settings.get('learning_rate')}, {settings.get('lr_scheduler_type')}",
        "Steps": max((line.get("step", 0) for line in record.log), default=0),
        "Best checkpoint": f"step {record.best['step']}, by {record.best['metric']}" if record.best else "the last",
        "Recipe": record.recipe or "none",
        "Seed": record.seed,
        "Weights": f"sha256 `{model.get('weights_sha256', '')}`",
        "Time": f"{record.seconds:.0f} s in all" if record.seconds is not None else "not recorded",
        "Hardware": f"{hardware['cpu_cores']} CPU cores, GPUs: {', '.join(hardware['gpus']) or 'none'}",
        "Versions": ", ".join(f"{k} {v}" for k, v in record.versions.items()),
        "Code": f"git commit `{record.git_commit}`" if record.git_commit else "an installed package, no checkout",
    }
    return "\n".join(f"| {key} | {value} |" for key, value in rows.items())


def repeat(record: RunRecord) -> str:
    if not record.command:
        return "Trained from Python with `FocalCSETrainer`: `run.json` has the settings."
    start = ["python"] if record.command[0].endswith(".py") else []
    if record.world_size > 1 and start:
        start = ["torchrun", "--nproc_per_node", str(record.world_size)]
    command = [*start, *record.command]
    return (
        "Repeat it, with the files it names in the working folder (run.json has every setting):\n\n"
        f"```bash\n{shlex.join(command)}\n```"
    )


def limits(record: RunRecord, results: Results | None) -> str:
    limit = record.publication.get("max_seq_length")
    longer = f" Text beyond {limit} tokens is cut." if limit else ""
    return (
        f"Trained on sentences cut at {record.data['max_seq_length']} tokens; longer text is read but was not trained "
        f"on.{longer} A cosine has no fixed threshold: choose one on your own pairs. One seed; other seeds move STS "
        "scores by up to two points. Negation, numbers and names are weak points of encoders of this kind. It "
        "inherits what its base encoder and its text know and get wrong, social biases included."
    )


# ---- scores as metadata


def metrics_of(results: Results) -> list[str]:
    """What the scores are, for the metadata."""
    kinds = {"map" if "scorer" in of else "spearman" for of in results.metadata["data"].values()}
    return ["spearmanr", "pearsonr"] * ("spearman" in kinds) + ["map", "mrr"] * ("map" in kinds)


def eval_results(results: Results) -> list[EvalResult]:
    """MTEB's form: ids and pinned revisions of the Hub's data sets for the sets that were read there."""
    found = []
    for key, of in results.metadata["data"].items():
        dataset = hub_dataset(key, of)
        names = {f"cosine_{metric}": f"{key}/all/{metric}" for metric in ("spearman", "pearson")}
        if "scorer" in of:
            names = {metric: f"{key}/{metric}_{of['scorer']}" for metric in ("map", "mrr")}
        for metric, name in names.items():
            value = results.scores.get(name)
            if value is not None:
                found.append(
                    EvalResult(
                        task_type="Reranking" if "scorer" in of else "STS",
                        dataset_type=dataset["type"],
                        dataset_name=dataset["name"],
                        dataset_config=dataset.get("config"),
                        dataset_split=dataset["split"],
                        dataset_revision=of["revision"],
                        dataset_args={"pairs": of["pairs"], "sha256": of["sha256"]},
                        metric_type=metric,
                        metric_value=value,
                        metric_name=name,
                    )
                )
    return found


def eval_result_files(results: Results) -> dict[str, str]:
    """``.eval_results/*.yaml``: one file a task of MTEB that was measured on its own raw text and whole."""
    files = {}
    for key, of in results.metadata["data"].items():
        dataset = hub_dataset(key, of)
        value = results.scores.get(f"{key}{SPEARMAN}")
        if "config" not in dataset or value is None:
            continue
        name = dataset["task"]
        entry = EvalResultEntry(
            dataset_id=dataset["type"],
            task_id=f"{name}_{dataset['config']}_{dataset['split']}",
            value=round(value, 5),
            dataset_revision=of["revision"],
            date=results.metadata["created"][:10],
        )
        suffix = "" if dataset["split"] == "test" else f"_{dataset['split']}"
        files[f".eval_results/{name}{suffix}.yaml"] = yaml.safe_dump(
            eval_result_entries_to_yaml([entry]), sort_keys=False
        )
    return files


def hub_dataset(key: str, of: dict[str, Any]) -> dict[str, str]:
    """Name, type and split of a set; with task and config where it is the Hub's data set, raw and whole."""
    task_name, _, split_name = key.partition("/")
    task = STS_TASKS.get(task_name)
    split = next((s for s in task.splits if s.name == split_name), None) if task else None
    if task and split and split.hub and of["text"] == "raw" and of["pairs"] == of["expected_pairs"]:
        parts = {"name": f"MTEB {task.name}", "type": task.hub_id, "split": split.hub}
        return parts | {"task": task.name, "config": "default"}
    if of.get("hub_id"):
        return {"name": f"MTEB {task_name}", "type": of["hub_id"], "split": split_name}
    text = f" ({of['text']} text)" if task else ""
    return {"name": f"{task.title if task else task_name}{text}", "type": task_name.lower(), "split": split_name}


def dataset_link(key: str, of: dict[str, Any]) -> str:
    name, revision = of.get("hub_id") or STS_TASKS[key.partition("/")[0]].hub_id, of["revision"]
    return f"[{name} @ {revision[:8]}](https://huggingface.co/datasets/{name}/tree/{revision})"


# ---- keys


def set_of(key: str) -> str:
    return "/".join(key.split("/")[:2])


def ordered_keys(found: dict[str, float]) -> list[str]:
    """Spearman keys: the seven sets in their usual order, their averages, then the rest."""
    sets = [
        f"{task.name}/{split.name}" for task in STS_TASKS.values() for split in task.splits if "test" in split.name
    ]
    known = [f"{name}{SPEARMAN}" for name in [*sets, "average/mteb-sickr", "average/senteval-sickr"]]
    rest = [key for key in found if key.endswith(SPEARMAN) and key not in known]
    return [key for key in known if key in found] + rest


def main_set(found: dict[str, Any]) -> str:
    return "STSBenchmark/test" if "STSBenchmark/test" in found else next(iter(found))


def row_title(key: str, data: dict[str, Any]) -> str:
    name, split = key.split("/")[:2]
    if name == "average":
        return f"Average of the seven, SICK-R as in {'MTEB' if split.startswith('mteb') else 'SentEval'}"
    if name == "SICK-R":
        return f"SICK-R ({'MTEB' if split.startswith('mteb') else 'SentEval'} {split.split('-')[-1]})"
    return f"{STS_TASKS[name].title if name in STS_TASKS else name} {split}"


def with_spread(values: list[float]) -> str:
    """A score, or the mean of several with their sample standard deviation."""
    if not values:
        return ""
    mean = statistics.fmean(values)
    return f"{mean:.2f}" if len(values) == 1 else f"{mean:.2f} ± {statistics.stdev(values):.2f}"
