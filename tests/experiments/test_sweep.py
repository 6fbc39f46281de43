"""Grids and sweeps: what is refused before anything starts, and what is left and found when everything is killed."""

import fcntl
import io
import json
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from patience import PATIENCE
from tiny import SENTENCES, save_tiny

from hf_focalcse.cli.sweep import parse as parse_sweep
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import STS_TASKS, Results
from hf_focalcse.experiments import processes, states
from hf_focalcse.experiments import sweep as sweeping
from hf_focalcse.experiments.grid import read_grid
from hf_focalcse.experiments.progress import Progress
from hf_focalcse.parsing.shipped import GRIDS, shipped_names
from hf_focalcse.runs.record import RunRecord

ROOT = Path(__file__).resolve().parents[2]
PAIRS = "sentence1\tsentence2\tscore\n" + "\n".join(
    f"{SENTENCES[i]}\t{SENTENCES[j]}\t{(i * 3 + j) % 6}" for i in range(8) for j in range(i + 1, 8)
)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A tiny encoder, sentences and labelled pairs."""
    folder = tmp_path_factory.mktemp("sweep")
    save_tiny(folder / "model")
    (folder / "train.txt").write_text("\n".join(f"{s} {i}" for i in range(30) for s in SENTENCES))
    (folder / "pairs.tsv").write_text(PAIRS)
    return folder


BASE = {
    **{"model_name_or_path": "model", "train_file": "train.txt", "eval_file": "pairs.tsv", "use_cpu": "true"},
    **{"per_device_train_batch_size": 8, "max_steps": 10, "eval_steps": 5, "disable_tqdm": "true"},
}


def write(folder, axes, name="grid", base=(), **more):
    """A grid file (JSON is yaml)."""
    content = {"name": name, "base": BASE | dict(base), "axes": axes, **more}
    (folder / f"{name}.yaml").write_text(json.dumps(content))
    return folder / f"{name}.yaml"


def start(folder, *arguments, **env):
    command = [sys.executable, "-m", "hf_focalcse", "sweep", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | env
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture
def begin(request):
    """`start`, with nothing left running after the test."""

    def begin(*arguments, **env):
        process = start(*arguments, **env)
        request.addfinalizer(lambda: (process.terminate(), process.wait()))
        return process

    return begin


def journal(runs):
    file = runs / sweeping.JOURNAL
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def counted(runs, event, what="train"):
    return Counter(row["run"] for row in journal(runs) if (row["event"], row["what"]) == (event, what))


def wait_for(condition, process):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


# ---- grids


def test_names_and_flags_of_the_runs(material, monkeypatch):
    monkeypatch.chdir(material)
    axes = {
        "pooler": {"cls": {"pooler": "cls", "learning_rate": 3e-5}, "mean": {"pooler": "mean", "learning_rate": 1e-5}},
        "loss": {"infonce": {"loss": "infonce"}, "focal-m0.3": {"loss": "focal", "m": 0.3}},
        "seed": [1, 2],
    }
    grid = read_grid(str(write(material, axes, base={"learning_rate": 1e-3})))
    assert [run.name for run in grid.runs] == [
        *("cls_infonce_seed-1", "cls_focal-m0.3_seed-1", "mean_infonce_seed-1", "mean_focal-m0.3_seed-1"),
        *("cls_infonce_seed-2", "cls_focal-m0.3_seed-2", "mean_infonce_seed-2", "mean_focal-m0.3_seed-2"),
    ]
    assert grid.runs[3].before == "mean-focal-m0.3-seed1"
    run = grid.runs[3]
    assert {"--pooler=mean", "--learning_rate=1e-05", "--loss=focal", "--m=0.3", "--seed=1"} <= set(run.argv)
    assert "--learning_rate=0.001" not in run.argv  # the axis has the last word
    assert (run.asked["learning_rate"], run.asked["temperature"], run.asked["max_steps"]) == (1e-5, 0.05, 10)
    assert [run.name for run in read_grid(str(write(material, {"temperature": [0.05, 0.1]}))).runs] == [
        *("temperature-0.05", "temperature-0.1"),
    ]


def test_flags_take_the_place_of_the_base_and_of_its_recipe(material, monkeypatch):
    monkeypatch.chdir(material)
    grid = read_grid(str(write(material, {"seed": [1]})), ["--max_steps", "40", "--temp", "0.07"])
    assert (grid.runs[0].asked["max_steps"], grid.runs[0].asked["temperature"]) == (40, 0.07)
    shipped = read_grid("temperature", ["--model_name_or_path", "X", "--train_file", "train.txt", "--max_steps", "40"])
    asked = shipped.runs[0].asked
    assert (asked["dataset_name"], asked["m"], asked["max_steps"]) == (None, 0.3, 40)
    assert [run.asked["temperature"] for run in shipped.runs] == [0.03, 0.05, 0.07, 0.1]
    judged = read_grid("temperature", ["--model_name_or_path", "X", "--eval_file", "pairs.tsv"]).evaluate
    assert judged == ("--eval_file=pairs.tsv",)
    (material / "q.tsv").write_text("qid\tlabel\tquery\tcandidate\n1\t1\ta\tb\n1\t0\ta\tc\n")
    ranked = write(material, {"seed": [1]}, evaluate={"tasks": ["rerank"], "rerank_file": "q.tsv"})
    judged = read_grid(str(ranked), ["--eval_file", "pairs.tsv"]).evaluate
    assert judged == ("--tasks", "rerank", "--rerank_file=q.tsv")  # what judges in training is none of these
    with pytest.raises(UserError, match="no such file: none.tsv"):
        read_grid(str(write(material, {"seed": [1]}, evaluate={"tasks": ["rerank"], "rerank_file": "none.tsv"})))


def test_every_shipped_grid_and_every_study_can_be_read(material, monkeypatch, tmp_path):
    expected = {"temperature", "m", "batch-size", "pooler", "dropout", "augmentation", "few-shot", "losses", "table3"}
    expected |= {"dclr-noise", "tuned"}
    assert set(shipped_names(GRIDS)) == expected
    for name in shipped_names(GRIDS):
        assert len(read_grid(name, ["--model_name_or_path", "X", "--max_steps", "40"]).runs) >= 2
    (tmp_path / "wiki3.txt").touch(), write_sets(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {run.name for s in (ROOT / "studies/minilm").glob("*.yaml") for run in read_grid(str(s)).runs}
    assert {"cls_infonce_seed-1", "mean_dclr_seed-4", "m-0.0_seed-1", "temperature-0.07_seed-1"} <= names
    assert len(names) == 32 + 4 + 3


WRONG = {
    "an unknown key": ({"axis": {}}, "there is no key 'axis', did you mean 'axes'?; allowed: name, note, base"),
    "no axis": ({"axes": {}}, "axes is empty"),
    "an unknown flag": ({"axes": {"sed": [1]}}, "run sed-1: there is no flag --sed, did you mean '--seed'?"),
    "a value of the wrong type": ({"axes": {"seed": ["one"]}}, "run seed-one: argument --seed: invalid int value"),
    "a value out of range": ({"axes": {"learning_rate": [-1]}}, "--learning_rate is -1.0; it must be a number above"),
    "a setting of another loss": (
        {"axes": {"loss": {"a": {"loss": "infonce", "m": 0.3}}}},
        "run a: --m belongs to loss dclr, focal, rankcse, not to infonce",
    ),
    "an unknown loss": ({"axes": {"loss": ["fokal"]}}, "there is no loss 'fokal', did you mean 'focal'?"),
    "an unknown pooler": ({"axes": {"pooler": ["clss"]}}, "there is no pooler 'clss', did you mean 'cls'?"),
    "an unknown augmentation": ({"axes": {"x": {"a": {"augmentation": ["shuffle"]}}}}, "shuffle"),
    "two runs of one name": (
        {
            "axes": {
                "a": {"x_y": {"loss": "focal"}, "x": {"loss": "infonce"}},
                "b": {"z": {"seed": 1}, "y_z": {"seed": 2}},
            }
        },
        "makes two runs called x_y_z",
    ),
    "a value twice": ({"axes": {"seed": [1, 1]}}, "axis seed: seed-1 occurs twice"),
    "two axes for one flag": (
        {"axes": {"pooler": ["cls"], "p": {"a": {"pooler_type": "mean"}}}},
        "the axes 'pooler' and 'p' both set pooler",
    ),
    "a path as a name": (
        {"axes": {"model_name_or_path": ["a/b"]}},
        "'model_name_or_path-a/b' cannot be part of a folder",
    ),
    "a flag without a value": ({"axes": {"x": {"a": {"loss": None}}}}, "loss is None; it must be"),
    "an output folder": (
        {"axes": {"seed": [1]}, "base": BASE | {"output_dir": "x"}},
        "output_dir is set by the sweep",
    ),
    "a file that is not there": (
        {"axes": {"seed": [1]}, "base": BASE | {"train_file": "no.txt"}},
        "no.txt does not exist",
    ),
    "a model that is not there": (
        {"base": BASE | {"model_name_or_path": "./nowhere"}, "axes": {"seed": [1]}},
        "there is no model folder './nowhere'",
    ),
    "an unknown task": ({"axes": {"seed": [1]}, "evaluate": {"tasks": ["STS17"]}}, "there is no task 'STS17'"),
    "an unknown split": (
        {"axes": {"seed": [1]}, "evaluate": {"tasks": ["STSBenchmark/tset"]}},
        "STSBenchmark has no split 'tset', did you mean 'test'?; there are train, dev, test",
    ),
    "unknown splits": ({"axes": {"seed": [1]}, "evaluate": {"splits": "tset"}}, "--splits is 'tset'; it must be test"),
    "dev splits of a task": (
        {"axes": {"seed": [1]}, "evaluate": {"splits": "dev", "tasks": ["STS12"]}},
        "--splits dev scores STS-B dev and SICK trial",
    ),
    "an empty batch": ({"axes": {"seed": [1]}, "evaluate": {"batch_size": 0}}, "--batch_size is 0; it must be at"),
    "sets that are not there": ({"axes": {"seed": [1]}, "evaluate": {"sts_dir": "no"}}, "no is not a folder"),
    "a folder without a set": (
        {"axes": {"seed": [1]}, "evaluate": {"sts_dir": "part", "tasks": ["STS13"]}},
        "no such file: part/STS13.tsv",
    ),
    "pairs that are not there": ({"axes": {"seed": [1]}, "evaluate": {"eval_file": "no.tsv"}}, "no such file: no.tsv"),
    "pairs without a column": ({"axes": {"seed": [1]}, "evaluate": {"eval_file": "part/STS12.tsv"}}, "no column"),
    "a whitened evaluation": ({"axes": {"seed": [1]}, "evaluate": {"whiten": "target"}}, "there is no key 'whiten'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_grid_is_refused_whole(case, material, monkeypatch):
    monkeypatch.chdir(material)
    change, message = WRONG[case]
    (material / "part").mkdir(exist_ok=True)
    (material / "part/STS12.tsv").write_text("a\tb\n1\t2\n")
    (material / "wrong.yaml").write_text(json.dumps({"base": BASE, **change}))
    with pytest.raises(UserError, match="wrong.yaml|output_dir") as error:
        read_grid("wrong.yaml")
    assert message in str(error.value)


def test_wrong_files_and_flags(material, monkeypatch):
    monkeypatch.chdir(material)
    (material / "twice.yaml").write_text("axes:\n  loss:\n    a: {loss: focal}\n    a: {loss: infonce}\n")
    (material / "broken.yaml").write_text("axes: [")
    for name, message in {
        "twice.yaml": "the key 'a' occurs twice in the mapping that begins in line 3",
        "broken.yaml": "is not valid yaml",
        "absent.yaml": "there is no grid file 'absent.yaml'",
        "temprature": "there is no grid 'temprature', did you mean 'temperature'?; the shipped grids are augmentation",
    }.items():
        with pytest.raises(UserError) as error:
            read_grid(name)
        assert message in str(error.value)
    grid = str(write(material, {"seed": [1]}))
    with pytest.raises(UserError, match="--seed is what axis 'seed' of grid grid varies"):
        read_grid(grid, ["--seed", "3"])
    sizes = str(write(material, {"per_device_train_batch_size": [8, 16]}, "sizes"))
    for flag in ("--per_gpu_train_batch_size", "--per-device-train-batch-size"):
        with pytest.raises(UserError, match="--per_device_train_batch_size is what axis .* of grid sizes varies"):
            read_grid(sizes, [flag, "4"])
    twice = {"a": {"x": {"per_gpu_train_batch_size": 4}}, "b": {"y": {"per_device_train_batch_size": 8}}}
    with pytest.raises(UserError, match="the axes 'a' and 'b' both set per_device_train_batch_size"):
        read_grid(str(write(material, twice, "both")))
    older = read_grid(grid, ["--per_gpu_train_batch_size", "4"]).runs[0]
    assert older.asked["per_device_train_batch_size"] == 4 and "--per_device_train_batch_size=8" not in older.argv
    with pytest.raises(UserError, match="there is no flag --max_step, did you mean '--max_steps'"):
        read_grid(grid, ["--max_step", "3"])
    with pytest.raises(UserError, match="--only dog: grid grid has no run of that name; there are seed-1"):
        sweeping.choose(read_grid(grid), ["dog"])
    with pytest.raises(UserError, match="--jobs is 0"):
        parse_sweep(["grid.yaml", "--jobs", "0"])
    assert parse_sweep(["--jobs", "2", "grid.yaml"]).grid == "grid.yaml"
    with pytest.raises(UserError, match="there is no program 'acelerate'"):
        processes.launch_words("acelerate launch", 1)
    assert processes.launch_words("torchrun --nproc_per_node 2", 2)[1:] == ["--standalone", "--nproc_per_node", "2"]
    assert processes.launch_words("torchrun --master-port 9", 2)[1:] == ["--master-port", "9"]
    assert processes.launch_words("torchrun", 1)[1:] == []
    with pytest.raises(UserError, match=r"--runs .*grid.yaml is not a folder"):
        sweeping.sweep(parse_sweep([grid, "--runs", grid, "--dry_run"]))
    args = parse_sweep(["g.yaml", "--max_steps", "40", "--jobs", "2", "--only", "a", "b", "--loss", "focal"])
    assert (args.jobs, args.only, args.overrides) == (2, ["a", "b"], ["--max_steps", "40", "--loss", "focal"])


def test_threads_and_gpus_are_divided(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")

    def given(jobs, launched):
        made = processes.environments(jobs, launched)
        return [e.get("CUDA_VISIBLE_DEVICES") for e in made], {e["OMP_NUM_THREADS"] for e in made}

    assert given(1, False) == (["4"], {"8"})  # several would become DataParallel, with another batch size
    assert given(2, False) == (["4", "5"], {"4"})
    assert given(6, False) == (["4", "5", "6", "7", "4", "5"], {"1"})
    assert given(2, True) == (["4,5", "6,7"], {"4"})
    assert given(1, True) == ([None], {"8"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert given(2, False) == ([None, None], {"4"})


def test_the_last_error_of_a_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("\n$ first\nerror: old\n\n$ second\nTraceback\n  x\nValueError: no numbers\nnote: bye\n")
    assert processes.last_error(log, 1) == "ValueError: no numbers (exit code 1)"
    log.write_text("\n$ one\nRuntimeError: a\nerror: the file is gone\nChildFailedError: b\n")
    assert processes.last_error(log, 2) == "the file is gone (exit code 2)"
    log.write_text("\n$ one\nstep 3\n")
    assert processes.last_error(log, -9) == "no output (ended by SIGKILL)"
    assert processes.last_error(tmp_path / "none", -15) == "ended by SIGTERM"


# ---- what lies in a folder


def finished(folder, run, weights="w", sets=("pairs/file",)):
    """The record and the scores of a run that nobody trained."""
    folder.mkdir(parents=True, exist_ok=True)
    RunRecord(
        command=["focalcse", "train", *run.argv, "--output_dir", str(folder)],
        **{"recipe": None, "settings": {}, "loss": {}, "data": {}, "seed": 1, "world_size": 1, "seconds": 1.0},
        model={"weights_sha256": weights},
    ).save(folder)
    scored(folder, weights, sets)


def scored(folder, weights="w", sets=("pairs/file",)):
    scores = {f"{key}/all/spearman": 50.0 for key in sets}
    model = {"weights_sha256": weights, "pooler": "cls"}
    metadata = {"format": 1, "protocol": "p", "model": model, "data": {key: {"sha256": key} for key in sets}}
    Results(scores, metadata).write(folder / "results.json")


def sweep_of(grid, folder):
    return sweeping.Sweep(grid, folder, list(grid.runs), [sys.executable], 1)


@pytest.mark.parametrize(
    "evaluate, sets",
    [
        ({"eval_file": "quickstart"}, ["quickstart_pairs/file"]),
        ({"eval_file": "test/pairs.tsv"}, ["pairs/file"]),  # called as the dev file is
        ({"sts_dir": "sts", "splits": "dev"}, ["STSBenchmark/dev", "SICK-R/trial"]),
    ],
)
def test_a_run_is_judged_when_a_sweep_did_it_by_these_flags(evaluate, sets, material, tmp_path, monkeypatch):
    monkeypatch.chdir(material)
    write_sets(material)
    grid = read_grid(str(write(material, {"seed": [1]}, "judged", evaluate=evaluate)))
    (run,), folder = grid.runs, tmp_path / "seed-1"
    finished(folder, run, sets=["pairs/file", "STSBenchmark/dev"])  # as training leaves it: the dev score
    assert states.state_of(run, folder, grid) == states.TRAINED
    scored(folder, sets=["pairs/file", "STSBenchmark/dev", *sets])
    sweep_of(grid, tmp_path).keep_evaluation(folder)
    assert states.state_of(run, folder, grid) == states.FINISHED
    other = read_grid(str(write(material, {"seed": [1]}, "judged", evaluate=evaluate | {"bf16": True})))
    assert states.state_of(run, folder, other) == states.TRAINED
    slower = read_grid(str(write(material, {"seed": [1]}, "judged", evaluate=evaluate | {"batch_size": 2})))
    assert states.state_of(run, folder, slower) == states.FINISHED
    scored(folder, sets=["pairs/other"])  # judged by hand in another way, which took the place of these scores
    assert states.state_of(run, folder, grid) == states.TRAINED
    scored(folder, "of an earlier model", ["pairs/file", "STSBenchmark/dev", *sets])
    assert states.state_of(run, folder, grid) == states.TRAINED
    scored(folder, sets=["pairs/file", "STSBenchmark/dev", *sets])
    finished(folder, run, "trained again", ["pairs/file", "STSBenchmark/dev", *sets])
    assert states.state_of(run, folder, grid) == states.TRAINED
    (folder / "results.json").write_text("{")
    assert states.state_of(run, folder, grid) == states.TRAINED


def test_a_sweep_of_version_0_1_goes_on_in_its_folders(material, tmp_path, monkeypatch, capsys):
    """Its runs are called lossfocal-seed1, those of today loss-focal_seed-1."""
    monkeypatch.chdir(material)
    path = str(write(material, {"loss": ["focal", "infonce"], "seed": [1]}, "older"))
    focal, infonce = read_grid(path).runs
    finished(tmp_path / "runs/lossfocal-seed1", focal)
    sweeping.sweep(parse_sweep([path, "--runs", str(tmp_path / "runs"), "--dry_run"]))
    said = capsys.readouterr().out
    assert re.search("^lossfocal-seed1 +finished ", said, re.M) and re.search("^loss-infonce_seed-1 +new ", said, re.M)
    args = parse_sweep([path, "--runs", str(tmp_path / "runs"), "--dry_run", "--only", "lossfocal*", "--seed", "3"])
    with pytest.raises(UserError, match="--seed is what axis 'seed'"):
        sweeping.sweep(args)
    with pytest.raises(UserError, match="lossfocal-seed1 holds a run with other settings than the grid's: max_steps"):
        sweeping.sweep(parse_sweep([path, "--runs", str(tmp_path / "runs"), "--dry_run", "--max_steps", "3"]))
    (tmp_path / "runs/loss-focal_seed-1").mkdir()  # begun since
    assert focal.in_folder(tmp_path / "runs").name == "loss-focal_seed-1" and infonce.before == "lossinfonce-seed1"


def quick(grid, folder, command):
    """A sweep whose runs are ``command``."""
    sweep = sweep_of(grid, folder)
    (folder / sweeping.LOCKS).mkdir(parents=True)
    sweep.launcher = [sys.executable, "-c", command]
    return sweep


def test_what_cannot_be_read_or_written_fails_one_run_or_none(material, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(material)
    grid = read_grid(str(write(material, {"seed": [1, 2, 3]}, "broken")))
    sweep = quick(grid, tmp_path / "a", "import time; time.sleep(1)")
    for run in grid.runs:
        finished(tmp_path / "a" / run.name, run)
    (tmp_path / "a/seed-1/results.json").write_text("{")  # cut
    (tmp_path / "a/.locks/seed-2.lock").mkdir()  # no lock can be taken
    with pytest.raises(SystemExit):
        sweep.go()
    assert sweep.finished == ["seed-3"] and "Is a directory" in sweep.failed["seed-2"]
    assert "seed-1/results.json is not a results.json" in sweep.failed["seed-1"]

    sweep = quick(grid, tmp_path / "b", "import time; time.sleep(600)")
    (tmp_path / "b" / sweeping.JOURNAL).mkdir()  # no line can be written
    sweep.start_more()
    try:
        (job,) = sweep.running
        assert not sweep.failed and job.process.poll() is None
        assert processes.take_lock(tmp_path / "b/.locks/seed-1.lock") is None
        assert "sweep.jsonl lacks the start of seed-1: " in capsys.readouterr().out
    finally:
        job.process.kill(), job.process.wait()


@pytest.fixture
def terminal():
    """(a stream to a terminal 100 columns wide, the descriptor from which what it shows is read)."""
    shown, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    stream = os.fdopen(end, "w", buffering=1)
    yield stream, shown
    with suppress(OSError):  # of a terminal that a test closes
        stream.close()


def test_a_terminal_shows_what_is_done_what_runs_and_how_long_it_takes(material, tmp_path, monkeypatch, terminal):
    stream, shown = terminal
    monkeypatch.chdir(material)
    monkeypatch.setattr(sys, "stderr", stream)
    grid = read_grid(str(write(material, {"seed": [1, 2, 3, 4]}, "shown")))
    sweep = quick(grid, tmp_path / "runs", "")
    for run in grid.runs:
        finished(tmp_path / "runs" / run.name, run)
    sweep.finished, sweep.failed, sweep.took = ["seed-1"], {"seed-2": "why"}, {"train": [100.0, 140.0], "eval": []}
    sweep.pending = [grid.runs[3]]
    sweep.running = [SimpleNamespace(run=grid.runs[2], what="train", seconds=30.0)]
    for _ in (1, 2):
        sweep.progress.show(len(sweep.finished), sweep.status())
    said = "1 failed, 1 waiting, about 3 min 30 s left; train seed-3 30 s of about 2 min 00 s"
    sweep.progress.close()
    stream.write("\rend")
    drawn = ""
    while not drawn.endswith("end"):
        drawn += os.read(shown, 10_000).decode()
    before, bar, cleared, end = (
        drawn.strip("\r").replace("\r\r", "\r").split("\r")
    )  # what has not changed is drawn once
    assert (before.split(), bar) == (["0/4", "|", "|"], f"1/4 |██▌       | {said}")
    assert (cleared.strip(), end) == ("", "end")


def test_runs_go_on_when_nobody_reads_any_more(monkeypatch, terminal):
    """As when a terminal is closed."""
    stream, shown = terminal
    monkeypatch.setattr(sys, "stderr", stream)
    progress = Progress(3)
    os.close(shown)
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(os.fdopen(writer, "wb", buffering=0), write_through=True))
    progress.show(1, "lost")
    progress.line("lost")
    assert sys.stdout.name == os.devnull
    progress.line("lost")
    progress.close()


def test_a_file_gets_lines_alone(capsys):
    progress = Progress(3)
    progress.show(1, "1 failed")
    progress.line("finished seed-1")
    progress.close()
    said, errors = capsys.readouterr()
    assert re.fullmatch(r"\d\d:\d\d:\d\d finished seed-1\n", said) and not errors


@pytest.mark.parametrize("left", [b"", b"\0\0\0", b"\xff\xfe{", b'{"command": [', b"[]"])
def test_a_run_whose_record_is_damaged_is_trained_again(left, material, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(material)
    grid = read_grid(str(write(material, {"seed": [1, 2]}, "cut", evaluate={"eval_file": "pairs.tsv"})))
    sweep = quick(grid, tmp_path, "")
    for run in grid.runs:
        finished(tmp_path / run.name, run)
    (tmp_path / "seed-1/run.json").write_bytes(left)
    found = [states.state_of(run, tmp_path / run.name, grid) for run in grid.runs]
    assert found == [states.DAMAGED, states.TRAINED]
    sweep.start(grid.runs[0], 0, processes.take_lock(tmp_path / "lock"))
    sweep.running[0].process.wait()
    assert "training seed-1, from the beginning: its run.json is damaged" in capsys.readouterr().out
    assert "--overwrite_output_dir" in (tmp_path / "seed-1" / sweeping.LOG).read_text()
    other = read_grid(str(material / "cut.yaml"), ["--m", "0.2"])  # what sweep.json says still counts
    with pytest.raises(UserError, match="m is 0.3 there and 0.2 here"):
        states.state_of(other.runs[0], tmp_path / "seed-1", other)


def test_a_signal_that_is_ignored_stays_so():
    """As nohup asks for SIGHUP, and a shell that starts a sweep with & for SIGINT."""
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with processes.signals_to(lambda *_: None):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_edited_recipe_is_another_setting(material, tmp_path, monkeypatch):
    monkeypatch.chdir(material)
    recipe = material / "mine.yaml"

    def grid(recipe_says, **base):
        recipe.write_text(json.dumps(recipe_says))
        return read_grid(str(write(material, {"seed": [1]}, "edited", {"recipe": "mine.yaml", **base})))

    before = grid({"learning_rate": 3e-5, "weight_decay": 0.1})
    (run,), folder, sweep = before.runs, tmp_path / "seed-1", sweep_of(before, tmp_path)
    monkeypatch.setattr(sweep, "launch", lambda *_: None)
    sweep.start(run, 0, -1)  # begun, killed before its first checkpoint
    asked = json.loads((folder / states.ASKED).read_text())
    assert asked["asked"] == run.asked and run.asked["weight_decay"] == 0.1
    assert states.state_of(run, folder, before) == states.NEW

    after = grid({"learning_rate": 3e-5, "weight_decay": 0.2})
    with pytest.raises(UserError, match="recipe was edited while .*: weight_decay is 0.2 there and 0.1 here"):
        sweep.start(run, 0, -1)
    for _ in ("begun", "finished"):
        with pytest.raises(UserError, match="other settings .*: weight_decay is 0.1 there and 0.2 here"):
            states.state_of(after.runs[0], folder, after)
        finished(folder, run)
    named = grid({"learning_rate": 1e-5}, weight_decay=0.1, learning_rate=3e-5)  # the same, said in another way
    assert states.state_of(named.runs[0], folder, named) == states.FINISHED
    recipe.unlink()  # what was kept is enough
    plain = read_grid(str(write(material, {"seed": [1]}, "plain", {"weight_decay": 0.1, "learning_rate": 3e-5})))
    assert states.state_of(plain.runs[0], folder, plain) == states.FINISHED
    asked["asked"] |= {"of_a_later_version": 1}
    del asked["asked"]["weight_decay"]
    (folder / states.ASKED).write_text(json.dumps(asked))
    recipe.write_text(json.dumps({"learning_rate": 3e-5, "weight_decay": 0.1}))
    assert states.state_of(run, folder, before) == states.FINISHED
    record = RunRecord.load(folder)
    record.command += ["--m", "0.2"]  # not what the sweep started: trained by hand
    record.save(folder)
    with pytest.raises(UserError, match="m is 0.2 there and 0.3 here"):
        states.state_of(run, folder, before)


def write_sets(folder):
    """Every STS set in a folder of files, and a file of pairs that is called as another is."""
    for name in ("sts", "test"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "test/pairs.tsv").write_text(PAIRS)
    for task in STS_TASKS.values():
        parts = sorted({part for split in task.splits for part in split.parts})
        rows = [f"x\t{part}\t{score}\tA cat.\tA dog." for part in parts for score in (1, 2, 3)]
        (folder / f"sts/{task.name}.tsv").write_text(
            "\n".join(["subset\tsplit\tscore\tsentence1\tsentence2", *rows]) + "\n"
        )


# ---- real sweeps


@pytest.mark.slow
def test_runs_killed_in_the_middle_and_started_again(material, begin):
    """SIGKILL leaves no time to tidy up: nothing is done twice, nothing is missing, nobody writes on."""
    grid = write(material, {"loss": ["focal", "infonce"], "seed": [1, 2]}, "four", {"max_steps": 60, "eval_steps": 6})
    runs = material / "four"
    first = begin(material, grid, "--runs", runs, "--jobs", 2)
    wait_for(lambda: sum(counted(runs, "end").values()) >= 2, first)
    wait_for(
        lambda: any(set(runs.glob(f"{name}/checkpoint-*")) for name in counted(runs, "start") - counted(runs, "end")),
        first,
    )
    children = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.communicate()
    before = journal(runs)
    ended = set(counted(runs, "end"))
    cut = set(counted(runs, "start")) - ended
    assert 2 <= len(ended) <= 3 and 1 <= len(cut) <= 2
    stamps = {name: (runs / name / "run.json").stat().st_mtime_ns for name in ended}

    second = begin(material, grid, "--runs", runs, "--jobs", 2)
    said, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    names = {f"loss-{loss}_seed-{seed}" for loss in ("focal", "infonce") for seed in (1, 2)}
    assert {folder.parent.name for folder in runs.glob("*/run.json")} == names
    assert {name: (runs / name / "run.json").stat().st_mtime_ns for name in ended} == stamps
    after = journal(runs)[len(before) :]
    assert Counter(row["run"] for row in after if row["event"] == "start") == Counter(names - ended)
    assert counted(runs, "end") == Counter(names)
    resumed = {row["run"] for row in after if row.get("state") == states.INTERRUPTED}
    assert resumed and resumed <= cut
    for name in resumed:  # went on from where it was: the log says so, and no step is there twice
        steps = [row["step"] for row in RunRecord.load(runs / name).log if "loss" in row]
        assert len(steps) == len(set(steps)) and steps[-1] == 60
        log = (runs / name / sweeping.LOG).read_text()
        assert log.count("\n$ ") == 2
    assert not list(runs.glob("*/checkpoint-*"))
    third = begin(material, grid, "--runs", runs)
    said, _ = third.communicate(timeout=PATIENCE)
    assert third.returncode == 0 and "4 runs (4 finished)" in said and len(journal(runs)) == len(before) + len(after)


@pytest.mark.exhaustive
def test_twenty_kills_at_random_moments(material, begin):
    """No run is lost or torn, and the last sweep leaves what an undisturbed one does."""
    draw = random.Random(5)
    grid = write(material, {"loss": ["focal", "infonce"]}, "two", {"max_steps": 30, "eval_steps": 3})
    began = time.monotonic()
    said, _ = begin(material, grid, "--runs", material / "whole").communicate(timeout=PATIENCE)
    took = time.monotonic() - began
    for number in range(20):
        sweeping_ = begin(material, grid, "--runs", material / "cut")
        time.sleep(draw.uniform(0.1, 0.6) * took)
        children = psutil.Process(sweeping_.pid).children(recursive=True) if sweeping_.poll() is None else []
        sweeping_.send_signal(draw.choice([signal.SIGKILL, signal.SIGTERM]))
        for child in children if number % 2 else ():
            with suppress(psutil.Error):
                child.kill()
        sweeping_.communicate()
        psutil.wait_procs(children, timeout=PATIENCE)
        for file in (material / "cut").glob("*/run.json"):
            RunRecord.load(file.parent)
    said, _ = begin(material, grid, "--runs", material / "cut").communicate(timeout=PATIENCE)
    assert "2 of 2 runs are finished" in said, said
    for name in ("loss-focal", "loss-infonce"):
        one, other = (material / of / name / "model.safetensors" for of in ("whole", "cut"))
        assert one.read_bytes() == other.read_bytes(), name
        assert not [path.name for path in other.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_a_signal_a_failure_and_an_evaluation(material, begin, monkeypatch):
    """SIGTERM leaves checkpoints and exit code 75; a run that fails is reported at the end and stops no other."""
    (material / "other.tsv").write_text(PAIRS)
    axes = {"length": {"whole": {"max_seq_length": 16}, "short": {"max_seq_length": 2}}}
    grid = write(material, axes, "mixed", {"max_steps": 60, "eval_steps": 6}, evaluate={"eval_file": "other.tsv"})
    runs = material / "mixed"
    stopped = begin(material, grid, "--runs", runs)
    wait_for(lambda: list(runs.glob("whole/checkpoint-*")), stopped)
    children = psutil.Process(stopped.pid).children(recursive=True)
    stopped.send_signal(signal.SIGTERM)
    said, _ = stopped.communicate(timeout=PATIENCE)
    assert stopped.returncode == 75 and "stopped by SIGTERM: 0 of 2 runs are finished" in said
    assert not [child for child in children if child.is_running()]

    monkeypatch.chdir(material)
    (run, _), both = read_grid(str(grid)).runs, read_grid(str(grid))
    assert states.state_of(run, runs / "whole", both) == states.INTERRUPTED
    other = read_grid(str(grid), ["--learning_rate", "1e-4"])
    with pytest.raises(
        UserError, match="whole holds a run with other settings .*: learning_rate is 3e-05 there and 0.0001"
    ):
        states.state_of(other.runs[0], runs / "whole", other)  # what was begun is not gone on with otherwise

    again = begin(material, grid, "--runs", runs, "--jobs", 2)
    said, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 1 and "1 of 2 runs are finished" in said
    assert "  short: --max_seq_length is 2; this encoder takes 3 to 64 tokens (exit code 2)\n    log: " in said
    assert counted(runs, "end", "eval") == {"whole": 1} and counted(runs, "fail") == {"short": 1}
    scores = json.loads((runs / "whole/results.json").read_text())
    assert {"pairs/file/all/spearman", "other/file/all/spearman"} <= scores.keys()
    assert states.state_of(run, runs / "whole", both) == states.FINISHED
    # trained by hand, with paths as they are from that folder: recognised all the same, or refused with the reason
    record = RunRecord.load(runs / "whole")
    flags = ["run_unsup.py", *run.argv, "--output_dir", "elsewhere", "--save_only_model", "true"]
    for extra, state in (([], states.FINISHED), (["--temp", "0.05"], states.FINISHED)):
        record.command = [*flags, *extra]
        record.save(runs / "whole")
        assert states.state_of(run, runs / "whole", both) == state
    record.command = [*flags, "--m", "0.2"]
    record.save(runs / "whole")
    with pytest.raises(UserError, match="other settings than the grid's: m is 0.2 there and 0.3 here"):
        states.state_of(run, runs / "whole", both)
    results = json.loads((runs / "whole/results.json").read_text())
    results["metadata"]["model"]["weights_sha256"] = "of an earlier model"
    (runs / "whole/results.json").write_text(json.dumps(results))
    record.command = flags
    record.save(runs / "whole")
    assert states.state_of(run, runs / "whole", both) == states.TRAINED


def evaluated_once(folder, grid, key, source):
    """Another sweep finds nothing to do, and the scores are those of the file that was asked for."""
    assert counted(folder, "end", "eval") == {"seed-1": 1}
    found = read_grid(str(grid))
    assert states.state_of(found.runs[0], folder / "seed-1", found) == states.FINISHED
    results = json.loads((folder / "seed-1/results.json").read_text())
    assert key in results and results["metadata"]["data"][key[: -len("/all/spearman")]]["source"].endswith(source)


@pytest.mark.exhaustive
def test_pairs_of_the_quickstart(material, begin, monkeypatch):
    monkeypatch.chdir(material)
    pairs = {"eval_file": "quickstart"}
    grid = write(material, {"seed": [1]}, "quick", pairs, evaluate=pairs)
    process = begin(material, grid, "--runs", "quick")
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "1 of 1 runs are finished" in said, said
    evaluated_once(material / "quick", grid, "quickstart_pairs/file/all/spearman", "quickstart_pairs.tsv")


@pytest.mark.exhaustive
def test_a_run_by_accelerate_on_two_processes_and_a_test_file_called_as_the_dev_file(material, begin, monkeypatch):
    monkeypatch.chdir(material)
    write_sets(material)
    grid = write(material, {"seed": [1]}, "two", {"use_cpu": "false"}, evaluate={"eval_file": "test/pairs.tsv"})
    launch = f"accelerate launch --config_file {ROOT}/accelerate_configs/cpu_2.yaml --main_process_port 0"
    process = begin(material, grid, "--runs", "two", "--launch", launch)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert RunRecord.load(material / "two/seed-1").world_size == 2
    evaluated_once(material / "two", grid, "pairs/file/all/spearman", "test/pairs.tsv")


def test_a_run_is_locked_as_long_as_anybody_works_on_it(tmp_path):
    lock = processes.take_lock(tmp_path / "lock")
    assert lock is not None and processes.take_lock(tmp_path / "lock") is None
    holder = subprocess.Popen(["sleep", "600"], pass_fds=(lock,))  # a run whose sweep is killed
    os.close(lock)
    assert processes.take_lock(tmp_path / "lock") is None
    holder.kill(), holder.wait()
    assert processes.take_lock(tmp_path / "lock") is not None


def test_a_process_that_writes_into_a_folder_is_found(tmp_path):
    """A launcher's workers hold no lock; they are known by their --output_dir, relative to where they run."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", "--output_dir", "runs/a"]
    worker = subprocess.Popen(command, cwd=tmp_path)
    try:
        wait_for(lambda: (tmp_path / "runs/a").resolve() in processes.writers(), worker)
        assert processes.writers()[(tmp_path / "runs/a").resolve()] == worker.pid
    finally:
        worker.kill(), worker.wait()
