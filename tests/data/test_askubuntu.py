"""AskUbuntu's folder: which questions are trained on, what judges during training, and what is refused."""

import gzip
import json

import pytest
from tiny import SENTENCES, save_tiny

from hf_focalcse.cli import main as cli
from hf_focalcse.data.sentences import read_sentences
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import read_tasks
from hf_focalcse.runs.scores import Results

COUNT = 60


def make(folder, packed=False):
    """60 questions, of which dev names 1 to 8 and test 9 to 16."""
    folder.mkdir(parents=True)
    lines = "\n".join(f"{i}\t{SENTENCES[i % len(SENTENCES)]} {i}\tbody {i}" for i in range(1, COUNT + 1)) + "\n"
    if packed:
        (folder / "text_tokenized.txt.gz").write_bytes(gzip.compress(lines.encode()))
    else:
        (folder / "text_tokenized.txt").write_text(lines)
    for split, first in (("dev", 1), ("test", 9)):
        queries = [f"{first + q}\t{first + 4}\t{first + 4} {first + 5} {first + 6}\t3 2 1" for q in range(4)]
        # 8 and 16 are relevant and not among the candidates
        (folder / f"{split}.txt").write_text("\n".join([*queries[:3], f"{first + 3}\t{first + 7}\t{first + 5}\t1"]))
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_titles_outside_dev_and_test_are_trained_on(packed, tmp_path):
    found = read_sentences(make(tmp_path / "askubuntu", packed))
    assert [row["text"] for row in found] == [f"{SENTENCES[i % len(SENTENCES)]} {i}" for i in range(17, COUNT + 1)]
    assert found.report.column == "title" and found.report.kept == COUNT - 16
    assert any(
        "title of 44 of 60 questions; those of dev and test are left out" in note for note in found.report.notes
    )
    whole = read_sentences(tmp_path / "askubuntu", text_column="title_body")
    assert whole[0]["text"] == f"{SENTENCES[17 % len(SENTENCES)]} 17 body 17"
    assert not list(tmp_path.glob("focalcse-*"))


def test_dev_judges_in_training_and_test_does_not(tmp_path):
    (dev,) = read_tasks(make(tmp_path / "askubuntu"))
    assert (dev.task, dev.split, len(dev.queries)) == ("AskUbuntu", "dev", 4)


def test_a_table_of_queries_judges_in_training(tmp_path):
    (tmp_path / "q.tsv").write_text("qid\tlabel\tquery\tcandidate\n1\t1\ta man\ta child\n1\t0\ta man\ta dog\n")
    (found,) = read_tasks(tmp_path / "q.tsv")
    assert found.queries[0].relevant == (True, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "dev.txt").unlink(), "has no dev.txt, whose questions must be left out of training"),
        (lambda f: (f / "text_tokenized.txt").write_text("1 no tab\n"), "line 1: no title; a line is id, title and"),
        (lambda f: (f / "text_tokenized.txt").write_text("1\ta\tb\n9\tc\td\n"), "holds no question outside its dev"),
    ],
)
def test_mistakes(change, message, tmp_path):
    change(make(tmp_path / "askubuntu"))
    with pytest.raises(UserError, match=message):
        read_sentences(tmp_path / "askubuntu")


def test_another_column_is_refused(tmp_path):
    with pytest.raises(
        UserError, match="--text_column is 'titel', did you mean 'title'.; for AskUbuntu it is title or"
    ):
        read_sentences(make(tmp_path / "askubuntu"), text_column="titel")


def test_training_from_the_recipe_to_the_test_score(tmp_path, monkeypatch, capsys):
    make(tmp_path / "askubuntu")
    save_tiny(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    flags = ["--model_name_or_path", "tiny", "--max_steps", "4", "--eval_steps", "2", "--warmup_steps", "0"]
    of_size = ["--per_device_train_batch_size", "8", "--use_cpu", "--output_dir", "out"]
    cli.run("train", ["--recipe", "askubuntu-bert-base", *flags, *of_size])
    record = json.loads((tmp_path / "out/run.json").read_text())
    key = "AskUbuntu/dev/map_sbert"
    assert record["best"]["metric"] == key and record["data"]["kept"] == COUNT - 16
    assert record["model"]["pooler"] == "mean"
    evaluate = ["--tasks", "rerank", "--rerank_file", "askubuntu", "--rerank_split", "test"]
    cli.run("eval", ["--model_name_or_path", "out", *evaluate])
    assert "AskUbuntu/test" in capsys.readouterr().out
    scores = Results.read(tmp_path / "out/results.json").scores
    assert {key, "AskUbuntu/test/map_sbert"} <= set(scores)
