"""The jobs with encoder, training text and STS sets from the Hub: a real server process, unmodified clients."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import FakeHub
from patience import PATIENCE
from tiny import SENTENCES, save_tiny

from hf_focalcse.evaluation import STS_TASKS, Results
from hf_focalcse.evaluation.rerank_files import HUB_ID, REVISION
from hf_focalcse.runs.record import RunRecord

ROOT = Path(__file__).resolve().parents[2]


def write_set(folder: Path, *splits: str) -> Path:
    folder.mkdir(parents=True)
    for split in splits:
        rows = [
            {"sentence1": a, "sentence2": b, "score": 5 - abs(i - j) / 2}
            for i, a in enumerate(SENTENCES)
            for j, b in enumerate(SENTENCES)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    base = tmp_path_factory.mktemp("hub")
    (base / "text").mkdir()
    (base / "text/wiki1m_for_simcse.txt").write_text("".join(f"{s} {i}\n" for i in range(4) for s in SENTENCES))
    with FakeHub() as hub:
        hub.seed("model", "org/tiny", save_tiny(base / "tiny"))
        hub.seed("dataset", "princeton-nlp/datasets-for-simcse", base / "text")
        for name, splits in (("STSBenchmark", ("validation", "test")), ("STS16", ("test",))):
            task = STS_TASKS[name]
            hub.seed("dataset", task.hub_id, write_set(base / name, *splits), commit=task.revision)
        (base / "rerank").mkdir()
        rows = [{"query": SENTENCES[i], "positive": SENTENCES[i + 1 : i + 2 + (i < 5)] * (i != 3),
                 "negative": SENTENCES[: i + (i == 0)]} for i in range(6)]  # fmt: skip
        packed = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
        (base / "rerank/test.jsonl.gz").write_bytes(packed)
        hub.seed("dataset", HUB_ID, base / "rerank", commit=REVISION)
        yield hub


COMMANDS = """
import json, sys
from hf_focalcse.cli import main as cli
for command, line in json.loads(sys.argv[1]):
    try:
        cli.run(command, line.split())
    except SystemExit as end:
        print("exit code", end.code, file=sys.stderr)
"""


def run(hub: FakeHub, work: Path, *lines: tuple[str, str]) -> subprocess.CompletedProcess:
    """Commands one after the other in a process of their own: the client reads once where the Hub is."""
    environment = hub.environment(work / "home") | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COMMANDS, json.dumps(lines)]
    return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=PATIENCE)


def test_a_recipe_trains_from_the_hub_and_is_judged_from_the_hub(hub, tmp_path):
    small = "--model_name_or_path org/tiny --per_device_train_batch_size 8 --max_steps 2 --output_dir out --use_cpu"
    end = run(hub, tmp_path, ("train", f"--recipe bert-base {small}"),
              ("eval", "--model_name_or_path out --tasks STS16 STSBenchmark"),
              ("eval", "--model_name_or_path org/tiny --pooler mean --tasks STS16"))  # fmt: skip
    assert end.returncode == 0 and "exit code" not in end.stderr, end.stderr
    record = RunRecord.load(tmp_path / "out")
    assert record.recipe == "bert-base" and record.loss["temperature"] == 0.07
    assert record.model["base_model"] == "org/tiny"
    assert record.data["source"] == "princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt"
    assert "STSBenchmark/dev/all/spearman" in record.final
    card = (tmp_path / "out/README.md").read_text()
    assert "base_model: org/tiny" in card

    results = Results.read(tmp_path / "out/results.json")
    assert {"STS16/test/all/spearman", "STSBenchmark/test/all/spearman"} <= set(results.scores)
    assert results.scores["STSBenchmark/dev/all/spearman"] == record.final["STSBenchmark/dev/all/spearman"]  # kept
    assert results.metadata["data"]["STS16/test"]["revision"] == STS_TASKS["STS16"].revision

    assert (tmp_path / "results/org--tiny-mean/results.json").exists()


def test_reranking_from_the_hub_beside_an_sts_set(hub, tmp_path):
    line = "--model_name_or_path org/tiny --pooler mean --tasks rerank STS16 --output_dir out"
    end = run(hub, tmp_path, ("eval", line))
    assert end.returncode == 0 and "exit code" not in end.stderr, end.stderr
    results = Results.read(tmp_path / "out/results.json")
    assert {"STS16/test/all/spearman", "AskUbuntuDupQuestions/test/map_sbert"} <= set(results.scores)
    of = results.metadata["data"]["AskUbuntuDupQuestions/test"]
    assert (of["revision"], of["queries"], of["queries_scored"], of["without_positive"]) == (REVISION, 6, 5, 1)
    assert "AskUbuntuDupQuestions/test, sbert" in end.stdout and of["search_engine"] is None


RECIPE = "--recipe bert-base --model_name_or_path"
MISSING = [  # command, its flags, what the error names
    ("train", f"{RECIPE} org/nothing", "no model 'org/nothing'"),
    (
        "train",
        f"{RECIPE} org/tiny --dataset_file wiki2m.txt --max_steps 1",
        "wiki2m.txt",
    ),
    (
        "train",
        f"{RECIPE} org/tiny --dataset_name org/none --dataset_file x.txt",
        "org/none",
    ),
    ("eval", "--model_name_or_path org/tiny --pooler mean --tasks STS12", "mteb/sts12-sts"),
]


def test_what_the_hub_does_not_have_is_named(hub, tmp_path):
    end = run(hub, tmp_path, *(line for *line, _ in MISSING))
    said = [line for line in end.stderr.splitlines() if line.startswith(("error: ", "exit code "))]
    assert said[1::2] == ["exit code 2"] * len(MISSING) and len(said) == 2 * len(MISSING), end.stderr
    for error, (_, _, message) in zip(said[::2], MISSING, strict=True):
        assert error.startswith("error: ") and message in error
    assert end.returncode == 0 and "Traceback" not in end.stderr
