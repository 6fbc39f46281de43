"""results.json -> scores in the forms that the Hub reads: a card's ``model-index`` and ``.eval_results/*.yaml``."""

from __future__ import annotations

from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, eval_result_entries_to_yaml

from ..evaluation import STS_TASKS
from ..runs.scores import Results, ScoreKey, headline, headlines

METRICS = {"Spearman": ["spearmanr", "pearsonr"], "MAP": ["map"], "MRR": ["mrr"]}  # title of a score -> the Hub's


def metrics_of(results: Results) -> list[str]:
    """What the scores are, for the metadata."""
    kinds = {ScoreKey.parse(key).title for key in headlines(results.scores)}
    kinds |= {"MRR"} if "MAP" in kinds else set()  # which every reranking gives
    return [name for kind, names in METRICS.items() if kind in kinds for name in names]


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
        value = results.scores.get(headline(key))
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
