"""The step, accumulation, diagnostics, alarms, checkpoints: real training of tiny encoders."""

import copy
import dataclasses
import json
import math
import re
import time

import numpy as np
import pytest
import torch
from oracles import cosines, focal_rows
from tiny import SENTENCES, record_mean, save_tiny
from tiny_training import TEXTS, make_trainer
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback

from hf_focalcse import FocalCSETrainingArguments, build_loss
from hf_focalcse.encoder.augment import build_augmentations
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import RerankSet, Results, evaluate_sts
from hf_focalcse.evaluation.rerank import Query
from hf_focalcse.losses import Pairs
from hf_focalcse.losses.base import describe_pairs
from hf_focalcse.objectives.pairs import make_pairs
from hf_focalcse.training.finish import finish_run, make_record


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert", "electra", "xlm-roberta", "modernbert"])
@pytest.mark.parametrize("loss", ["focal", "infonce"])
def test_every_parameter_that_should_move_moves(tmp_path, family, loss):
    trainer = make_trainer(tmp_path, family, loss, max_steps=1, learning_rate=0.01, lr_scheduler_type="constant")
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    still = [n for n, p in trainer.model.named_parameters() if torch.equal(p, before[n])]
    # Attention is blind to what is added to all keys alike, and to the second token type.
    assert all("key" in n or "token_type" in n or "relative_attention_bias" in n for n in still), still
    assert any("word" in n or "tok_embeddings" in n for n, _ in trainer.model.named_parameters() if n not in still)
    assert all(n not in still for n, _ in trainer.model.named_parameters() if "pooler" in n or "mlp.dense" in n)


def test_compute_loss_is_the_loss_of_the_two_views(tmp_path):
    trainer = make_trainer(tmp_path)
    batch = trainer.data_collator([{"text": text} for text in SENTENCES])
    trainer.model.train()
    torch.manual_seed(5)
    value, pairs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
    z1, z2 = (part.detach().double().numpy() for part in (pairs.anchors, pairs.candidates))
    assert value.item() == pytest.approx(np.mean(focal_rows(z1, z2, 0.05, 0.3)), rel=1e-4)


def gradients(trainer, batches):
    """The gradient that the optimizer sees after one step, by transformers' own loop."""
    seen = {}

    def keep(optimizer, *_):
        seen.update({n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None})

    trainer.train_dataset = [row for batch in batches for row in batch]
    trainer._get_train_sampler = lambda *_: SequentialSampler(trainer.train_dataset)
    trainer.create_optimizer().register_step_pre_hook(keep)
    trainer.train()
    return seen


@pytest.mark.parametrize("loss", ["focal", "infonce"])
def test_accumulating_four_batches_is_the_mean_of_their_gradients(tmp_path, loss, monkeypatch):
    base = load_model(str(save_tiny(tmp_path / "base")), "cls", dropout=0.1)
    base.eval().double()
    base.train = lambda mode=True: base  # dropout off, whatever Trainer says; the trainer wants a rate above 0
    rows = [{"text": t["text"]} for t in TEXTS]
    batches = [rows[i : i + 8] for i in range(0, 32, 8)]

    def run(groups, steps):
        model = copy.deepcopy(base)
        model.train = lambda mode=True: model
        trainer = make_trainer(
            tmp_path, loss=loss, model=model, max_steps=1, gradient_accumulation_steps=steps, max_grad_norm=0.0
        )
        return gradients(trainer, groups)

    accumulated = run(batches, 4)
    singles = [run([batch], 1) for batch in batches]
    assert accumulated
    for name, gradient in accumulated.items():
        torch.testing.assert_close(gradient, sum(s[name] for s in singles) / 4, rtol=1e-6, atol=1e-12)
    assert any(not torch.allclose(accumulated[n], singles[0][n]) for n in accumulated)


def test_equal_texts_are_masked_by_default_for_focal_only(tmp_path):
    texts = [{"text": SENTENCES[0]}] * 2 + [{"text": SENTENCES[1]}] * 2
    for loss, masked in (("focal", True), ("infonce", False)):
        trainer = make_trainer(tmp_path, loss=loss)
        batch = trainer.data_collator(texts)
        seen = []
        trainer.loss.forward = lambda pairs, seen=seen: seen.append(pairs) or pairs.anchors.sum()
        trainer.compute_loss(trainer.model, batch)
        assert (seen[0].excluded is not None) is masked
        if masked:
            assert seen[0].negative_mask().sum(1).tolist() == [2, 2, 2, 2]


# ---- diagnostics


def test_diagnostics_by_loop():
    rng = np.random.default_rng(0)
    z = torch.tensor(rng.normal(size=(6, 2, 4)))
    ids = torch.tensor([1, 2, 3, 1, 5, 6])
    found = describe_pairs(make_pairs(z, ids), m=0.3)
    s = cosines(z[:, 0].numpy(), z[:, 1].numpy())
    negatives = [[s[i][j] for j in range(6) if j != i and ids[i] != ids[j]] for i in range(6)]
    flat = [x for row in negatives for x in row]
    assert found == pytest.approx(
        {
            "positive_cosine_mean": np.mean([s[i][i] for i in range(6)]),
            "negative_cosine_mean": np.mean(flat),
            "hardest_negative_cosine_mean": np.mean([max(row) for row in negatives]),
            "hard_negative_share": np.mean([x > 0.7 for x in flat]),
            "negatives_per_anchor_mean": np.mean([len(row) for row in negatives]),
        }
    )


def test_reference_losses():
    assert build_loss("infonce").bounds(64) == pytest.approx(
        {"loss_if_untrained": math.log(64), "loss_if_collapsed": math.log(64), "loss_if_perfect": 0}, abs=1e-6
    )
    hot = build_loss("infonce", temperature=1.0).bounds(64)
    assert hot["loss_if_perfect"] == pytest.approx(
        math.log(1 + 63 / math.e)
    )  # a run that learns looks as if it did not
    for symmetric in (False, True):
        focal = build_loss("focal", symmetric=symmetric).bounds(64)
        expected = {"loss_if_untrained": math.log(64), "loss_if_collapsed": 10.14, "loss_if_perfect": 0}
        assert focal == pytest.approx(expected, abs=5e-3)


def test_each_log_line_carries_the_diagnostics(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=4, logging_steps=2)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2, 4]
    for line in lines:
        assert line["negatives_per_anchor_mean"] == 7 and line["loss_if_collapsed"] > line["loss_if_untrained"]
        assert -1 <= line["negative_cosine_mean"] <= line["hardest_negative_cosine_mean"] <= 1


def test_collapse_raises_the_alarm_once_it_lasts(tmp_path, caplog):
    trainer = make_trainer(tmp_path)
    line = {"loss": 9.1, "negative_cosine_mean": 0.999, "loss_if_collapsed": 10.14, "loss_if_untrained": 4.16}
    trainer.log(dict(line))
    assert trainer.alarms == []
    trainer.log(dict(line))
    assert "collapse" in trainer.alarms[0]
    trainer.log(line | {"negative_cosine_mean": 0.3})
    trainer.log(dict(line))
    assert len(trainer.alarms) == 1


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.loss.rows = lambda pairs: pairs.anchors.sum(1) * float("nan")
    with pytest.raises(UserError, match="the loss is nan at step 1; lower --learning_rate"):
        trainer.train()


# ---- evaluation and checkpoints


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_ends_with_the_best_checkpoint_and_keeps_the_last(tmp_path, dev, family):
    trainer = make_trainer(tmp_path, family, dev=dev, max_steps=8, learning_rate=5e-3)
    baseline = trainer.score_baseline()
    trainer.train()
    key = f"eval_{dev[0].key}/all/spearman"
    scored = {line["step"]: line for line in trainer.state.log_history if key in line}
    assert list(scored) == [2, 4, 6, 8]
    best = max(scored, key=lambda step: scored[step][key])
    assert trainer.state.best_metric == scored[best][key]
    kept = {p.name for p in (tmp_path / "out").glob("checkpoint-*")}
    assert kept >= {f"checkpoint-{best}", "checkpoint-8"} and len(kept) == 2
    assert trainer.scorer.score()[key[5:]] == pytest.approx(
        scored[best][key]
    )  # what is in memory is the best, head and all
    gain = scored[best][f"{key}/gain"]
    assert gain == pytest.approx(scored[best][key] - baseline[key[5:]])
    trainer.save_model(str(tmp_path / "final"))
    again = load_model(str(tmp_path / "final"))
    assert evaluate_sts(again, dev, progress=False).scores == pytest.approx(trainer.scorer.score())
    kept = load_model(str(tmp_path / "out" / f"checkpoint-{best}"))
    assert torch.equal(kept.projection_linear.weight, again.projection_linear.weight)


def test_a_new_prompt_is_compared_with_the_encoder_as_published(tmp_path, dev, caplog):
    """Its folder has one prompt, the run another: gains are measured against the published one, and it is said."""
    folder = str(record_mean(save_tiny(tmp_path / "base")))
    published = load_model(folder, prompt="two dogs ")
    published.save_pretrained(tmp_path / "published"), published.tokenizer.save_pretrained(tmp_path / "published")
    scores = [
        evaluate_sts(load_model(str(tmp_path / "published"), prompt=of), dev, progress=False).scores
        for of in (None, "a man reads ", "")
    ]
    for prompt, start in (("a man reads ", scores[1]), ("", scores[2])):
        model = load_model(str(tmp_path / "published"), dropout=0.1, prompt=prompt)
        trainer = make_trainer(tmp_path, dev=dev, model=model)
        trainer.scorer.begin()
        before = trainer.scorer.before
        assert before.published.scores == scores[0] != start == before.start.scores
        assert trainer.model.prompt == prompt  # what is trained
        record = make_record(trainer)
        assert (record.baseline_of, record.start) == ("as published", start)
        assert record.start_name == "with pooling mean and the new prompt before training"
        assert record.model["published"]["prompt"] == "two dogs "
        had = f"the prompt {prompt!r}" if prompt else "no prompt"
        assert f"reads a text with the prompt 'two dogs ', but it is trained with {had}, and is" in caplog.text
    within = load_model(folder, dropout=0.1, prompt_template="a man {text}")  # which has no prompt
    framed = make_trainer(tmp_path, dev=dev, model=within)
    framed.scorer.begin()
    assert framed.scorer.before.published.scores == scores[2] != framed.scorer.before.start.scores
    assert within.template.name == "a man {text}" and "with the template 'a man {text}', and is" in caplog.text
    assert make_record(framed).start_name == "with pooling mean and the new prompt before training"
    caplog.clear()
    same = make_trainer(tmp_path, dev=dev, model=load_model(str(tmp_path / "published"), dropout=0.1))
    same.scorer.begin()
    assert same.scorer.before.start is None and same.baseline == scores[0] and "as published" not in caplog.text
    assert make_record(same).start_name == "with pooling mean before training"


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == self.step


def test_a_resumed_run_claims_what_an_uninterrupted_one_does(tmp_path, dev):
    """The baseline lies in no checkpoint: it is scored again, with every cosine that the intervals need."""
    base = str(record_mean(save_tiny(tmp_path / "base")))

    def trained(folder, resume=None, stop=None):
        model = load_model(base, "cls", dropout=0.1)
        settings = {"learning_rate": 1e-2, "load_best_model_at_end": False}  # the last weights, which all steps made
        trainer = make_trainer(tmp_path / folder, dev=dev, model=model, **settings)
        if stop:
            trainer.add_callback(StopAt(stop))
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_whole(tmp_path / folder / "out")
        return finish_run(trainer, tmp_path / folder / "out")

    whole = trained("whole")
    cut = trained("cut", stop=2)
    resumed = trained("cut", resume="last")
    assert cut.final != whole.final == resumed.final
    assert whole.baseline_of == resumed.baseline_of == "as published" and whole.baseline == resumed.baseline
    for name in ("differences", "start_differences"):  # as published, and with the pooling of the run
        found = getattr(whole, name)[dev[0].headline]
        assert found["low"] < found["high"] and getattr(resumed, name) == getattr(whole, name)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_the_projection_too_is_the_best_checkpoints(tmp_path, dev, family, monkeypatch):
    """Scores that fall: the first checkpoint is the best, and a projection in a side file comes back with it."""
    trainer = make_trainer(tmp_path, family, dev=dev, max_steps=4, learning_rate=5e-3)
    falling = iter([45.0, 50.0, 40.0])  # before training, and after steps 2 and 4
    found = lambda tasks: Results({f"{dev[0].key}/all/spearman": next(falling)}, {})  # noqa: E731
    monkeypatch.setattr(trainer.scorer, "results", found)
    trainer.train()
    assert trainer.state.best_global_step == 2
    first, last = (load_model(str(tmp_path / "out" / f"checkpoint-{step}")) for step in (2, 4))
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, first.state_dict()[name]), name
    assert not torch.equal(first.projection_linear.weight, last.projection_linear.weight)


def test_a_run_from_python_is_compared_with_the_encoder_as_published(tmp_path, dev, caplog):
    """Its folder records mean; trained with [CLS], gains are measured against mean, and it is said."""
    folder = str(record_mean(save_tiny(tmp_path / "base")))
    scores = [evaluate_sts(load_model(folder, of), dev, progress=False).scores for of in ("mean", "cls_before_pooler")]
    trainer = make_trainer(tmp_path, dev=dev, model=load_model(folder, "cls", dropout=0.1))
    trainer.train()
    assert "as published the encoder pools by mean (1_Pooling/config.json), but it is trained with" in caplog.text
    before, key = trainer.scorer.before, f"{dev[0].key}/all/spearman"
    assert [before.published.scores[key], before.start.scores[key]] == pytest.approx([of[key] for of in scores])
    assert trainer.baseline == before.published.scores
    lines = [line for line in trainer.state.log_history if f"eval_{key}" in line]
    assert lines and all(
        line[f"eval_{key}/gain"] == pytest.approx(line[f"eval_{key}"] - scores[0][key]) for line in lines
    )
    caplog.clear()
    same = make_trainer(tmp_path / "mean", dev=dev, model=load_model(folder, dropout=0.1))
    same.scorer.begin()
    assert same.scorer.before.start is None and "as published" not in caplog.text
    # a projection that nothing has trained is no part of the start
    always = load_model(str(save_tiny(tmp_path / "plain")), "cls", "always", dropout=0.1)
    always.reset_projection()
    plain = make_trainer(tmp_path / "always", dev=dev, model=always)
    assert plain.score_baseline() == pytest.approx(
        evaluate_sts(load_model(str(tmp_path / "plain"), "cls_before_pooler"), dev, progress=False).scores
    )


def test_a_lower_alignment_is_better(tmp_path, dev):
    dev = [dataclasses.replace(dev[0], aligned_above=4.0)]
    trainer = make_trainer(tmp_path, dev=dev, metric_for_best_model=f"{dev[0].key}/alignment")
    assert trainer.args.greater_is_better is False
    worst = make_trainer(tmp_path, dev=dev, metric_for_best_model=f"{dev[0].key}/all/pearson", greater_is_better=False)
    assert worst.args.greater_is_better is False
    assert make_trainer(tmp_path, dev=dev).args.greater_is_better is True
    unsaid = make_trainer(tmp_path, dev=dev, metric_for_best_model=None)
    assert unsaid.args.greater_is_better is True
    assert unsaid.args.metric_for_best_model == f"{dev[0].key}/all/spearman"


def test_a_set_of_queries_chooses_the_checkpoint_as_a_set_of_pairs_does(tmp_path):
    queries = tuple(
        Query(
            text, tuple(SENTENCES[j] for j in range(8) if j != i), tuple(j == (i + 1) % 8 for j in range(8) if j != i)
        )
        for i, text in enumerate(SENTENCES)
    )
    dev = [RerankSet("mine", "dev", queries, "here")]
    trainer = make_trainer(tmp_path, dev=dev, max_steps=8, learning_rate=5e-3, measure_steps=4)
    trainer.score_baseline()
    trainer.train()
    assert trainer.args.metric_for_best_model == "mine/dev/map_official" and trainer.args.greater_is_better
    logged = [line["eval_mine/dev/map_official"] for line in trainer.state.log_history if "eval_seconds" in line]
    assert trainer.state.best_metric == max(logged) and len(set(logged)) > 1
    gains = [line["eval_mine/dev/map_official/gain"] for line in trainer.state.log_history if "eval_seconds" in line]
    assert gains == pytest.approx([score - trainer.baseline["mine/dev/map_official"] for score in logged])
    assert [line for line in trainer.state.log_history if "measured_views/alignment" in line]  # no graded pairs
    unsaid = make_trainer(tmp_path, dev=dev, metric_for_best_model=None)
    assert unsaid.args.metric_for_best_model == "mine/dev/map_official"
    reciprocal = make_trainer(tmp_path, dev=dev, metric_for_best_model="mine/dev/mrr_official")
    assert reciprocal.args.metric_for_best_model == "mine/dev/mrr_official"


def test_dev_sentences_are_encoded_by_the_batch_asked_for(tmp_path, dev, monkeypatch):
    trainer = make_trainer(tmp_path, dev=dev, per_device_eval_batch_size=3)
    sizes = []
    embed = trainer.model.embed
    monkeypatch.setattr(trainer.model, "embed", lambda ids, *rest: sizes.append(len(ids)) or embed(ids, *rest))
    trainer.scorer.score()
    assert sizes == [3, 3, 2]


def test_dev_scores_are_float32_whatever_training_computes_in(tmp_path, dev):
    """accelerate puts autocast around forward; a gain must not be one of precision."""
    trainer = make_trainer(tmp_path, dev=dev, bf16=True, learning_rate=1e-12, max_steps=2, eval_steps=2, save_steps=2)
    before = trainer.score_baseline()
    kinds = []
    layer = trainer.model.encoder.encoder.layer[0].output.dense
    layer.register_forward_hook(lambda module, inputs, output: kinds.append((module.training, output.dtype)))
    trainer.train()
    assert trainer.scorer.score() == pytest.approx(before, abs=1e-4)
    assert set(kinds) == {(True, torch.bfloat16), (False, torch.float32)}
    assert "forward" in trainer.model.__dict__  # training goes on as it was wrapped


def test_several_gpus_are_not_shared_by_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(FocalCSETrainingArguments, "n_gpu", 2)
    with pytest.raises(UserError, match="2 GPUs are visible to one process.*torchrun --nproc_per_node 2 run_unsup.py"):
        make_trainer(tmp_path)


def test_the_log_says_what_the_dev_set_costs(tmp_path, dev, monkeypatch, caplog):
    """Scoring is made slow: 0.5 s every 2 steps of a few ms each is most of the run, and the log must say so."""
    trainer = make_trainer(tmp_path, dev=dev, max_steps=8, eval_steps=4, save_steps=4)
    encode = trainer.scorer.encode
    monkeypatch.setattr(trainer.scorer, "encode", lambda texts: time.sleep(0.5) or encode(texts))
    trainer.score_baseline()
    with caplog.at_level("WARNING", logger="hf_focalcse.training"):
        trainer.train()
    lines = [line for line in trainer.state.log_history if "eval_seconds" in line]
    assert [line["step"] for line in lines] == [4, 8]
    assert all(0.5 <= line["eval_seconds"] < 60 and 0 < line["eval_share_of_run"] < 1 for line in lines)
    expected = {line["step"] for line in trainer.state.log_history if "eval_share_expected" in line}
    assert expected == {2, 3}  # known after two steps, until the first scoring
    said = [record.message for record in caplog.records if "scoring the dev set" in record.message]
    assert len(said) == 1  # 19 times as many steps as fit into 0.5 s are more than the run has
    assert re.search(r"takes \d+\.\d s, \d+ % of the run; the run is too short for less", said[0])
    monkeypatch.setattr(trainer.scorer.cost, "enough", lambda step: 7)
    caplog.clear()
    trainer.scorer._warned = False
    trainer.scorer.spent("eval")
    assert caplog.messages[0].endswith("% of the run; --eval_steps 7 would hold it at 5 %")


def test_trains_without_labelled_data(tmp_path):
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=2)
    trainer.train()
    assert trainer.score_baseline() == {} and (tmp_path / "out" / "checkpoint-4").is_dir()


def test_two_runs_with_one_seed_are_equal(tmp_path):
    def run(name, **arguments):
        trainer = make_trainer(tmp_path / name, max_steps=3, **arguments)
        trainer.train()
        return trainer

    first, second, third = run("1"), run("2"), run("3", seed=7)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(first.model.parameters()), next(third.model.parameters()))


def test_bf16_autocast_trains(tmp_path):
    trainer = make_trainer(tmp_path, bf16=True, max_steps=2)
    trainer.train()
    assert all(math.isfinite(line["loss"]) for line in trainer.state.log_history if "loss" in line)


def test_chunked_training_follows_the_same_path(tmp_path):
    def losses(chunk_size):
        trainer = make_trainer(tmp_path, dropout=1e-9, max_steps=3, learning_rate=1e-3)
        trainer.model.chunk_size = chunk_size
        trainer.train()
        return [line["loss"] for line in trainer.state.log_history if "loss" in line]

    assert losses(3) == pytest.approx(losses(None), rel=1e-4)


# ---- refusals


def test_refuses_an_encoder_without_dropout(tmp_path):
    model = load_model(str(save_tiny(tmp_path, "modernbert")), "cls", dropout=0.0)
    with pytest.raises(UserError, match="dropout rate of this modernbert encoder is 0 .* give --dropout 0.1"):
        make_trainer(tmp_path, model=model)


def test_refuses_a_batch_of_one(tmp_path):
    with pytest.raises(UserError, match="per_device_train_batch_size is 1"):
        make_trainer(tmp_path, per_device_train_batch_size=1)


def test_pairs_need_no_text_ids():
    z = torch.randn(3, 2, 4)
    pairs = make_pairs(z)
    assert isinstance(pairs, Pairs) and pairs.excluded is None and json.dumps(pairs.targets.tolist()) == "[0, 1, 2]"


# ---- a frozen reference


def with_reference(folder, loss=None, **arguments):
    frozen = load_model(str(save_tiny(folder / "frozen", "distilbert", seed=9)), "mean")
    return make_trainer(folder, loss=loss or build_loss("dclr", phi=0.5), reference=frozen, **arguments)


def test_reference_cosines_are_those_of_encode_whatever_the_training_mode(tmp_path):
    trainer = with_reference(tmp_path, max_steps=2)
    trainer.train()  # leaves the trained model in train mode
    batch = trainer.data_collator([{"text": text} for text in SENTENCES])
    seen = []
    trainer.loss.forward = lambda pairs: seen.append(pairs) or pairs.anchors.sum()
    trainer.model.train()
    trainer.compute_loss(trainer.model, batch)
    frozen = trainer.objective.reference.each[0].model
    assert not frozen.training and not any(p.requires_grad for p in frozen.parameters())
    vectors = frozen.encode(SENTENCES)  # its own tokenizer, mask and pooler; no dropout
    np.testing.assert_allclose(seen[0].reference, cosines(vectors, vectors), atol=1e-5)
    np.testing.assert_allclose(seen[0].reference_anchors, vectors, atol=1e-5)
    assert not seen[0].reference.requires_grad


def test_several_references_count_by_their_weights(tmp_path):
    frozen = [load_model(str(save_tiny(tmp_path / f, f, seed=9)), p) for f, p in (("mpnet", "mean"), ("bert", "max"))]
    trainer = make_trainer(tmp_path, loss=build_loss("rankcse"), reference=frozen)
    assert trainer.objective.reference.weights == [0.5, 0.5]
    trainer.objective.reference.weights[:] = [0.3, 0.7]
    seen = []
    trainer.loss.forward = lambda pairs: seen.append(pairs) or pairs.anchors.sum()
    batch = trainer.data_collator([{"text": text} for text in SENTENCES])
    calls = [model.encoder.register_forward_hook(lambda *_, of=seen: of.append("run")) for model in frozen]
    trainer.compute_loss(trainer.model, batch)
    for call in calls:
        call.remove()
    one, two = (cosines(vectors, vectors) for vectors in (model.encode(SENTENCES) for model in frozen))
    assert seen[:2] == ["run", "run"] and "run" not in seen[2:]  # once for each reference, not for each view
    np.testing.assert_allclose(seen[2].reference, 0.3 * np.array(one) + 0.7 * np.array(two), atol=1e-5)


def test_reference_does_not_change_and_is_in_no_checkpoint(tmp_path):
    trainer = with_reference(tmp_path, save_strategy="steps", save_steps=2, learning_rate=0.01)
    before = copy.deepcopy(trainer.objective.reference.each[0].model.state_dict())
    trainer.train()
    after = trainer.objective.reference.each[0].model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    frozen = {id(p) for p in trainer.objective.reference.each[0].model.parameters()}
    assert not frozen & {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "out/checkpoint-4/model.safetensors")
    assert {name for name in saved if not name.startswith("bert.")} == set()
    optimizer = torch.load(tmp_path / "out/checkpoint-4/optimizer.pt", weights_only=True)
    assert len(optimizer["state"]) <= len(list(trainer.model.parameters()))


def test_reference_is_cast_with_the_model(tmp_path):
    trainer = with_reference(tmp_path)
    trainer.model.to(torch.bfloat16)
    batch = trainer.data_collator([{"text": text} for text in SENTENCES])
    assert torch.isfinite(trainer.compute_loss(trainer.model, batch))
    assert {p.dtype for p in trainer.objective.reference.each[0].model.parameters()} == {torch.bfloat16}


def test_reference_computes_in_the_precision_of_the_training(tmp_path):
    trainer = with_reference(tmp_path, bf16=True, max_steps=2)
    seen = []
    linear = next(m for m in trainer.objective.reference.each[0].model.modules() if isinstance(m, torch.nn.Linear))
    linear.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    trainer.train()
    assert seen == [torch.bfloat16] * 2
    assert all(math.isfinite(line["loss"]) for line in trainer.state.log_history if "loss" in line)


def test_cost_of_the_reference_is_logged(tmp_path):
    trainer = with_reference(tmp_path, loss=build_loss("dclr", phi=0.9))
    seen, rows = [], trainer.loss.rows
    trainer.loss.rows = lambda pairs: seen.append(pairs) or rows(pairs)
    trainer.train()
    for line, pairs in zip(trainer.state.log_history, [p for p in seen if p.seed], strict=False):
        if "loss" in line:
            alike = [[x >= 0.9 for j, x in enumerate(row) if j != i] for i, row in enumerate(pairs.reference.tolist())]
            assert line["reference_alike_share"] == pytest.approx(np.mean(alike)) and 0 < np.mean(alike) < 1
            assert line["reference_seconds_per_batch"] > 0 and 0 < line["reference_share_of_step"] < 1
    assert trainer.step_time.laps == trainer.objective.side_time.laps == 4


def test_noise_follows_seed_and_step_and_a_resumed_run_repeats_it(tmp_path):
    def run(name, resume=False, **arguments):
        trainer = with_reference(
            tmp_path / name, save_strategy="steps", save_steps=2, learning_rate=0.01, lr_scheduler_type="constant",
            **arguments,
        )  # fmt: skip
        seeds, rows = [], trainer.loss.rows
        trainer.loss.rows = lambda pairs: seeds.append(pairs.seed) or rows(pairs)
        trainer.train(resume_from_checkpoint=str(tmp_path / name / "out/checkpoint-2") if resume else None)
        own = [s for s in seeds if s]  # diagnostics draw from seed 0
        return trainer, own

    whole, seeds = run("whole")
    assert len(seeds) == len(set(seeds)) == 4
    _, other = run("other", seed=7)
    assert not set(seeds) & set(other)
    resumed, again = run("whole", resume=True)
    assert again == seeds[2:]
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_dclr_chunked_follows_the_same_path(tmp_path):
    def losses(chunk_size):
        trainer = with_reference(tmp_path, dropout=1e-9, max_steps=3, learning_rate=1e-3)
        trainer.model.chunk_size = chunk_size
        trainer.train()
        return [line["loss"] for line in trainer.state.log_history if "loss" in line]

    assert losses(3) == pytest.approx(losses(None), rel=1e-4)


@pytest.mark.parametrize("text", ["token_shuffle", "token_cutoff:0.3", "feature_cutoff:0.2", "span_cutoff:0.3"])
@pytest.mark.parametrize("loss", ["infonce", "focal", "dclr", "dclr_released", "rankcse"])
def test_every_augmentation_trains_with_every_loss(tmp_path, text, loss):
    model = load_model(str(save_tiny(tmp_path / "base")), "cls", dropout=0.0)
    model.augmentations = build_augmentations([text, "dropout"])
    make = make_trainer if loss in ("infonce", "focal") else with_reference
    trainer = make(tmp_path, loss=build_loss(loss), model=model, max_steps=2)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in lines)
    assert lines[0]["positive_cosine_mean"] < 1 - 1e-6


def test_refuses_a_missing_and_an_unused_reference(tmp_path):
    with pytest.raises(UserError, match="dclr compares with a frozen encoder .* --reference_model"):
        make_trainer(tmp_path, loss="dclr")
    with pytest.raises(UserError, match="uses no reference model, but one is given"):
        with_reference(tmp_path, loss=build_loss("infonce"))
