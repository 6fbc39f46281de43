"""What goes wrong around push and sweep: what is published and what was trained is whole, and the same command
completes. Kills of them are in test_push.py and test_sweep.py; train, eval and export are in test_faults.py."""

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from fake_hub import FakeHub
from faults import NOBODY, STRANGE, command, snapshot, torn
from patience import PATIENCE
from tiny_run import TOKEN, TRAIN, write_inputs
from warm import COLD

from hf_focalcse.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
GRID = {
    "name": "two",
    "base": {
        "model_name_or_path": "tiny", "train_file": "text.txt", "eval_file": "graded.tsv", "max_steps": 2,
        "per_device_train_batch_size": 8, "eval_steps": 2, "use_cpu": "true",
    },
    "axes": {"loss": ["focal", "infonce"]},
}  # fmt: skip
COMMANDS = {"push": ["push", "out/hub", "org/tiny"], "sweep": ["sweep", "grid.yaml", "--runs", "runs"]}
CLOCK = """import time
now, calls = time.time, [0]
def back():
    calls[0] += 1
    return now() - 86_400 * calls[0]
time.time = back
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Inputs, a run and its export."""
    place = write_inputs(tmp_path_factory.mktemp("matrix"))
    cli.main(["train", *TRAIN.format(place).split()])
    cli.main(["export", str(place / "out")])
    (place / "grid.yaml").write_text(json.dumps(GRID))
    return place


@pytest.fixture
def hub():
    with FakeHub("--token", TOKEN) as server:
        yield server


def full_disk():
    """No file grows beyond 3,000 bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))


def begin(what, work, hub, fault=""):
    """The command in a process of its own, under a fault."""
    env = hub.environment(work.parent / "home", TOKEN) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    how = {}
    if fault == "homeless":
        env.pop("HOME", None)
        env.pop("HF_HOME")
    if fault == "ascii":
        env |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    if fault == "clock":
        (work.parent / "clock").mkdir(exist_ok=True)
        (work.parent / "clock/sitecustomize.py").write_text(CLOCK)
        env["PYTHONPATH"] += f":{work.parent / 'clock'}"
    if fault == "umask":
        how["umask"] = 0o077
    if fault == "full":
        how["preexec_fn"] = full_disk
    line = [COLD, "-m", "hf_focalcse", *COMMANDS[what]]
    if fault == "closed":
        line = ["sh", "-c", '"$0" "$@" <&- >&-', *line]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, cwd=work, env=env, stdout=pipe, stderr=pipe, text=True, errors="replace", **how)


def end(process):
    said, errors = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors and TOKEN not in said + errors, errors
    return process.returncode, said + errors


def whole(what, work, hub):
    """Whether all is there, and nothing half."""
    if what == "push":
        rows = [row for row in hub.requests() if "/commit/" in row["path"]]
        return [row["status"] for row in rows].count(200) == 1
    runs = work / "runs"
    assert torn(runs) == []
    return {path.parent.name for path in runs.glob("*/run.json")} == {"loss-focal", "loss-infonce"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["homeless", "ascii", "closed", "clock", "umask"])
@pytest.mark.parametrize("what", ["push", "sweep"])
def test_odd_surroundings_change_nothing(trained, hub, tmp_path, what, fault):
    work = shutil.copytree(trained, tmp_path / STRANGE)
    code, said = end(begin(what, work, hub, fault))
    assert code == 0, said
    assert whole(what, work, hub)
    if fault == "umask" and what == "sweep":
        assert {path.stat().st_mode & 0o777 for path in (work / "runs").rglob("*") if path.is_file()} == {0o600}


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["push", "sweep"])
def test_a_full_disk_is_said_and_the_same_command_completes(trained, hub, tmp_path, what):
    work = shutil.copytree(trained, tmp_path / "work")
    before = snapshot(work)
    code, said = end(begin(what, work, hub, "full"))
    now = snapshot(work)
    assert all(now.get(name) == content for name, content in before.items())
    if code:
        assert "error: " in said or "0 of 2 runs are finished" in said, said
        assert not (what == "push" and whole(what, work, hub))
        code, said = end(begin(what, work, hub))
    assert code == 0 and whole(what, work, hub), said


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["push", "sweep"])
def test_a_folder_that_is_not_ours_is_left_as_it_is(ranks, trained, what):
    if os.geteuid():
        pytest.skip("another user is needed, which only root can become")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        work = shutil.copytree(trained, Path(place) / "work")
        for path in (work, *work.rglob("*")):
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
        before = snapshot(work)
        code, said, _ = ranks(1, elsewhere, what, str(work), env={"HOME": place, "HF_TOKEN": TOKEN})[0]
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        assert code == 2 and len(lines) == 1 and "Traceback" not in said, said
        assert snapshot(work) == before


def elsewhere(what, work):
    os.chdir(work)
    return command(COMMANDS[what], "foreign", NOBODY)


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["push", "sweep"])
def test_two_at_a_time(trained, hub, tmp_path, what):
    """Both end well, or one is told of the other; the work is there once."""
    work = shutil.copytree(trained, tmp_path / "work")
    both = [begin(what, work, hub) for _ in range(2)]
    ends = [end(process) for process in both]
    assert sorted(code for code, _ in ends)[0] == 0, ends
    assert all(code in (0, 2) for code, _ in ends) and all(code == 0 or "error: " in said for code, said in ends), ends
    assert whole(what, work, hub)
