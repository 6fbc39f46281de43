"""A finished run is not lost by a mistake, and the best checkpoint is found by its name."""

import json
import shutil
import zlib

import pytest
from faults import snapshot
from tiny_run import TRAIN, write_inputs

from hf_focalcse.cli import main as cli


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run with a checkpoint after each step."""
    place = write_inputs(tmp_path_factory.mktemp("kept"))
    cli.main(["train", *argv(place)])
    return place


def argv(place, *more):
    return [*TRAIN.format(place).split(), "--eval_steps", "1", "--save_steps", "1", "--save_total_limit", "9", *more]


MISTAKES = {
    "text": ["--train_file", "typo.txt"],
    "rate": ["--learning_rate", "-1"],
    "length": ["--max_seq_length", "9999"],
    "pairs": ["--eval_file", "nope.tsv"],
    "metric": ["--metric_for_best_model", "nope"],
    "reference": ["--loss", "dclr", "--reference_model", "./nope", "--reference_pooler", "cls"],
    "model": ["--model_name_or_path", "./nope"],
    "batch": ["--per_device_train_batch_size", "4000"],
    "optimizer": ["--optim", "adamw_bnb_8bit"],
    "first step": ["--loss", "infonce", "--temperature", "1e-45"],
    "start": ["--model_name_or_path", "{0}/out/checkpoint-4"],
    "itself": ["--model_name_or_path", "{0}/out"],
    "reference inside": ["--loss", "dclr", "--reference_model", "{0}/out", "--reference_pooler", "cls"],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_beside_overwrite_output_dir_costs_no_run(done, capsys, mistake):
    before = snapshot(done / "out")
    with pytest.raises(SystemExit) as end:
        cli.main(["train", *argv(done, "--overwrite_output_dir", *(word.format(done) for word in MISTAKES[mistake]))])
    said = capsys.readouterr().err
    assert end.value.code == 2 and "error: " in said and "Traceback" not in said
    assert snapshot(done / "out") == before
    if mistake in ("start", "reference inside"):
        assert "holds the encoder of --" in said


def edited(checkpoint, best):
    """Let a checkpoint say that ``best`` is the best, with a score that no other reaches."""
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    state |= {"best_model_checkpoint": best, "best_metric": 99.0, "best_global_step": int(best.rpartition("-")[2])}
    content = json.dumps(state).encode()
    (checkpoint / "trainer_state.json").write_bytes(content)
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    manifest["files"]["trainer_state.json"] = [len(content), zlib.crc32(content)]
    (checkpoint / "checkpoint.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("where", ["gone/out/checkpoint-2", r"C:\\gone\\out\\checkpoint-2"])
def test_the_best_checkpoint_is_found_by_its_name(done, tmp_path, where):
    """As after the folder was moved, or from another working directory."""
    out = shutil.copytree(done / "out", tmp_path / "moved")
    (out / "run.json").unlink()
    shutil.rmtree(out / "checkpoint-4")
    edited(out / "checkpoint-3", where)
    best = (out / "checkpoint-2/model.safetensors").read_bytes()
    more = ["--resume_from_checkpoint", "last", "--save_total_limit", "1", "--output_dir", str(out)]
    cli.main(["train", *argv(done, *more)])
    record = json.loads((out / "run.json").read_text())
    assert record["best"]["step"] == 2 and record["best"]["value"] == 99.0
    assert (out / "model.safetensors").read_bytes() == best


def test_a_best_checkpoint_that_is_lost_is_said(done, tmp_path):
    out = shutil.copytree(done / "out", tmp_path / "moved")
    (out / "run.json").unlink()
    shutil.rmtree(out / "checkpoint-4")
    edited(out / "checkpoint-3", "out/checkpoint-1")
    (out / "checkpoint-1/model.safetensors").unlink()
    cli.main(["train", *argv(done, "--resume_from_checkpoint", "last", "--output_dir", str(out))])
    record = json.loads((out / "run.json").read_text())
    assert record["best"]["step"] == 4 and record["best"]["value"] < 99
    assert any("the best checkpoint before resuming (checkpoint-1" in alarm for alarm in record["alarms"])


def test_scores_of_other_weights_do_not_stand_beside_new_ones(done, tmp_path):
    shutil.copytree(done, tmp_path / "work")
    out = tmp_path / "work/out"
    more = ["--max_steps", "7", "--resume_from_checkpoint", "last", "--allow_resume_mismatch", "--save_strategy", "no"]
    words = argv(tmp_path / "work", *more)
    for flag in ("--eval_file", "--eval_steps", "--eval_steps", "--save_steps"):
        place = words.index(flag)
        del words[place : place + 2]
    cli.main(["train", *words, "--eval_strategy", "no"])
    record = json.loads((out / "run.json").read_text())
    assert not (out / "results.json").exists() and record["final"] == {}
    assert any("held scores of other weights" in note for note in record["notes"])
    assert "None: run" in (out / "README.md").read_text()
