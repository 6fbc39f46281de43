r"""Each source from a literal tiny copy of its layout, with the traps of the real ones: quotes, U+2028, empty gold."""

import gzip
import json
import time

import pytest

from hf_focalcse.data.files import read_lines
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation.pair_sets import Pair, read_pairs
from hf_focalcse.evaluation.tasks import STS_TASKS, load_tasks, open_source

HEADER = "subset\tsplit\tscore\tsentence1\tsentence2\n"
COUNTS = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def tsv(tmp_path):
    for name in COUNTS:
        write(tmp_path / f"{name}.tsv", HEADER + "a\ttest\t1.5\tone\ttwo\nb\ttest\t2\tthree\tfour\n")
    write(
        tmp_path / "STSBenchmark.tsv",
        HEADER
        + 'MSRvid\ttest\t5.000\tA "plane.\tAn air plane\u2028is taking off, he said: "go\n'
        + "images\ttest\t0\t\tx y\r\n"
        + "images\tdev\t3\tp\tq\n"
        + "images\tdev\t4\tr\ts\n",
    )
    splits = ["train\t1", "train\t2", "trial\t3", "trial\t4", "test\t5", "test\t4.5", "test\t4"]
    write(tmp_path / "SICK-R.tsv", HEADER + "".join(f"SICK\t{row}\tx\ty\n" for row in splits))
    return tmp_path


@pytest.fixture
def senteval(tmp_path):
    root = tmp_path / "downstream"
    for task in list(STS_TASKS.values())[:5]:
        for subset in task.senteval.keywords["subsets"]:
            folder = root / f"STS/{task.name}-en-test"
            write(folder / f"STS.input.{subset}.txt", f'{subset} one\ttwo\nnot\tscored\nthree  \tfour\u2028"five\n')
            write(folder / f"STS.gs.{subset}.txt", "4.2\n\n0.500\n")
    row = 'main-news\t{}\t2012test\t0001\t{}\tA {} .\tB " c\tlicence\textra\n'
    for part in ("train", "dev", "test"):
        stsb = row.format("MSRpar", "3.5", part) + row.format("images", "1", part)
        write(root / f"STS/STSBenchmark/sts-{part}.csv", stsb)
    for part in ("train", "trial", "test_annotated"):
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        rows = f"1\tA {part} a\tB b\t4.5\tNEUTRAL\n2\tC\tD\t1.0\tENTAILMENT\n"
        write(root / f"SICK/SICK_{part}.txt", header + rows)
    return root


def loaded(*arguments):
    return {pairs.key: pairs for pairs in load_tasks(*arguments)}


def test_table_holds_the_published_sizes():
    assert {name: task.splits[-1].size for name, task in STS_TASKS.items()} == {
        **COUNTS, "STSBenchmark": 1379, "SICK-R": 4927
    }  # fmt: skip
    assert all(len(task.revision) == 40 for task in STS_TASKS.values())


def test_tsv_folder(tsv):
    sets = loaded(None, tsv)
    assert list(sets) == [*(f"{name}/test" for name in COUNTS), "STSBenchmark/test", "SICK-R/mteb-test",
                          "SICK-R/senteval-test"]  # fmt: skip
    assert sets["STS12/test"].pairs == (Pair("a", 1.5, "one", "two"), Pair("b", 2.0, "three", "four"))
    stsb = sets["STSBenchmark/test"]
    assert stsb.pairs[0].sentence2 == 'An air plane\u2028is taking off, he said: "go'
    assert stsb.pairs[1] == Pair("images", 0.0, "", "x y")
    described = stsb.describe()
    assert described.pop("sha256") != sets["STS12/test"].describe()["sha256"]
    assert described == {
        "unit": "pairs", "pairs": 2, "expected_pairs": 1379, "subsets": {"MSRvid": 1, "images": 1}, "source": str(tsv),
        "revision": None, "text": "raw", "empty_sentences": 1,
    }  # fmt: skip
    assert len(sets["SICK-R/mteb-test"].pairs) == 7
    assert [pair.score for pair in sets["SICK-R/senteval-test"].pairs] == [5, 4.5, 4]


def test_one_split_by_name_and_each_set_once(tsv):
    names = ["STSBenchmark/dev", "SICK-R/trial", "STS-B", "STSBenchmark", "STS-B/dev"]
    sets = load_tasks(names, tsv)
    assert [pairs.key for pairs in sets] == ["STSBenchmark/dev", "SICK-R/trial", "STSBenchmark/test"]
    assert [pair.score for pair in sets[0].pairs] == [3, 4]


def test_senteval_folder(senteval):
    sets = loaded(None, senteval)
    for name in COUNTS:
        subsets = STS_TASKS[name].senteval.keywords["subsets"]
        pairs = sets[f"{name}/test"].pairs  # the pair without gold is left out
        assert [pair.subset for pair in pairs] == [subset for subset in subsets for _ in range(2)]
    assert sets["STS16/test"].pairs[:2] == (
        Pair("answer-answer", 4.2, "answer-answer one", "two"),
        Pair("answer-answer", 0.5, "three", 'four "five'),  # whitespace joined as SentEval does
    )
    assert sets["STSBenchmark/test"].pairs[0] == Pair("MSRpar", 3.5, "A test .", 'B " c')
    assert sets["SICK-R/senteval-test"].pairs[0] == Pair("SICK", 4.5, "A test_annotated a", "B b")
    assert [len(sets[f"SICK-R/{kind}-test"].pairs) for kind in ("mteb", "senteval")] == [6, 2]
    assert {pairs.text for pairs in sets.values()} == {"senteval"}
    dev, trial = load_tasks(["STSBenchmark/dev", "SICK-R/trial"], senteval)
    assert (dev.pairs[0].sentence1, trial.pairs[0].sentence1) == ("A dev .", "A trial a")


def test_the_shared_sets_have_the_published_sizes_and_subsets(shared_data):
    names = [f"{task.name}/{split.name}" for task in STS_TASKS.values() for split in task.splits]
    sets = loaded(names, shared_data / "sts")
    assert {key: len(pairs.pairs) for key, pairs in sets.items()} == {
        f"{task.name}/{split.name}": split.size for task in STS_TASKS.values() for split in task.splits
    }
    for name in COUNTS:
        subsets = sets[f"{name}/test"].describe()["subsets"]
        assert tuple(subsets) == STS_TASKS[name].senteval.keywords["subsets"]


class FakeHub:
    """Stands in for the two calls that reach the Hub; remembers what was asked."""

    def __init__(self, monkeypatch, rows, offline=False, cache="elsewhere"):
        datasets, hub = pytest.importorskip("datasets"), pytest.importorskip("huggingface_hub")
        self.asked, self.checked = [], []

        class Rows(list):
            cache_files = [{"filename": f"/{cache}/x.arrow"}]

        def load_dataset(name, *, revision, split):
            self.asked.append((name, revision, split))
            return Rows(rows)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(hub.HfApi, "dataset_info", lambda _, name, **kw: self.checked.append((name, kw)))


ROWS = [{"sentence1": "a", "sentence2": "b", "score": 1.0}, {"sentence1": "c", "sentence2": "", "score": 2.5}]


def test_hub_reads_pinned_revisions(monkeypatch):
    hub = FakeHub(monkeypatch, ROWS)
    sets = loaded(["STS16", "STSBenchmark/dev", "SICK-R"])
    assert list(sets) == ["STS16/test", "STSBenchmark/dev", "SICK-R/mteb-test"]  # no SentEval split on the Hub
    assert hub.asked == [
        ("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513", "test"),
        ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "validation"),
        ("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d", "test"),
    ]
    assert [name for name, _ in hub.checked] == [name for name, *_ in hub.asked]
    assert sets["STS16/test"].pairs == (Pair("", 1.0, "a", "b"), Pair("", 2.5, "c", ""))
    assert sets["STS16/test"].revision == "4d8694f8f0e0100860b497b999b3dbed754a0513"


def test_offline_takes_only_the_pinned_revision_from_the_cache(monkeypatch):
    FakeHub(monkeypatch, ROWS, offline=True, cache=STS_TASKS["STS16"].revision)
    assert len(load_tasks(["STS16"])[0].pairs) == 2
    FakeHub(monkeypatch, ROWS, offline=True, cache="another")
    with pytest.raises(UserError, match="cached copy of mteb/sts16-sts is not revision 4d8694f8; give --sts_dir DIR"):
        load_tasks(["STS16"])


def test_an_unreachable_hub_is_told_at_once(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    info = hub.HfApi.dataset_info
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    nowhere = hub.HfApi(endpoint="http://127.0.0.1:9")
    monkeypatch.setattr(hub.HfApi, "dataset_info", lambda _, *args, **kw: info(nowhere, *args, **kw))
    slept = []  # between tries; what else the machine does is not measured
    monkeypatch.setattr(time, "sleep", slept.append)
    with pytest.raises(UserError, match=r"cannot load mteb/sts12-sts .* --sts_dir DIR .* HF_HUB_OFFLINE=1"):
        load_tasks()
    assert sum(slept) < 8


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "STS16.tsv",
            "subset\tsplit\tscore\tsentence1\na\ttest\t1\tb\n",
            "STS16.tsv has no column 'sentence2'; needed",
        ),
        ("STS16.tsv", HEADER + "a\ttest\t1\tb\n", "line 2 has 4 cells, but the header has 5; mend the line"),
        ("STS16.tsv", HEADER + "a\ttest\t1\tb\tc\na\ttest\tNA\tb\tc\n", "line 3, column score: the score 'NA'"),
        ("STS16.tsv", HEADER + "a\tdev\t1\tb\tc\n", "no row of split 'test', which STS16/test needs"),
        ("STS16.tsv", HEADER + "a\ttest\t1\tb\tc\n", "1 scored pairs for STS16/test, at least 2"),
        ("STS16.tsv", HEADER + "a\ttest\t1\tb\tc\n" * 2, "all scores of STS16/test equal 1"),
        ("STS12.tsv", HEADER, "no such file: .*STS16.tsv; add it, or name the sets .* --tasks"),
        ("other.tsv", HEADER, "holds no STS sets: --sts_dir expects files such as STS16.tsv or SentEval"),
        ("data/downstream/STS/x", "", "did you mean .*data/downstream?"),
        ("STS/STS16-en-test/STS.input.answer-answer.txt", "a\tb\n", "no such file: .*STS.gs.answer-answer.txt"),
    ],
)
def test_wrong_folders(tmp_path, name, content, message):
    write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        load_tasks(["STS16"], tmp_path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("STS/STS16-en-test/STS.gs.headlines.txt", "4\n", "has 3 lines but .* has 1; they must be parallel"),
        ("STS/STS16-en-test/STS.gs.headlines.txt", "4\n\nx\n", "input.headlines.txt, line 3: the score 'x'"),
        ("STS/STS16-en-test/STS.input.headlines.txt", "a\tb\nc\td\nonly one\n", "line 3: too few columns"),
        ("STS/STSBenchmark/sts-test.csv", "a\tb\tc\td\t1\tx\n", "sts-test.csv, line 1: too few columns"),
        ("SICK/SICK_trial.txt", "header\n1\tx\ty\n", "SICK_trial.txt, line 2: too few columns"),
        (
            "SICK/SICK_trial.txt",
            b"header\n1\tx\t\xe9\t4\n",
            r"SICK_trial.txt, line 2, byte 5 of the line \(0xe9\).* convert",
        ),
    ],
)
def test_damaged_senteval_files(senteval, name, content, message):
    write(senteval / name, content)
    with pytest.raises(UserError, match=message):
        load_tasks(["STS16", "STSBenchmark", "SICK-R"], senteval)


@pytest.mark.parametrize(
    "names, message",
    [
        (["STS61"], "there is no task 'STS61', did you mean 'STS16'"),
        ([__file__], "a file of labelled pairs is given as --eval_file"),
        (["STSBenchmark/validation"], "has no split 'validation'; there are train, dev, test"),
        (["SICK-R/senteval"], "no split 'senteval'; there are train, trial, mteb-test, senteval-test"),
        (["SICK-R/trial"], "Hub does not tell the pairs of SICK-R/trial apart; give --sts_dir DIR"),
    ],
)
def test_unknown_names(names, message):
    with pytest.raises(UserError, match=message):
        load_tasks(names)


def test_a_missing_folder_says_so(tmp_path):
    with pytest.raises(UserError, match="nowhere is not a folder"):
        open_source(tmp_path / "nowhere")


# ---------------------------------------------------------------- a user's own file

TABLE = [("A b", 'say "x", y', 4.5), ("", "d", 1.0), ("e", "f", 2.0)]


def spell(suffix):
    if suffix == ".tsv":
        return "score\tsentence1\tsentence2\n" + "".join(f"{c}\t{a}\t{b}\n" for a, b, c in TABLE)
    if suffix == ".csv":
        return "sentence1,sentence2,score,more\r\n" + "".join(
            f'{a},"{b.replace(chr(34), chr(34) * 2)}",{c},z\r\n' for a, b, c in TABLE
        )
    rows = [dict(zip(("sentence1", "sentence2", "score"), row, strict=True)) for row in TABLE]
    return "\n\n".join(map(json.dumps, rows)) + "\n"


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_own_file_in_every_format(tmp_path, suffix, packed):
    path = tmp_path / f"my.pairs{suffix}{packed}"
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        columns = dict(zip(("sentence1", "sentence2", "score"), map(list, zip(*TABLE, strict=True)), strict=True))
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "plain")
        content = (tmp_path / "plain").read_bytes()
    else:
        content = spell(suffix).encode("utf-8-sig")
    write(path, gzip.compress(content) if packed else content)
    pairs = read_pairs(path)
    assert pairs.pairs == tuple(Pair("", score, a, b) for a, b, score in TABLE)
    assert (pairs.key, pairs.source) == ("my/file", str(path))
    assert pairs.describe()["empty_sentences"] == 1
    assert pairs.describe()["subsets"] == {}


NAMES = "sentence1\tsentence2\tscore\n"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("x.tsv", NAMES + "a\tb\t1\na\tb\tgood\n", r"x.tsv, line 3, column score: the score 'good' is not a finite"),
        ("x.tsv", NAMES + "a\tb\t1\na\tb\tnan\n", "line 3, column score: the score 'nan'"),
        ("x.tsv", NAMES + "a\tb\t1\n", "1 scored pairs for x/file, at least 2"),
        ("x.tsv", "", "x.tsv is empty"),
        ("x.tsv", NAMES + "a\tb\t3\nc\td\t3.0\n", "all scores of x/file equal 3"),
        ("x.tsv", NAMES + "a\tb\t3\nc\td\n", "line 3 has 2 cells, but the header has 3; mend the line"),
        ("x.tsv", "a\tb\t3\nc\td\t4\n", "no column 'sentence1'; needed are .*; its columns are 'a', 'b', '3'"),
        (
            "x.tsv",
            NAMES.encode() + b"a\tb\t1\n\xff\tb\t1\n",
            r"line 3, byte 1 of the line \(0xff\).*convert the file to UTF-8",
        ),
        (
            "x.csv",
            'sentence1,sentence2,score\na,"b,1\n',
            r"x.csv, line 2: .* CSV \(unexpected end of data\); a cell",
        ),
        ("x.csv", "sentence1,score\na,1\n", "x.csv has no column 'sentence2'"),
        ("x.jsonl", '{"sentence1": "a"\n', "x.jsonl, line 1: not JSON"),
        ("x.jsonl", "[1]\n", "line 1: a JSON list, not an object; give one object a line"),
        (
            "x.jsonl",
            '{"sentence1": "\\ud800", "sentence2": "b", "score": 1}\n',
            "line 1: the escape .ud800 .*; mend",
        ),
        ("x.jsonl", '{"sentence1": null, "sentence2": "b", "score": 1}\n', "column sentence1: None is not text"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": "b", "score": true}\n', "the score True is not"),
        ("x.parquet", "no parquet", r"x.parquet is not a whole Parquet file \(.*\); download or write it again"),
        ("x.tsv.gz", "not packed", r"x.tsv.gz cannot be read and unpacked \(.*\); check that the file is whole"),
        ("x.txt", "a", "must end in .csv, .tsv, .jsonl, .json, .parquet, .xlsx, each also with .gz"),
    ],
)
def test_wrong_own_files(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        read_pairs(write(tmp_path / name, content))


def test_a_missing_own_file(tmp_path):
    with pytest.raises(UserError, match=r"no such file: .*none.tsv"):
        read_pairs(tmp_path / "none.tsv")
    with pytest.raises(UserError, match="folder.tsv is a folder; name a file in it .*.parquet"):
        read_pairs(write(tmp_path / "folder.tsv" / "x", "").parent)


def test_only_line_feeds_end_a_line(tmp_path):
    path = write(tmp_path / "x", "a\u2028b\x0bc\x85d\r\ne\n")
    assert read_lines(path) == ["a\u2028b\x0bc\x85d", "e"]
