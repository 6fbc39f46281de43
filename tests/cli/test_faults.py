"""What goes wrong around a command: its folder is complete or as before, and the same command completes."""

import json
import os
import random
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from faults import NOBODY, STRANGE, command, snapshot, torn, visible
from tiny_run import TRAIN, write_inputs

from hf_focalcse.cli import main as cli
from hf_focalcse.runs.locking import locked

RANDOM = 20  # kills of each command in the slow test


class Desk:
    """A trained run and its export, for each test a copy; and the commands that work on them."""

    def __init__(self, place: Path):
        self.place = write_inputs(place)
        cli.main(["train", *self.argv("train", place)[1:]])
        cli.main(self.argv("export", place))
        self.names = {what: set(visible(snapshot(place / where))) for what, where in
                      (("train", "out"), ("eval", "out"), ("export", "out/hub"))}  # fmt: skip
        self.names["train"] = {name for name in self.names["train"] if not name.startswith("hub/")}
        self.scores = json.loads((place / "out/results.json").read_text())

    def argv(self, what: str, place: Path) -> list[str]:
        out = str(place / "out")
        if what == "train":
            return ["train", *TRAIN.format(place).split(), "--save_steps", "2", "--resume_from_checkpoint", "last"]
        if what == "eval":
            return ["eval", "--model_name_or_path", out, "--eval_file", str(place / "graded.tsv"), "--device", "cpu"]
        return ["export", out, "--no_sentence_transformers"]  # whose check starts a process

    def copy(self, what: str, to: Path) -> Path:
        """Before the command: without a run for train, with one for the others, exported before for export."""
        shutil.copytree(self.place, to, dirs_exist_ok=True)
        if what == "train":
            shutil.rmtree(to / "out")
        if what != "export":
            shutil.rmtree(to / "out/hub", ignore_errors=True)
        return to

    def changed(self, what: str, place: Path) -> Path:
        return place / "out/hub" if what == "export" else place / "out"

    def judge(self, ranks, what: str, place: Path, before: dict[str, bytes]) -> list[str]:
        """What is wrong after a fault, and after the same command without one."""
        wrong = torn(place / "out") if (place / "out").exists() else []
        if what == "export":  # in one step
            now = visible(snapshot(place / "out/hub"))
            if set(now) != self.names["export"]:
                wrong.append(f"the export holds {sorted(now)}")
        if what == "eval":
            now = visible(snapshot(place / "out"))
            wrong += [f"{name} is gone" for name in before if name not in now]
        code, said, _ = ranks(1, command, self.argv(what, place))[0]
        if code:
            return [*wrong, f"again: {said[-600:]}"]
        folder = self.changed(what, place)
        left = {name for name in snapshot(folder) if not name.startswith(("hub/", "checkpoint-"))}
        if stray := left - self.names[what] - {"log.jsonl"}:
            wrong.append(f"left behind: {stray}")
        if missing := {name for name in self.names[what] if not name.startswith(("checkpoint-", "hub/"))} - left:
            wrong.append(f"missing: {missing}")
        if what == "export" and (drafts := [p.name for p in (place / "out").glob(".*part*")]):
            wrong.append(f"left behind: {drafts}")
        found = json.loads((place / "out/results.json").read_text())
        keys = [key for key in self.scores if key != "metadata"]
        wrong += [f"{key} is {found.get(key)}" for key in keys if found.get(key) != self.scores[key]]
        return wrong + torn(folder)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return Desk(tmp_path_factory.mktemp("faults"))


def kill(ranks, desk, what, place, draw, fault, times):
    """Kill a command before random ones of its changes on the disk; what went wrong."""
    wrong, changes = [], None
    for number in range(times):
        work = desk.copy(what, place / str(number))
        if changes is None:
            trial = desk.copy(what, place / "whole")
            changes = ranks(1, command, desk.argv(what, trial))[0][2]
        before = visible(snapshot(desk.changed(what, work)))
        at = draw.randint(1, changes)
        ranks(1, command, desk.argv(what, work), fault, at)
        wrong += [
            f"{what}, {fault} before change {at} of {changes}: {of}" for of in desk.judge(ranks, what, work, before)
        ]
        shutil.rmtree(work)
    return wrong


@pytest.mark.parametrize("what", ["train", "eval", "export"])
def test_a_kill_loses_nothing(ranks, desk, tmp_path, what):
    assert kill(ranks, desk, what, tmp_path, random.Random(what), "SIGKILL", 1) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("what", ["train", "eval", "export"])
def test_kills_at_random_moments_lose_nothing(ranks, desk, tmp_path, what, fault):
    assert kill(ranks, desk, what, tmp_path, random.Random(f"{what} {fault}"), fault, RANDOM) == []


def full_disk(ranks, desk, what, place, size):
    """A file cannot grow beyond ``size`` bytes, as on a full disk."""
    work = desk.copy(what, place)
    before = visible(snapshot(desk.changed(what, work)))
    code, said, _ = ranks(1, command, desk.argv(what, work), "full", size)[0]
    if code == 0:  # all files fitted
        return []
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(lines) == 1 and "Traceback" not in said, said
    return desk.judge(ranks, what, work, before)


@pytest.mark.parametrize("what", ["train", "eval", "export"])
def test_a_full_disk_ends_in_a_sentence(ranks, desk, tmp_path, what):
    assert full_disk(ranks, desk, what, tmp_path, 3000) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [0, 100, 1000, 3000, 10_000, 30_000, 50_000])
@pytest.mark.parametrize("what", ["train", "eval", "export"])
def test_full_disks_end_in_a_sentence(ranks, desk, tmp_path, what, size):
    assert full_disk(ranks, desk, what, tmp_path, size) == []


@pytest.mark.parametrize("what", ["train", "eval", "export"])
def test_a_folder_that_is_not_ours_is_left_as_it_is(ranks, desk, what):
    if os.geteuid():
        pytest.skip("another user is needed, which only root can become")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        work = desk.copy(what, Path(place) / "work")
        (work / "out").mkdir(exist_ok=True)
        for path in (work, *work.rglob("*")):
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
        before = snapshot(work)
        code, said, _ = ranks(1, command, desk.argv(what, work), "foreign", NOBODY, env={"HOME": place})[0]
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        assert code == 2 and len(lines) == 1 and "Traceback" not in said, said
        assert snapshot(work) == before


@pytest.mark.parametrize("what", ["train", "export"])
def test_a_folder_that_another_process_writes_into_is_left_alone(ranks, desk, tmp_path, what):
    work = desk.copy(what, tmp_path)
    with locked(work / "out"):
        before = snapshot(work)
        code, said, _ = ranks(1, hasty, desk.argv(what, work))[0]
        assert code == 2 and "another process is writing into" in said and "Traceback" not in said, said
        assert snapshot(work) == before


def hasty(argv):
    from hf_focalcse.runs import locking

    locking.PATIENCE = 0.2
    return command(argv)


def test_two_evaluations_of_one_folder_both_keep_their_scores(ranks, desk, tmp_path):
    work = desk.copy("eval", tmp_path)
    lines = (work / "graded.tsv").read_text().splitlines()
    for name, rows in (("one", lines[:40]), ("two", [lines[0], *lines[30:]])):
        (work / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    ends = ranks(2, one_of_two, str(work))
    assert [code for code, _, _ in ends] == [0, 0], ends
    data = json.loads((work / "out/results.json").read_text())["metadata"]["data"]
    assert {"one", "two"} <= {key.split("/")[0] for key in data}, list(data)
    assert torn(work / "out") == []


def one_of_two(work):
    file = f"{work}/{'one' if os.environ.get('RANK', '0') == '0' else 'two'}.tsv"
    return command(["eval", "--model_name_or_path", f"{work}/out", "--eval_file", file, "--device", "cpu"])


SURROUNDINGS = [
    ("homeless", None), ("ascii", None), ("closed", None), ("clock", None), ("umask", 0o077), ("umask", 0o022)
]  # fmt: skip


@pytest.mark.parametrize(("fault", "value"), SURROUNDINGS)
@pytest.mark.parametrize(
    "what", ["train", *(pytest.param(what, marks=pytest.mark.exhaustive) for what in ("eval", "export"))]
)
def test_odd_surroundings_change_nothing(ranks, desk, tmp_path, what, fault, value):
    """Of a place whose path is long and holds signs of a shell."""
    place = tmp_path / STRANGE
    work = desk.copy(what, place)
    before = snapshot(work)
    argv = [word.replace("/placeholder", str(work)) for word in desk.argv(what, Path("/placeholder"))]
    code, said, _ = ranks(1, command, argv, fault, value)[0]
    assert code == 0 and "Traceback" not in said, said
    changed = desk.changed(what, work)
    assert {name for name in visible(snapshot(changed)) if "/" not in name} >= {"run.json", "results.json"}
    assert torn(changed) == []
    found = json.loads((work / "out/results.json").read_text())
    assert all(found[key] == value for key, value in desk.scores.items() if key != "metadata")
    new = [work / name for name, content in snapshot(work).items() if before.get(name) != content]
    if what == "export":  # the whole folder is new, byte for byte as the one before
        new = [path for path in changed.rglob("*") if path.is_file()]
    modes = {oct(path.stat().st_mode & 0o777) for path in new}
    assert modes == {{0o077: "0o600"}.get(value, "0o644")}, modes
    assert not list(Path.cwd().glob("x"))


@pytest.mark.parametrize(("fault", "code", "said"), [("broken pipe", 141, ""), ("full output", 2, "No space left")])
def test_output_that_nobody_takes(ranks, desk, tmp_path, fault, code, said):
    work = desk.copy("eval", tmp_path)
    end, text, _ = ranks(1, command, ["table", str(work / "out")], fault)[0]
    assert end == code and said in text and "Traceback" not in text


def test_names_and_text_of_no_encoding_are_kept(ranks, desk, tmp_path):
    """A file whose name is no UTF-8: it is trained on, and the record can be read again."""
    work = desk.copy("train", tmp_path)
    name = os.fsdecode(b"caf\xe9.txt")
    (work / "text.txt").rename(work / name)
    argv = [word.replace("text.txt", name) for word in desk.argv("train", work)]
    code, said, _ = ranks(1, command, argv, "ascii")[0]
    assert code == 0, said
    assert any(word.endswith(name) for word in json.loads((work / "out/run.json").read_text())["command"])
    assert re.search(r"caf.{0,2}udce9", (work / "out/README.md").read_text())
