"""Vectors that are cut to fewer dimensions: trained at several sizes, scored at each, exported at one."""

import json
import shutil

import numpy as np
import pytest
import torch
from tiny_run import TRAIN, write_inputs
from tiny_training import make_trainer

from hf_focalcse import build_loss
from hf_focalcse.cli import main as cli
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import Results, read_pairs
from hf_focalcse.evaluation.metrics import spearman
from hf_focalcse.publishing.export import export_model
from hf_focalcse.publishing.parity import CHECKED, lowest_cosine
from hf_focalcse.runs.record import RunRecord

WHOLE = "graded/file/all/spearman"
SIZED = {16: WHOLE, 8: "graded/file/dim:8/spearman", 4: "graded/file/dim:4/spearman"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that was trained at three sizes."""
    folder = write_inputs(tmp_path_factory.mktemp("sizes"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        flags = f"{TRAIN.format(folder)} --pooler mean --matryoshka_dims 4 16 8 --matryoshka_weights 1 1 0.5"
        cli.run("train", flags.split(), script="run_unsup.py")
    return folder


@pytest.fixture
def out(run, tmp_path):
    """A copy of it, to export."""
    return shutil.copytree(run / "out", tmp_path / "out", ignore=shutil.ignore_patterns("checkpoint-*", "hub"))


def by_hand(folder, pairs, size):
    """The score of vectors cut and scored one by one."""
    model = load_model(str(folder))
    gold = [pair.score for pair in pairs.pairs]
    cosines = []
    for pair in pairs.pairs:
        one, other = model.encode([pair.sentence1, pair.sentence2], truncate_dim=size, normalize_embeddings=True)
        assert one.shape == (size,)
        cosines.append(float(one @ other))
    return 100 * spearman(cosines, gold)


def test_the_dev_set_is_scored_at_each_size(run):
    results, record = Results.read(run / "out/results.json"), RunRecord.load(run / "out")
    pairs = read_pairs(run / "graded.tsv")
    for size, key in SIZED.items():
        assert results.scores[key] == pytest.approx(by_hand(run / "out", pairs, size), abs=0.02)
        assert key in record.final and key in record.baseline
        assert any(f"eval_{key}" in line for line in record.log)
    assert len({results.scores[key] for key in SIZED.values()}) == 3
    assert record.loss["matryoshka_dims"] == [16, 8, 4]
    assert record.loss["matryoshka_weights"] == [1.0, 0.5, 1.0]
    assert load_model(str(run / "out")).matryoshka_dims == [16, 8, 4]
    card = (run / "out/README.md").read_text()
    assert "| Dimensions that are kept | 16 | 8 | 4 |" in card and "truncate_dim=4" in card


def test_evaluation_scores_the_sizes_of_the_encoder_or_those_asked_for(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = f"{run}/out --eval_file {run}/graded.tsv --output_dir"
    cli.run("eval", f"{common} own".split())
    assert "Dimensions that are kept" in capsys.readouterr().out
    own = Results.read("own/results.json").scores
    trained = Results.read(run / "out/results.json").scores
    assert {key: own[key] for key in SIZED.values()} == {key: trained[key] for key in SIZED.values()}
    cli.run("eval", f"{common} asked --matryoshka_dims 16 6".split())
    asked = Results.read("asked/results.json").scores
    assert [key for key in asked if "/dim:" in key] == ["graded/file/dim:6/spearman"]
    cli.run("eval", f"{common} cut --truncate_dim 8".split())
    cut = Results.read("cut/results.json")
    assert cut.scores[WHOLE] == own[SIZED[8]] and cut.scores[SIZED[4]] == own[SIZED[4]] and SIZED[8] not in cut.scores
    assert cut.metadata["model"]["truncate_dim"] == 8


def test_an_export_of_fewer_dimensions_says_so_everywhere(run, out):
    from sentence_transformers import SentenceTransformer

    model, trained = load_model(str(out)), Results.read(out / "results.json").scores
    hub, found = export_model(out, truncate_dim=8, onnx=True)
    assert min(value for name, value in found.items() if "8 bits" not in name) >= 1 - 1e-6  # at 8 dimensions
    said = json.loads((hub / "config_sentence_transformers.json").read_text())
    assert said["truncate_dim"] == 8 and said["matryoshka_dims"] == [16, 8, 4]
    expected = model.encode(CHECKED, truncate_dim=8)
    for vectors in (load_model(str(hub)).encode(CHECKED), SentenceTransformer(str(hub), device="cpu").encode(CHECKED)):
        assert vectors.shape == expected.shape == (len(CHECKED), 8)
        assert lowest_cosine(vectors, expected) >= 1 - 1e-6
    results = Results.read(hub / "results.json")
    assert results.scores == {WHOLE: trained[SIZED[8]], SIZED[4]: trained[SIZED[4]]}
    assert results.metadata["model"]["truncate_dim"] == 8
    card = (hub / "README.md").read_text()
    assert "a vector of 8 numbers" in card and 'SentenceTransformer(".", truncate_dim=8)' in card
    assert '"dimensions": 8' in card and "vectors = vectors[:, :8]" in card and "cut to 8 dimensions already" in card
    assert "| Dimensions that are kept | 8 | 4 |" in card
    assert "the scores are of the vectors published" in card
    assert "`onnx/model_quantized.onnx` (" in card and '{ dtype: "q8" }' in card
    again, _ = export_model(out)  # what is not said is as it was
    assert load_model(str(again)).truncate_dim == 8 and (again / "onnx/model_quantized.onnx").exists()
    whole, _ = export_model(out, truncate_dim=16, quantized_onnx=False)
    assert load_model(str(whole)).truncate_dim is None and not (whole / "onnx/model_quantized.onnx").exists()
    assert Results.read(whole / "results.json").scores == trained
    assert '{ dtype: "fp32" }' in (whole / "README.md").read_text()


def test_scores_that_were_not_measured_at_the_size_are_left_out_by_name(out):
    results = Results.read(out / "results.json")
    del results.scores[SIZED[8]]
    results.write(out / "results.json")
    hub, _ = export_model(out, truncate_dim=8)
    assert not (hub / "results.json").exists()
    assert "graded/file must be scored again: focalcse eval" in (hub / "README.md").read_text()
    with pytest.raises(UserError, match="--truncate_dim is 99; vectors of this encoder have 16 dimensions"):
        export_model(out, truncate_dim=99)


def test_an_export_read_without_our_record_keeps_its_sizes(out):
    hub, _ = export_model(out, truncate_dim=8)
    config = json.loads((hub / "config.json").read_text())
    config.pop("focal_cl", None)
    (hub / "config.json").write_text(json.dumps(config))
    model = load_model(str(hub))
    assert model.truncate_dim == 8 and model.matryoshka_dims == [16, 8, 4]
    assert model.encode(["a man"]).shape == (1, 8)


def test_a_size_that_is_none_is_refused(out):
    hub, _ = export_model(out, truncate_dim=8)
    config = json.loads((hub / "config.json").read_text())
    config.pop("focal_cl", None)
    (hub / "config.json").write_text(json.dumps(config))
    file = hub / "config_sentence_transformers.json"
    for value in (0, "half", True, [8]):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"truncate_dim": value}))
        with pytest.raises(UserError, match="has truncate_dim .*; it must be a whole number from 1; correct it"):
            load_model(str(hub))


# ---- the training itself


def trainer(folder, chunk_size=None, **arguments):
    made = make_trainer(folder, loss=build_loss("focal", matryoshka_dims=[16, 8, 4]), learning_rate=0.01, **arguments)
    made.model.chunk_size = chunk_size
    return made


def losses_of(made):
    return [line["loss"] for line in made.state.log_history if "loss" in line]


def test_chunks_follow_the_same_path(tmp_path):
    found = []
    for chunk_size in (None, 3):
        made = trainer(tmp_path, chunk_size, dropout=1e-9, max_steps=3)
        made.train()
        found.append(losses_of(made))
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_a_resumed_run_is_the_whole_one_and_other_sizes_are_refused(tmp_path):
    whole = trainer(tmp_path, save_strategy="steps", save_steps=2)
    whole.train()
    resumed = trainer(tmp_path, save_strategy="steps", save_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-2"))
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    other = make_trainer(tmp_path, loss=build_loss("focal", matryoshka_dims=[16, 8]), learning_rate=0.01)
    with pytest.raises(UserError, match="loss"):
        other.train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-2"))
    assert np.isfinite(losses_of(resumed)).all()
