"""The promises of SECURITY.md: no pickle, no code of others, no token, no connection elsewhere."""

import ast
import json
import os
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from faults import command, snapshot
from tiny_run import TOKEN, TRAIN, write_inputs

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "hf_focalcse").rglob("*.py"))
REFUSED = {"eval", "exec", "compile", "__import__"}  # built-in functions that run text
MODULES = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def calls(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_call_opens_a_pickle_or_runs_text(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        error_alone = isinstance(node, ast.ImportFrom) and [name.name for name in node.names] == ["UnpicklingError"]
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not (node.level or error_alone) else []
        assert not {name.partition(".")[0] for name in names} & MODULES, ast.unparse(node)
    for node, name in calls(file):
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        assert name not in REFUSED | {"torch.load", "os.system", "os.popen", "torch.save"}, ast.unparse(node)
        assert given.get("shell", "False") == "False" and given.get("allow_pickle", "False") == "False"
        assert given.get("trust_remote_code", "False") == "False", ast.unparse(node)
        assert name not in ("yaml.load", "yaml.unsafe_load") or ast.unparse(node.args[1]) == "_Loader"
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "trust_remote_code":
                    assert ast.unparse(value) == "False"


def test_every_call_that_could_run_code_of_others_or_read_a_pickle_says_that_it_must_not():
    found = set()
    for file in SOURCES:
        text = file.read_text(encoding="utf-8")
        for node, name in calls(file):
            loads = name.endswith(".from_pretrained") and not name.startswith(
                "type(config)"
            )  # a class of transformers
            if (loads or name in ("SentenceTransformer", "CrossEncoder")) and file.name != "usage.py":
                passed = {word.arg for word in node.keywords}
                if name != "super().from_pretrained" or "class AutoModel" in text:  # a model's class runs its own code
                    said = "trust_remote_code" in passed or (None in passed and "trust_remote_code" in text)
                    assert said, (file, name)
                if name.startswith("AutoModel") or file.name == "saving.py":
                    assert "use_safetensors" in passed or (None in passed and "use_safetensors" in text), (file, name)
                found.add(name)
    assert {"AutoConfig.from_pretrained", "AutoModelForMaskedLM.from_pretrained"} <= found, found


# ---- runs


class Evil:
    """A pickle of it makes a file when it is opened."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return (os.mkdir, (self.mark,))


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    from hf_focalcse.cli import main as cli

    place = write_inputs(tmp_path_factory.mktemp("security"))
    cli.main(["train", *TRAIN.format(place).split()])
    return place


def plant(place: Path, mark: Path) -> None:
    import pickle

    evil = pickle.dumps(Evil(mark))
    for folder in (place / "tiny", place / "out"):
        for name in ("pytorch_model.bin", "training_args.bin", "model.pkl", "mlp.bin", "adapter_model.bin"):
            (folder / name).write_bytes(evil)
    np.savez(place / "out/pairs.npz", **{"about.json": np.array([Evil(mark)], dtype=object)}, allow_pickle=True)
    checkpoint = max((place / "out").glob("checkpoint-*"))
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / name).write_bytes(evil)
        manifest["files"][name] = [len(evil), zlib.crc32(evil)]
    (checkpoint / "checkpoint.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("what", ["train", "mlm", "resume", "eval", "export"])
def test_planted_pickles_are_not_opened(ranks, desk, tmp_path, what):
    place = tmp_path / "work"
    shutil.copytree(desk, place)
    plant(place, tmp_path / "mark")
    argv = {
        "train": ["train", *TRAIN.format(place).split(), "--overwrite_output_dir"],
        "mlm": ["train", *TRAIN.format(place).split(), "--overwrite_output_dir", "--objective", "mlm"],
        "resume": ["train", *TRAIN.format(place).split(), "--resume_from_checkpoint", "last"],
        "eval": ["eval", str(place / "out"), "--eval_file", str(place / "graded.tsv"), "--device", "cpu"],
        "export": ["export", str(place / "out"), "--no_sentence_transformers"],
    }[what]
    code, said, events = ranks(1, watched, argv)[0]
    assert not (tmp_path / "mark").exists() and "Traceback" not in said, said
    assert code == (2 if what == "resume" else 0), said
    assert events == {"pickles": [], "connections": []}


def test_tokens_are_in_no_output_and_nothing_is_sent(ranks, desk, tmp_path):
    place = tmp_path / "work"
    shutil.copytree(desk, place)
    out = str(place / "out")
    login = f"https://user:{TOKEN}@example.org/x"
    for argv in (
        ["train", *TRAIN.format(place).split(), "--overwrite_output_dir", "--run_name", login],
        ["export", out],
        ["eval", out, "--eval_file", str(place / "graded.tsv"), "--device", "cpu"],
        ["table", out],
        ["train", "--train_file", login, "--output_dir", str(place / "other")],
    ):
        code, said, events = ranks(1, watched, argv, env={"HF_TOKEN": TOKEN})[0]
        assert code == (2 if "other" in argv[-1] else 0), said
        assert TOKEN not in said and events["connections"] == []
    assert not [name for name, content in snapshot(place).items() if TOKEN.encode() in content]
    written = snapshot(place / "out/hub")
    assert written and not [name for name, content in written.items() if TOKEN.encode() in content]
    assert not [name for name, content in written.items() if str(tmp_path).encode() in content]
    assert not [name for name in written if name.endswith((".pt", ".pth", ".bin", ".pkl"))]


def watched(argv):
    """The command, with the pickles that it opened and the connections that it made; it is not told to be offline."""
    import datasets
    import huggingface_hub.constants

    huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = False
    events = {"pickles": [], "connections": []}

    def watch(event, args):
        if event == "pickle.find_class":
            events["pickles"].append(f"{args[0]}.{args[1]}")
        if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            events["connections"].append(str(args[1:]))

    sys.addaudithook(watch)
    code, said, _ = command(argv)
    return code, said, {name: list(found) for name, found in events.items()}
