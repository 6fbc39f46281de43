"""One process at a time writes into a folder, and what killed ones left is found and deleted."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_focalcse.errors import UserError
from hf_focalcse.runs import atomic
from hf_focalcse.runs.atomic import clear_drafts, draft_folder, draft_of, equal_modes, exchange, write_json, write_text
from hf_focalcse.runs.locking import is_free, locked

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
sys.path.insert(0, sys.argv[2])
from hf_focalcse.runs.locking import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A folder that another process holds."""
    folder = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", HOLD, folder, ROOT], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield folder, process
    process.kill()
    process.wait()


def test_a_lock_keeps_others_out_and_ends_with_its_holder(holder):
    folder, process = holder
    assert not is_free(folder) and list(folder.iterdir()) == []  # nothing lies in it
    with pytest.raises(UserError, match="another process is writing into .*out; wait until"), locked(folder, 0):
        pass
    process.kill()
    with locked(folder), locked(folder):  # it may be locked again where it is held
        assert not is_free(folder)
    assert is_free(folder)


def test_a_waiting_process_gets_the_folder_that_takes_the_place_of_the_one_it_waited_for(holder, tmp_path):
    folder, process = holder
    (tmp_path / "new").mkdir()
    exchange(tmp_path / "new", folder)
    began = time.monotonic()
    with locked(folder, 5):
        assert time.monotonic() - began < 4
    assert not is_free(tmp_path / "new") and process.poll() is None


def test_a_folder_is_replaced_in_one_step_and_a_failure_leaves_it(tmp_path):
    folder = tmp_path / "hub"
    with draft_folder(folder) as stage:
        (stage / "a").write_text("1")
    with draft_folder(folder) as stage:
        (stage / "b").write_text("2")
        assert (folder / "a").read_text() == "1"
    assert [path.name for path in folder.iterdir()] == ["b"]
    with pytest.raises(ZeroDivisionError), draft_folder(folder) as stage:
        (stage / "c").write_text(str(1 / 0))
    assert [path.name for path in folder.iterdir()] == ["b"] and list(tmp_path.iterdir()) == [folder]


def test_without_an_exchange_of_the_system_folders_trade_names_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic.sys, "platform", "other")
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    exchange(tmp_path / "a", tmp_path / "b")
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()) == ["a/b", "b/a"]


def test_what_a_killed_process_left_is_deleted_and_what_a_living_one_writes_is_not(tmp_path):
    for name in (".hub.part-1", ".other.part-2", "hub"):
        (tmp_path / name).mkdir()
    (tmp_path / "plots").mkdir()
    for name in (".run.json.part-1", ".mine", ".mine.part-x", "notes.part-1", "plots/.training.png.part-1"):
        (tmp_path / name).touch()
    with locked(tmp_path / ".other.part-2"):
        clear_drafts(tmp_path, folders=True)
        clear_drafts(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {".other.part-2", "hub", ".mine", ".mine.part-x", "notes.part-1", "plots"}
    assert not list((tmp_path / "plots").iterdir())


def test_names_at_the_limit_of_the_file_system(tmp_path):
    for name in ("n" * 255, "ü" * 127):
        assert write_text(tmp_path / name, "x").read_text() == "x"
        assert draft_of(tmp_path / name).parent == tmp_path
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_get_the_modes_of_the_umask(tmp_path, umask, mode):
    """safetensors makes its files for their owner alone."""
    before = os.umask(umask)
    try:
        (tmp_path / "in").mkdir(mode=0o755)
        (tmp_path / "in/model.safetensors").touch(0o600)
        (tmp_path / "tool").touch(0o700)
        equal_modes(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "in/model.safetensors").stat().st_mode & 0o777 == mode
    assert (tmp_path / "tool").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "tool"]


def test_text_that_utf_8_cannot_hold_is_written_and_read_again(tmp_path):
    import json

    name = os.fsdecode(b"caf\xe9")
    assert json.loads(write_json(tmp_path / "x.json", {"ä": name}).read_text(encoding="utf-8")) == {"ä": name}
    assert write_text(tmp_path / "x.md", name).read_text(encoding="utf-8") == "caf\\udce9"
