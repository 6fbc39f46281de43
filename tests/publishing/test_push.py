"""Pushing to a real server process with the unmodified client: what arrives, what is sent, every fault and its end."""

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from fake_hub import USER, FakeHub
from patience import PATIENCE
from tiny_run import TOKEN

from hf_focalcse.errors import UserError
from hf_focalcse.publishing.hub import Target, describe, inspect

ROOT = Path(__file__).resolve().parents[2]
REPO = "org/focal-tiny"
READ = "hf_readerREADERreader"
PUSH = """
import json, sys
from hf_focalcse.errors import UserError
from hf_focalcse.publishing import hub
from hf_focalcse.publishing.hub import Target, push
hub.PAUSE = 0.1  # seconds; the client's own pauses stay
try:
    print(push(sys.argv[1], Target(**json.loads(sys.argv[2]))))
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(2)
"""


@pytest.fixture
def server():
    with FakeHub("--token", TOKEN, "--read-token", READ) as hub:
        yield hub


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "hub")


def command(folder: Path, **target) -> list[str]:
    return [sys.executable, "-c", PUSH, str(folder), json.dumps({"repo_id": REPO} | target)]


def environment(server: FakeHub, home: Path, token: str | None = TOKEN) -> dict[str, str]:
    return server.environment(home, token) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def send(server: FakeHub, folder: Path, token: str | None = TOKEN, **target) -> subprocess.CompletedProcess:
    """One push in its own process; what is local is as before, and the token is nowhere in what was said."""
    before = content(folder)
    home = folder.parent / "home"
    end = subprocess.run(
        command(folder, **target),
        env=environment(server, home, token),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert content(folder) == before
    assert TOKEN not in end.stdout + end.stderr and "Traceback" not in end.stderr
    return end


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def remote(server: FakeHub, repo: str = REPO, revision: str = "main") -> dict[str, bytes]:
    """What is stored, read without any client of ours."""

    def get(path: str) -> bytes:
        request = urllib.request.Request(server.url + path, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request) as reply:
            return reply.read()

    rows = json.loads(get(f"/api/models/{repo}/tree/{revision}?recursive=true"))
    names = [row["path"] for row in rows if row["type"] == "file"]
    return {name: get(f"/{repo}/resolve/{revision}/{name}") for name in names if name != ".gitattributes"}


def commits(server: FakeHub) -> list[dict]:
    return [row for row in server.requests() if "/commit/" in row["path"] and row["status"] == 200]


def error(end: subprocess.CompletedProcess) -> str:
    """The one sentence."""
    said = [line for line in end.stderr.splitlines() if line.startswith("error: ")]
    assert end.returncode == 2 and len(said) == 1, end.stderr
    return said[0]


def test_one_commit_with_the_whole_folder_and_none_when_nothing_is_new(server, folder):
    end = send(server, folder, private=True)
    assert end.returncode == 0, end.stderr
    assert end.stdout.strip().startswith(f"{server.url}/{REPO}/commit/")
    assert remote(server) == content(folder) and len(commits(server)) == 1
    log = server.requests()
    (created,) = [row for row in log if row["path"] == "/api/repos/create"]
    assert created["status"] == 200
    assert all(row["token"] for row in log if row["method"] in ("POST", "PUT") and "/_lfs/" not in row["path"])
    assert "/api/validate-yaml" in {row["path"] for row in log if row["status"] == 200}
    with pytest.raises(urllib.error.HTTPError, match="401"):  # private, as asked
        urllib.request.urlopen(f"{server.url}/api/models/{REPO}")
    again = send(server, folder)
    assert again.returncode == 0 and "has all of this already: no commit was made" in again.stdout
    assert len(commits(server)) == 1


def test_a_pull_request_leaves_main_alone(server, folder):
    assert send(server, folder).returncode == 0
    (folder / "run.json").write_text((folder / "run.json").read_text() + " ")
    before = remote(server)
    end = send(server, folder, create_pr=True)
    assert end.returncode == 0 and "/discussions/1" in end.stdout
    assert remote(server) == before and remote(server, revision="refs%2Fpr%2F1") == content(folder)


def test_a_branch_is_made(server, folder):
    assert send(server, folder, revision="next").returncode == 0
    assert remote(server, revision="next") == content(folder) and remote(server) == {}


def test_hand_made_edits_stay_and_new_scores_arrive(server, folder):
    assert send(server, folder).returncode == 0
    edit = """
from huggingface_hub import HfApi
import sys
api = HfApi()
card = open(api.hf_hub_download(sys.argv[1], "README.md")).read()
card = card.replace("## Limits", "## By hand\\n\\nA remark.\\n\\n## Limits")
card = card.replace("license: mit", "license: cc0-1.0")
api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=sys.argv[1])
api.upload_file(path_or_fileobj=b"mine", path_in_repo="notes.txt", repo_id=sys.argv[1])
"""
    env = environment(server, folder.parent / "editor")
    subprocess.run([sys.executable, "-c", edit, REPO], env=env, check=True, capture_output=True)
    card, manifest = folder / "README.md", folder / "export.json"
    new = card.read_text().replace("These scores are of one seed.", "These scores are of one seed of three.")
    card.write_text(new)
    listed = json.loads(manifest.read_text())
    listed["files"].pop("plots/cosines.png")
    manifest.write_text(json.dumps(listed | {"card": new}))
    (folder / "plots/cosines.png").unlink()
    card.write_text("\n".join(line for line in new.splitlines() if "plots/cosines.png" not in line) + "\n")
    assert send(server, folder).returncode == 0
    stored = remote(server)
    text = stored["README.md"].decode()
    assert "A remark." in text and "license: cc0-1.0" in text and "one seed of three" in text
    assert stored["notes.txt"] == b"mine" and "plots/cosines.png" not in stored  # ours and gone, theirs and kept
    assert len(commits(server)) == 4
    assert "no commit was made" in send(server, folder).stdout and len(commits(server)) == 4


def test_a_file_that_an_earlier_push_sent_is_deleted_only_when_asked(server, folder):
    manifest = folder / "export.json"
    without = json.loads(manifest.read_text())
    (folder / "onnx").mkdir()
    (folder / "onnx/model.onnx").write_bytes(b"graph")
    manifest.write_text(json.dumps(without | {"files": without["files"] | {"onnx/model.onnx": "sha"}}))
    assert send(server, folder).returncode == 0 and remote(server)["onnx/model.onnx"] == b"graph"
    shutil.rmtree(folder / "onnx")
    manifest.write_text(json.dumps(without))
    before = remote(server)
    said = error(send(server, folder))
    assert f"{REPO} holds onnx/model.onnx, which {folder} has not, so nothing was sent" in said
    assert "--onnx" in said and f"`focalcse push {folder} {REPO} --allow_deletions`" in said
    assert "onnx/model.onnx" in error(send(server, folder, create_pr=True))
    assert remote(server) == before and len(commits(server)) == 1
    end = send(server, folder, allow_deletions=True)
    assert end.returncode == 0, end.stderr
    assert f"Deleted from {REPO}, since {folder} has it no longer: onnx/model.onnx" in end.stdout
    assert remote(server) == content(folder)


def test_a_name_alone_belongs_to_the_owner_of_the_token(server, folder):
    end = send(server, folder, repo_id="focal-tiny")
    assert end.returncode == 0, end.stderr
    assert f"focal-tiny is taken as {USER}/focal-tiny, of the owner of the token" in end.stdout
    assert remote(server, f"{USER}/focal-tiny") == content(folder)
    assert "does not accept this token for focal-tiny" in error(
        send(server, folder, token="hf_wrongWRONGwrong", repo_id="focal-tiny")
    )
    assert "no token for http://127.0.0.1" in error(send(server, folder, token=None, repo_id="focal-tiny"))
    with pytest.raises(UserError, match="'a/b/c' is not a repository name; give org/name"):
        describe(folder, Target("a/b/c"))


def test_a_command_pushes_under_the_owners_name(server, folder):
    """The card has the whole name, and a name in place of a target will do."""
    argv = [sys.executable, "-m", "hf_focalcse", "push", str(folder), "focal-mine"]
    env = environment(server, folder.parent / "home")
    end = subprocess.run([*argv, "--dry_run"], env=env, capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
    assert f"to {server.url}/{USER}/focal-mine" in end.stdout and commits(server) == []
    program = "import sys, hf_focalcse; from hf_focalcse.cli import main; main.main(sys.argv[1:4]); "
    program += "hf_focalcse.push(*sys.argv[2:4])"
    end = subprocess.run([sys.executable, "-c", program, *argv[3:]], env=env, capture_output=True, text=True)
    assert end.returncode == 0 and "has all of this already" in end.stdout, end.stderr
    card = remote(server, f"{USER}/focal-mine")["README.md"].decode()
    assert f'SentenceTransformer("{USER}/focal-mine")' in card


# ---- faults


PHASES = {
    "create": "POST /api/repos/create",
    "head": f"GET /api/models/{REPO}/revision/|GET /api/models/{REPO}$",
    "card check": "POST /api/validate-yaml",
    "preupload": "POST .*/preupload/",
    "lfs batch": "POST .*/info/lfs/objects/batch",
    "weights": "PUT /_lfs/",
    "verify": "POST /_lfs/verify",
    "commit": "POST .*/commit/",
}


@pytest.mark.parametrize("phase", PHASES)
def test_503_once_in_each_phase(server, folder, phase):
    server.fail(PHASES[phase], status=503)
    end = send(server, folder)
    assert end.returncode == 0, end.stderr
    assert remote(server) == content(folder) and len(commits(server)) == 1
    assert [row["status"] for row in server.requests()].count(503) == 1


@pytest.mark.parametrize("phase", ["create", "commit"])
def test_503_for_good_and_a_second_run_completes(server, folder, phase):
    server.fail(PHASES[phase], count=5, status=503)
    said = error(send(server, folder))
    assert "the Hub answered 503 5 times" in said and f"focalcse push {folder} {REPO}" in said
    assert commits(server) == []
    assert send(server, folder).returncode == 0 and remote(server) == content(folder)


def test_the_connection_is_cut_in_the_middle_of_the_weights(server, folder):
    weights = f"/_lfs/{hashlib.sha256((folder / 'model.safetensors').read_bytes()).hexdigest()}"
    server.fail(f"PUT {weights}", cut_body=10_000)
    end = send(server, folder)
    assert end.returncode == 0, end.stderr
    assert remote(server) == content(folder) and len(commits(server)) == 1
    # other files go up beside the weights, and the log is in the order in which the requests ended
    puts = [row["status"] for row in server.requests() if row["method"] == "PUT" and row["path"] == weights]
    assert puts == [0, 200]


def test_every_connection_is_cut(server, folder):
    server.fail("POST .*/commit/", count=50, cut_body=10)
    said = error(send(server, folder))
    assert "no connection to 127.0.0.1" in said and "the model is safe in" in said and commits(server) == []


def test_401_and_403(server, folder):
    assert "the Hub does not accept this token" in error(send(server, folder, token="hf_wrongWRONGwrong"))
    assert "this token may not write to org" in error(send(server, folder, token=READ))
    assert "this token may not write to stranger" in error(send(server, folder, repo_id="stranger/model"))
    assert "no token for http://127.0.0.1" in error(send(server, folder, token=None))
    assert commits(server) == [] and not [row for row in server.requests() if row["method"] == "PUT"]
    server.fail("POST .*/preupload/", status=403)  # the repository is there, its files may not be written
    assert "may not write to org" in error(send(server, folder))


def test_409(server, folder):
    assert send(server, folder).returncode == 0
    assert send(server, folder).returncode == 0  # 409 of a repository that is there is no fault
    (folder / "run.json").write_text((folder / "run.json").read_text() + " ")
    server.fail("POST .*/commit/", status=409)
    assert f"the Hub reports a conflict for {REPO}" in error(send(server, folder))
    assert send(server, folder).returncode == 0 and remote(server) == content(folder)


def test_412_a_commit_by_somebody_else_in_between(server, folder):
    server.fail("POST .*/commit/", status=412)
    assert send(server, folder).returncode == 0 and remote(server) == content(folder)
    (folder / "run.json").write_text((folder / "run.json").read_text() + " ")
    server.fail("POST .*/commit/", count=5, status=412)
    assert f"somebody else keeps committing to {REPO}" in error(send(server, folder))


def test_the_parent_is_really_stale(server, folder):
    """Somebody's commit lands while ours waits: the server itself answers 412, and both are there in the end."""
    assert send(server, folder).returncode == 0
    (folder / "run.json").write_text((folder / "run.json").read_text() + " ")
    server.fail("POST .*/commit/", held=True)
    env = environment(server, folder.parent / "home")
    pushing = subprocess.Popen(command(folder), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(server, lambda row: "/commit/" in row["path"] and row["status"] == 0)
    other = f"""
from huggingface_hub import HfApi
HfApi().upload_file(path_or_fileobj=b"theirs", path_in_repo="other.txt", repo_id={REPO!r})
"""
    subprocess.run([sys.executable, "-c", other], env=env, check=True, capture_output=True)
    server.release()
    said, _ = pushing.communicate(timeout=PATIENCE)
    assert pushing.returncode == 0 and "412" in said
    assert remote(server) == content(folder) | {"other.txt": b"theirs"}
    assert [row["status"] for row in server.requests() if "/commit/" in row["path"]][-2:] == [412, 200]


@pytest.mark.parametrize("phase", ["weights", "commit"])
def test_killed_during_the_upload_and_run_again(server, folder, phase):
    server.fail(PHASES[phase], held=True)
    before = content(folder)
    env = environment(server, folder.parent / "home")
    pushing = subprocess.Popen(command(folder), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(server, lambda row: row["status"] == 0)
    pushing.send_signal(signal.SIGKILL)
    assert pushing.wait() == -signal.SIGKILL and content(folder) == before
    assert commits(server) == [] and remote(server) == {}  # nothing half published
    assert send(server, folder).returncode == 0
    assert remote(server) == content(folder) and len(commits(server)) == 1


@pytest.mark.exhaustive
def test_twenty_kills_at_random_moments(server, folder):
    """What is on the Hub is nothing or all of it, what lies here is as before, and the same command completes."""
    draw, before = random.Random(3), content(folder)
    began = time.monotonic()
    assert send(server, folder, repo_id="org/whole").returncode == 0
    took = time.monotonic() - began
    env = environment(server, folder.parent / "home")
    for _ in range(20):
        pushing = subprocess.Popen(command(folder), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(draw.uniform(0.3, 1) * took)
        pushing.send_signal(draw.choice([signal.SIGKILL, signal.SIGTERM]))
        pushing.communicate()
        assert content(folder) == before
        found = {} if REPO not in str(server.requests()) else stored(server)
        assert found in ({}, before)
    assert send(server, folder).returncode == 0 and remote(server) == before


def stored(server: FakeHub) -> dict[str, bytes]:
    try:
        return remote(server)
    except urllib.error.HTTPError:  # the repository is not made yet
        return {}


def wait_for(server: FakeHub, found) -> None:
    for _ in range(10 * PATIENCE):
        if any(found(row) for row in server.requests()):
            return
        time.sleep(0.1)
    raise AssertionError("the request never came")


def test_no_server_and_offline(folder):
    with FakeHub() as gone:
        pass
    assert "no connection to 127.0.0.1" in error(send(gone, folder))
    env = environment(gone, folder.parent / "home") | {"HF_HUB_OFFLINE": "1"}
    end = subprocess.run(command(folder), env=env, capture_output=True, text=True)
    assert "HF_HUB_OFFLINE is set, so nothing was sent" in error(end)


# ---- before anything is sent


def add(file: Path, text: str) -> None:
    file.write_text(f"{file.read_text()}\n{text}\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "README.md").unlink(), "has no README.md"),
        (lambda f: (f / "README.md").write_text("---\nlicense: [\n---\n"), "not YAML"),
        (lambda f: (f / "README.md").write_text("# No metadata\n"), "lack library_name"),
        (lambda f: (f / "plots/training.png").unlink(), "lacks plots/training.png, which its export wrote"),
        (
            lambda f: add(f / "README.md", "[notes](notes.txt)"),
            "points to 'notes.txt', which is not published",
        ),
        (lambda f: add(f / "README.md", f"my token is {TOKEN}"), "contains the token"),
        (lambda f: add(f / "README.md", f"{Path.home()}/x"), "contains this machine's home folder"),
        (lambda f: add(f / "tokenizer.json", f"\0{f}"), "contains this machine's path"),
    ],
)
def test_what_may_not_be_published_is_not_sent(folder, change, message):
    change(folder)
    with pytest.raises(UserError, match=message):
        inspect(folder, TOKEN)


def test_dry_run_lists_and_sends_nothing(exported, tmp_path):
    with FakeHub() as server:
        argv = ["push", str(shutil.copytree(exported, tmp_path / "hub")), "org/other", "--dry_run", "--private"]
        env = environment(server, tmp_path / "home", None)
        end = subprocess.run([sys.executable, "-m", "hf_focalcse", *argv], env=env, capture_output=True, text=True)
        assert end.returncode == 0, end.stderr
        assert server.requests() == []
    assert f"to {server.url}/org/other, private if it is new" in end.stdout and "nothing was sent" in end.stdout
    size = (tmp_path / "hub/model.safetensors").stat().st_size
    assert f"{size:,}  model.safetensors" in end.stdout
    assert 'SentenceTransformer("org/other")' not in (tmp_path / "hub/README.md").read_text()
    assert "as a pull request" in describe(tmp_path / "hub", Target("org/other", create_pr=True))
