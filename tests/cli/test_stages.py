"""A recipe with stages: MLM, then a contrastive loss, as one command that goes on where it was interrupted."""

import json
import os
import shutil

import pytest
import torch
import yaml
from rank_training import TEXTS
from tiny import CONFIGS, tiny_tokenizer
from tiny_run import write_inputs
from transformers import AutoModelForMaskedLM

from hf_focalcse.cli.stages import run_stages
from hf_focalcse.cli.train import run
from hf_focalcse.errors import UserError
from hf_focalcse.parsing.recipes import stages_of
from hf_focalcse.parsing.settings import parse
from hf_focalcse.runs.record import RunRecord

STAGES = {
    "mlm": {"objective": "mlm", "max_steps": 3, "learning_rate": 1.0e-3, "eval_strategy": "no", "save_steps": 2,
            "save_strategy": "steps", "load_best_model_at_end": False},
    "contrast": {"loss": "focal", "m": 0.2, "max_steps": 4, "eval_steps": 2, "save_steps": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = write_inputs(tmp_path_factory.mktemp("stages"))
    torch.manual_seed(2)
    AutoModelForMaskedLM.from_config(CONFIGS["bert"]).save_pretrained(folder / "tiny")
    tiny_tokenizer().save_pretrained(folder / "tiny")
    (folder / "text.txt").write_text("".join(f"{row['text']}\n" for row in TEXTS))
    return folder


def recipe(inputs, folder, stages=STAGES, **more):
    base = {
        "model_name_or_path": f"{inputs}/tiny", "train_file": f"{inputs}/text.txt", "pooler": "cls",
        "eval_file": f"{inputs}/graded.tsv", "per_device_train_batch_size": 8, "logging_steps": 1, "use_cpu": True,
        "disable_tqdm": True, "max_seq_length": 16,
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "two.yaml").write_text(yaml.safe_dump(base | more | {"stages": stages}, sort_keys=False))
    return folder / "two.yaml"


def train(file, out, *flags):
    run(parse(["--recipe", str(file), "--output_dir", str(out), *flags]))


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(recipe(inputs, folder), folder / "out")
    return folder


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_record_and_card_tell_both_stages(trained, inputs):
    first, last = RunRecord.load(trained / "out/stages/1-mlm"), RunRecord.load(trained / "out")
    assert first.stages == [] and first.settings["stage"] == "mlm" and first.loss["name"] == "mlm"
    assert last.settings["stage"] == "contrast" and last.loss["name"] == "focal" and last.loss["m"] == 0.2
    assert last.model["name_or_path"].endswith("stages/1-mlm")
    (row,) = last.stages
    assert row["weights_sha256"] == first.model["weights_sha256"] and row["text"] == "text.txt"
    assert (row["objective"], row["stage"], row["steps"], row["sentences"]) == ("mlm", "mlm", 3, len(TEXTS))
    card = (trained / "out/README.md").read_text()
    assert "| Stages before | mlm (https://arxiv.org/abs/1810.04805): 3 steps on text.txt" in card
    assert "--stage mlm" in " ".join(first.command) and "--stage" not in last.command  # which repeats them all
    assert json.loads((trained / "out/run.json").read_text())["stages"] == last.stages


def test_one_stage_alone_by_its_own_command(trained, inputs, tmp_path):
    train(trained / "two.yaml", tmp_path / "out", "--stage", "mlm")
    assert weights(tmp_path / "out") == weights(trained / "out/stages/1-mlm")


@pytest.mark.parametrize("at", ["mlm", "contrast"])
def test_it_goes_on_in_the_middle(trained, inputs, tmp_path, monkeypatch, at):
    """Killed after the first checkpoint of a stage; the end is that of the uninterrupted run, bit for bit."""
    from hf_focalcse.training.trainer import FocalCSETrainer

    saved, begun = FocalCSETrainer._save_checkpoint, []

    class Killed(BaseException):
        pass

    def dies(self, *given, **named):
        saved(self, *given, **named)
        if self.objective.name == {"mlm": "mlm", "contrast": "contrastive"}[at]:
            raise Killed

    monkeypatch.setattr(FocalCSETrainer, "_save_checkpoint", dies)
    with pytest.raises(Killed):
        train(trained / "two.yaml", tmp_path / "out")
    monkeypatch.setattr(FocalCSETrainer, "_save_checkpoint", saved)
    whole = FocalCSETrainer.train
    monkeypatch.setattr(
        FocalCSETrainer, "train", lambda self, **how: (begun.append((self.objective.name, how)), whole(self, **how))[1]
    )
    train(trained / "two.yaml", tmp_path / "out", "--resume_from_checkpoint", "last")
    resumed = {"resume_from_checkpoint": "last"}
    fresh = {"resume_from_checkpoint": None}
    assert (
        begun
        == {
            "mlm": [("mlm", resumed), ("contrastive", fresh)],
            "contrast": [("contrastive", resumed)],
        }[at]
    )
    assert weights(tmp_path / "out/stages/1-mlm") == weights(trained / "out/stages/1-mlm")
    assert weights(tmp_path / "out") == weights(trained / "out")


def test_what_a_stage_was_trained_with_is_compared(trained, inputs, tmp_path):
    shutil.copytree(trained / "out/stages", tmp_path / "out/stages")
    file = trained / "two.yaml"
    with pytest.raises(UserError, match="holds the stage 'mlm' of an earlier run; go on with --resume_from_ch"):
        train(file, tmp_path / "out")
    with pytest.raises(UserError, match="was trained with max_seq_length 16, and it is now 12; give another"):
        train(file, tmp_path / "out", "--resume_from_checkpoint", "last", "--max_seq_length", "12")
    changed = recipe(inputs, tmp_path / "changed", STAGES | {"mlm": STAGES["mlm"] | {"learning_rate": 2.0e-3}})
    with pytest.raises(UserError, match="was trained with learning_rate 0.001, and it is now 0.002"):
        train(changed, tmp_path / "out", "--resume_from_checkpoint", "last")
    assert not (tmp_path / "out/run.json").exists()
    train(file, tmp_path / "out", "--resume_from_checkpoint", "last")  # what the message says works
    assert weights(tmp_path / "out") == weights(trained / "out")


def test_flags_of_the_stages_take_the_place_of_those_given(inputs, tmp_path, monkeypatch):
    told = []
    flags = ["--recipe", str(recipe(inputs, tmp_path / "r")), "--output_dir=out", "--model_name_or_path", "m"]
    run_stages(parse([*flags, "--output_dir", str(tmp_path / "x")]), lambda stage, goes_on: told.append(stage))
    assert [stage.notes for stage in told] == [(), ()]
    assert [stage.model.model_name_or_path for stage in told] == ["m", f"{tmp_path}/x/stages/1-mlm"]
    assert [stage.training.output_dir for stage in told] == [f"{tmp_path}/x/stages/1-mlm", f"{tmp_path}/x"]


def test_tsdae_before_a_contrastive_stage(inputs, tmp_path):
    first = {name: value for name, value in STAGES["mlm"].items() if name != "learning_rate"} | {"objective": "tsdae"}
    train(recipe(inputs, tmp_path / "r", {"tsdae": first, "contrast": STAGES["contrast"]}), tmp_path / "out")
    assert [row["objective"] for row in RunRecord.load(tmp_path / "out").stages] == ["tsdae"]


def of_two_processes(file, out):
    train(file, out)
    return os.getpid()


def test_two_processes_train_both_stages(ranks, inputs, tmp_path):
    stages = {name: flags | {"per_device_train_batch_size": 4} for name, flags in STAGES.items()}
    file = recipe(inputs, tmp_path / "recipe", stages)
    ranks(2, of_two_processes, file, tmp_path / "out")
    record = RunRecord.load(tmp_path / "out")
    assert record.world_size == 2 and [row["objective"] for row in record.stages] == ["mlm"]


def test_mistakes_are_refused_before_anything_is_trained(inputs, tmp_path, capsys):
    for stages, said in (
        ({"one": {}}, "stages must be a mapping of two stages or more"),
        ([{"objective": "mlm"}], "stages must be a mapping of two stages or more"),
        ({"one": {}, "a/b": {}}, "the stage 'a/b' names a folder"),
        ({"one": {"seed": 3}, "two": {}}, "seed is that of all stages; take it out of stage 'one'"),
        ({"one": {"losss": "focal"}, "two": {}}, "there is no setting 'losss', did you mean 'loss'"),
        ({"one": {}, "two": {"loss": "focall"}}, "there is no loss 'focall'"),
    ):
        with pytest.raises(UserError) as error:
            train(recipe(inputs, tmp_path / "r", stages), tmp_path / "out")
        assert said in str(error.value)
    file = recipe(inputs, tmp_path / "r")
    for flags, said in (
        (["--stage", "mlmm"], "--stage is 'mlmm', but recipe .*: its stages are mlm, contrast"),
        (["--resume_from_checkpoint", "x"], "a recipe with stages goes on with 'last' alone"),
    ):
        with pytest.raises(UserError, match=said):
            train(file, tmp_path / "out", *flags)
    with pytest.raises(UserError, match="--stage is 'mlm', but recipe quickstart: it has no stages"):
        parse(["--recipe", "quickstart", "--stage", "mlm"])
    with pytest.raises(UserError, match="--stage belongs to --recipe"):
        parse(["--train_file", "x", "--stage", "mlm"])
    assert not (tmp_path / "out").exists() and list(stages_of(str(file))) == ["mlm", "contrast"]
