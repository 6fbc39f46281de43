"""The card as a function of its records: each part by hand, and its transformers code run for every pooler."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from tiny import save_tiny

from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.poolers import POOLERS
from hf_focalcse.evaluation import Results
from hf_focalcse.publishing.card import make_card
from hf_focalcse.publishing.eval_results import eval_result_files
from hf_focalcse.publishing.export_records import keep_hand_made, update_export
from hf_focalcse.publishing.formats import write_encoder
from hf_focalcse.publishing.merge import split_card
from hf_focalcse.publishing.usage import EXAMPLES, transformers_usage
from hf_focalcse.runs.record import RunRecord

LOSS = {"name": "focal", "temperature": 0.05, "m": 0.3, "formula": "f", "paper": "https://arxiv.org/abs/2310.06918"}
LOSS |= {"citation": "@inproceedings{hou2023focal}"}
SIDE_HEAD = {"distilbert": "focal_head.safetensors"}


def record(**changes) -> RunRecord:
    made = RunRecord(
        command=["run_unsup.py", "--loss", "focal", "--train_file", "/home/me/a b.txt"],
        recipe=None,
        settings={"per_device_train_batch_size": 8, "learning_rate": 3e-5, "lr_scheduler_type": "linear"},
        loss=LOSS,
        model={"name_or_path": "/home/me/base", "base_model": None, "pooler": "cls", "projection": "training",
               "dropout": {"dropout": 0.1}, "embedding_dimensions": 16, "weights_sha256": "ab" * 32},
        data={"source": "/home/me/a b.txt", "kept": 1234, "sha256": "cd" * 32, "max_seq_length": 32},
        seed=7, world_size=1, seconds=12.3, baseline={"x/file/all/spearman": 50.0},
        final={"x/file/all/spearman": 48.5},
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def results(data: dict, scores: dict, **details) -> Results:
    of = {
        "pairs": 9,
        "expected_pairs": None,
        "subsets": {},
        "source": "x",
        "revision": None,
        "sha256": "ef",
        "text": "raw",
    }
    described = {key: of | changes for key, changes in data.items()}
    metadata = {
        "format": 1,
        "protocol": "p",
        "model": {"max_length": 64},
        "data": described,
        "created": "2026-01-02T03:04:05+00:00",
    }
    return Results(scores, metadata | details)


def test_it_is_a_function_and_knows_no_machine():
    card = make_card(record(), None)
    assert card == make_card(record(), None) and "/home" not in card
    # a record of version 0.1: one baseline, with the pooling of the run, and no interval
    assert "took x/file/all/spearman from 50.00 to 48.50 (-1.50) against the encoder with pooling cls before" in card
    assert "no interval was kept" in card and "LOWERED" not in card
    assert "--train_file 'a b.txt'" in card and "1,234 sentences" in card and "| Seed | 7 |" in card
    assert "m = 0.3" in card and card.count("@inproceedings") == 2
    assert "python run_unsup.py" in card
    assert "torchrun --nproc_per_node 2 run_unsup.py" in make_card(record(world_size=2), None)
    metadata, text = split_card(card)
    assert metadata["library_name"] == "transformers" and metadata["pipeline_tag"] == "feature-extraction"
    assert "model-index" not in metadata and "![" not in text
    assert "![" in make_card(record(), None, ["plots/training.png"])


KEY = "x/file/all/spearman"


def difference(before, after, low, high, verdict, units=265):
    return {"key": KEY, "before": before, "after": after, "low": low, "high": high, "units": units, "unit": "pairs",
            "verdict": verdict}  # fmt: skip


def test_a_difference_is_claimed_by_its_interval_alone():
    start = {"start": {KEY: 45.0}, "start_differences": {KEY: difference(45.0, 48.5, 2.5, 4.5, "raised")}}
    lowered = {KEY: difference(50.0, 48.5, -2.5, -0.5, "lowered")}
    card = make_card(
        record(baseline_of="as published", differences=lowered, **start), results({"x/file": {}}, {KEY: 48.5})
    )
    assert (
        f"**Contrastive training LOWERED {KEY} from 50.00 to 48.50 (-1.50, 95 % interval -2.50 to -0.50 over 265 "
        "pairs) against the encoder as published; one seed.** This encoder is worse on it than the encoder as "
        "published. "
        f"Contrastive training RAISED {KEY} from 45.00 to 48.50 (+3.50, 95 % interval +2.50 to +4.50 over 265 pairs) "
        "against the encoder with pooling cls before training; one seed."
    ) in card
    header = "| Spearman x 100 | pairs | as published | with pooling cls before training | this model | difference to"
    assert header in card and "| 9 | 50.00 | 45.00 | **48.50** | -1.50 (-2.50 to -0.50) |" in card
    none = {KEY: difference(50.0, 50.09, -0.6, 0.8, "no difference was found", 200)}
    card = make_card(record(final={KEY: 50.09}, baseline_of="as published", differences=none), None)
    assert f"**{KEY}: no difference was found on 200 pairs (50.00 and 50.09; +0.09, 95 % interval" in card
    assert "RAISED" not in card and "| difference to as published (95 % interval) |" in card
    # scores of another evaluation, which are not those that the interval is of, stand without it
    other = results({"x/file": {}}, {KEY: 61.0})
    assert "| 50.00 | **61.00** |  |" in make_card(record(baseline_of="as published", differences=none), other)


def test_a_score_that_is_no_spearman_is_called_what_it_is():
    mrr, rule = "q/copies/mrr", "a damaged sentence must find its own"
    found = results({"x/file": {}, "q/copies": {"unit": "sentences", "pairs": 1000, "rule": rule}},
                    {KEY: 61.0, mrr: 54.781})  # fmt: skip
    card = make_card(record(final={}, baseline={mrr: 53.94}, baseline_of="as published"), found)
    assert "| Spearman or MRR x 100 | pairs or sentences | as published | this model |" in card
    assert "| q copies (MRR) | 1,000 | 53.94 | **54.78** |" in card and "| x file | 9 |  | **61.00** |" in card
    assert f"MRR of q/copies: the mean of 1 / rank by cosine; {rule}." in card and "One Spearman correlation" in card
    assert split_card(card)[0]["metrics"] == ["spearmanr", "pearsonr", "mrr"]
    alone = make_card(record(final={}, baseline={}), results({"q/copies": {"unit": "sentences"}}, {mrr: 54.781}))
    assert "| MRR x 100 | sentences | this model |" in alone and "Spearman correlation" not in alone
    assert split_card(alone)[0]["metrics"] == ["mrr"]


def test_comparisons_with_seeds():
    key = "STS12/test/all/spearman"
    twins = {"InfoNCE": [{"scores": {key: score}} for score in (70.0, 71.0, 75.0)], "base": [{"scores": {key: 60.0}}]}
    card = make_card(record(baseline={}, final={}), results({"STS12/test": {}}, {key: 73.456}, comparisons=twins))
    assert "| Spearman x 100 | pairs | InfoNCE (3 seeds) | base | this model |" in card
    assert "| STS12 test | 9 | 72.00 ± 2.65 | 60.00 | **73.46** |" in card


def test_only_whole_raw_sets_carry_the_hub_name():
    whole = {"pairs": 3108, "expected_pairs": 3108, "revision": "a0d5"}
    cases = {
        "hub": (whole, ("mteb/sts12-sts", "a0d5", "default")),
        "file": (whole | {"revision": None}, ("mteb/sts12-sts", None, "default")),
        "part": (whole | {"pairs": 9}, ("sts12", "a0d5", None)),
        "tokenised": (whole | {"text": "senteval", "revision": None}, ("sts12", None, None)),
    }
    for case, (of, (kind, revision, config)) in cases.items():
        found = results({"STS12/test": of}, {"STS12/test/all/spearman": 70.1234567})
        (entry,) = split_card(make_card(record(), found))[0]["model-index"][0]["results"]
        dataset = entry["dataset"]
        assert (dataset["type"], dataset.get("revision"), dataset.get("config")) == (kind, revision, config), case
        assert entry["metrics"][0]["value"] == 70.1234567
        files = eval_result_files(found)
        assert list(files) == ([".eval_results/STS12.yaml"] if config else []), case
    files = eval_result_files(results({"STS12/test": whole}, {"STS12/test/all/spearman": 70.1234567}))
    (entry,) = yaml.safe_load(files[".eval_results/STS12.yaml"])
    assert entry == {"dataset": {"id": "mteb/sts12-sts", "task_id": "STS12_default_test", "revision": "a0d5"},
                     "value": 70.12346, "date": "2026-01-02"}  # fmt: skip


def test_a_threshold_can_be_chosen():
    cosines = {"random_pairs": 19990, "quantiles": {"0.5": 0.1, "0.99": 0.4567}, "counts": {"random": [1] * 40}}
    card = make_card(record(), results({"STS16/test": {"cosines": cosines}}, {}))
    assert "The share of 19,990 random pairs of sentences of STS16/test whose cosine lies below" in card
    assert "| 50 % | 99 % |" in card and "| 0.100 | 0.457 |" in card and "A threshold of 0.46" in card


@pytest.mark.parametrize("family", ["bert", "distilbert"])
@pytest.mark.parametrize(
    ("pooler", "projection"),
    [("cls", "always"), *((name, None) for name, row in POOLERS.items() if not row.marked)],
    ids=str,
)
def test_the_code_for_transformers_gives_our_vectors(tmp_path, monkeypatch, family, pooler, projection):
    save_tiny(tmp_path / "base", family, initializer_range=0.4)
    model = load_model(str(tmp_path / "base"), pooler, projection)
    (tmp_path / "out").mkdir()
    write_encoder(model, tmp_path / "out")
    used = {"pooler": pooler, "projection": model.projection_use, "projection_file": SIDE_HEAD.get(family)}
    told = record(model=record().model | used, publication={"max_seq_length": 64})
    monkeypatch.chdir(tmp_path / "out")
    names: dict = {}
    exec(transformers_usage(told, None), names)
    assert np.abs(names["vectors"].numpy() - model.encode(list(EXAMPLES))).max() < 1e-6


def test_an_export_gets_another_name_and_keeps_what_was_written(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "hub")
    card = folder / "README.md"
    card.write_text(card.read_text().replace("## Limits", "## By hand\n\nA remark.\n\n## Limits"))
    update_export(folder, {"repo_id": "me/other", "license": "cc0-1.0"})
    text = card.read_text()
    assert "A remark." in text and 'SentenceTransformer("me/other")' in text and "org/focal-tiny" not in text
    assert "license: cc0-1.0" in text and "# other" in text
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    update_export(folder, {"repo_id": "me/other"})
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    # and the card of the next export from the same place
    new = tmp_path / "README.md"
    new.write_text(split_free(card).replace("Choosing a threshold", "Choosing one"))
    keep_hand_made(folder, new)
    assert "A remark." in new.read_text() and "Choosing one" in new.read_text()


def split_free(card: Path) -> str:
    """The card without what was written by hand."""
    return card.read_text().replace("## By hand\n\nA remark.\n\n", "")
