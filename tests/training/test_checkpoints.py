"""Interrupted runs: killed, stopped, out of disk, damaged; resumed runs equal uninterrupted ones bit for bit."""

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from patience import PATIENCE
from rank_training import engines, make_trainer, weights, write_pairs
from safetensors.numpy import load_file
from tiny import SENTENCES, save_tiny
from transformers import TrainerCallback

from hf_focalcse.cli import main as cli
from hf_focalcse.cli.train import require_numbers
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import Stopped, UserError
from hf_focalcse.evaluation import read_pairs
from hf_focalcse.training import callbacks, checkpoints
from hf_focalcse.training.callbacks import StopSignals
from hf_focalcse.training.checkpoints import MANIFEST, damage, find_checkpoint, list_checkpoints, rotate, saving_failed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(save_tiny(tmp_path_factory.mktemp("checkpoints") / "base", initializer_range=0.4))


class At(TrainerCallback):
    """Does something to this process at the end of a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            self.action()


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def train(base, folder, engine="DDP", resume=None, die_at=None, action=kill, steps=20, save=10, batch=4, callbacks=(),
          settings=None, **arguments):  # fmt: skip
    """20 steps over two and a half epochs with dropout; weights, alarms and best state at the end."""
    options = {"save_strategy": "steps", "save_steps": save, "learning_rate": 1e-3, "logging_steps": 5} | arguments
    trainer = make_trainer(
        base, folder, engine, max_steps=steps, per_device_train_batch_size=batch, settings=settings, **options
    )
    for callback in callbacks:
        trainer.add_callback(callback)
    if die_at:
        trainer.add_callback(At(die_at, action))
    trainer.train(resume_from_checkpoint=resume)
    return weights(trainer), trainer.alarms, trainer.state.best_model_checkpoint


def equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and len(one) > 0 and all(np.array_equal(one[k], other[k]) for k in one)


# ---- SIGKILL


@pytest.mark.parametrize("accumulation", [1, 2])
def test_one_process_resumes_bit_for_bit(ranks, base, tmp_path, accumulation):
    settings = {"gradient_accumulation_steps": accumulation, "save": 7, "loss": "dclr"}
    settings["augmentation"] = ["token_shuffle", "feature_cutoff"]
    whole = ranks(1, train_with, base, tmp_path / "whole", "one", settings)[0]
    assert ranks(1, train_with, base, tmp_path / "cut", "one", settings | {"die_at": 13}) == [None]
    assert [p.name for p in list_checkpoints(tmp_path / "cut")] == ["checkpoint-7"]
    again = ranks(1, train_with, base, tmp_path / "cut", "one", settings | {"resume": "last"})[0]
    assert equal(whole[0], again[0])


def train_with(base, folder, engine, settings):
    return train(base, folder, engine, **settings)


@engines
def test_ranks_resume_bit_for_bit(ranks, base, tmp_path, engine):
    settings = {"chunk": 3, "augmentation": ["token_shuffle", "feature_cutoff"], "steps": 10, "save": 5}
    whole = ranks(2, train_with, base, tmp_path / "whole", engine, settings)
    assert ranks(2, train_with, base, tmp_path / "cut", engine, settings | {"die_at": 8}) == [None, None]
    again = ranks(2, train_with, base, tmp_path / "cut", engine, settings | {"resume": "last"})
    assert equal(whole[0][0], again[0][0])
    saved = load_file(tmp_path / "cut/checkpoint-10/model.safetensors")  # whole, whatever the engine shards
    assert equal({k.removeprefix("bert."): v for k, v in whole[0][0].items()}, saved) or equal(whole[0][0], saved)
    assert load_model(str(tmp_path / "cut/checkpoint-10")).pooler_name == "cls"


class Clock(TrainerCallback):
    """Kills so many seconds after the training loop began; measures how long it took."""

    def __init__(self, seconds=None):
        self.seconds = seconds

    def on_train_begin(self, *_, **__):
        self.start = time.monotonic()
        if self.seconds:
            timer = threading.Timer(self.seconds, kill)
            timer.daemon = True
            timer.start()

    def on_train_end(self, *_, **__):
        self.took = time.monotonic() - self.start


def killed_after(base, folder, seconds):
    return train(base, folder, "one", resume="last", save=1, save_total_limit=2, callbacks=[Clock(seconds)])


def timed(base, folder):
    clock = Clock()
    return train(base, folder, "one", save=1, save_total_limit=2, callbacks=[clock])[0], clock.took


def test_twenty_kills_at_random_moments(ranks, base, tmp_path):
    """A checkpoint after every step, so that most kills come during a save; each start resumes what is there."""
    whole, seconds = ranks(1, timed, base, tmp_path / "whole")[0]
    draw = random.Random(4)
    steps = [0]
    for _ in range(20):
        killed = ranks(1, killed_after, base, tmp_path / "cut", draw.uniform(0.02, 0.4) * seconds)[0] is None
        left = list_checkpoints(tmp_path / "cut")
        assert all(damage(p) is None for p in left), [damage(p) for p in left]
        steps.append(checkpoints.step_of(left[-1]) if left else 0)
        assert steps[-1] >= steps[-2]
        if not killed:  # it came to its end before the kill: begin again
            shutil.rmtree(tmp_path / "cut")
            steps.append(0)
    print(f"{seconds:.1f} s; last whole checkpoint after each kill:", steps)
    assert max(steps) > 5
    settings = {"save": 1, "resume": "last", "save_total_limit": 2}
    assert equal(whole, ranks(1, train_with, base, tmp_path / "cut", "one", settings)[0][0])


@pytest.mark.parametrize("place", ["torch.save", "publish", "os.rename", "after os.rename", "shutil.rmtree"])
def test_killed_at_every_place_of_a_save(ranks, base, tmp_path, place):
    whole = ranks(1, train_with, base, tmp_path / "whole", "one", {"save": 5, "save_total_limit": 1})[0]
    assert ranks(1, killed_in, base, tmp_path / "cut", place) == [None]
    left = list_checkpoints(tmp_path / "cut")
    assert left and all(damage(p) is None for p in left)
    again = ranks(1, train_with, base, tmp_path / "cut", "one", {"save": 5, "resume": "last", "save_total_limit": 1})[
        0
    ]
    assert equal(whole[0], again[0]) and not again[1]
    assert [p.name for p in list_checkpoints(tmp_path / "cut")] == ["checkpoint-20"]
    assert not list((tmp_path / "cut/.saving").glob("*"))


def killed_in(base, folder, place):
    """Kill in the second save, at a named call."""
    import torch

    real = {"torch.save": torch.save, "publish": checkpoints.publish, "os.rename": os.rename,
            "shutil.rmtree": shutil.rmtree}  # fmt: skip
    name = place.removeprefix("after ")
    armed = []

    def deadly(*args, **kwargs):
        target = str(args[-1] if name == "os.rename" else args[0])
        if armed and (name != "os.rename" or target.endswith("checkpoint-10")):
            if place.startswith("after"):
                real[name](*args, **kwargs)
            kill()
        return real[name](*args, **kwargs)

    owner = {"torch.save": torch, "publish": checkpoints, "os.rename": os, "shutil.rmtree": shutil}[name]
    setattr(owner, name.rpartition(".")[2], deadly)
    train(base, folder, "one", save=5, die_at=9, action=lambda: armed.append(1), save_total_limit=1)


# ---- best and last


def best(base, folder, engine, pairs, limit):
    """Falling learning makes an early checkpoint the best; it must outlive the limit and be in memory at the end."""
    dev = [read_pairs(pairs)]
    name = f"{dev[0].key}/all/spearman"
    trainer = make_trainer(
        base, folder, engine, dev=dev, max_steps=8, per_device_train_batch_size=4, learning_rate=5e-3,
        eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, save_total_limit=limit,
        load_best_model_at_end=True, metric_for_best_model=name,
    )  # fmt: skip
    trainer.train()
    require_numbers(trainer.model)
    trainer.save_whole(folder / "final")
    scores = {line["step"]: line[f"eval_{name}"] for line in trainer.state.log_history if f"eval_{name}" in line}
    return scores, trainer.state.best_global_step, trainer.state.best_model_checkpoint, trainer.scorer.score()[name]


@engines
def test_the_best_checkpoint_outlives_the_limit_and_is_loaded(ranks, base, tmp_path, engine):
    graded = write_pairs(tmp_path / "graded.tsv", 8)
    found = ranks(2, best, base, tmp_path / "out", engine, graded, 2)
    scores, step, path, score = found[0]
    assert found[0] == found[1] and list(scores) == [2, 4, 6, 8]
    assert step == max(scores, key=scores.get) and path == str(tmp_path / f"out/checkpoint-{step}")
    assert {p.name for p in list_checkpoints(tmp_path / "out")} == {f"checkpoint-{step}", "checkpoint-8"} or step == 8
    assert score == pytest.approx(scores[step], abs=1e-9)
    state = json.loads((tmp_path / f"out/checkpoint-{step}/trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == path  # as resuming needs it
    kept, final = (load_file(tmp_path / "out" / f / "model.safetensors") for f in (f"checkpoint-{step}", "final"))
    assert equal(kept, final)
    assert not list((tmp_path / "out").rglob("training_args.bin"))


def make_checkpoints(folder, steps):
    for step in steps:
        stage = checkpoints.stage(folder) / f"checkpoint-{step}"
        stage.mkdir(parents=True)
        (stage / "model.safetensors").write_bytes(b"w" * step)
        checkpoints.publish(stage, folder / f"checkpoint-{step}", {"seed": 1}, True)


def test_rotation_keeps_best_and_last(tmp_path):
    make_checkpoints(tmp_path, [1, 2, 3, 10, 20])
    rotate(tmp_path, 3, str(tmp_path / "checkpoint-1"))
    assert [p.name for p in list_checkpoints(tmp_path)] == ["checkpoint-1", "checkpoint-10", "checkpoint-20"]
    rotate(tmp_path, 1, str(tmp_path / "checkpoint-1"))
    assert [p.name for p in list_checkpoints(tmp_path)] == ["checkpoint-1", "checkpoint-20"]
    rotate(tmp_path, None, None)
    assert len(list_checkpoints(tmp_path)) == 2


# ---- damage


DAMAGES = {
    "truncated": (lambda p: os.truncate(p / "model.safetensors", 7), "model.safetensors has 7 bytes where 20 were"),
    "changed": (lambda p: (p / "model.safetensors").write_bytes(b"x" * 20), "the content of model.safetensors is not"),
    "missing": (lambda p: (p / "model.safetensors").unlink(), "model.safetensors cannot be read"),
    "no manifest": (lambda p: (p / MANIFEST).unlink(), f"it has no {MANIFEST}"),
    "half a manifest": (lambda p: os.truncate(p / MANIFEST, 20), f"its {MANIFEST} cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_last_checkpoint_is_named_and_the_one_before_used(tmp_path, kind):
    make_checkpoints(tmp_path, [10, 20])
    spoil, said = DAMAGES[kind]
    spoil(tmp_path / "checkpoint-20")
    found = find_checkpoint(tmp_path, "last")
    assert found.path == str(tmp_path / "checkpoint-10")
    assert said in found.notes[0] and "checkpoint-10 is used in its place" in found.notes[0]
    with pytest.raises(UserError, match="cannot be resumed from"):
        find_checkpoint(tmp_path, str(tmp_path / "checkpoint-20"))
    (tmp_path / "checkpoint-10" / MANIFEST).unlink()
    with pytest.raises(UserError, match="no checkpoint before it is whole"):
        find_checkpoint(tmp_path, "last")


def test_no_checkpoint(tmp_path):
    assert find_checkpoint(tmp_path, "last") is None
    with pytest.raises(UserError, match="there is no folder 'nowhere'; give last"):
        find_checkpoint(tmp_path, "nowhere")


def test_a_truncated_weights_file_is_passed_over(ranks, base, tmp_path):
    whole = ranks(1, train_with, base, tmp_path / "whole", "one", {"save": 5})[0]
    ranks(1, train_with, base, tmp_path / "cut", "one", {"save": 5, "die_at": 13})
    os.truncate(tmp_path / "cut/checkpoint-10/model.safetensors", 1000)
    again = ranks(1, train_with, base, tmp_path / "cut", "one", {"save": 5, "resume": "last"})[0]
    assert "checkpoint-10 is damaged: model.safetensors has 1,000 bytes" in again[1][0]
    assert "checkpoint-5 is used in its place" in again[1][0] and equal(whole[0], again[0])


# ---- another run


def resumed(base, folder, settings):
    try:
        return train(base, folder, "DDP", resume="last", **settings)[1]
    except UserError as error:
        return str(error)


def test_another_run_is_named_and_refused(ranks, base, tmp_path):
    ranks(2, train_with, base, tmp_path / "run", "DDP", {"die_at": 13})
    for settings, said in [
        ({"seed": 7}, "--seed was 42 and is 7"),
        ({"batch": 2}, "--per_device_train_batch_size was 4 and is 2"),
        ({"gradient_accumulation_steps": 2}, "--gradient_accumulation_steps was 1 and is 2"),
        ({"loss": "infonce"}, "loss was {'name': 'focal'"),
        ({"texts": [{"text": s} for s in SENTENCES]}, "training text (sha256) was '"),
        ({"settings": {"negatives": "local"}}, "--negatives was 'global' and is 'local'"),
        ({"chunk": 3}, "--chunk_size was None and is 3"),
    ]:
        refused = ranks(2, resumed, base, tmp_path / "run", settings)
        assert all(said in r and "--allow_resume_mismatch" in r for r in refused), refused
    refused = ranks(1, resumed, base, tmp_path / "run", {})[0]
    assert "number of processes was 2 and is 1" in refused
    allowed = ranks(1, resumed, base, tmp_path / "run", {"settings": {"allow_resume_mismatch": True}})[0]
    assert "is of another run: number of processes was 2 and is 1" in allowed[0]


# ---- signals


def stopped(base, folder, number):
    """The signal comes to rank 0 alone, and twice as launchers send it."""

    def act():
        if os.environ.get("RANK", "0") == "0":
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)

    try:
        train(base, folder, "DDP", die_at=13, action=act)
    except Stopped as stop:
        return str(stop)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_on_all_ranks_and_the_run_goes_on(ranks, base, tmp_path, number):
    whole = ranks(2, train_with, base, tmp_path / "whole", "DDP", {})
    said = ranks(2, stopped, base, tmp_path / "cut", number)
    assert (
        f"stopped by {number.name} after step 14" in said[0]
        and "--resume_from_checkpoint last" in said[0]
        and said[1] == ""
    )
    assert [p.name for p in list_checkpoints(tmp_path / "cut")] == ["checkpoint-10", "checkpoint-14"]
    again = ranks(2, train_with, base, tmp_path / "cut", "DDP", {"resume": "last"})
    assert equal(whole[0][0], again[0][0])


@pytest.fixture
def work(tmp_path):
    save_tiny(tmp_path / "tiny")
    (tmp_path / "text.txt").write_text("".join(f"{s} {i}\n" for i in range(40) for s in SENTENCES))
    return tmp_path


LINE = (
    "--model_name_or_path tiny --train_file text.txt --eval_strategy no --per_device_train_batch_size 8 --use_cpu "
    "--save_steps 20 --output_dir out --logging_steps 1 --disable_tqdm True"
).split()


def start(work, *argv, script=(str(ROOT / "run_unsup.py"),), **options):
    env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *script, *LINE, *map(str, argv)], cwd=work, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def run_here(work, monkeypatch, *argv):
    """What needs no process of its own: its start takes longer than the run."""
    monkeypatch.chdir(work)
    cli.run("train", [*LINE, *map(str, argv)], script="run_unsup.py")


def wait_for(process, words):
    """Read what the process says until it says that."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if words in line:
            return
    raise AssertionError("".join(seen) + process.stderr.read())


def test_sigterm_at_the_command_line(work, monkeypatch):
    process = start(work, "--max_steps", 100000)
    wait_for(process, "  loss ")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75, said
    assert "SIGTERM: saving a checkpoint after this step; send the signal again to stop at once" in said
    assert "go on with the same command and --resume_from_checkpoint last" in said and "Traceback" not in said
    left = list_checkpoints(work / "out")
    assert left and damage(left[-1]) is None
    step = checkpoints.step_of(left[-1])
    manifest = json.loads((left[-1] / checkpoints.MANIFEST).read_text())
    assert 0 < manifest["run"]["seconds"] < PATIENCE
    manifest["run"]["seconds"] = 1000.0
    (left[-1] / checkpoints.MANIFEST).write_text(json.dumps(manifest))
    run_here(work, monkeypatch, "--max_steps", step + 2, "--resume_from_checkpoint", "last", "--allow_resume_mismatch")
    record = json.loads((work / "out/run.json").read_text())
    assert [e["step"] for e in record["log"] if "loss" in e][-2:] == [step + 1, step + 2]
    assert 1000 < record["seconds"] < 1000 + PATIENCE  # of both parts
    assert not any("seconds" in note for note in record["notes"])


def test_sigterm_to_a_launcher_with_two_processes(work):
    config = ["--config_file", ROOT / "accelerate_configs/cpu_2.yaml", "--main_process_port", 0]
    script = ("-m", "accelerate.commands.launch", *map(str, config), str(ROOT / "run_unsup.py"))
    process = start(work, "--max_steps", 100000, script=script)
    wait_for(process, "  loss ")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1  # what launchers make of every code
    assert said.count("stopped by SIGTERM after step") == 1
    left = list_checkpoints(work / "out")
    assert left and damage(left[-1]) is None and (left[-1] / "rng_state_1.pth").is_file()


def endure(pauses):
    """SIGTERM, and again after each pause by a clock that is set by hand, in a step that does not end."""
    now = 100.0
    callbacks.time = SimpleNamespace(monotonic=lambda: now)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        for pause in pauses:
            now += pause
            os.kill(os.getpid(), signal.SIGTERM)
        signals.received = None
    return "alive"


def test_a_second_signal_stops_at_once(ranks):
    assert ranks(1, endure, [0.1, 0.1]) == ["alive"]  # a launcher passes on what the terminal has sent already
    assert ranks(1, endure, [2.2]) == [None]


# ---- disks


FAILED = "error: saving into out failed"


def limited(size):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_a_file_that_cannot_be_written_to_its_end(work, monkeypatch):
    """As on a full disk: writing stops in the middle of the optimizer's file."""
    run_here(work, monkeypatch, "--max_steps", 20)
    (work / "out/run.json").unlink()
    size = (work / "out/checkpoint-20/model.safetensors").stat().st_size
    before = (work / "out/checkpoint-20/optimizer.pt").read_bytes()
    again = ("--max_steps", 40, "--resume_from_checkpoint", "last", "--allow_resume_mismatch")
    process = start(work, *again, preexec_fn=limited(size + 1000))
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2 and "Traceback" not in said, said
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and lines[0].startswith(FAILED)
    assert "the previous checkpoint out/checkpoint-20 is intact" in lines[0]
    assert damage(work / "out/checkpoint-20") is None
    assert (work / "out/checkpoint-20/optimizer.pt").read_bytes() == before
    assert [p.name for p in list_checkpoints(work / "out")] == ["checkpoint-20"]


def mounted(folder, options):
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("needs the right to mount a small disk")


def test_a_full_disk_and_a_disk_that_turns_read_only(work, monkeypatch, capsys):
    mounted(work / "out", "size=700k")
    try:
        process = start(work, "--max_steps", 200, "--save_total_limit", 10)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 2 and "Traceback" not in said, said
        assert FAILED in said and "0.0 MB were free there" in said and "is intact" in said
        left = list_checkpoints(work / "out")
        assert left and all(damage(p) is None for p in left)
        subprocess.run(["mount", "-o", "remount,ro", str(work / "out")], check=True)
        with pytest.raises(SystemExit) as end:
            run_here(work, monkeypatch, "--max_steps", 200, "--resume_from_checkpoint", "last")
        said = capsys.readouterr().err
        assert end.value.code == 2 and "Traceback" not in said, said
        assert "nothing can be written into out (Read-only file system); give another --output_dir" in said
        assert all(damage(p) is None for p in left)
    finally:
        subprocess.run(["umount", str(work / "out")], check=True)


def test_what_a_failed_save_says_is_what_failed(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    gone = saving_failed(FileNotFoundError(errno.ENOENT, "No such file"), tmp_path / "run-0")
    assert "there is no earlier checkpoint; see that the folder is there and can be written" in str(gone)
    full = saving_failed(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    told = saving_failed(RuntimeError("PytorchStreamWriter failed"), tmp_path)
    for error in (full, told):
        said = r"; [\d.]+ MB were free there\): the previous checkpoint .*checkpoint-3 is intact; free space"
        assert re.search(said, str(error))
