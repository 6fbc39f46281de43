"""From a training run to the Hub and back, every step its own process against a real server."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import yaml
from fake_hub import FakeHub
from huggingface_hub import ModelCard
from patience import PATIENCE
from tiny import SENTENCES, save_tiny
from tiny_run import TOKEN
from warm import COLD

from hf_focalcse.encoder.loading import load_model
from hf_focalcse.evaluation import STS_TASKS, Results
from hf_focalcse.publishing.usage import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
REPO = "org/focal-bert-base"
STRANGER = f"""
import sys, json
sys.path.append({sysconfig.get_path("purelib")!r})  # started without site: no editable install is on the path
from importlib.util import find_spec
assert find_spec("hf_focalcse") is None
import torch
from transformers import AutoModel, AutoTokenizer
from sentence_transformers import SentenceTransformer
texts = json.loads(sys.argv[2])
model, report = AutoModel.from_pretrained(sys.argv[1], output_loading_info=True)
batch = AutoTokenizer.from_pretrained(sys.argv[1])(texts, padding=True, return_tensors="pt")
with torch.no_grad():
    cls = model.eval()(**batch).last_hidden_state[:, 0]
other = SentenceTransformer(sys.argv[1], device="cpu")
print(json.dumps({{"report": {{k: sorted(map(str, v)) for k, v in report.items()}}, "cls": cls.tolist(),
                   "vectors": other.encode(texts).tolist(), "class": type(model).__name__}}))
"""


def write_set(folder: Path, sizes: dict[str, int]) -> Path:
    """A set of the published size from few sentences, so that it is whole and yet quick."""
    folder.mkdir(parents=True)
    pairs = [(a, b, 5 - abs(i - j) / 2) for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)]
    for split, size in sizes.items():
        rows = [dict(zip(("sentence1", "sentence2", "score"), pairs[i % 64], strict=True)) for i in range(size)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base = tmp_path_factory.mktemp("hub")
    (base / "text").mkdir()
    (base / "text/wiki1m_for_simcse.txt").write_text("".join(f"{s} {i}\n" for i in range(4) for s in SENTENCES))
    with FakeHub("--token", TOKEN) as hub:
        hub.seed("model", "org/base", save_tiny(base / "tiny", initializer_range=0.4))
        hub.seed("dataset", "princeton-nlp/datasets-for-simcse", base / "text")
        for name, task in STS_TASKS.items():
            sizes = {split.hub: split.size for split in task.splits if split.hub}
            hub.seed("dataset", task.hub_id, write_set(base / name, sizes), commit=task.revision)
        yield hub


class Desk:
    """Somebody's working folder, which is also their home; each `fresh` start has an empty cache."""

    def __init__(self, server: FakeHub, folder: Path):
        self.server, self.folder, self.said, self.starts = server, folder, "", 0

    def run(self, *argv: str, fresh: bool = True, path: str = str(ROOT), **env: str) -> str:
        self.starts += fresh
        names = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "HOME": str(self.folder)}
        environment = self.server.environment(self.folder.parent / f"cache{self.starts}", TOKEN) | names | env
        end = subprocess.run(argv, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        self.said += end.stdout + end.stderr
        assert end.returncode == 0, end.stderr
        return end.stdout


@pytest.fixture(scope="module")
def desk(server, tmp_path_factory):
    """After ``accelerate launch run_unsup.py … --push_to_hub`` with relative paths."""
    desk = Desk(server, tmp_path_factory.mktemp("home") / "somebody")
    desk.folder.mkdir()
    line = (
        "--recipe bert-base --loss focal --model_name_or_path org/base --per_device_train_batch_size 8 --max_steps 4"
    )
    line += f" --logging_steps 1 --eval_steps 2 --use_cpu --output_dir out --push_to_hub --hub_model_id {REPO}"
    launch = [sys.executable, "-m", "accelerate.commands.launch", str(ROOT / "run_unsup.py")]
    desk.run(*launch, *line.split(), "--license", "apache-2.0", "--language", "en", "--private")
    return desk


@pytest.fixture(scope="module")
def card(desk) -> ModelCard:
    """As the client loads it after ``run_eval.py … --push_to_hub`` from the Hub id alone."""
    argv = [sys.executable, str(ROOT / "run_eval.py"), "--model_name_or_path", REPO]
    desk.run(*argv, "--push_to_hub", "--output_dir", "judged", "--compare", "base=../base.json", "base=../base2.json")
    script = f"from huggingface_hub import ModelCard; print(ModelCard.load({REPO!r}).content)"
    return ModelCard(desk.run(sys.executable, "-c", script))


@pytest.fixture(scope="module", autouse=True)
def others(desk):
    """Scores of two other encoders, to be set beside this one."""
    keys = [f"{name}/{'mteb-' * (name == 'SICK-R')}test" for name in STS_TASKS]
    for file, shift in (("base.json", 0.0), ("base2.json", 2.0)):
        scores = {f"{key}/all/spearman": 50.0 + shift for key in keys} | {
            "average/mteb-sickr/all/spearman": 50.0 + shift
        }
        Results(scores, {"format": 1, "protocol": "p", "model": {}, "data": {}}).write(desk.folder.parent / file)


def stored(desk: Desk, name: str) -> str:
    script = f"from huggingface_hub import hf_hub_download; print(open(hf_hub_download({REPO!r}, {name!r})).read())"
    return desk.run(sys.executable, "-c", script)


def test_strangers_read_it_to_our_vectors(desk):
    argv = [sys.executable, "-S", "-c", STRANGER, REPO, json.dumps(SENTENCES)]
    found = json.loads(desk.run(*argv, path="").splitlines()[-1])
    assert not any(found["report"].values()) and found["class"] == "BertModel"
    ours = load_model(str(desk.folder / "out")).encode(SENTENCES)
    assert np.abs(np.array(found["cls"]) - ours).max() < 1e-6
    assert np.abs(np.array(found["vectors"]) - ours).max() < 1e-6
    log = desk.server.requests()
    assert sum("/commit/" in row["path"] for row in log) == 1
    assert not [row for row in log if row["path"] == "/api/repos/create" and not row["token"]]


def test_the_dev_score_of_the_card_comes_out_again(desk):
    key = "STSBenchmark/dev/all/spearman"
    recorded = json.loads(stored(desk, "results.json"))[key]
    desk.run(sys.executable, str(ROOT / "run_eval.py"), *f"--model_name_or_path {REPO} --splits dev".split())
    (file,) = desk.folder.glob("results/*/results.json")
    assert Results.read(file).scores[key] == pytest.approx(recorded, abs=1e-4)
    value = {metric["name"]: metric["value"] for metric in metrics(ModelCard(stored(desk, "README.md")))}[key]
    assert value == recorded == json.loads((desk.folder / "out/run.json").read_text())["final"][key]


def metrics(card: ModelCard) -> list[dict]:
    results = card.data.to_dict()["model-index"][0]["results"]
    return [metric | {"dataset": result["dataset"]} for result in results for metric in result["metrics"]]


def test_model_index_is_results_json(desk, card):
    results = json.loads(stored(desk, "results.json"))
    listed = {metric["name"]: metric["value"] for metric in metrics(card)}
    wanted = {key: value for key, value in results.items() if key.endswith(("/all/spearman", "/all/pearson"))}
    assert listed == {key: value for key, value in wanted.items() if not key.startswith("average/")}
    assert len(listed) == 16  # the seven and STS-B dev, by two measures
    for metric in metrics(card):
        task = STS_TASKS[metric["name"].split("/")[0]]
        assert (metric["dataset"]["type"], metric["dataset"]["revision"]) == (task.hub_id, task.revision)
        assert metric["dataset"]["config"] == "default" and metric["dataset"]["split"] in ("test", "validation")
        assert metric["type"] in ("cosine_spearman", "cosine_pearson")
    (entry,) = yaml.safe_load(stored(desk, ".eval_results/STS12.yaml"))
    assert entry["dataset"] == {"id": "mteb/sts12-sts", "task_id": "STS12_default_test",
                                "revision": STS_TASKS["STS12"].revision}  # fmt: skip
    assert entry["value"] == round(results["STS12/test/all/spearman"], 5)
    # and the scores are those that were measured, and come out again from the Hub
    desk.run(sys.executable, str(ROOT / "run_eval.py"), *f"--model_name_or_path {REPO} --output_dir again".split())
    again = Results.read(desk.folder / "again/results.json").scores
    assert {key: again[key] for key in again if key in results} == {
        key: results[key] for key in again if key in results
    }
    assert len([key for key in again if key in results]) > 16


def test_the_text_of_the_card(desk, card):
    text = card.text
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| STS")}
    assert "| 3,108 |  | 51.00 ± 1.41 | **" in rows["STS12 test"]  # nothing before training, two seeds, this model
    assert "base (2 seeds)" in text and "Average of the seven, SICK-R as in MTEB" in text
    assert "1,006 of the 1,379 pairs" in text and "9,927" in text and "Choosing a threshold" in text
    assert "SICK-R (MTEB test)" in text and "alignment" in text
    assert card.data.license == "apache-2.0" and card.data.language == "en" and card.data.base_model == "org/base"
    assert card.data.library_name == "sentence-transformers" and card.data.pipeline_tag == "sentence-similarity"
    assert card.data.datasets == ["princeton-nlp/datasets-for-simcse"]
    assert card.data.to_dict()["widget"][0]["source_sentence"]
    for empty in ("More information", "TODO", "<!--", "None", "nan", "{", "FOLDER"):
        assert empty not in re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL), empty


def test_links_and_pictures_exist(desk, card):
    files = json.loads(desk.run(sys.executable, "-c", f"""
import json
from huggingface_hub import HfApi
print(json.dumps(HfApi().list_repo_files({REPO!r})))"""))  # fmt: skip
    links = re.findall(r"\]\(([^)]+)\)", card.text)
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", card.text)
    assert pictures == ["plots/cosines.png", "plots/training.png"] and set(pictures) <= set(files)
    known = {"https://arxiv.org/abs/2310.06918", "https://www.sbert.net", "https://huggingface.co/org/base"}
    known |= {"https://github.com/huggingface/text-embeddings-inference"}
    known |= {f"https://huggingface.co/datasets/{t.hub_id}/tree/{t.revision}" for t in STS_TASKS.values()}
    assert set(links) - set(pictures) == known


def blocks(card: ModelCard, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", card.text, re.DOTALL)


def test_every_code_block_runs(desk, card):
    assert len(re.findall("```", card.text)) == 2 * 5  # the five below
    printed = []
    for block in blocks(card, "python"):
        printed.append(desk.run(COLD, "-c", block, path="").splitlines()[-1])  # tokenizers may say something too
        assert printed[-1] == re.search(r"# (\S+)", block)[1]  # what the card says it prints
    assert len(printed) == 2 and printed[0] == printed[1]
    tei, repeat = blocks(card, "bash")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    router = desk.folder / "text-embeddings-router"  # the real server is no Python package
    router.write_text(
        f'#!/bin/sh\nexec {shlex.quote(COLD)} {shlex.quote(str(ROOT / "tests/support/fake_tei.py"))} "$@"\n'
    )
    router.chmod(0o755)
    block = tei.replace("8080", str(port)) + "\nkill $!\n"
    answer = desk.run("bash", "-c", block, PATH=f"{desk.folder}:{os.environ['PATH']}")
    ours = load_model(str(desk.folder / "out")).encode(list(EXAMPLES))
    ours /= np.linalg.norm(ours, axis=1, keepdims=True)
    assert np.abs(np.array(json.loads(answer)) - ours).max() < 1e-5

    weights = (desk.folder / "out/model.safetensors").read_bytes()
    (desk.folder / "elsewhere").mkdir()
    command = shlex.split(repeat)
    assert command[:2] == ["python", "run_unsup.py"] and "--push_to_hub" in command
    command = [sys.executable, str(ROOT / "run_unsup.py"), *command[2:]]
    command[command.index(REPO)] = "org/repeated"
    desk.run("env", "-C", "elsewhere", *command)
    assert (desk.folder / "elsewhere/out/model.safetensors").read_bytes() == weights
    assert len(blocks(card, "bibtex")) == 1 and blocks(card, "bibtex")[0].count("@inproceedings") == 2


def test_neither_token_nor_home_in_anything_written_or_said(desk, card):
    """The home is the working folder here, and every path was given relative to it."""
    files = [path for path in desk.folder.rglob("*") if path.is_file() and path.name != "text-embeddings-router"]
    assert len(files) > 40
    for path in files:
        content = path.read_bytes()
        assert TOKEN.encode() not in content, path
        assert str(desk.folder).encode() not in content, path
    assert TOKEN not in desk.said


def test_scores_of_a_repository_from_elsewhere(desk, server):
    argv = [sys.executable, str(ROOT / "run_eval.py"), *"--model_name_or_path org/base --pooler mean".split()]
    environment = server.environment(desk.folder.parent / "other", TOKEN) | {"PYTHONPATH": str(ROOT)}
    end = subprocess.run([*argv, "--tasks", "STS16", "--push_to_hub"], cwd=desk.folder, env=environment,
                         capture_output=True, text=True)  # fmt: skip
    assert end.returncode == 2 and "org/base was not published by focalcse push" in end.stderr, end.stderr
