"""What a push and a dry run may not do: change the folder, send what no export wrote, lose what somebody wrote."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
from faults import snapshot
from huggingface_hub.errors import HfHubHTTPError, HTTPError

from hf_focalcse.cli import main as cli
from hf_focalcse.errors import UserError
from hf_focalcse.publishing import client, hub
from hf_focalcse.publishing.export_records import update_export
from hf_focalcse.publishing.hub import Target, inspect, with_retries
from hf_focalcse.publishing.manifest import parse_manifest, read_manifest
from hf_focalcse.runs.record import RunRecord

STRANGERS = (".env", "id_rsa", ".ssh/config", "old.pkl", "pytorch_model.bin", "training_args.bin", "notes.txt")


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "hub")


@pytest.fixture
def nobody(monkeypatch):
    monkeypatch.setattr("hf_focalcse.publishing.hub.get_token", lambda: "hf_testTOKENtest")


def test_only_what_the_export_wrote_is_sent(folder):
    for name in STRANGERS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("secret")
    said = []
    assert set(inspect(folder, say=said.append)) == {*read_manifest(folder)["files"], "README.md", "export.json"}
    assert len(said) == 1 and said[0].startswith("Not sent, since no export wrote them: .env, .ssh/config")


@pytest.mark.parametrize("name", ["config.json", "plots", "README.md"])
def test_links_are_refused(folder, tmp_path, name):
    shutil.move(folder / name, tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name} is a link, and links are not published"):
        inspect(folder)


def test_what_the_export_wrote_must_be_there(folder):
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"lacks config\.json, which its export wrote; export the training folder"):
        inspect(folder)
    (folder / "export.json").unlink()
    with pytest.raises(UserError, match=r"is no export, since it has no export\.json"):
        inspect(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"files": [1]}', '{"files": {}, "card": 3}', "[" * 100_000,
             '{"files": {"../x": ""}}', '{"files": {"/etc/passwd": ""}}', '{"files": {"C:\\\\x": ""}}']
)  # fmt: skip
def test_a_damaged_manifest_is_refused(folder, text):
    (folder / "export.json").write_text(text)
    with pytest.raises(UserError, match=r"export\.json is damaged .*delete the folder and export"):
        inspect(folder)


def test_a_manifest_with_the_paths_of_windows_is_read():
    assert parse_manifest('{"files": {"1_Pooling\\\\config.json": "x"}}')["files"] == {"1_Pooling/config.json": "x"}


@pytest.mark.parametrize("what", ["export", "training"])
def test_a_dry_run_changes_nothing(folder, trained, tmp_path, nobody, capsys, what):
    work = folder if what == "export" else shutil.copytree(trained, tmp_path / "out")
    before = snapshot(work)
    cli.main(["push", str(work), "org/other", "--dry_run", "--license", "mit", "--language", "de"])
    assert "nothing was sent" in capsys.readouterr().out
    assert snapshot(work) == before


BROKEN = "---\nlicense: [mit\n---\nmy own words\n"


@pytest.mark.parametrize("command", ["push", "dry run", "eval", "export"])
def test_a_card_that_is_no_yaml_is_not_lost(folder, trained, tmp_path, nobody, capsys, command):
    out = shutil.copytree(trained, tmp_path / "out")
    (folder / "README.md").write_text(BROKEN)
    argv = {
        "push": ["push", str(folder), "org/other"],
        "dry run": ["push", str(folder), "org/other", "--dry_run"],
        "eval": ["eval", str(folder), "--eval_file", str(trained.parent / "graded.tsv"), "--device", "cpu"],
        "export": ["export", str(out), "--output_dir", str(folder), "--no_sentence_transformers"],
    }[command]
    before = snapshot(folder)
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    said = capsys.readouterr().err
    assert end.value.code == 2 and "README.md are not YAML" in said and "Traceback" not in said
    after = snapshot(folder)
    assert after["README.md"].decode() == BROKEN
    assert command == "eval" or after == before


def test_an_update_that_is_cut_short_is_done_again(folder, monkeypatch):
    """run.json, by which it is seen whether there is something to do, is written last."""
    from hf_focalcse.publishing import export_records

    write, done = export_records.write_bytes, []

    def dying(path, content):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(path)
        write(path, content)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(export_records, "write_bytes", dying)
        update_export(folder, {"license": "cc0-1.0"})
    update_export(folder, {"license": "cc0-1.0"})
    assert RunRecord.load(folder).publication["license"] == "cc0-1.0"
    assert "license: cc0-1.0" in (folder / "README.md").read_text()
    assert "license: cc0-1.0" in read_manifest(folder)["card"]


def test_a_folder_that_is_no_run_is_left_as_it_is(trained, tmp_path, nobody):
    checkpoint = shutil.copytree(trained, tmp_path / "checkpoint-4")
    (checkpoint / "run.json").unlink()
    before = snapshot(checkpoint)
    with pytest.raises(SystemExit):
        cli.main(["push", str(checkpoint), "org/other"])
    assert snapshot(checkpoint) == before


# ---- the Hub's client


def test_the_token_goes_to_the_hub_alone(monkeypatch):
    for endpoint, url, kept in (
        ("https://huggingface.co", "https://huggingface.co/api/models", True),
        ("https://huggingface.co", "https://huggingface.co:443/api/models", True),
        ("https://huggingface.co", "http://huggingface.co/api/models", False),
        ("https://huggingface.co", "https://huggingface.co.evil.example/verify", False),
        ("https://huggingface.co", "https://evil.example/verify", False),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000/verify", True),
        ("http://127.0.0.1:5000", "http://127.0.0.1:6000/verify", False),  # of another user of this machine
        ("http://127.0.0.1:5000", "http://user@127.0.0.1:5000/verify", True),
    ):
        monkeypatch.setattr(client.constants, "ENDPOINT", endpoint)
        headers = {"authorization": "Bearer hf_x", "x-hub-token": "hf_x", "accept": "*/*"}
        request = SimpleNamespace(url=url, headers=headers)
        client.keep_token_home(request)
        assert ("authorization" in request.headers, "x-hub-token" in request.headers) == (kept, kept), url
        assert request.headers["accept"] == "*/*"


def test_the_client_has_a_time_limit_and_no_hour_of_silence():
    made = client.careful_client()
    assert made.timeout.read == client.SILENCE == made.timeout.connect
    assert client.keep_token_home in made.event_hooks["request"] and len(made.event_hooks["request"]) > 1
    response = SimpleNamespace(status_code=429, headers={"ratelimit": '"api";r=0;t=3600', "retry-after": "1"})
    client.shorten_wait(response)
    assert response.headers == {"retry-after": "1"}


def failing(error):
    def call():
        raise error

    return call


def wrapped(status):
    """As the client raises what fails in an upload of weights."""
    library = sys.modules[HTTPError.__module__.partition(".")[0]]  # httpx, or the fork of it that the client uses
    request = library.Request("PUT", "http://localhost/x")
    cause = HfHubHTTPError("no", response=library.Response(status, request=request))
    error = RuntimeError("Error while uploading 'model.safetensors' to the Hub.")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("status", [400, 403, 404, 413, 500, 503])
def test_a_lasting_failure_of_the_upload_is_one_sentence(monkeypatch, tmp_path, status):
    monkeypatch.setattr(hub, "PAUSE", 0.0)
    with pytest.raises(UserError, match="the model is safe in"):
        with_retries(failing(wrapped(status)), Target("org/x"), tmp_path, "hf_secret", lambda _: None)


@pytest.mark.parametrize(
    "error", [KeyError("objects"), TypeError("hf_secret"), AttributeError("x"), IndexError("x"), RuntimeError("x")]
)
def test_an_answer_without_its_keys_is_one_sentence(tmp_path, error):
    with pytest.raises(UserError, match=r"org/x was not updated: .*; the model is safe") as said:
        with_retries(failing(error), Target("org/x"), tmp_path, "hf_secret", lambda _: None)
    assert "hf_secret" not in str(said.value)


# ---- paths and tokens in what is published


def test_neither_paths_nor_tokens_nor_strangers_keys(exported):
    record = RunRecord.load(exported)
    record.settings |= {"reference_model": "private customer/acme/ref", "run_name": "/home/me/secret project/run"}
    record.command = [
        "x",
        "--reference_model",
        "private customer/acme/ref",
        "--run_name",
        "/home/me/secret project/run",
    ]
    record.command += ["--hub_token=hf_abcdefgh", "https://user:hf_abcdefgh@host/x", r"C:\Users\me\secret\x.txt"]
    record.model["reference"] = {"name_or_path": "private customer/acme/ref"}
    text = json.dumps(record.publishable().__dict__)
    for secret in ("private customer", "acme", "/home/me", "secret", "hf_abcdefgh", "Users"):
        assert secret not in text, secret
