"""A file is written whole or not at all."""

import errno
import json
import math
import os

import pytest
from tiny import tiny_tokenizer

from hf_focalcse.errors import UserError
from hf_focalcse.runs.atomic import draft, failed_writes, require_writable, write_bytes, write_json, write_text


@pytest.mark.parametrize("there", [False, True])
def test_what_fails_on_the_way_leaves_what_was_there(tmp_path, there):
    file = tmp_path / "x.txt"
    if there:
        file.write_text("before")

    class Stopped(BaseException):
        pass

    with pytest.raises(Stopped), draft(file) as part:
        part.write_text("half")
        raise Stopped
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"] * there
    assert not there or file.read_text() == "before"


def test_a_file_and_its_folder_are_written(tmp_path):
    assert write_text(tmp_path / "new/a.txt", "ä\n").read_bytes() == "ä\n".encode()
    assert write_bytes(tmp_path / "new/b", b"\0").read_bytes() == b"\0"
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.txt", "b"]


def test_a_number_that_json_lacks_is_null_or_refused(tmp_path):
    file = write_json(tmp_path / "x.json", {"a": [math.nan, 1.0], "b": (math.inf,)})
    assert json.loads(file.read_text()) == {"a": [None, 1.0], "b": [None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"a": math.nan}, strict=True)
    assert json.loads(file.read_text())["a"] == [None, 1.0]


@pytest.mark.parametrize("place", ["nowhere/x.json", "folder", "pipe"])
def test_a_place_for_a_file_is_looked_at_before_the_work(tmp_path, place):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=f"--json .*{place}: no file can be written there; give a file in a folder"):
        require_writable(tmp_path / place, "--json")
    require_writable(tmp_path / "new.json", "--json")
    require_writable(None, "--json")


def test_a_part_is_not_left_behind(tmp_path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(OSError):
        write_json(tmp_path / "x.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_what_tokenizers_raises_on_a_full_disk_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="Is a directory") as full, failed_writes():
        tiny_tokenizer().backend_tokenizer.save(str(tmp_path))
    assert full.value.errno == errno.EISDIR
    with pytest.raises(KeyError), failed_writes():
        raise KeyError("another error (os error 28)")
