"""Weights between two encoders: the golden values, a merged folder, a sweep over weights, and what is refused."""

import errno
import json

import numpy as np
import pytest
import torch
from faults import snapshot
from golden import case_of, check
from safetensors.torch import load_file
from tiny import SENTENCES, record_mean, save_tiny
from transformers import AutoModel

from hf_focalcse import load_model
from hf_focalcse.cli.main import run
from hf_focalcse.encoder.interpolation import interpolate
from hf_focalcse.errors import UserError


@pytest.mark.parametrize("number", range(3))
def test_golden_values(shared, number):
    inputs, settings, expected = case_of(shared, "cocktail", number)
    states = [
        {
            name: torch.tensor(value, dtype=None if name == "position_ids" else torch.float64)
            for name, value in m.items()
        }
        for m in inputs["models"]
    ]
    merged = interpolate(states, settings["weights"])
    for name, value in expected["merged"].items():
        check(merged[name], value, name)
    assert merged["position_ids"].dtype == torch.int64


def test_halves_are_added_up_in_float32():
    small = {"w": torch.tensor([1.0, 2.0], dtype=torch.float16)}
    found = interpolate([small, {"w": torch.tensor([1.001, 4.0], dtype=torch.float16)}], [0.5, 0.5])["w"]
    assert found.dtype == torch.float16 and found.tolist() == [1.0, 3.0]
    with pytest.raises(UserError, match="must be one for each model and sum to 1"):
        interpolate([small, small], [0.5, 0.4])
    with pytest.raises(UserError, match="only one of the encoders has 'v'"):
        interpolate([small, small | {"v": small["w"]}], [0.5, 0.5])
    with pytest.raises(UserError, match=r"'w' is \(2,\) in one encoder and \(3,\) in the other"):
        interpolate([small, {"w": torch.zeros(3)}], [0.5, 0.5])


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "base", seed=1)
    record_mean(save_tiny(tmp_path / "trained", seed=2))
    save_tiny(tmp_path / "other", "mpnet")
    rows = [f"{a}\t{b}\t{5 - abs(i - j) / 2}" for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)]
    (tmp_path / "graded.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    return tmp_path


def test_a_merged_folder_is_an_encoder_like_any_other(place, capsys):
    run("merge", ["base", "trained", "--weight", "0.25", "--output_dir", "out"])
    assert "Saved to out: 0.25 x trained + 0.75 x base." in capsys.readouterr().out
    read = lambda name: {  # noqa: E731 # with or without the prefix of an encoder with a head
        key.removeprefix("bert."): value for key, value in load_file(place / name / "model.safetensors").items()
    }
    base, trained, merged = map(read, ("base", "trained", "out"))
    for name, value in merged.items():
        if "pooler" not in name and value.dtype.is_floating_point:
            torch.testing.assert_close(value, 0.75 * base[name] + 0.25 * trained[name])
    _, info = AutoModel.from_pretrained(place / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert load_model("out").pooler_name == "mean"
    assert json.loads((place / "out/merge.json").read_text())["weight"] == 0.25
    run("merge", ["base", "trained", "--weight", "1", "--output_dir", "all"])
    np.testing.assert_allclose(load_model("all").encode(SENTENCES), load_model("trained").encode(SENTENCES), atol=1e-6)


def test_the_best_of_several_weights_is_written(place, capsys):
    ask = ["base", "trained", "--weight", "0", "0.5", "1", "--eval_file", "graded.tsv", "--output_dir", "out"]
    run("merge", ask)
    said = capsys.readouterr().out
    found = json.loads((place / "out/merge.json").read_text())
    assert set(found["scores"]) == {"0", "0.5", "1"} and "chosen on labelled pairs" in said
    assert found["scores"][f"{found['weight']:g}"] == max(found["scores"].values())


def test_a_failure_leaves_what_was_there_and_overwriting_keeps_what_is_not_ours(place, monkeypatch):
    run("merge", ["base", "trained", "--output_dir", "out"])
    (place / "out/LICENSE").write_text("mine")
    (place / "out/results.json").write_text("scores of the weights before")
    before = snapshot(place)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    again = ["merge", "base", "trained", "--weight", "0.9", "--output_dir", "out", "--overwrite_output_dir"]
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("hf_focalcse.runs.atomic.write_text", full)
        run(*again[:1], again[1:])
    assert snapshot(place) == before
    run(*again[:1], again[1:])
    assert (place / "out/LICENSE").read_text() == "mine" and not (place / "out/results.json").exists()
    assert json.loads((place / "out/merge.json").read_text())["weight"] == 0.9
    assert not [name for name in snapshot(place) if ".part-" in name]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("base --output_dir out", "merge needs two encoders"),
        ("base trained --weight 0.5", "--output_dir is missing"),
        ("base trained --weight 1.5 --output_dir out", "--weight is 1.5; it must be 0 to 1"),
        ("base trained --weight 0 1 --output_dir out", "are chosen among by a dev set; give --eval_file or --sts_dir"),
        ("base trained --eval_file graded.tsv --output_dir out", "there is one --weight; give several"),
        ("other trained --output_dir out", "other is mpnet and trained is bert; only encoders of one architecture"),
        ("base trained --output_dir trained", "--output_dir trained is one of the encoders"),
        ("base trained --output_dir other", "other is not empty; give another --output_dir"),
        ("base trained --output_dir graded.tsv", "--output_dir graded.tsv is a file; give a folder"),
        ("base trained --output_dir run --overwrite_output_dir", "run holds a training run"),
    ],
)
def test_what_cannot_be_merged_is_refused(place, capsys, line, said):
    (place / "run").mkdir()
    (place / "run/run.json").touch()
    with pytest.raises(SystemExit):
        run("merge", line.split())
    assert said in capsys.readouterr().err
