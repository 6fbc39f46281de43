"""The trainer as people know it: what they give to Trainer works here, or is refused in one sentence."""

import dataclasses
import importlib.machinery
import inspect
import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from tiny import SENTENCES, record_mean, save_tiny
from tiny_training import GRADED, TEXTS
from transformers import AutoModel, EvalPrediction, Trainer, TrainerCallback, TrainingArguments, default_data_collator

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model
from hf_focalcse.data.given import GivenSentences
from hf_focalcse.data.views import View, Views
from hf_focalcse.encoder import packaged
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import read_pairs
from hf_focalcse.losses.focal import FocalInfoNCE
from hf_focalcse.objectives import Contrastive, Objective
from hf_focalcse.training import search
from hf_focalcse.training.args import OUTPUT
from hf_focalcse.training.finish import make_record
from hf_focalcse.training.refusing import PARAMETERS

PAIRS = [{"sentence1": a, "sentence2": b, "score": s} for a, b, s in GRADED]
TEXT = [row["text"] for row in TEXTS]
QUICK = {"max_steps": 2, "per_device_train_batch_size": 8, "use_cpu": True, "disable_tqdm": True, "report_to": "none"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder that says how it pools, as those of sentence-transformers do."""
    return str(record_mean(save_tiny(tmp_path_factory.mktemp("own") / "base", initializer_range=0.4)))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Trainers without an output folder write into the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def arguments(tmp_path):
    def make(**given):
        usual = {"save_strategy": "no", "load_best_model_at_end": False, "eval_steps": 1, "logging_steps": 1}
        return FocalCSETrainingArguments(str(tmp_path / "out"), **{**QUICK, **usual, **given})

    return make


def losses(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


# ---- a model, a loss, arguments


@pytest.mark.parametrize("kind", ["dataset", "list", "file"])
def test_pairs_are_found_by_their_columns(base, arguments, tmp_path, kind):
    rows = [{"anchor": a, "positive": f"{a} now", "negative": b} for a in TEXT for b in TEXT[:3]]
    data: Any = rows
    if kind == "dataset":
        data = datasets.Dataset.from_list(rows)
    elif kind == "file":
        data = str(tmp_path / "pairs.jsonl")
        Path(data).write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer = FocalCSETrainer(base, arguments(max_steps=1), train_dataset=data)
    assert trainer.views == 3 and trainer.train_dataset.report.columns == ("anchor", "positive", "negative")
    trainer.train()
    text = [row | {"text": "a"} for row in rows]  # a column of that name is taken as ever
    assert FocalCSETrainer(base, arguments(), train_dataset=text).views == 2


def test_a_reference_by_name_pools_as_its_folder_says_or_is_refused(base, arguments, tmp_path):
    loss = build_loss("dclr", phi=0.5)
    trainer = FocalCSETrainer(base, arguments(), loss, train_dataset=TEXT, reference=base)
    assert trainer.objective.reference.each[0].model.pooler_name == "mean"
    plain = str(save_tiny(tmp_path / "plain"))  # its [CLS] would go through a projection of random numbers
    with pytest.raises(
        UserError, match=r"reference: nothing in .* says how it pools; .*load_model\('.*', pooler='mean'\)"
    ):
        FocalCSETrainer(base, arguments(), loss, train_dataset=TEXT, reference=plain)
    asked = load_model(plain, pooler="mean")
    trainer = FocalCSETrainer(base, arguments(), loss, train_dataset=TEXT, reference=asked)
    assert trainer.objective.reference.each[0].model is asked


def test_a_folder_a_name_and_sentences_are_enough(base, arguments):
    trainer = FocalCSETrainer(base, arguments(), train_dataset=TEXT)
    assert isinstance(trainer.loss, FocalInfoNCE) and trainer.model.pooler_name == "mean"
    trainer.train()
    assert len(losses(trainer)) == 2 and all(map(math.isfinite, losses(trainer)))
    assert trainer.model.config.focal_cl["loss"] == "focal" and trainer.state.global_step == 2
    by_object = FocalCSETrainer(load_model(base), arguments(), build_loss("focal"), TEXTS)
    by_object.train()
    assert losses(by_object) == losses(trainer)


def test_a_plain_encoder_is_trained_by_cls_with_a_projection_drawn_by_the_seed(tmp_path, arguments):
    plain = str(save_tiny(tmp_path / "plain"))
    first, second, other = (FocalCSETrainer(plain, arguments(seed=seed), train_dataset=TEXT) for seed in (1, 1, 2))
    assert first.model.pooler_name == "cls" and first.model.projection_use == "training"
    weights = [trainer.model.projection_linear.weight for trainer in (first, second, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], load_model(plain, "cls").projection_linear.weight)


def test_the_packaged_encoder_is_known_by_its_name(arguments):
    if packaged.find_packaged() is None:
        pytest.skip(f"{packaged.ENCODER_PACKAGE} is not installed")
    trainer = FocalCSETrainer(packaged.ENCODER_PACKAGE, arguments(), train_dataset=TEXT, eval_dataset="quickstart")
    assert trainer.model.config.focal_cl["base_model"] == packaged.BASE_MODEL and trainer.model.pooler_name == "mean"
    assert len(trainer.dev) == 2


def test_without_arguments_there_are_our_defaults(base):
    trainer = FocalCSETrainer(base, loss="infonce", train_dataset=TEXT * 2)
    assert isinstance(trainer.args, FocalCSETrainingArguments) and trainer.args.output_dir == OUTPUT
    assert (trainer.args.learning_rate, trainer.args.train_batch_size, trainer.loss.name) == (3e-5, 64, "infonce")


def test_plain_arguments_count_as_they_are(base, tmp_path, caplog):
    plain = TrainingArguments(str(tmp_path / "plain"), logging_steps=1, **QUICK)
    before = plain.to_dict()
    trainer = FocalCSETrainer(base, plain, train_dataset=TEXT, dev=PAIRS)
    trainer.train()
    assert "plain TrainingArguments count as they are: learning rate 5e-05, batches of 8" in caplog.text
    assert trainer.args.learning_rate == 5e-5 and plain.to_dict() == before and plain.remove_unused_columns
    assert len(losses(trainer)) == 2 and (tmp_path / "plain/checkpoint-2/checkpoint.json").exists()
    assert trainer.args.hub_strategy == "end" and trainer.args.ddp_broadcast_buffers is False
    scored = dataclasses.replace(plain, eval_strategy="steps", eval_steps=1)
    with pytest.raises(UserError, match="eval_strategy is steps, but there is nothing to score; give eval_dataset"):
        FocalCSETrainer(base, scored, train_dataset=TEXT)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"save_strategy": "no"}, ("steps", "no", 125, 500, False)),
        ({"eval_strategy": "no"}, ("no", "steps", 125, 500, False)),
        ({"eval_strategy": "epoch"}, ("epoch", "epoch", 125, 500, True)),
        ({"save_strategy": "epoch"}, ("epoch", "epoch", 125, 500, True)),
        ({"eval_steps": 30}, ("steps", "steps", 30, 30, True)),
        ({"eval_steps": 50}, ("steps", "steps", 50, 500, True)),
        ({"save_steps": 20}, ("steps", "steps", 20, 20, True)),
    ],
)
def test_our_defaults_follow_what_is_given(given, found):
    args = FocalCSETrainingArguments("out", use_cpu=True, **given)
    names = ("eval_strategy", "save_strategy", "eval_steps", "save_steps", "load_best_model_at_end")
    assert tuple(getattr(args, name) for name in names) == found


UNHONOURED = {
    "label_smoothing_factor": 0.1, "label_names": ["labels"], "prediction_loss_only": True,
    "include_for_metrics": ["loss"], "batch_eval_metrics": True, "eval_accumulation_steps": 2,
    "eval_do_concat_batches": False, "auto_find_batch_size": True, "remove_unused_columns": True,
    "train_sampling_strategy": "sequential", "bf16_full_eval": True, "hub_strategy": "checkpoint",
}  # fmt: skip


@pytest.mark.parametrize("name", list(UNHONOURED))
def test_an_argument_that_would_be_ignored_is_refused(base, arguments, name):
    value = UNHONOURED[name]
    known = {f.name for f in dataclasses.fields(TrainingArguments)}
    if name not in known:
        pytest.skip("an argument of other versions")
    said = f"{name} is .*{value if isinstance(value, (str, float)) else ''}.*, but .*; leave it out"
    with pytest.raises(UserError, match=said):
        FocalCSETrainer(base, arguments(**{name: value}), train_dataset=TEXT)


def test_recomputing_with_another_dropout_is_refused(base, arguments):
    with pytest.raises(UserError, match="preserve_rng_state false, .* the gradient would be wrong; leave it out"):
        FocalCSETrainer(
            base,
            arguments(gradient_checkpointing=True, gradient_checkpointing_kwargs={"preserve_rng_state": False}),
            train_dataset=TEXT,
        )


def test_arguments_of_sentence_transformers_are_refused_where_they_ask_for_more(base, tmp_path):
    kind = pytest.importorskip("sentence_transformers").SentenceTransformerTrainingArguments
    FocalCSETrainer(base, kind(str(tmp_path / "st"), **QUICK), train_dataset=TEXT)
    with pytest.raises(UserError, match="prompts is 'query: ', but it is one of SentenceTransformerTrainingArguments"):
        FocalCSETrainer(base, kind(str(tmp_path / "st"), prompts="query: ", **QUICK), train_dataset=TEXT)


class WithAdapters(torch.nn.Module):
    """What `get_peft_model` returns, as far as a trainer sees it."""

    peft_config = {"default": "LoRA"}


def test_other_things_in_the_first_places_are_refused(base, arguments, tmp_path):
    plain = AutoModel.from_pretrained(base)
    cases = [
        ({"model": plain}, r"model is a BertModel, not an encoder of this package; give its name or folder"),
        ({"model": WithAdapters()}, "model is a WithAdapters with adapters, .* without get_peft_model or add_adapter"),
        ({"model": str(tmp_path / "none")}, "there is no model folder"),
        ({"model": None}, "neither model nor model_init is given"),
        ({"args": "focal"}, r"args is str 'focal'; give FocalCSETrainingArguments\(output_dir=…\), or leave it out"),
        ({"args": {"max_steps": 2}}, "args is dict"),
        ({"loss": "focl"}, "there is no loss 'focl', did you mean 'focal'"),
        ({"loss": FocalInfoNCE}, "loss is the class FocalInfoNCE; give the name of a loss, 'focal', or build_loss"),
        ({"loss": torch.nn.MSELoss()}, "loss is MSELoss; give the name of a loss"),
        ({"objective": FocalInfoNCE()}, "objective is FocalInfoNCE; give an Objective, or the loss as loss="),
        ({"optimizers": torch.optim.SGD(plain.parameters(), 0.1)}, r"optimizers is SGD; give the two as \(optimizer"),
        ({"optimizers": (torch.optim.SGD(plain.parameters(), 0.1), None)}, "holds no parameter of the encoder"),
        ({"model_init": lambda: base}, "both model and model_init are given"),
        ({"tokenizer": object()}, "tokenizer cannot be given: it is called processing_class"),
        ({"eval_data": []}, "FocalCSETrainer has no argument 'eval_data'"),
        (
            {"temperature": 0.1},
            r"temperature is a setting of the loss; give loss=build_loss\('focal', temperature=0.1\)",
        ),
        ({"phi": 0.8}, r"loss=build_loss\('dclr', phi=0.8\)"),
        ({"dev": PAIRS, "eval_dataset": PAIRS}, "dev and eval_dataset are two names for the same thing"),
    ]
    for given, said in cases:
        with pytest.raises(UserError, match=said) as error:
            FocalCSETrainer(**{"model": base, "args": arguments(), "train_dataset": TEXT, **given})
        assert "\n" not in str(error.value)


# ---- training data


def test_splits_are_refused_and_rows_are_read_as_a_file(base, arguments, caplog):
    data = datasets.Dataset.from_dict({"sentence": [*TEXT, None, " "], "id": range(len(TEXT) + 2)})
    with pytest.raises(UserError, match="train_dataset is a DatasetDict with the splits train, test"):
        FocalCSETrainer(base, arguments(), train_dataset=datasets.DatasetDict(train=data, test=data))
    trainer = FocalCSETrainer(base, arguments(), train_dataset=data)
    assert isinstance(trainer.train_dataset, GivenSentences) and "1 of 34 rows have no text" in caplog.text
    trainer.train()
    by_list = FocalCSETrainer(base, arguments(), train_dataset=TEXT)
    by_list.train()
    assert losses(trainer) == losses(by_list)
    record = make_record(trainer)
    assert record.data["kept"] == len(TEXT) and record.data["column"] == "sentence"
    assert record.data["max_seq_length"] == 32 and record.data["sha256"] == trainer.run_identity()["data"]


def test_too_few_sentences_for_a_batch_and_none_at_all_are_refused(base, arguments):
    with pytest.raises(
        UserError, match="train_dataset holds 7 sentences, fewer than one batch of 8; add text, or lower"
    ):
        FocalCSETrainer(base, arguments(), train_dataset=TEXT[:7]).train()
    FocalCSETrainer(base, arguments(dataloader_drop_last=False), train_dataset=TEXT[:7]).train()
    with pytest.raises(UserError, match="there is no training data; give train_dataset"):
        FocalCSETrainer(base, arguments()).train()


def test_a_stream_trains_is_kept_in_checkpoints_and_needs_a_number_of_steps(base, arguments):
    stream = datasets.Dataset.from_dict({"text": TEXT}).to_iterable_dataset()
    trainer = FocalCSETrainer(base, arguments(save_strategy="steps", save_steps=1), train_dataset=stream)
    trainer.train()
    assert trainer.state.global_step == 2 and all(map(math.isfinite, losses(trainer)))
    assert make_record(trainer).data | {"sha256": ""} == {
        "max_seq_length": 32, "sha256": "", "source": "a stream", "kept": 16,
    }  # fmt: skip
    longer = arguments(max_steps=3, save_strategy="no")
    again = FocalCSETrainer(base, longer, train_dataset=stream, allow_resume_mismatch=True)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 3
    with pytest.raises(UserError, match="is a stream, whose length is not known; say how many steps with max_steps"):
        FocalCSETrainer(base, arguments(max_steps=-1), train_dataset=stream).train()
    with pytest.raises(UserError, match="measure_steps .*a stream"):
        FocalCSETrainer(base, arguments(), train_dataset=stream, measure_steps=1)


def stream_of_a_rank(base, folder):
    """The numbers of the texts that this rank trained on, step by step."""
    torch.set_num_threads(1)
    args = FocalCSETrainingArguments(str(folder), save_strategy="no", **QUICK)
    stream = datasets.Dataset.from_dict({"text": TEXT}).to_iterable_dataset()
    trainer = FocalCSETrainer(base, args, train_dataset=stream)
    seen, compute = [], trainer.compute_loss
    trainer.compute_loss = lambda model, batch, *rest, **named: (
        seen.append(batch["text_ids"].tolist()) or compute(model, batch, *rest, **named)
    )
    trainer.train()
    return seen


def test_a_stream_is_shared_out_among_processes(ranks, base, tmp_path):
    ids = Views(load_model(base).tokenizer, 32)([{"text": text.strip()} for text in TEXT])["text_ids"].tolist()
    first, second = ranks(2, stream_of_a_rank, base, tmp_path / "two")
    assert first == [ids[:8], ids[16:24]] and second == [ids[8:16], ids[24:32]]


def test_rows_reach_a_collator_of_other_columns(base, arguments):
    rows = [{"title": text, "body": text[::-1]} for text in TEXT]
    views = Views(load_model(base).tokenizer, 9, [View(("title",)), View(("body",))])
    trainer = FocalCSETrainer(base, arguments(), train_dataset=datasets.Dataset.from_list(rows), data_collator=views)
    trainer.train()
    assert (trainer.max_seq_length, trainer.views) == (9, 2) and len(losses(trainer)) == 2
    function = FocalCSETrainer(base, arguments(), train_dataset=rows, data_collator=lambda given: views(given))
    function.train()
    assert losses(function) == losses(trainer)


ROWS = [{"text": text} for text in TEXT]


@pytest.mark.parametrize(
    ("collator", "said"),
    [
        (default_data_collator, "default_data_collator gives no input_ids"),
        (lambda rows: rows, "gives list"),
        (lambda rows: {"input_ids": torch.zeros(len(rows), 4)}, r"gives input_ids \(8, 4\)"),
        (lambda rows: {"input_ids": rows[0]["ids"]}, r"fails on the rows \('ids'\)"),
    ],
)
def test_collators_that_make_no_views_are_refused(base, arguments, collator, said):
    trainer = FocalCSETrainer(base, arguments(), train_dataset=ROWS, data_collator=collator)
    with pytest.raises(UserError, match=f"data_collator .*{said}.*leave data_collator out"):
        trainer.train()


def test_a_collator_without_text_ids_needs_no_mask(base, arguments):
    views = Views(load_model(base).tokenizer, 16)
    without = lambda rows: {key: of for key, of in views(rows).items() if key != "text_ids"}  # noqa: E731
    masked, plain = (
        FocalCSETrainer(base, arguments(), train_dataset=ROWS, data_collator=without, mask_duplicates=mask)
        for mask in (True, False)
    )
    with pytest.raises(UserError, match=r"gives no text_ids \(B,\).*mask_duplicates=False"):
        masked.train()
    assert plain.train().global_step == 2


# ---- evaluation


def tasks_of(base, arguments, given):
    return [task.key for task in FocalCSETrainer(base, arguments(), eval_dataset=given).dev]


def test_eval_dataset_is_a_path_a_data_set_a_task_or_several(base, arguments, tmp_path):
    file = tmp_path / "graded.tsv"
    file.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in GRADED))
    data, task = datasets.Dataset.from_list(PAIRS), read_pairs(file)
    assert tasks_of(base, arguments, str(file)) == tasks_of(base, arguments, task) == ["graded/file"]
    for one in (data, PAIRS, data.to_iterable_dataset(), iter(PAIRS), tuple(PAIRS)):
        assert tasks_of(base, arguments, one) == ["dev/dataset"]
    assert tasks_of(base, arguments, [file, data, PAIRS]) == ["graded/file", "dev2/dataset", "dev3/dataset"]
    assert tasks_of(base, arguments, {"near": data, "far": PAIRS, "x": task}) == [
        "near/dataset", "far/dataset", "graded/file",
    ]  # fmt: skip
    both = datasets.DatasetDict(test=data, validation=data)
    assert tasks_of(base, arguments, both) == ["test/dataset", "validation/dataset"]
    scores = FocalCSETrainer(base, arguments(), eval_dataset=data).evaluate()
    again = FocalCSETrainer(base, arguments(), dev=[task]).evaluate()
    assert scores["eval_dev/dataset/all/spearman"] == pytest.approx(again["eval_graded/file/all/spearman"])


def test_sentences_without_labels_judge_as_a_text_file_does(base, arguments, tmp_path):
    """As of `train_test_split`: the split that is held out has the columns of the other."""
    split = datasets.Dataset.from_dict({"text": [*TEXT, None], "id": [*range(len(TEXT)), 0]}).train_test_split(
        0.5, seed=0
    )
    file = tmp_path / "held.txt"
    file.write_text("\n".join(filter(None, split["test"]["text"])) + "\n")
    trainer = FocalCSETrainer(base, arguments(), train_dataset=split["train"], eval_dataset=split["test"])
    scores, of_file = trainer.evaluate(), trainer.evaluate(str(file))
    assert trainer.args.metric_for_best_model == "dev/copies/mrr"
    assert scores["eval_dev/copies/mrr"] == of_file["eval_held/copies/mrr"]
    assert tasks_of(base, arguments, {"a": [{"sentence": text} for text in TEXT]}) == ["a/copies"]


def test_what_cannot_be_scored_is_refused(base, arguments):
    unlabelled = datasets.Dataset.from_dict({"text": TEXT})
    cases = [
        (unlabelled.rename_column("text", "x"), "eval_dataset has no column 'sentence1'.*its columns are 'x'"),
        (
            {"a": unlabelled.select(range(1))},
            r"eval_dataset\['a'\] has no labels, and 1 different sentences of at least",
        ),
        ([3], r"eval_dataset\[0\] is int 3; give a path, a data set with sentence1, sentence2, score, a task"),
        (datasets.Dataset.from_dict({"sentence1": []}), "eval_dataset is empty"),
        (iter(TEXT), "eval_dataset is made of str; labelled pairs have the columns sentence1, sentence2, score"),
        (
            [{"sentence1": "a", "sentence2": None, "score": 1}],
            "eval_dataset, row 0, column sentence2: None is not text",
        ),
        ([PAIRS[0] | {"score": "x"}], "eval_dataset, row 0, column score: the score 'x' is not a finite number"),
        ("none.tsv", "no such file: none.tsv"),
        ({"a/b": PAIRS, "a-b": PAIRS}, "eval_dataset has several sets called a-b/dataset"),
    ]
    for given, said in cases:
        with pytest.raises(UserError, match=said):
            tasks_of(base, arguments, given)


def test_other_sets_are_scored_and_the_dev_sets_stay(base, arguments):
    trainer = FocalCSETrainer(base, arguments(), train_dataset=TEXT, eval_dataset={"near": PAIRS, "far": PAIRS[::2]})
    trainer.score_baseline()
    other = trainer.evaluate(datasets.Dataset.from_list(PAIRS[1::3]), metric_key_prefix="other")
    assert {name for name in other if name.endswith("spearman")} == {"other_dev/dataset/all/spearman"}
    assert not [name for name in other if name.endswith("/gain")]
    own = trainer.evaluate()
    assert own["eval_near/dataset/all/spearman/gain"] == 0 and "eval_far/dataset/all/spearman" in own
    assert other["other_dev/dataset/all/spearman"] != own["eval_near/dataset/all/spearman"]
    assert {name.split("/")[0] for name in trainer.evaluate("far")} == {"eval_far"}
    with pytest.raises(UserError, match="there is nothing to score: the trainer has no eval_dataset"):
        FocalCSETrainer(base, arguments()).evaluate()
    with pytest.raises(UserError, match=r"ignore_keys is \['x'\], but an encoder's output has no keys"):
        trainer.evaluate(ignore_keys=["x"])


def test_compute_metrics_gets_cosines_and_scores_and_may_choose_the_checkpoint(base, arguments, tmp_path):
    seen = []

    def compute(prediction):
        seen.append(prediction)
        return {"mean_cosine": np.float64(prediction.predictions.mean()), "minus": -float(len(seen))}

    args = arguments(eval_strategy="steps", save_strategy="steps", save_steps=1, load_best_model_at_end=True,
                     metric_for_best_model="minus", greater_is_better=True)  # fmt: skip
    trainer = FocalCSETrainer(base, args, train_dataset=TEXT, eval_dataset=PAIRS, compute_metrics=compute)
    trainer.score_baseline()
    assert isinstance(seen[0], EvalPrediction) and seen[0].label_ids.tolist() == [row["score"] for row in PAIRS]
    vectors = {text: trainer.encoder.encode([text])[0] for text in SENTENCES}
    pair = PAIRS[1]
    one, two = vectors[pair["sentence1"]], vectors[pair["sentence2"]]
    cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    assert seen[0].predictions[1] == pytest.approx(cosine, abs=1e-5)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "eval_minus" in line]
    assert [line["step"] for line in lines] == [1, 2] and trainer.state.best_global_step == 1
    assert isinstance(lines[0]["eval_mean_cosine"], float)
    two = FocalCSETrainer(base, arguments(), eval_dataset={"a": PAIRS, "b": PAIRS}, compute_metrics=compute).evaluate()
    assert {"eval_a/dataset/minus", "eval_b/dataset/minus"} <= set(two)


def test_compute_metrics_that_gives_no_scores_is_refused(base, arguments):
    args = arguments(eval_strategy="steps", save_strategy="steps", save_steps=1, load_best_model_at_end=True,
                     metric_for_best_model="accuracy", greater_is_better=True)  # fmt: skip
    trainer = FocalCSETrainer(base, args, train_dataset=TEXT, eval_dataset=PAIRS, compute_metrics=lambda p: {"f1": 1})
    with pytest.raises(UserError, match="metric_for_best_model is 'accuracy'.*the dev set gives: .*spearman.*f1"):
        trainer.train()
    with pytest.raises(
        UserError, match="compute_metrics returned float 0.5; it must return a dict of names and numbers"
    ):
        FocalCSETrainer(base, arguments(), eval_dataset=PAIRS, compute_metrics=lambda p: 0.5).evaluate()
    ranking = search_task()
    with pytest.raises(UserError, match="compute_metrics is called with the cosines .* and eval_dataset has none"):
        FocalCSETrainer(base, arguments(), eval_dataset=ranking, compute_metrics=lambda p: {})


def search_task():
    """A task that is no set of pairs."""

    class Task:
        key, headline = "own/test", "own/test/mrr"

        def texts(self):
            return SENTENCES

        def score(self, vectors):
            raise NotImplementedError

    return Task()


def test_predict_gives_vectors(base, arguments):
    trainer = FocalCSETrainer(base, arguments())
    called = []

    class Watch(TrainerCallback):
        def on_predict(self, args, state, control, metrics, **kwargs):
            called.append(metrics)

    trainer.add_callback(Watch)
    found = trainer.predict(datasets.Dataset.from_dict({"sentence": [*SENTENCES, ""]}))
    np.testing.assert_allclose(found.predictions, load_model(base).encode([*SENTENCES, ""]), atol=1e-6)
    assert found.label_ids is None and set(found.metrics) >= {"test_runtime", "test_samples_per_second"}
    assert called == [found.metrics]
    assert trainer.predict(SENTENCES, metric_key_prefix="mine").metrics.keys() == {
        "mine_runtime", "mine_samples_per_second",
    }  # fmt: skip
    with pytest.raises(UserError, match=r"test_dataset: row 1 has no text \(None\), so it has no vector"):
        trainer.predict(["a", None])


# ---- a new encoder for each run


def test_model_init_makes_the_encoder_of_each_training(base, arguments):
    made = []

    def model_init(trial=None):
        made.append(load_model(base))
        return made[-1]

    trainer = FocalCSETrainer(args=arguments(), model_init=model_init, train_dataset=TEXT)
    first, start = trainer.train(), len(made)
    trained = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    second = trainer.train()
    assert len(made) == start + 1 == 3 and trainer.model is made[-1]
    assert first.training_loss == second.training_loss and losses(trainer)
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, trained[name]), name
    by_name = FocalCSETrainer(args=arguments(), model_init=lambda: base, train_dataset=TEXT)
    assert by_name.train().training_loss == first.training_loss


def test_model_init_that_cannot_be_used_is_refused(base, arguments, tmp_path):
    for given, said in [
        (base, "model_init is '.*'; it must be a function that returns an encoder or a name"),
        (lambda: None, "model_init should not return None; it takes nothing or a trial"),
        (lambda a, b: base, "model_init should have 0 or 1 argument; it takes nothing or a trial"),
        (lambda: AutoModel.from_pretrained(base), "model is a BertModel, not an encoder"),
    ]:
        with pytest.raises(UserError, match=said):
            FocalCSETrainer(args=arguments(), model_init=given, train_dataset=TEXT)

    class Learns(Objective):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def loss(self, model, batch):
            return model(batch["input_ids"], batch["attention_mask"]).mean() * self.scale, None

    trainer = FocalCSETrainer(args=arguments(), model_init=lambda: base, train_dataset=TEXT, objective=Learns())
    with pytest.raises(UserError, match="Learns would go on with what it learnt in the run before"):
        trainer.train()
    optimizer = torch.optim.SGD(load_model(base).parameters(), 0.1)
    with pytest.raises(UserError, match="optimizers cannot be given together with model_init"):
        FocalCSETrainer(args=arguments(), model_init=lambda: base, train_dataset=TEXT, optimizers=(optimizer, None))
    other = load_model(base)
    other.tokenizer.add_tokens(["unheard"])
    encoders = iter([base, other])
    trainer = FocalCSETrainer(args=arguments(), model_init=lambda: next(encoders), train_dataset=TEXT)
    with pytest.raises(UserError, match="whose tokenizer has another vocabulary than that of the first"):
        trainer.train()
    encoders = iter([base, load_model(base, dropout=0.0)])
    trainer = FocalCSETrainer(args=arguments(), model_init=lambda: next(encoders), train_dataset=TEXT)
    with pytest.raises(UserError, match="every dropout rate of this bert encoder is 0"):  # the second is checked too
        trainer.train()


class Trial:
    """Of optuna, as far as transformers asks for it."""

    def __init__(self, number, rate):
        self.number, self.rate, self.params, self.reported = number, rate, {"learning_rate": rate}, []
        self.study = self

    def _is_multi_objective(self):
        return False

    def report(self, value, step):
        self.reported.append(value)

    def should_prune(self):
        return False


def fake_optuna(monkeypatch, rates, trials):
    """A backend that is installed, and goes through ``rates`` by transformers' own calls of the trainer."""
    from transformers import hyperparameter_search, trainer
    from transformers.trainer_utils import BestRun

    def run(trained, n_trials, direction, **kwargs):
        for number, rate in zip(range(n_trials), rates, strict=False):
            trial = Trial(number, rate)
            trained.objective = None
            trained.train(resume_from_checkpoint=None, trial=trial)
            if getattr(trained, "objective", None) is None:
                trained.objective = trained.compute_objective(trained.evaluate())
            trial.value = trained.objective
            trained.model_wrapped = trained.model = None
            trained.accelerator.clear()
            trials.append((direction, trial))
        best = max if direction == "maximize" else min
        found = best((trial for _, trial in trials), key=lambda trial: trial.value)
        return BestRun(str(found.number), found.value, found.params)

    optuna = types.ModuleType("optuna")
    optuna.trial = types.SimpleNamespace(BaseTrial=Trial)
    optuna.__spec__ = importlib.machinery.ModuleSpec("optuna", None)
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    monkeypatch.setattr(hyperparameter_search, "is_optuna_available", lambda: True)
    monkeypatch.setattr(hyperparameter_search, "run_hp_search_optuna", run)
    assert trainer.HPSearchBackend("optuna")


SPACE = {"hp_space": lambda trial: {"learning_rate": trial.rate}, "backend": "optuna", "n_trials": 2}


@pytest.mark.parametrize("by", ["name", "model_init"])
def test_hyperparameters_are_searched_over_new_encoders(base, arguments, tmp_path, monkeypatch, by):
    trials = []
    fake_optuna(monkeypatch, [1e-9, 0.05], trials)
    args = arguments(eval_strategy="steps", save_strategy="steps", save_steps=1, load_best_model_at_end=True)
    given = {"model": base} if by == "name" else {"model_init": lambda trial: load_model(base)}
    trainer = FocalCSETrainer(args=args, train_dataset=TEXT, eval_dataset=PAIRS, **given)
    objective, before = trainer.objective, trainer.evaluate()["eval_dev/dataset/all/spearman"]
    assert isinstance(objective, Contrastive)
    best = trainer.hyperparameter_search(**SPACE)
    (direction, still), (_, moved) = trials
    assert direction == "maximize" and best.objective == max(still.value, moved.value)
    assert still.value == pytest.approx(before, abs=0.1) and abs(moved.value - still.value) > 0.2
    assert len(moved.reported) == 2 and trainer.objective is objective
    kept = sorted(p.parent.name for p in (tmp_path / "out").rglob("checkpoint.json"))
    assert kept == ["checkpoint-1", "checkpoint-2"] * 2 or len(kept) == 4
    assert {p.parent.parent.name for p in (tmp_path / "out").rglob("checkpoint.json")} == {"run-0", "run-1"}
    trainer.args.learning_rate = best.hyperparameters["learning_rate"]
    trainer.train()
    assert trainer.state.global_step == 2 and trainer.encoder.encode(SENTENCES).shape == (8, 16)


def test_a_search_that_cannot_be_made_is_refused(base, arguments, monkeypatch):
    with pytest.raises(UserError, match="needs a new encoder for each run; give FocalCSETrainer"):
        FocalCSETrainer(load_model(base), arguments(), train_dataset=TEXT).hyperparameter_search()
    with pytest.raises(UserError, match="no score to compare runs by; give eval_dataset"):
        FocalCSETrainer(base, arguments(), train_dataset=TEXT).hyperparameter_search()
    trainer = FocalCSETrainer(base, arguments(), train_dataset=TEXT, eval_dataset=PAIRS)
    with pytest.raises(
        UserError, match="direction is 'minimize', which would look for the worst dev/dataset/all/spear"
    ):
        trainer.hyperparameter_search(direction="minimize")
    from transformers import hyperparameter_search

    for name in ("optuna", "ray_tune", "wandb"):
        monkeypatch.setattr(hyperparameter_search, f"is_{name}_available", lambda: False)
    with pytest.raises(UserError, match="needs a backend that is not installed; pip install optuna"):
        trainer.hyperparameter_search()


# ---- Trainer's public parameters and methods, one by one

WORK = {  # parameter of Trainer -> the test above, or below, that gives it
    "model": test_a_folder_a_name_and_sentences_are_enough,
    "args": test_plain_arguments_count_as_they_are,
    "data_collator": test_rows_reach_a_collator_of_other_columns,
    "train_dataset": test_splits_are_refused_and_rows_are_read_as_a_file,
    "eval_dataset": test_eval_dataset_is_a_path_a_data_set_a_task_or_several,
    "model_init": test_model_init_makes_the_encoder_of_each_training,
    "compute_metrics": test_compute_metrics_gets_cosines_and_scores_and_may_choose_the_checkpoint,
    "processing_class": "test_the_other_parameters_do_what_they_do_in_trainer",
    "callbacks": "test_the_other_parameters_do_what_they_do_in_trainer",
    "optimizers": "test_the_other_parameters_do_what_they_do_in_trainer",
    "optimizer_cls_and_kwargs": "test_the_other_parameters_do_what_they_do_in_trainer",
}


def test_every_parameter_of_trainer_works_or_is_refused(base, arguments):
    given = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    refused = given & set(PARAMETERS)
    assert given == set(WORK) & given | refused, "a parameter of this version of transformers is not classified"
    own = inspect.signature(FocalCSETrainer.__init__).parameters
    assert set(WORK) <= set(own)
    for name in PARAMETERS:
        with pytest.raises(UserError, match=f"{name} cannot be given: "):
            FocalCSETrainer(base, arguments(), train_dataset=TEXT, **{name: lambda *_: None})
        FocalCSETrainer(base, arguments(), train_dataset=TEXT, **{name: None})


def test_the_other_parameters_do_what_they_do_in_trainer(base, arguments):
    model = load_model(base)
    tokenizer = load_model(base).tokenizer
    began = []

    class Began(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            began.append(kwargs["model"])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = FocalCSETrainer(model, arguments(), train_dataset=TEXT, processing_class=tokenizer, callbacks=[Began],
                              optimizers=(optimizer, scheduler))  # fmt: skip
    trainer.train()
    assert began == [model] and trainer.processing_class is tokenizer and trainer.collate_views.tokenizer is tokenizer
    assert trainer.get_learning_rates() == [0.5] and trainer.optimizer.optimizer is optimizer
    by_class = (torch.optim.SGD, {"lr": 0.25})
    trainer = FocalCSETrainer(base, arguments(lr_scheduler_type="constant"), train_dataset=TEXT,
                              optimizer_cls_and_kwargs=by_class)  # fmt: skip
    trainer.train()
    assert type(trainer.optimizer.optimizer) is torch.optim.SGD
    with pytest.raises(UserError, match="optimizers and optimizer_cls_and_kwargs both name an optimizer"):
        FocalCSETrainer(model, arguments(), train_dataset=TEXT, optimizers=(optimizer, None),
                        optimizer_cls_and_kwargs=by_class)  # fmt: skip


class Own(TrainerCallback):
    pass


def calls(trainer, out):
    """Public method of Trainer -> a call on a trained trainer that gives True, or what it says when it refuses."""
    batch = next(iter(trainer.get_train_dataloader()))
    on_rows = lambda: next(iter(trainer.get_train_dataloader()))  # noqa: E731
    return {
        "add_callback": lambda: trainer.add_callback(Own()) is None,
        "autocast_smart_context_manager": lambda: bool(trainer.autocast_smart_context_manager()),
        "call_model_init": "test_model_init_makes_the_encoder_of_each_training",
        "compute_loss": lambda: trainer.compute_loss(trainer.model, batch).isfinite().item(),
        "compute_loss_context_manager": lambda: bool(trainer.compute_loss_context_manager()),
        "create_accelerator_and_postprocess": "every trainer",
        "create_model_card": "tests/publishing/test_trainer_push.py",
        "create_optimizer": lambda: trainer.create_optimizer() is trainer.optimizer,
        "create_optimizer_and_scheduler": lambda: trainer.create_optimizer_and_scheduler(2) is None,
        "create_scheduler": lambda: trainer.create_scheduler(2) is trainer.lr_scheduler,
        "end": "it ends the process group",
        "evaluate": lambda: trainer.evaluate(PAIRS).keys() >= {"eval_dev/dataset/all/spearman"},
        "evaluation_loop": "there is no evaluation loop over batches: call evaluate",
        "floating_point_ops": lambda: trainer.floating_point_ops(batch) > 0,
        "get_batch_samples": lambda: len(trainer.get_batch_samples(iter([batch]), 1, torch.device("cpu"))[0]) == 1,
        "get_cp_size": lambda: trainer.get_cp_size() == 1,
        "get_decay_parameter_names": lambda: len(trainer.get_decay_parameter_names(trainer.model)) > 0,
        "get_eval_dataloader": "there is no data loader for evaluation: .*call evaluate",
        "get_learning_rates": lambda: len(trainer.get_learning_rates()) > 0,
        "get_num_trainable_parameters": lambda: trainer.get_num_trainable_parameters() > 0,
        "get_optimizer_cls_and_kwargs": lambda: bool(trainer.get_optimizer_cls_and_kwargs(trainer.args)),
        "get_optimizer_group": lambda: bool(trainer.get_optimizer_group()),
        "get_sp_size": lambda: trainer.get_sp_size() == 1,
        "get_test_dataloader": "there is no data loader for prediction: call predict",
        "get_total_train_batch_size": lambda: trainer.get_total_train_batch_size(trainer.args) == 8,
        "get_tp_size": lambda: trainer.get_tp_size() == 1,
        "get_train_dataloader": lambda: on_rows()["input_ids"].shape[:2] == (8, 2),
        "hyperparameter_search": "test_hyperparameters_are_searched_over_new_encoders",
        "init_hf_repo": lambda: trainer.init_hf_repo() is None,
        "is_local_process_zero": lambda: trainer.is_local_process_zero(),
        "is_world_process_zero": lambda: trainer.is_world_process_zero(),
        "log": lambda: trainer.log({"own": 1.0}) is None and trainer.state.log_history[-1]["own"] == 1.0,
        "log_metrics": lambda: trainer.log_metrics("train", {"a": 1.0}) is None,
        "loss_is_scaled_for_ga": lambda: trainer.loss_is_scaled_for_ga is False,
        "metrics_format": lambda: Trainer.metrics_format({"a": 1.0}) == {"a": 1.0},
        "num_examples": lambda: trainer.num_examples(trainer.get_train_dataloader()) == len(TEXT),
        "pop_callback": lambda: trainer.add_callback(Own()) or trainer.pop_callback(Own) is not None,
        "predict": lambda: trainer.predict(["a"]).predictions.shape == (1, 16),
        "prediction_step": "there is no prediction step on a batch: call evaluate",
        "push_to_hub": "tests/publishing/test_trainer_push.py",
        "remove_callback": lambda: trainer.remove_callback(Own) is None,
        "save_metrics": lambda: trainer.save_metrics("train", {"a": 1.0}) or (out / "train_results.json").exists(),
        "save_model": lambda: trainer.save_model(str(out / "saved")) or load_model(str(out / "saved")) is not None,
        "save_state": lambda: trainer.save_state() or (out / "trainer_state.json").exists(),
        "set_initial_training_values": lambda: (
            trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())[-1] == 2
        ),
        "store_flos": lambda: trainer.store_flos() is None,
        "train": lambda: trainer.train().global_step == 2,
        "training_step": lambda: trainer.training_step(trainer.model, batch).isfinite().item(),
    }


ELSEWHERE = ("call_model_init", "create_accelerator_and_postprocess", "create_model_card", "end")
ELSEWHERE += ("hyperparameter_search", "push_to_hub")


def test_every_method_of_trainer_works_or_is_refused(base, arguments, tmp_path):
    trainer = FocalCSETrainer(base, arguments(), train_dataset=TEXT)
    trainer.train()
    table = calls(trainer, tmp_path / "out")
    public = {name for name in dir(Trainer) if not name.startswith("_")}
    assert not public - set(table), "a method of this version of transformers is not classified"
    for name in sorted(public - set(ELSEWHERE)):
        expected = table[name]
        if isinstance(expected, str):
            with pytest.raises(UserError, match=expected):
                getattr(trainer, name)(*[None] * (name.startswith("get_test")))
        else:
            assert expected() is True, name
    assert search.SearchingTrainer.hyperparameter_search is FocalCSETrainer.hyperparameter_search
