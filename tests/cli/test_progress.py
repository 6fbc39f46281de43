"""What training prints, on a terminal and elsewhere, and what its log file holds."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from hf_focalcse.cli.progress import LOG_FILE, Progress, duration

ARGS = SimpleNamespace(disable_tqdm=False)
KEY = "eval_STSBenchmark/dev/all/spearman"


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.fixture
def shown_on(monkeypatch):
    """terminal -> (stdout, stderr) from now on; pytest puts its own in their place until the test begins."""

    def change(terminal):
        streams = Stream(terminal), Stream(terminal)
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        return streams

    return change


def run_steps(folder, first=0, last=40, seconds=1.0, logs=None, args=ARGS):
    """A run of 40 steps that logs its loss every 10 and its score every 20; ``seconds`` each."""
    now = SimpleNamespace(value=100.0)
    progress = Progress(folder, lambda: now.value)
    state = SimpleNamespace(global_step=first, max_steps=40, is_world_process_zero=True)
    progress.on_train_begin(args, state, None)
    for step in range(first + 1, last + 1):
        now.value += seconds
        state.global_step = step
        progress.on_step_end(args, state, None)
        for row in (logs or usual)(step):
            progress.on_log(args, state, None, logs=row)
    progress.on_train_end(args, state, None)


def usual(step):
    if step % 10 == 0:
        yield {"loss": 1 / step, "learning_rate": 3e-5, "grad_norm": float("nan"), "epoch": 0.1, "total_flos": 5}
    if step % 20 == 0:
        yield {KEY: 80.0 + step / 10, f"{KEY}/gain": step / 10 - 1, "eval_STSBenchmark/dev/alignment": 0.1}


def rows(folder):
    return [json.loads(line) for line in (folder / LOG_FILE).read_text().splitlines()]


def test_elsewhere_than_on_a_terminal_there_are_short_lines_and_no_carriage_return(tmp_path, shown_on):
    shown = shown_on(False)
    run_steps(tmp_path)
    out, errors = (stream.getvalue() for stream in shown)
    assert errors == "" and "\r" not in out and all(len(line) <= 80 for line in out.splitlines())
    assert out.splitlines() == [
        "step 10/40  loss 0.1000  lr 3.0e-05  0:30 left",
        "step 20/40  loss 0.0500  lr 3.0e-05  0:20 left",
        "step 20/40  STSBenchmark/dev 82.00 (+1.00)  0:20 left",
        "step 30/40  loss 0.0333  lr 3.0e-05  0:10 left",
        "step 40/40  loss 0.0250  lr 3.0e-05  0:40",
        "step 40/40  STSBenchmark/dev 84.00 (+3.00)  0:40",
    ]


@pytest.mark.parametrize(
    ("seconds", "steps"), [(0.1, ["10", "20", "40", "40"]), (25.0, ["10", "13", "16", "19", "20", "20"])]
)
def test_lines_come_every_so_often(tmp_path, shown_on, seconds, steps):
    """Fast steps leave losses out, never scores; slow ones are heard of between two logs."""
    shown = shown_on(False)
    run_steps(tmp_path, last=20 if seconds > 1 else 40, seconds=seconds)
    said = [line.split()[1].partition("/")[0] for line in shown[0].getvalue().splitlines()]
    assert said == steps


def test_a_terminal_has_a_bar_and_a_line_for_each_log(tmp_path, shown_on):
    shown = shown_on(True)
    run_steps(tmp_path)
    out, errors = (stream.getvalue() for stream in shown)
    assert "%|" in errors and "\r" in errors and out.count("loss ") == 4 and "\r" not in out
    for stream in shown:
        stream.truncate(0), stream.seek(0)
    run_steps(tmp_path, args=SimpleNamespace(disable_tqdm=True))
    assert shown[1].getvalue() == "" and shown[0].getvalue().count("step ") == 6


def test_the_log_file_has_everything_once(tmp_path, shown_on):
    shown_on(False)
    run_steps(tmp_path)
    whole = rows(tmp_path)
    assert [row["step"] for row in whole] == [10, 20, 20, 30, 40, 40]
    assert whole[0] == {"step": 10, "loss": 0.1, "learning_rate": 3e-5, "grad_norm": None, "epoch": 0.1}
    assert whole[2]["eval_STSBenchmark/dev/alignment"] == 0.1
    with open(tmp_path / LOG_FILE, "a") as file:
        file.write('{"step": 4')  # cut by a power failure
    run_steps(tmp_path, first=20)  # goes on from the checkpoint of step 20
    assert rows(tmp_path) == whole
    run_steps(tmp_path, last=10)  # another run in its place
    assert [row["step"] for row in rows(tmp_path)] == [10]


def test_a_line_is_never_wider_than_80_columns(tmp_path, shown_on):
    shown = shown_on(False)
    name = "eval_" + "very-long-name-of-a-file-of-pairs" * 4 + "/file/all/spearman"
    run_steps(tmp_path, logs=lambda step: [{name: 50.0}] if step == 40 else [])
    line, rest = shown[0].getvalue().splitlines()
    assert (
        rest == " " * 12 + "0:40"
        and len(line) == 80
        and line.startswith("step 40/40  very-long-name")
        and name in rows(tmp_path)[0]
    )


def test_scores_of_several_sets_are_folded_not_cut(tmp_path, shown_on):
    shown = shown_on(False)
    sets = {"quickstart/copies/mrr": 54.7, "quickstart/copies/mrr/gain": 0.76}
    sets |= {"quickstart_pairs/file/all/spearman": 83.09, "quickstart_pairs/file/all/spearman/gain": -0.17}
    sets |= {"x" * 90 + "/file/all/spearman": 50.0}
    run_steps(tmp_path, logs=lambda step: [{f"eval_{k}": v for k, v in sets.items()}] if step == 20 else [])
    lines = shown[0].getvalue().splitlines()
    assert lines[0] == "step 20/40  quickstart/copies 54.70 (+0.76)  quickstart_pairs/file 83.09 (-0.17)"
    assert lines[1].startswith(" " * 12 + "xxx") and len(lines[1]) == 80 and lines[1].endswith("…")
    assert lines[2:] == [" " * 12 + "0:20 left"]


def test_a_small_loss_is_not_shown_as_zero(tmp_path, shown_on):
    shown = shown_on(False)
    run_steps(tmp_path, logs=lambda step: [{"loss": {20: 4.1e-5, 40: 0.0}[step]}] if step % 20 == 0 else [])
    assert [line.split("  ")[1] for line in shown[0].getvalue().splitlines()] == ["loss 4.1e-05", "loss 0.0000"]


def test_durations():
    assert [duration(seconds) for seconds in (0.4, 61, 3600, 36_125)] == ["0:00", "1:01", "1:00:00", "10:02:05"]
