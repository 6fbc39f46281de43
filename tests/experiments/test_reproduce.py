"""``focalcse reproduce``: the items are those of the papers, each can be planned, and a page has what runs left."""

import re

import pytest
from tiny import SENTENCES, save_tiny

from hf_focalcse.cli import main as cli
from hf_focalcse.experiments import estimate
from hf_focalcse.experiments.papers import KNOWN, item_names, paper_names, read_item
from hf_focalcse.experiments.reproduced import difference, key_of
from hf_focalcse.experiments.study import Summary

ITEMS = [(paper, item) for paper in paper_names() for item in item_names(paper)]
TEXTS = {  # paper -> its text, and what stands in it but has no scores
    "focal-2023": ("focal_infonce_arxiv_2310.06918.txt", {"table1"}),  # table 1 is the settings, which are the recipes
    "dclr-2022": ("dclr_sections.txt", set()),
}
OF_NO_TABLE = {"focal-2023": {"hard-negatives", "significance"}, "dclr-2022": {"figure6"}}  # sections 5.1, 5.2; 6


def text_of(file):
    if not file.is_file():
        pytest.skip(f"the text of the paper is not in {file}")
    return file.read_text(encoding="utf-8")


@pytest.mark.parametrize("paper", TEXTS)
def test_the_items_are_the_tables_and_figures_of_the_paper(paper, shared):
    name, settings = TEXTS[paper]
    found = re.findall(r"\b(Table|Figure)[\s.]*\[?(\d)", text_of(shared / "papers" / name))
    named = {f"{kind.lower()}{number}" for kind, number in found}
    assert named - settings == set(item_names(paper)) - OF_NO_TABLE[paper]


def test_the_items_of_the_page_are_its_tables(shared):
    text = text_of(shared / "papers/sentence_transformers_simcse_page_zh.txt")
    heads = re.findall(r"^(\S+)\tAskUbuntu.*$", text, re.MULTILINE)
    assert len(heads) == len(item_names("simcse-sbert")) == 3
    scores = set(re.findall(r"\t(\d\d\.\d\d)$", text, re.MULTILINE))
    ours = {
        f"{s['MAP']:.2f}"
        for item in item_names("simcse-sbert")
        for s in read_item("simcse-sbert", item).published.values()
    }
    assert scores == ours


@pytest.mark.parametrize(("paper", "name"), ITEMS)
def test_an_item_is_whole(paper, name):
    item = read_item(paper, name)
    assert item.title and item.about and set(item.scores) <= set(KNOWN)
    assert set(item.published) <= {*item.rows, *item.judged}
    assert {title for of in item.published.values() for title in of} <= set(KNOWN)
    assert bool(item.published) == bool(item.source) or item.name == "hard-negatives"
    lacking = {text.partition(":")[0] for text in item.missing}
    labels = {*item.rows, *lacking}
    assert {*item.compare, *item.compare.values()} <= labels
    assert all(set(values) <= labels for values in item.vary.values())
    assert set(item.quickstart.get("rows", {})) <= labels
    for of in item.published.values():
        seven = [of[title] for title in KNOWN[:7] if title in of]
        if len(seven) == 7:
            assert sum(seven) / 7 == pytest.approx(of["Avg"], abs=0.0051)


@pytest.mark.parametrize("paper", paper_names())
def test_rows_of_one_label_are_one_run(paper):
    found = {}
    for name in item_names(paper):
        for label, row in read_item(paper, name).rows.items():
            assert found.setdefault(label, row) == row, label


@pytest.mark.parametrize("scale", ["paper", "quickstart"])
@pytest.mark.parametrize(("paper", "name"), ITEMS)
def test_every_item_can_be_planned(paper, name, scale, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimate, "layer_seconds", lambda width: width * 1e-6)
    of_queries = ["--rerank_file=q.tsv", "--train_file=t.txt", "--eval_file=q.tsv"] if paper == "simcse-sbert" else []
    (tmp_path / "q.tsv").write_text("qid\tlabel\tquery\tcandidate\n1\t1\ta\tb\n1\t0\ta\tc\n")
    (tmp_path / "t.txt").write_text("a man\n" * 600)
    cli.run("reproduce", [paper, name, "--dry_run", "--scale", scale, *of_queries])
    said = capsys.readouterr().out
    item = read_item(paper, name)
    assert "Before it can start" not in said
    assert ("hours" in said and "focalcse train" in said) if item.rows else "No run is needed" in said
    assert not list(tmp_path.glob("runs"))


def test_what_is_not_here_yet_is_named_and_the_commands_are_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cli.run("reproduce", ["focal-2023", "table4", "--dry_run", "--train_file", "nowhere.txt"])
    said = capsys.readouterr().out
    assert "Before it can start: " in said and "nowhere.txt does not exist" in said
    assert said.count("focalcse train --recipe=bert-base") == 4


def test_all_items_are_listed(capsys):
    cli.run("reproduce", [])
    said = capsys.readouterr().out
    assert all(f"focalcse reproduce {paper} {name} " in said for paper, name in ITEMS)
    cli.run("reproduce", ["dclr-2022"])
    assert "focal-2023" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["focal-2024"], "there is no paper 'focal-2024', did you mean 'focal-2023'?"),
        (["focal-2023", "tabel2"], "focal-2023 has no item 'tabel2', did you mean 'table2'?"),
        (["focal-2023", "table2", "--scale", "small"], "--scale is 'small'; it must be paper or quickstart"),
        (["focal-2023", "table2", "--rerank_file", "x"], "is not scored by reranking"),
        (["focal-2023", "table2", "--pairs_file", "x"], "looks at no pairs"),
        (["focal-2023", "table2", "--epoch_number", "3"], "there is no flag --epoch_number"),
    ],
)
def test_mistakes(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.run("reproduce", arguments)
    assert end.value.code == 2 and message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_difference_is_over_our_seeds():
    assert difference(Summary.of([77.0]), 77.32) == "-0.32 (one seed, no interval)"
    low, high = Summary.of([77.0, 77.2, 77.1]).interval()
    assert difference(Summary.of([77.0, 77.2, 77.1]), 77.32) == f"-0.22 ({low - 77.32:+.2f} to {high - 77.32:+.2f})"


def test_scores_are_those_of_papers_where_they_are_there():
    both = {"SICK-R/mteb-test/all/spearman": 1.0, "SICK-R/senteval-test/all/spearman": 2.0}
    assert key_of("SICK-R", both) == "SICK-R/senteval-test/all/spearman"
    assert key_of("SICK-R", {"SICK-R/mteb-test/all/spearman": 1.0}) == "SICK-R/mteb-test/all/spearman"
    assert key_of("MAP", {"q/test/mrr": 1.0, "q/test/map_official": 2.0}) == "q/test/map_official"
    assert key_of("STS12", both) is None


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder in which the small scale runs on a tiny encoder for a few steps."""
    folder = tmp_path_factory.mktemp("reproduce")
    save_tiny(folder / "tiny")
    (folder / "train.txt").write_text("\n".join(f"{s} {i}" for i in range(30) for s in SENTENCES))
    pairs = [(SENTENCES[i], SENTENCES[j], (i * 3 + j) % 6) for i in range(8) for j in range(i + 1, 8)]
    text = "sentence1\tsentence2\tscore\n" + "\n".join(f"{a}\t{b}\t{score}" for a, b, score in pairs)
    (folder / "pairs.tsv").write_text(text)
    return folder


FLAGS = [
    *(
        "--scale",
        "quickstart",
        "--model_name_or_path",
        "tiny",
        "--train_file",
        "train.txt",
        "--eval_file",
        "pairs.tsv",
    ),
    *("--max_steps", "4", "--eval_steps", "2", "--per_device_train_batch_size", "8", "--use_cpu"),
]


def test_a_figure_without_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cli.run("reproduce", ["focal-2023", "figure1"])
    page = (tmp_path / "runs/focal-2023/figure1.html").read_text()
    assert page.count("<figure>") == 2 and "up-weighted" in page and "What differs from the paper" in page
    svg = (tmp_path / "runs/focal-2023/report_files/figure1.svg").read_text()
    assert "#e69f00" in svg and "#009e73" in svg  # both regions are shaded


@pytest.mark.exhaustive
def test_hard_negatives_at_the_small_scale(small, monkeypatch, capsys):
    monkeypatch.chdir(small)
    cli.run("reproduce", ["focal-2023", "hard-negatives", *FLAGS, "--pairs_file", "pairs.tsv"])
    page = (small / "runs/focal-2023-quickstart/hard-negatives.html").read_text()
    assert "this is not the paper&#x27;s setting" in page or "this is not the paper's setting" in page
    assert "I think it&#x27;s fine to ask this question." in page or "I think it's fine to ask this question." in page
    for part in ("cosine, before", "cosine, simcse-bert-base", "cosine, focal-bert-base", "Mean cosine of all pairs"):
        assert part in page
    assert (
        "not run" not in page and page.count("pairs/file/all/spearman") == 2
    )  # what was scored, if not what is asked
    capsys.readouterr()
    trained = "runs/focal-2023-quickstart/focal-bert-base_seed-1"
    cli.run("inspect", ["tiny", "pairs.tsv", "--pooler", "cls_before_pooler", "--labelled", "--after", trained])
    said = capsys.readouterr().out
    assert "cosine, before  cosine, after" in said and "Mean cosine of all pairs that are rated low: before" in said
    with pytest.raises(SystemExit):
        cli.run("inspect", ["tiny", "pairs.tsv", "--labelled", "--phi", "0.5"])
    with pytest.raises(SystemExit):
        cli.run("inspect", ["tiny", "pairs.tsv", "--after", trained])
    assert capsys.readouterr().err.count("leave") == 2
    before = (small / "runs/focal-2023-quickstart/sweep.jsonl").read_text()
    cli.run(
        "reproduce", ["focal-2023", "hard-negatives", *FLAGS, "--pairs_file", "pairs.tsv"]
    )  # nothing is left to do
    assert (small / "runs/focal-2023-quickstart/sweep.jsonl").read_text() == before
    # table 2 shares the runs of seed 1
    capsys.readouterr()
    cli.run("reproduce", ["focal-2023", "table2", *FLAGS, "--dry_run"])
    assert "2 of 4 runs are left" in capsys.readouterr().out
