"""The fake Hub against the unmodified clients, each a process of its own because HF_ENDPOINT is read at import."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from fake_hub import FakeHub, File, Hub, Refusal, Request, answer, front_matter
from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
REVISION = "0123456789abcdef0123456789abcdef01234567"
SENTENCES = ["A first sentence.", 'With "quotes", commas.', "NA", "The last one."]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """One server with a text data set and a table, both under a pinned revision."""
    text, table, several = (tmp_path_factory.mktemp(name) for name in ("text", "table", "several"))
    (text / "wiki.txt").write_text("\n".join(SENTENCES) + "\n\n")
    (text / "latin.txt").write_bytes(b"good\nbad \xe9\n")
    (table / "train.csv").write_text("id,text\n1,one\n2,two\n")
    (table / "test.csv").write_text("id,text\n3,three\n")
    configs = [f"- config_name: {name}\n  data_files: {name}.csv\n" for name in ("first", "second")]
    (several / "README.md").write_text(f"---\nconfigs:\n{''.join(configs)}---\n")
    for name in ("first", "second"):
        (several / f"{name}.csv").write_text(f"id,text\n1,of the {name}\n")
    with FakeHub("--any-revision", "--repo", f"dataset:org/text={text}") as hub:
        hub.seed("dataset", "org/table", table, commit=REVISION)
        hub.seed("dataset", "org/several", several)
        yield hub


def run(hub: FakeHub, home: Path, program: str, token: str | None = None, **values) -> dict:
    """What the program leaves in ``out``, a dict; it sees ``values`` as ``given``, and HF_... in its environment."""
    source = "import json, sys\ngiven, out = json.loads(sys.argv[1]), {}\n" + textwrap.dedent(program)
    source += "\nprint('\\n' + json.dumps(out))"
    environment = hub.environment(home, token) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {name: values.pop(name) for name in list(values) if name.startswith("HF_")}
    command = [sys.executable, "-c", source, json.dumps(values, default=str)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_upload_and_download_round_trip(tmp_path):
    """A folder with a nested file and an LFS file comes back byte for byte; all in one commit, nothing anonymous."""
    folder = tmp_path / "folder"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\ntags: [a, b]\n---\n# Card\n")
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 5000)
    (folder / "_secret.txt").write_text("no")
    with FakeHub("--token", "hf_write", "--read-token", "hf_read") as hub:
        program = """
            from pathlib import Path
            from huggingface_hub import HfApi, ModelCard, snapshot_download
            from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
            api = HfApi()
            out["name"] = api.whoami()["name"]
            api.create_repo("org/model", private=True)
            api.create_repo("org/model", exist_ok=True)
            first = api.upload_folder(repo_id="org/model", folder_path=given["folder"], ignore_patterns=["_*"])
            again = api.upload_folder(repo_id="org/model", folder_path=given["folder"], ignore_patterns=["_*"])
            out["same_commit"] = first.oid == again.oid
            info = api.model_info("org/model", files_metadata=True)
            out["info"] = [info.private, info.sha == first.oid, info.card_data.license, info.tags]
            out["sizes"] = {row.rfilename: [row.size, row.lfs is not None] for row in info.siblings}
            back = Path(snapshot_download("org/model"))
            out["differ"] = [name for name in out["sizes"] if name != ".gitattributes" and
                             (back / name).read_bytes() != (Path(given["folder"]) / name).read_bytes()]
            out["listed"] = api.list_repo_files("org/model")
            out["folder"] = [row.path for row in api.list_repo_tree("org/model", "1_Pooling")]
            out["card"] = ModelCard.load("org/model").data.tags
            start = api.upload_file(path_or_fileobj=b"1", path_in_repo="a", repo_id="org/model").oid
            try:
                api.upload_file(path_or_fileobj=b"2", path_in_repo="a", repo_id="org/model", parent_commit=first.oid)
            except HfHubHTTPError as error:
                out["stale"] = error.response.status_code
            request = api.upload_file(path_or_fileobj=b"3", path_in_repo="a", repo_id="org/model", create_pr=True)
            out["pr"] = [request.pr_revision, api.hf_hub_download("org/model", "a", revision=request.pr_revision)]
            out["pr"][1] = Path(out["pr"][1]).read_text()
            api.create_tag("org/model", tag="v1")
            api.create_branch("org/model", branch="side")
            found = api.list_repo_refs("org/model", include_pull_requests=True)
            out["refs"] = [[row.name for row in rows] for rows in (found.branches, found.tags, found.pull_requests)]
            out["titles"] = [row.title for row in api.list_repo_commits("org/model")]
            out["exists"] = [api.file_exists("org/model", "a"), api.file_exists("org/model", "b"),
                             api.revision_exists("org/model", "v2"), api.repo_exists("org/none")]
            api.delete_file("a", "org/model")
            api.delete_repo("org/model")
            out["gone"] = not api.repo_exists("org/model")
        """
        out = run(hub, tmp_path / "home", program, token="hf_write", folder=folder)
        log = hub.requests()
    assert out["name"] == "tester" and out["same_commit"] and out["differ"] == [] and out["gone"]
    assert out["info"] == [True, True, "apache-2.0", ["a", "b"]] and out["card"] == ["a", "b"]
    assert out["sizes"]["model.safetensors"] == [256 * 5000, True] and out["sizes"]["README.md"][1] is False
    assert sorted(out["listed"]) == sorted(out["sizes"]) and "_secret.txt" not in out["listed"]
    assert out["folder"] == ["1_Pooling/config.json"]
    assert out["stale"] == 412 and out["pr"] == ["refs/pr/1", "3"]
    assert out["refs"] == [["main", "side"], ["v1"], ["refs/pr/1"]] or out["refs"] == [["main", "side"], ["v1"], ["1"]]
    assert out["titles"][-1] == "initial commit" and len(out["titles"]) == 3
    assert out["exists"] == [True, False, False, False]
    assert sum(row["path"].endswith("/preupload/main") for row in log) >= 2
    assert all(row["token"] for row in log if row["method"] in ("POST", "PUT") and "/_lfs/" not in row["path"])


def test_refusals(tmp_path):
    with FakeHub("--token", "hf_write", "--read-token", "hf_read") as hub:
        hub.seed("model", "org/private", tmp_path, private=True)
        program = """
            from huggingface_hub import HfApi
            from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
            def status(call, *arguments, **settings):
                try:
                    call(*arguments, **settings)
                    return 200
                except (HfHubHTTPError, ValueError) as error:
                    return [type(error).__name__, getattr(getattr(error, "response", None), "status_code", None)]
            for name, token in (("nobody", False), ("reader", "hf_read"), ("writer", "hf_write"), ("wrong", "hf_no")):
                api = HfApi(token=token)
                out[name] = [status(api.create_repo, "org/new"), status(api.model_info, "org/private")]
            out["again"] = status(api.create_repo, "org/new", token="hf_write")
            out["foreign"] = status(api.create_repo, "stranger/new", token="hf_write")
            out["revision"] = status(api.model_info, "org/new", revision="nope", token="hf_write")
            bad = b"---\\nlicense: [\\n---\\n"
            out["yaml"] = status(api.upload_file, path_or_fileobj=bad, path_in_repo="README.md", repo_id="org/new",
                                 token="hf_write")
        """
        out = run(hub, tmp_path / "home", program)
    assert out["nobody"] == [["HfHubHTTPError", 401], ["RepositoryNotFoundError", 401]]
    assert out["reader"] == [["HfHubHTTPError", 403], 200]
    assert out["writer"] == [200, 200]
    assert out["wrong"] == out["nobody"]
    assert out["again"] == ["HfHubHTTPError", 409] and out["foreign"] == ["HfHubHTTPError", 403]
    assert out["revision"] == ["RevisionNotFoundError", 404] and out["yaml"][0] == "ValueError"


def test_model_and_tokenizer_load_by_id(hub, tmp_path):
    program = """
        import torch
        from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizer
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
        tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(words)})
        sizes = dict(vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        model = BertModel(BertConfig(**sizes)).eval()
        for each in (model, tokenizer):
            each.push_to_hub("org/pushed")
        there = AutoModel.from_pretrained("org/pushed").eval()
        ids = AutoTokenizer.from_pretrained("org/pushed")(["a b", "b"], padding=True, return_tensors="pt")
        with torch.no_grad():
            out["equal"] = torch.equal(model(**ids).last_hidden_state, there(**ids).last_hidden_state)
        out["ids"] = ids["input_ids"].tolist()
    """
    out = run(hub, tmp_path / "home", program)
    assert out == {"equal": True, "ids": [[2, 5, 6, 3], [2, 6, 3, 0]]}


def test_load_dataset_from_text_and_table(hub, tmp_path):
    program = """
        from datasets import load_dataset
        from huggingface_hub import hf_hub_download
        out["text"] = load_dataset("org/text", data_files="wiki.txt", split="train")["text"]
        table = load_dataset("org/table", revision=given["sha"])
        out["table"] = {name: list(rows["text"]) for name, rows in table.items()}
        out["stream"] = next(iter(load_dataset("org/table", split="test", streaming=True)))["text"]
        out["file"] = open(hf_hub_download("org/table", "test.csv", repo_type="dataset")).read()
        out["text"] = list(out["text"])
    """
    out = run(hub, tmp_path / "home", program, sha=REVISION)
    assert out["text"] == [*SENTENCES, ""]
    assert out["table"] == {"train": ["one", "two"], "test": ["three"]} and out["stream"] == "three"
    assert out["file"] == "id,text\n3,three\n"


def test_read_sentences_from_the_hub(hub, tmp_path):
    program = """
        from hf_focalcse.data.sentences import read_sentences
        def read(**settings):
            sentences = read_sentences(**settings)
            return [row["text"] for row in sentences], sentences.report.source, sentences.report.sha256
        out["file"] = read(dataset_name="org/text", dataset_file="wiki.txt")
        out["pinned"] = read(dataset_name="org/text", dataset_file="wiki.txt", dataset_revision="ab" * 20)
        out["csv"] = read(dataset_name="org/table", dataset_file="train.csv", text_column="text")
        out["split"] = read(
            dataset_name="org/table", dataset_split="test", dataset_revision="main", text_column="text"
        )
        out["train"] = read(dataset_name="org/table", text_column="text")
        out["config"] = read(dataset_name="org/several", dataset_config="second", text_column="text")
    """
    out = run(hub, tmp_path / "home", program)
    assert out["config"][0] == ["of the second"]
    assert out["file"][:2] == [SENTENCES, "org/text/wiki.txt"] and out["pinned"] == out["file"]
    assert out["csv"][:2] == [["one", "two"], "org/table/train.csv"]
    assert out["split"][:2] == [["three"], "org/table (test)"]
    assert out["train"][0] == out["csv"][0] and out["train"][2] == out["csv"][2]
    assert any(f"/resolve/{'ab' * 20}/wiki.txt" in row["path"] for row in hub.requests())


def test_read_sentences_says_what_failed_at_the_hub(hub, tmp_path):
    program = """
        from hf_focalcse.data.sentences import read_sentences
        from hf_focalcse.errors import UserError
        for case, settings in given["cases"].items():
            try:
                read_sentences(**settings)
                out[case] = "no error"
            except UserError as error:
                out[case] = str(error)
    """
    cases = {
        "repository": ({"dataset_name": "org/none", "dataset_file": "a.txt"}, ["org/none", "404", "hf auth login"]),
        "file": (
            {"dataset_name": "org/text", "dataset_file": "a.txt"},
            ["no file 'a.txt'", "/datasets/org/text/tree"],
        ),
        "revision": ({"dataset_name": "org/text", "dataset_file": "wiki.txt", "dataset_revision": "x"}, ["'x'"]),
        "id": ({"dataset_name": "a/b/c", "dataset_file": "a.txt"}, ["'a/b/c' is not a Hub id", "--train_file"]),
        "suffix": ({"dataset_name": "org/text", "dataset_file": ".gitattributes"}, ["must end in .txt"]),
        "no config": (
            {"dataset_name": "org/several"},
            ["org/several has several configurations; give --dataset_config, one of: first, second"],
        ),
        "config": ({"dataset_name": "org/several", "dataset_config": "third"}, ["--dataset_config", "first, second"]),
        "bytes": ({"dataset_name": "org/text", "dataset_file": "latin.txt"}, ["org/text/latin.txt, line 2, byte 5"]),
        "split": ({"dataset_name": "org/table", "dataset_split": "dev"}, ["org/table (split 'dev')", "train", "test"]),
        "whole": ({"dataset_name": "org/none"}, ["org/none", "--train_file"]),
        "whole id": ({"dataset_name": "a/b/c"}, ["a/b/c", "--train_file"]),
        "column": ({"dataset_name": "org/table", "text_column": "txt"}, ["no column 'txt'", "'id', 'text'"]),
        "number": (
            {"dataset_name": "org/table", "text_column": "id"},
            ["row 1: 'id' must be a string or null, not 1"],
        ),
    }
    out = run(hub, tmp_path / "home", program, cases={name: case[0] for name, case in cases.items()})
    hub.seed("dataset", "org/forbidden", tmp_path)
    hub.fail("/datasets/org/forbidden/resolve/", count=20, status=403)
    forbidden = {"dataset_name": "org/forbidden", "dataset_file": "wiki.txt"}
    out |= run(hub, tmp_path / "other", program, cases={"forbidden": forbidden})
    offline = {"offline": forbidden, "offline whole": {"dataset_name": "org/text"}}
    out |= run(hub, tmp_path / "third", program, cases=offline, HF_HUB_OFFLINE="1")
    for name, (_, parts) in cases.items():
        assert all(part in out[name] for part in parts), (name, out[name])
    for name, message in out.items():
        assert "\n" not in message and not message.endswith(".") and ". " not in message, (name, message)


def test_faults_are_injected_and_survived(tmp_path):
    """The client tries again after a 503 and after a download that was cut; a failed commit is an error."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "big.bin").write_bytes(b"0123456789" * 100_000)
    with FakeHub() as hub:
        hub.seed("model", "org/model", folder)
        hub.fail("GET .*/resolve/.*big.bin", cut=300_000)
        hub.fail("POST .*/preupload/", status=503)
        hub.fail("POST .*/commit/", status=500)
        program = """
            from huggingface_hub import HfApi, hf_hub_download
            from huggingface_hub.errors import HfHubHTTPError
            out["size"] = len(open(hf_hub_download("org/model", "big.bin"), "rb").read())
            upload = dict(path_or_fileobj=b"1", path_in_repo="a", repo_id="org/model")
            try:
                HfApi().upload_file(**upload)
            except HfHubHTTPError as error:
                out["commit"] = error.response.status_code
            HfApi().upload_file(**upload)
        """
        out = run(hub, tmp_path / "home", program)
        log = hub.requests()
    assert out == {"size": 1_000_000, "commit": 500}
    assert [row["status"] for row in log if "/preupload/" in row["path"]] == [503, 200, 200]
    assert [row["status"] for row in log if row["method"] == "GET" and "big.bin" in row["path"]] == [200, 200]


# Without a client


def test_states_by_hand(tmp_path):
    (tmp_path / "README.md").write_text("hello\n")
    hub = Hub(any_revision=True)
    repo = hub.seed("model", "org/name", tmp_path, commit=REVISION)
    assert repo.at("main").sha == REVISION and repo.at(REVISION) is repo.at("main")
    assert repo.at("f" * 40).sha == "f" * 40 and repo.at("f" * 40).files == repo.at("main").files
    assert repo.at("main").files["README.md"].git_oid == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object
    with pytest.raises(Refusal, match="Invalid rev id: nope"):
        repo.at("nope")
    assert File("a.bin", b"x", True).oid == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def test_front_matter():
    assert front_matter("---\na: 1\n---\ntext") == {"a": 1}
    assert front_matter("text") == front_matter("---\n---\n") == {}
    with pytest.raises(ValueError, match="mapping"):
        front_matter("---\n- a\n---\n")


@pytest.mark.parametrize(
    ("asked", "status", "content"),
    [
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=8-99", 206, b"89"),
        ("bytes=-3", 206, b"789"),
        ("bytes=10-", 416, b""),
    ],
)
def test_ranges(tmp_path, asked, status, content):
    (tmp_path / "a").write_bytes(b"0123456789")
    hub = Hub()
    hub.seed("dataset", "org/name", tmp_path)
    request = Request("GET", "/datasets/org/name/resolve/main/a", {}, {"range": asked}, b"")
    reply = answer(hub, request)
    assert (reply.status, reply.content) == (status, content)
    assert reply.headers["Content-Range"].endswith("/10")
