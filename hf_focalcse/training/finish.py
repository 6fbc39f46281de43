"""The end of a run, in one place: weights -> results.json, run.json, plots, model card, export, repository.

The command line and `FocalCSETrainer.push_to_hub` share it. It lies above publishing, since a run ends with its card.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..encoder.adapters import ADAPTER_FOLDER
from ..encoder.loading import load_model
from ..encoder.lora import describe_lora
from ..encoder.saving import HEAD_FILE
from ..errors import UserError
from ..evaluation import differences, evaluate_sts
from ..evaluation.identity import as_encoder, sizes_of_encoder
from ..evaluation.verdict import kept, told
from ..publishing.card import write_card
from ..publishing.hub import Target, push, with_owner
from ..publishing.inherited import inherited_licence
from ..publishing.plain import plain_steps
from ..publishing.plots import draw_plots
from ..publishing.publish import export_again
from ..runs.cosines import PAIRS_FILE, write_cosines
from ..runs.folder import ADAPTER_FILE, WEIGHTS_FILE, read_results
from ..runs.record import RUN_FILE, RunRecord, file_sha256
from ..runs.scores import RESULTS_FILE, Results, is_headline
from .engines import whole_model
from .given import describe_data
from .keeping import logger


def first_record(trainer: Any, revision: str | None = None) -> RunRecord:
    """The record of a run that has none yet. revision: of the encoder that training starts from."""
    record = make_record(trainer)
    record.model |= {"revision": revision}
    record.publication |= inherited_licence(trainer.encoder.config.name_or_path, revision)
    return record


def make_record(trainer: Any) -> RunRecord:
    """What run.json can say without a command line, and without asking for the base encoder's card."""
    model, state, before = trainer.encoder, trainer.state, trainer.scorer.before
    data = describe_data(trainer.train_dataset, state.global_step * trainer.sentences_a_step)
    best = None
    if state.best_metric is not None and trainer.args.load_best_model_at_end:
        step, metric = state.best_global_step, trainer.args.metric_for_best_model
        best = {"step": step, "metric": metric, "value": state.best_metric}
    record = RunRecord(
        command=[],
        recipe=None,
        settings={key: value for key, value in trainer.args.to_dict().items() if "token" not in key},
        loss=trainer.objective.describe(),
        model={
            "name_or_path": model.config.name_or_path,
            "base_model": model.config.focal_cl.get("base_model"),
            "revision": None,
            "class": type(model).__name__,
            "model_type": model.config.model_type,
            "pooler": model.pooler_name,
            "projection": model.projection_use,
            "published": asdict(model.published) if model.published else None,
            "projection_file": None if model.encoder_has_pooler else HEAD_FILE,
            "dropout": model.dropout_rates(),
            "prompt": model.prompt,
            "prompt_template": None if model.template is None else model.template.name,
            "plain": plain_steps(model),
            "spec": model.spec.to_dict() if model.spec is not None else None,
            "parameters": trainer.parameters_of_encoder(),
            "embedding_dimensions": model.get_embedding_dimension(),
            "lora": describe_lora(model),
        },
        data={"max_seq_length": trainer.max_seq_length, "sha256": ""} | data,
        seed=trainer.args.seed,
        world_size=trainer.args.world_size,
        log=state.log_history,
        baseline=trainer.baseline,
        start=before.start.scores if before.published and before.start else {},
        best=best,
        alarms=list(trainer.alarms),
    )
    record.baseline_of = before.name(record.start_name) if before.baseline else ""
    return record


def finish_run(trainer: Any, folder: Path) -> RunRecord:
    """Evaluate the encoder saved in ``folder``, and write results.json, run.json, the plots and the card.

    Called by the first process alone, when all have saved. The files on disk are evaluated, because the model in
    memory may be sharded over processes that have ended.
    """
    record = trainer.record or first_record(trainer)
    weights = file_sha256(folder / WEIGHTS_FILE)
    record.model |= {"weights_sha256": weights}
    if record.model.get("lora"):
        record.model["lora"] |= {"adapter_sha256": file_sha256(folder / ADAPTER_FOLDER / ADAPTER_FILE)}
    if record.model.get("reference"):
        record.model["reference"] |= trainer.reference_cost()
    results = judge(trainer, folder, weights) if trainer.dev else None
    now = make_record(trainer)
    record.log, record.alarms, record.best = now.log, now.alarms, now.best
    record.baseline, record.baseline_of, record.start = now.baseline, now.baseline_of, now.start
    record.final = results.scores if results else {}
    record.dev_sets = {key: of["sha256"] for key, of in results.metadata["data"].items()} if results else {}
    if results:
        before = trainer.scorer.before
        record.differences = compared(before.baseline, results)
        record.start_differences = compared(before.start if before.published else None, results)
    record.alarms += lowered_scores(record)
    record.notes += [note for note in not_beaten(record, trainer.args.greater_is_better) if note not in record.notes]
    record.seconds = round(trainer.seconds, 1)
    if trainer.seconds_before is None:
        record.notes.append(
            "the seconds cover only the part after resuming, because the checkpoint does not record the time before it"
        )
    if results:
        results.write(folder / RESULTS_FILE)
        write_cosines(folder, results)
    else:
        record.notes += list(drop_scores_of_others(folder, weights))
    record.save(folder)
    draw_plots(folder)
    write_card(folder)
    trainer.record, trainer.finished = record, True
    return record


def drop_scores_of_others(folder: Path, weights: str) -> Iterator[str]:
    """Remove scores of other weights, which an earlier part of the run has left; the note that says so."""
    try:
        results = read_results(folder)
        others = results is not None and results.metadata["model"].get("weights_sha256") != weights
    except UserError:  # damaged
        others = True
    if others:
        for name in (RESULTS_FILE, PAIRS_FILE):
            (folder / name).unlink(missing_ok=True)
        yield f"{RESULTS_FILE} held scores of other weights, which are removed; evaluate the folder again"


def judge(trainer: Any, folder: Path, weights: str) -> Results:
    """Scores of the saved encoder on the dev tasks."""
    with whole_model():
        saved = load_model(str(folder)).to(trainer.args.device)
    encoder, identity = as_encoder(saved, trainer.args.per_device_eval_batch_size, str(folder), weights)
    return evaluate_sts(encoder, trainer.dev, progress=False, model=identity, sizes=sizes_of_encoder(saved))


def renew_card(trainer: Any, language: str | None, license: str | None) -> None:
    """README.md of ``output_dir``, after finishing a run that was not finished yet; needs its weights there."""
    folder = Path(str(trainer.args.output_dir))
    if trainer.record is None or not (folder / RUN_FILE).exists():
        finish_run(trainer, folder)
    record = RunRecord.load(folder)
    record.publication |= {key: value for key, value in (("language", language), ("license", license)) if value}
    record.save(folder)
    write_card(folder)


def publish(trainer: Any, message: str | None, token: str | None, revision: str | None, private: bool | None) -> str:
    """Export ``output_dir`` to ``output_dir/hub`` and push the export; the address of the repository."""
    args = trainer.args
    private = args.hub_private_repo if private is None else private
    folder = Path(str(args.output_dir))
    name = args.hub_model_id or folder.absolute().name
    target = Target(name, private, False, revision or args.hub_revision, message, token=token)
    target = with_owner(target, folder, logger.warning)
    folder, _ = export_again(folder, None, logger.warning, publication={"repo_id": target.repo_id})
    return push(folder, target, say=logger.warning)


def compared(before: Results | None, after: Results) -> dict[str, dict[str, Any]]:
    """Score -> the difference with its interval, as run.json keeps it; empty where nothing was scored before."""
    return {key: asdict(found) for key, found in differences(before, after).items()} if before else {}


def lowered_scores(record: RunRecord) -> list[str]:
    """One loud sentence for each dev score that training lowered by more than the choice of pairs explains."""
    return [
        f"{told(key, found, record.baseline_encoder)}: this encoder is worse on it than that one"
        for key in record.differences
        if is_headline(key) and (found := kept(record.differences, key)) and found.verdict == "lowered"
    ]


def not_beaten(record: RunRecord, greater_is_better: bool | None) -> Iterator[str]:
    """A note where no checkpoint scored above the encoder that the run is compared with."""
    best = record.best or {}
    before = record.baseline.get(best.get("metric", ""))
    if before is None:
        return
    gain = (best["value"] - before) * (-1 if greater_is_better is False else 1)
    if gain <= 0:
        yield (
            f"no checkpoint scored above {record.baseline_encoder} on {best['metric']} ({before:.2f}; the best, of "
            f"step {best['step']}, {best['value']:.2f}); keep that encoder, or try another --learning_rate"
        )
