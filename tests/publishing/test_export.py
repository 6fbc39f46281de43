"""The exported folder read by the libraries that others read it with."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import CONFIGS, plain_load, save_tiny
from warm import COLD

from hf_focalcse.cli.main import run
from hf_focalcse.encoder.auto import AutoModelForFocalCL
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.poolers import POOLERS
from hf_focalcse.errors import UserError
from hf_focalcse.publishing import export as export_module
from hf_focalcse.publishing.export import export_model
from hf_focalcse.publishing.export_records import update_export
from hf_focalcse.publishing.formats import ONNX_FILE, write_encoder, write_onnx, write_sentence_transformers
from hf_focalcse.publishing.manifest import foreign_files, is_export
from hf_focalcse.publishing.parity import CHECKED, LOWEST_COSINE, check_vectors, compare, lowest_cosine
from hf_focalcse.publishing.publish import check_holds, export_again
from hf_focalcse.runs.record import RunRecord

EVERYWHERE = ("cls_before_pooler", "mean", "max")  # poolers that are tried in every family; the others in BERT
OTHERS = [name for name in [*POOLERS, "max+mean"] if name not in ("cls", "mask")]  # a mask stands in a template alone
KINDS = [("cls", "training"), ("cls", "always"), *((name, "none") for name in OTHERS)]
CASES = [
    (*kind, family) for kind in KINDS for family in CONFIGS if kind[0] in ("cls", *EVERYWHERE) or family == "bert"
]


def checkpoint(folder: Path, family: str = "bert", pooler: str = "cls", projection: str = "training") -> Path:
    """A folder as training leaves it, with weights large enough for vectors to differ."""
    save_tiny(folder / "base", family, initializer_range=0.4)
    model = load_model(str(folder / "base"), pooler, projection)
    model.save_pretrained(folder / "out")
    model.tokenizer.save_pretrained(folder / "out")
    return folder / "out"


@pytest.mark.parametrize(("pooler", "projection", "family"), CASES)
def test_parity_of_every_pooler_and_family(tmp_path, family, pooler, projection):
    """transformers by the pooler's own code, sentence-transformers by its files, onnxruntime: as the checkpoint."""
    from sentence_transformers import SentenceTransformer

    model = load_model(str(checkpoint(tmp_path, family, pooler, projection)))
    stage = tmp_path / "stage"
    stage.mkdir()
    limit = write_encoder(model, stage)
    write_sentence_transformers(model, stage, limit)
    expected = model.encode(CHECKED)
    assert np.ptp(expected @ expected.T) > 0.1  # the sentences differ, so equal vectors mean something
    other = SentenceTransformer(str(stage), device="cpu")
    assert other.max_seq_length == limit == model.max_length()
    assert lowest_cosine(expected, other.encode(CHECKED)) >= LOWEST_COSINE
    assert [type(module).__name__ for module in other][-1] == ("Dense" if projection == "always" else "Pooling")
    assert write_onnx(model, stage, limit) >= LOWEST_COSINE
    assert json.loads((stage / "config.json").read_text())["architectures"] == [type(model.encoder).__name__]
    # and back into our own class, as recorded
    again = load_model(str(stage))
    assert (again.pooler_name, again.projection_use) == (pooler, projection)
    assert np.array_equal(again.encode(CHECKED), expected)


@pytest.mark.parametrize("family", ["modernbert"])
def test_a_fresh_process_reads_it_without_a_word(tmp_path, family):
    folder, found = export_model(checkpoint(tmp_path, family))
    assert set(found) == {"transformers", "sentence-transformers"} and min(found.values()) >= LOWEST_COSINE
    answer = plain_load(folder)[str(folder)]
    assert (answer["missing"], answer["unexpected"], answer["said"]) == ([], [], "")
    assert not (folder / "README.md").exists() and is_export(folder)  # no run.json, so no card
    assert (folder / "focal_head.safetensors").exists() == (family == "modernbert")
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".hub")] == []


def test_an_export_without_sentence_transformers_has_none_of_its_files(tmp_path):
    folder, found = export_model(
        checkpoint(tmp_path, pooler="avg_top2", projection="none"), sentence_transformers=False
    )
    assert set(found) == {"transformers"} and not (folder / "modules.json").exists()
    assert load_model(str(folder)).pooler_name == "avg_top2"


def test_other_vectors_are_refused(tmp_path):
    """The check is seen to fail: pooling files of another pooler, and missing weights."""
    model = load_model(str(checkpoint(tmp_path)))
    stage = tmp_path / "stage"
    stage.mkdir()
    write_sentence_transformers(model, stage, write_encoder(model, stage))
    pooling = stage / "1_Pooling/config.json"
    pooling.write_text(pooling.read_text().replace("true", "X").replace("false", "true", 2).replace("X", "false", 1)
                       .replace('"pooling_mode_cls_token": true', '"pooling_mode_cls_token": false')
                       .replace("X", "true"))  # fmt: skip
    with pytest.raises(UserError, match="sentence-transformers gives other vectors than the checkpoint"):
        check_vectors(model, stage, True)
    with pytest.raises(UserError, match="lowest cosine is 0.99"):
        compare("x", np.array([[1.0, 0.0]]), np.array([[1.0, 0.01]]))
    with pytest.raises(UserError, match=r"lowest cosine is -1"):
        compare("x", np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(UserError, match="lowest cosine is nan"):
        compare("x", np.ones((1, 2)), np.full((1, 2), np.nan))


def test_what_is_written(exported, trained):
    answer = plain_load(exported)[str(exported)]
    assert (answer["missing"], answer["unexpected"], answer["said"]) == ([], [], "")
    names = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    assert names == {
        *("README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "run.json"),
        *("results.json", "export.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json"),
        *("config_sentence_transformers.json", "plots/training.png", "plots/cosines.png"),
    }
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["BertModel"] and config["focal_cl"]["loss"] == "focal"
    run, results = (json.loads((exported / name).read_text()) for name in ("run.json", "results.json"))
    manifest = json.loads((exported / "export.json").read_text())
    sha = manifest["files"]["model.safetensors"]
    assert run["model"]["weights_sha256"] == results["metadata"]["model"]["weights_sha256"] == sha
    assert (
        run["model"]["checkpoint_sha256"] == json.loads((trained / "run.json").read_text())["model"]["weights_sha256"]
    )
    assert "samples" not in run["data"] and manifest["card"] == (exported / "README.md").read_text()


def test_no_path_of_the_machine(exported, trained):
    """Of a run that was given absolute paths everywhere."""
    place = str(trained.parent)
    assert place in (trained / "run.json").read_text()  # there it is needed to repeat the run
    for path in exported.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert place.encode() not in content and b"/tmp/" not in content, path
            assert f"{Path.home()}/".encode() not in content and b"secret-place" not in content, path


def test_the_same_export_twice_is_the_same_bytes(exported, trained, tmp_path):
    target = {"repo_id": "org/focal-tiny", "license": "mit", "language": "en"}
    again, _ = export_model(trained, tmp_path / "again", publication=target)
    for path in exported.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (again / path.relative_to(exported)).read_bytes(), path


def test_scores_of_other_weights_are_refused(trained, tmp_path):
    out = shutil.copytree(trained, tmp_path / "out", ignore=shutil.ignore_patterns("checkpoint-*"))
    model = AutoModelForFocalCL.from_pretrained(out)
    results = json.loads((out / "results.json").read_text())
    results["metadata"]["model"]["pooler"] = "mean"
    (out / "results.json").write_text(json.dumps(results))
    with pytest.raises(UserError, match="was measured with pooler mean, not cls; run `focalcse eval`"):
        export_model(out)
    model.encoder.embeddings.word_embeddings.weight.data += 1
    model.save_pretrained(out)
    with pytest.raises(UserError, match=r"run\.json belongs to other weights"):
        export_model(out)
    assert not (out / "hub").exists()


def test_something_else_is_not_replaced(tmp_path):
    out = checkpoint(tmp_path)
    (out / "hub").mkdir()
    (out / "hub/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="hub is not empty and not an export; give another --output_dir"):
        export_model(out)
    assert (out / "hub/notes.txt").read_text() == "mine"


def test_a_file_that_somebody_put_into_an_export_is_not_lost(exported, trained, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "hub")
    (folder / ".cache").mkdir()
    (folder / ".cache/upload").write_text("of the Hub's client")
    assert foreign_files(folder) == []
    (folder / "notes.txt").write_text("mine")
    update_export(folder, {"license": "cc0-1.0"})  # which does not make it the export's own
    assert foreign_files(folder) == ["notes.txt"]
    with pytest.raises(UserError, match=r"holds files that no export wrote: notes\.txt; move them, or give another"):
        export_model(trained, folder)
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").unlink()
    assert export_model(trained, folder)[0] == folder


def test_a_check_that_had_this_package_at_hand_shows_nothing(tmp_path, monkeypatch):
    out = checkpoint(tmp_path)
    (tmp_path / "start").mkdir()
    (tmp_path / "start/sitecustomize.py").write_text("import hf_focalcse\n")
    here = os.pathsep.join((str(tmp_path / "start"), str(Path(__file__).resolve().parents[2])))
    monkeypatch.setenv("PYTHONPATH", here)
    monkeypatch.setattr(sys, "executable", COLD)  # only an interpreter that starts reads sitecustomize
    with pytest.raises(UserError, match="loaded hf_focalcse, so it does not show .*sitecustomize"):
        export_model(out, sentence_transformers=False)
    assert not (out / "hub").exists()


def limited(out: Path, *, size: int) -> subprocess.CompletedProcess:
    """An export in a process that may write no file larger than ``size``: the write itself fails."""
    program = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from hf_focalcse.cli import main as cli
import hf_focalcse.publishing.export
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
cli.main(["export", {str(out)!r}, "--no_sentence_transformers"])
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_a_full_disk_while_staging_leaves_the_former_export(tmp_path):
    out = checkpoint(tmp_path)
    folder, _ = export_model(out, sentence_transformers=False)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    end = limited(out, size=20_000)  # smaller than the weights
    said = [line for line in end.stderr.splitlines() if line.startswith("error: ")]
    assert end.returncode == 2 and len(said) == 1, end.stderr
    assert "could not be written" in said[0] and "the checkpoint is untouched" in said[0]
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_really_full_disk(tmp_path):
    out = checkpoint(tmp_path)
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", disk]).returncode:
        pytest.skip("mounting a small disk needs root and the right to mount")
    try:
        with pytest.raises(UserError, match="could not be written") as failed:
            export_model(out, disk / "hub")
        assert os.strerror(errno.ENOSPC) in str(failed.value)
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    out = checkpoint(tmp_path)
    monkeypatch.setattr(export_module, "find_spec", lambda name: None)  # a library cannot be uninstalled in a test
    with pytest.raises(UserError, match=r"pip install 'hf_focalcse\[export\]'"):
        export_model(out)
    with pytest.raises(UserError, match=r"pip install 'hf_focalcse\[onnx\]'"):
        export_model(out, sentence_transformers=False, onnx=True)


# ---- what an export holds is remembered


@pytest.fixture
def quick(monkeypatch):
    """Exports without their checks and with an ONNX file that is none."""

    def write_onnx(model, stage, limit):
        (stage / "onnx").mkdir()
        (stage / ONNX_FILE).write_bytes(b"onnx")
        return 1.0

    monkeypatch.setattr(export_module, "write_onnx", write_onnx)
    costs = ("megabytes", "float_megabytes", "lowest_cosine", "mean_cosine", "alone", "texts", "pairs")
    cost = dict.fromkeys(costs, 1.0) | {"spearman": None, "float_spearman": None}
    monkeypatch.setattr(export_module, "write_quantized_onnx", lambda *_: cost)
    monkeypatch.setattr(export_module, "check_vectors", lambda *_: {})


def run_folder(trained, tmp_path) -> Path:
    return shutil.copytree(trained, tmp_path / "out", ignore=shutil.ignore_patterns("checkpoint-*", "hub"))


def holds(folder: Path) -> tuple[bool, bool]:
    return (folder / "modules.json").exists(), (folder / ONNX_FILE).exists()


def test_an_export_holds_what_the_one_before_held(trained, tmp_path, quick, capsys):
    out = run_folder(trained, tmp_path)
    again = lambda folder=None, **options: export_again(out, folder, **options)[0]  # noqa: E731
    assert holds(again()) == (True, False)
    assert holds(again(onnx=True)) == (True, True)
    assert holds(again()) == (True, True) and not capsys.readouterr().out
    assert holds(again(onnx=False)) == (True, False)
    assert capsys.readouterr().out == "WARNING: the export before had onnx/model.onnx; this one has not\n"
    assert holds(again()) == (True, False)
    assert holds(again(tmp_path / "elsewhere", onnx=True, sentence_transformers=False)) == (False, True)
    assert holds(again()) == (False, True)  # wherever it was written
    assert "1_Pooling/config.json" in capsys.readouterr().out
    assert holds(again(sentence_transformers=True)) == (True, True)
    assert json.loads((out / "hub/run.json").read_text())["publication"].get("wanted") is None


def test_the_commands_keep_what_they_are_not_asked_to_leave_out(trained, tmp_path, quick, capsys):
    """A flag that is not given is not the same as one that says no."""
    out = run_folder(trained, tmp_path)
    commands = {
        "--onnx --no_sentence_transformers": (False, True),
        "": (False, True),
        "--sentence_transformers": (True, True),
        "--license mit": (True, True),
    }
    for line, held in commands.items():
        run("export", [str(out), *line.split()])
        assert holds(out / "hub") == held, line
    for folder in (out, out / "hub"):
        run("push", [str(folder), "org/enc", "--dry_run"])
        assert "onnx/model.onnx" in capsys.readouterr().out
    run("export", [str(out), "--onnx", "no"])
    assert holds(out / "hub") == (True, False) and "WARNING: the export before had onnx" in capsys.readouterr().out


def test_an_export_of_version_0_1_keeps_its_onnx(trained, tmp_path, quick):
    out = run_folder(trained, tmp_path)
    export_model(out, onnx=True, sentence_transformers=False)
    record = json.loads((out / "run.json").read_text())
    del record["publication"]["wanted"]  # which it did not write
    (out / "run.json").write_text(json.dumps(record))
    assert holds(export_model(out)[0]) == (False, True)
    record["publication"]["wanted"] = {"sentence_transformers": True, "onnx": False}  # nor change, after training
    (out / "run.json").write_text(json.dumps(record))
    assert holds(export_model(out)[0]) == (True, True)


def test_what_training_asked_for_is_in_its_first_export(trained, tmp_path, quick):
    out = run_folder(trained, tmp_path)
    record = json.loads((out / "run.json").read_text())
    record["publication"]["wanted"] = {"sentence_transformers": False, "onnx": True}
    (out / "run.json").write_text(json.dumps(record))
    assert holds(export_model(out)[0]) == (False, True)


def test_a_run_record_that_cannot_be_written_does_not_keep_an_export_from_being_made(
    trained, tmp_path, quick, monkeypatch
):
    out = run_folder(trained, tmp_path)
    save = RunRecord.save

    def refuse(record, folder):
        if Path(folder) == out:
            raise PermissionError(errno.EACCES, "read-only")
        return save(record, folder)

    monkeypatch.setattr(RunRecord, "save", refuse)
    assert holds(export_model(out, onnx=True)[0]) == (True, True)


def test_an_export_is_pushed_as_it_is(exported):
    check_holds(exported, None, None)
    check_holds(exported, True, False)
    with pytest.raises(UserError, match=r"exported already, without onnx/model\.onnx; give --onnx"):
        check_holds(exported, None, True)
    with pytest.raises(UserError, match=r"exported already, with 1_Pooling/config\.json; give"):
        check_holds(exported, False, None)
