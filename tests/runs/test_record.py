"""What is left of a run's record when it is published."""

import pytest

from hf_focalcse.errors import UserError
from hf_focalcse.runs.record import RunRecord, without_paths


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/srv/x/y.txt", "y.txt"),
        ("see ~/a/b and ../x/y.txt, ./z", "see b and y.txt, z"),
        (r"C:\Users\me\x.txt", "x.txt"),
        ("no set in '/home/me/STS' (/home/me/x): nothing", "no set in 'STS' (x): nothing"),
        ("--train_file=/a/b", "--train_file=b"),
        ("https://arxiv.org/abs/2310.06918", "https://arxiv.org/abs/2310.06918"),
        ("STS16/test/all/spearman", "STS16/test/all/spearman"),
        ("org/name and 1/2 of a / b", "org/name and 1/2 of a / b"),
        ("token hf_abcdefghij in it", "token hf_… in it"),
    ],
)
def test_paths_and_tokens_in_text(text, left):
    assert without_paths(text) == left
    assert without_paths({"a": [text, 1, None]}) == {"a": [left, 1, None]}


@pytest.mark.parametrize("told_by", ["the command", "the settings"])
def test_a_published_record_of_several_files_names_files_only(told_by):
    files = ["me/a.txt", "me/*.md"]
    record = RunRecord(
        command=["x.py", *(["--train_file", *files] if told_by == "the command" else []), "--seed", "1", "me/stays"],
        recipe=None,
        settings={"train_file": files, "seed": 1} if told_by == "the settings" else {"seed": 1},
        loss={},
        model={"name_or_path": "b", "base_model": "b"},
        data={"source": "me/a.txt, me/*.md", "files": [{"name": "me/a.txt"}, {"name": "me/deep/b.md"}]},
        seed=1,
        world_size=1,
    )
    public = record.publishable()
    assert not set(files) & {*public.command, *public.settings.get("train_file", ())}
    assert public.data["source"] == "a.txt, *.md" and public.command[-1] == "me/stays"
    assert [file["name"] for file in public.data["files"]] == ["a.txt", "b.md"]


def test_a_published_record_names_files_only():
    record = RunRecord(
        command="x.py --train_file data/a.txt --output_dir=runs/x --model_name_or_path runs/base --temp 1".split(),
        recipe="r/mine.yaml",
        settings={"train_file": "data/a.txt", "output_dir": "runs/x", "model_name_or_path": "runs/base", "seed": 1},
        loss={"formula": "(a)/b", "name": "focal"},
        model={"name_or_path": "runs/base", "base_model": None, "revision": None},
        data={"source": "data/a.txt", "samples": ["private text"], "kept": 3},
        seed=1,
        world_size=1,
        notes=["read data/a.txt and /home/me/b.txt"],
    )
    public = record.publishable()
    assert public.command == "x.py --train_file a.txt --output_dir=x --model_name_or_path base --temp 1".split()
    assert public.recipe == "mine.yaml" and public.data == {"source": "a.txt", "kept": 3}
    assert public.settings == {"train_file": "a.txt", "output_dir": "x", "model_name_or_path": "base", "seed": 1}
    assert public.notes == ["read a.txt and b.txt"] and public.loss == record.loss
    assert record.data["samples"] == ["private text"]  # the record itself is as it was
    assert public.publishable() == public


def test_a_hub_id_is_no_path():
    record = RunRecord(
        command=["run_unsup.py", "--model_name_or_path", "org/base", "--dataset_name", "org/data"],
        recipe="bert-base",
        settings={"model_name_or_path": "org/base", "dataset_name": "org/data"},
        loss={}, model={"name_or_path": "org/base", "base_model": "org/base"}, data={"source": "org/data/x.txt"},
        seed=1, world_size=1,
    )  # fmt: skip
    public = record.publishable()
    assert (public.command, public.settings, public.data) == (record.command, record.settings, record.data)


@pytest.mark.parametrize("told", [True, False])
def test_references_are_paths_or_hub_ids_too(told):
    """Older records do not tell which, so that there what could be a Hub id counts as one."""
    names = ["private customer/acme/ref", "org/teacher", *(["runs/ref"] if told else [])]
    reference = {"name_or_path": names} | ({"base_model": [None, "org/teacher", None]} if told else {})
    record = RunRecord(
        command=["x.py", "--reference_model", *names], recipe=None, settings={"reference_model": names}, loss={},
        model={"name_or_path": "b", "base_model": "b", "reference": reference}, data={"source": "a"}, seed=1,
        world_size=1, notes=[f"compared with {names[0]}"],
    )  # fmt: skip
    public = record.publishable()
    left = ["ref", "org/teacher", *(["ref"] if told else [])]
    assert (
        public.settings["reference_model"] == public.command[2:] == public.model["reference"]["name_or_path"] == left
    )
    assert public.notes == ["compared with ref"]


def test_a_record_that_is_a_list(tmp_path):
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(UserError, match="is not the record of a run"):
        RunRecord.load(tmp_path)
