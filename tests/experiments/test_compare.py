"""``focalcse compare``: which runs may be compared, what is computed from their files, and what is said of it."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from hf_focalcse.cli import main as cli
from hf_focalcse.evaluation import PairSet, Results, evaluate_sts
from hf_focalcse.evaluation.tasks import Pair
from hf_focalcse.experiments.arms import read_run
from hf_focalcse.experiments.compare import number_units
from hf_focalcse.experiments.conclusions import Comparison, Row, conclude, conclude_further
from hf_focalcse.experiments.statistics import compare_seeds, holm
from hf_focalcse.runs.cosines import PAIRS_FILE, read_cosines, read_fingerprints, write_cosines
from hf_focalcse.runs.record import RunRecord

N = 150
GOLD = np.round(np.random.default_rng(0).uniform(0, 5, N), 1)


def pair_set(task, split="test"):
    pairs = tuple(Pair("", g, f"{task} left {i}", f"{task} right {i}") for i, g in enumerate(GOLD))
    aligned = 4.0 if task == "STSBenchmark" else None
    return PairSet(task, split, pairs, source="made for this test", aligned_above=aligned)


def encoder(noise, seed):
    """Vectors in a plane whose cosines follow the gold scores up to some noise."""
    rng = np.random.default_rng(seed)
    angles = {}
    for task in ("STS16", "STSBenchmark", "STS12"):
        for i, g in enumerate(GOLD):
            angles[f"{task} left {i}"], angles[f"{task} right {i}"] = 0.0, 1.5 - g / 5 + rng.normal(0, noise)
    return SimpleNamespace(encode=lambda texts: np.array([[np.cos(angles[t]), np.sin(angles[t])] for t in texts]))


LOSSES = {
    "infonce": ({"loss": "infonce"}, {"name": "infonce", "temperature": 0.05, "mask_duplicates": False}),
    "focal": ({"loss": "focal", "m": 0.3}, {"name": "focal", "temperature": 0.05, "m": 0.3, "mask_duplicates": True}),
    "focal-m0.2": (
        {"loss": "focal", "m": 0.2},
        {"name": "focal", "temperature": 0.05, "m": 0.2, "mask_duplicates": True},
    ),
}


def make(folder, loss, seed, noise, tasks=("STS16", "STSBenchmark"), **changes):
    """A run as training and evaluation leave it, but for the weights."""
    settings, described = LOSSES[loss]
    weights = f"weights of {loss} {seed} {noise}"
    record = RunRecord(
        command=["run_unsup.py"],
        recipe=None,
        settings={"learning_rate": 3e-5, "seed": seed, "output_dir": str(folder), **settings},
        loss={**described, "formula": f"of {loss}", "paper": loss, "citation": loss},
        model={"name_or_path": "bert", "pooler": "cls", "projection": "training", "weights_sha256": weights},
        data={"sha256": "text", "kept": 100},
        seed=seed,
        world_size=1,
        versions={"torch": "2.13"},
        git_commit="a" * 40,
        hardware={"engine": "one process", "device": "cpu"},
        seconds=10.0,
        final={"STSBenchmark/dev/all/spearman": 80.0},
    )
    record = replace(record, **changes)
    record.save(folder)
    about = {"name_or_path": str(folder), "pooler": "cls", "projection": "training", "weights_sha256": weights}
    results = evaluate_sts(encoder(noise, seed), [pair_set(t) for t in tasks], progress=False, model=about)
    results.write(folder / "results.json")
    write_cosines(folder, results)
    return folder


def compare(capsys, *arguments, code=None):
    if code is not None:
        with pytest.raises(SystemExit) as end:
            cli.run("compare", list(map(str, arguments)))
        assert end.value.code == code
        return capsys.readouterr().err
    cli.run("compare", [*map(str, arguments), "--resamples", "500"])
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Focal is better than InfoNCE at every seed; focal with m 0.2 is focal with other noise."""
    runs = tmp_path_factory.mktemp("study")
    for seed in (1, 2, 3, 4):
        make(runs / f"infonce-seed{seed}", "infonce", seed, 0.55)
        make(runs / f"focal-m0.3-seed{seed}", "focal", seed, 0.35)
        make(runs / f"focal-m0.2-seed{seed}", "focal-m0.2", seed + 0, 0.3501)
    return runs


def test_a_study(study, tmp_path, capsys):
    said = compare(capsys, study, "--factor", "loss", "--json", tmp_path / "found.json")
    made = json.loads((tmp_path / "found.json").read_text())
    assert [(c["a"], c["b"], c["seeds"]) for c in made["comparisons"]] == [
        *(("focal m 0.2", "infonce", [1, 2, 3, 4]), ("focal m 0.3", "infonce", [1, 2, 3, 4])),
    ]
    rows = made["comparisons"][1]["rows"]
    assert [row["title"] for row in rows] == ["STS16", "STS-B"]
    for row in rows:
        scores = [
            [read_run(study / f"{arm}-seed{s}").results.scores[f"{row['key']}/all/spearman"] for s in (1, 2, 3, 4)]
            for arm in ("focal-m0.3", "infonce")
        ]
        assert [row["a"], row["b"]] == scores
        assert row["over_seeds"]["p"] == pytest.approx(stats.ttest_rel(*scores).pvalue)
        assert row["over_pairs"]["difference"] == pytest.approx(np.subtract(*scores).mean(), abs=1e-5)
        assert row["over_pairs"]["pairs"] == N and row["over_pairs"]["resamples"] == 500
        assert row["over_pairs"]["low"] > 0 and row["over_pairs"]["p"] == 1 / 501
    assert [row["p_holm"] for row in rows] == pytest.approx(holm([row["over_seeds"]["p"] for row in rows]))
    average = made["comparisons"][1]["average"]
    assert average["a"] == pytest.approx(np.mean([row["a"] for row in rows], axis=0))
    assert average["over_pairs"]["difference"] == pytest.approx(average["over_seeds"]["mean"], abs=1e-5)
    assert (
        f"focal m 0.3 is {average['over_seeds']['mean']:.2f} points above infonce on average over 2 sets (4 seeds"
        in said
    )
    assert "corrected for 2 tests, focal m 0.3 is above on STS16 (+" in said and "These are 2 comparisons" in said

    same = compare(capsys, f"{study}/focal-*", "--factor", "m", "--to", "m 0.3", "--markdown")
    assert "| Set | m 0.2 | m 0.3 | diff |" in same
    assert "No difference between m 0.2 and m 0.3 may be claimed on average over 2 sets" in same
    assert "corrected for 2 tests, no difference may be claimed on any of them." in same
    assert "This does not prove that they are equal: every difference inside the interval remains possible" in same


def test_alignment_and_uniformity_are_tested_as_scores_are(study, tmp_path, capsys):
    said = compare(capsys, f"{study}/infonce*", f"{study}/focal-m0.3*", "--factor", "loss", "--json", tmp_path / "f")
    further = json.loads((tmp_path / "f").read_text())["comparisons"][0]["further"]
    keys = [f"STSBenchmark/test/{metric}" for metric in ("alignment", "uniformity")]
    assert [row["key"] for row in further] == keys
    for row, key in zip(further, keys, strict=True):
        a, b = (
            [read_run(study / f"{arm}-seed{s}").results.scores[key] for s in (1, 2, 3, 4)]
            for arm in ("focal-m0.3", "infonce")
        )
        assert (row["a"], row["b"]) == (a, b)
        assert row["over_seeds"]["p"] == pytest.approx(stats.ttest_rel(a, b).pvalue) and row["over_pairs"] is None
    assert [row["p_holm"] for row in further] == pytest.approx(holm([row["over_seeds"]["p"] for row in further]))
    assert "STSBenchmark/test alignment (lower is better) is better (-" in said  # the noise lies between the pairs


def further(metric, differences, **more):
    key = f"STSBenchmark/test/{metric}" if metric != "map_sbert" else "AskUbuntu/test/map_sbert"
    a, b = [1 + d for d in differences], [1.0] * len(differences)
    test = compare_seeds(a, b)
    return Row(key, f"T {metric}", a, b, test, None, test.p, **more)


@pytest.mark.parametrize(
    ("metric", "differences", "word"),
    [
        ("alignment", (-0.1, -0.11, -0.12), "better"),
        ("uniformity", (0.1, 0.11, 0.12), "worse"),
        ("uniformity", (0.1, -0.11, 0.12), "undecided"),
        ("map_sbert", (0.1, 0.11, 0.12), "better"),
        ("map_sbert", (-0.1, -0.11, -0.12), "worse"),
    ],
)
def test_better_and_worse_follow_the_metric(metric, differences, word):
    digits = 2 if metric == "map_sbert" else 4
    said = conclude_further("a", "b", [further(metric, differences)])
    assert f"is {word} ({np.mean(differences):+.{digits}f}, " in said


def test_means_over_queries_are_drawn_by_query(tmp_path, capsys):
    values = {}
    for seed in (1, 2, 3):
        for loss, gain in (("infonce", 0.0), ("focal", 5.0)):
            folder = make(tmp_path / f"{loss}{seed}", loss, seed, 0.5, tasks=("STS16",))
            noise = np.random.default_rng(100 + seed + int(gain)).normal(0, 1, 40)
            values[loss, seed] = np.random.default_rng(seed).uniform(20, 90, 40) + gain + noise
            results = Results.read(folder / "results.json")
            key = "AskUbuntu/test/map_sbert"
            results.scores[key] = float(values[loss, seed].mean())
            results.metadata["data"]["AskUbuntu/test"] = {"sha256": "x", "pairs": 40, "text": "tokenised"}
            results.units[key] = values[loss, seed]
            results.write(folder / "results.json"), write_cosines(folder, results)
    compare(capsys, tmp_path, "--factor", "loss", "--json", tmp_path / "found.json")
    made = json.loads((tmp_path / "found.json").read_text())["comparisons"][0]
    (row,) = made["further"]
    assert [one["key"] for one in made["rows"]] == ["STS16/test"]  # an average is of one kind of score
    gain = np.mean([values["focal", s].mean() - values["infonce", s].mean() for s in (1, 2, 3)])
    assert row["over_pairs"]["pairs"] == 40 and row["over_pairs"]["difference"] == pytest.approx(gain)
    assert row["over_pairs"]["low"] < gain < row["over_pairs"]["high"] and row["over_pairs"]["p"] == 1 / 501
    for folder in tmp_path.glob("*[123]"):  # MAP alone
        results = Results.read(folder / "results.json")
        results.scores = {"AskUbuntu/test/map_sbert": results.scores["AskUbuntu/test/map_sbert"]}
        del results.metadata["data"]["STS16/test"]
        results.write(folder / "results.json")
    said = compare(capsys, tmp_path, "--factor", "loss")
    assert f"focal is {gain:.2f} points above infonce on AskUbuntu/test" in said


def test_one_seed_is_no_claim(study, capsys):
    runs = (study / "focal-m0.3-seed1", "--to", study / "infonce-seed1", "--factor", "loss")
    said = compare(capsys, *runs)
    assert "One seed (1): nothing may be concluded about focal and infonce in general" in said
    assert "the difference on average over 2 sets is larger than what the choice of sentence pairs explains (+" in said
    assert "which says nothing about other seeds" in said


CHANGED = {
    "learning_rate": (
        {"settings": {"learning_rate": 1e-5, "loss": "focal", "m": 0.3}},
        "learning_rate (1e-05, 3e-05)",
    ),
    "text": ({"data": {"sha256": "other"}}, "training text (other, text)"),
    "commit": ({"git_commit": "b" * 40}, "commit (bbbbbbbbbbbb, aaaaaaaaaaaa)"),
    "version": ({"versions": {"torch": "2.12"}}, "version of torch (2.12, 2.13)"),
    "processes": ({"world_size": 2}, "world_size (2, 1)"),
    "encoder": (
        {"model": {"name_or_path": "roberta", "pooler": "cls", "projection": "training"}},
        "model_name_or_path (roberta, bert)",
    ),
}


@pytest.mark.parametrize("case", CHANGED)
def test_what_differs_besides_the_factor_is_refused(case, tmp_path, capsys):
    change, message = CHANGED[case]
    make(tmp_path / "a", "infonce", 1, 0.5)
    other = make(tmp_path / "b", "focal", 1, 0.4)
    record = RunRecord.load(other)
    if "model" in change:
        change = {"model": change["model"] | {"weights_sha256": record.model["weights_sha256"]}}
    replace(record, **change).save(other)
    said = compare(capsys, tmp_path, "--factor", "loss", code=2)
    assert message in said and "differ in more than the factor" in said and "Traceback" not in said


def test_a_difference_can_be_accepted_and_is_said(tmp_path, capsys):
    """So is what each arm was before training."""
    dev = "STSBenchmark/dev/all/spearman"
    make(tmp_path / "a", "infonce", 1, 0.5, baseline={dev: 79.0}, baseline_of="as published", start={dev: 70.0})
    make(tmp_path / "b", "focal", 1, 0.4, git_commit="b" * 40, versions={"torch": "2.12"})
    said = compare(capsys, tmp_path, "--factor", "loss", "--allow", "commit", "versions")
    assert (
        f"Note: infonce, {dev}: 79.00 as published, 70.00 with pooling cls before training, 80.00 trained (no interval"
    ) in said
    assert "accepted besides the factor: commit (bbbbbbbbbbbb, aaaaaaaaaaaa); version of torch (2.12, 2.13)" in said


def test_mistakes(study, tmp_path, capsys):
    for arguments, message in {
        (study,): "--factor is missing: ",
        (study, "--factor", "los"): "there is no setting 'los', did you mean 'loss'?",
        (study, "--factor", "seed"): "the tests are made over seeds; name the setting",
        (study, "--factor", "learning_rate"): "all 12 runs have the same learning_rate; there is nothing to compare",
        (
            study,
            "--factor",
            "loss",
            "--to",
            "dclr",
        ): "there is no arm 'dclr'; there are: focal m 0.2; focal m 0.3; infonce",
        (study, "--factor", "loss", "--to", "focal"): "several arms begin with 'focal'",
        (tmp_path, "--factor", "loss"): "there is no finished run in",
        (study, "--factor", "loss", "--resamples", "5"): "--resamples is 5",
    }.items():
        assert message in compare(capsys, *arguments, code=2), arguments
    make(tmp_path / "a", "infonce", 1, 0.5)
    make(tmp_path / "b", "infonce", 1, 0.5)
    make(tmp_path / "c", "focal", 2, 0.5)
    assert "are both infonce with seed 1 and differ in: nothing that is recorded" in compare(
        capsys, tmp_path, "--factor", "loss", code=2
    )
    said = compare(capsys, tmp_path / "a", tmp_path / "c", "--factor", "loss", code=2)
    assert "focal has the seeds [2], infonce [1]: none is in both" in said
    record = RunRecord.load(tmp_path / "a")
    own, record.model["weights_sha256"] = record.model["weights_sha256"], "others"
    record.save(tmp_path / "a")
    assert "was measured on other weights" in compare(
        capsys, tmp_path / "a", tmp_path / "c", "--factor", "loss", code=2
    )
    record.model["weights_sha256"] = own
    replace(record, seconds=None).save(tmp_path / "a")
    assert "is not finished" in compare(capsys, tmp_path / "a", "--factor", "loss", code=2)


def test_what_only_some_runs_have_is_left_out_and_said(tmp_path, capsys):
    make(tmp_path / "a1", "infonce", 1, 0.5, tasks=("STS12", "STS16"))
    make(tmp_path / "a2", "infonce", 2, 0.5)
    make(tmp_path / "b1", "focal", 1, 0.4)
    make(tmp_path / "b2", "focal", 2, 0.4)
    make(tmp_path / "b3", "focal", 3, 0.4)
    (tmp_path / "b1" / PAIRS_FILE).unlink()
    said = compare(capsys, tmp_path, "--factor", "loss")
    assert "seed 3 is in focal alone and left out" in said
    assert f"left out: STS12/test, STSBenchmark/test, which {tmp_path}/a1" in said
    assert (
        "the cosines of the pairs of STS16 were not kept, so there is no test over their sentence pairs" in said
        and "on STS16: " in said
    )
    results = Results.read(tmp_path / "b2/results.json")
    results.metadata["data"]["STS16/test"]["sha256"] = "of other pairs"
    results.write(tmp_path / "b2/results.json")
    assert "STS16/test is not the same set of pairs for all runs" in compare(
        capsys, tmp_path, "--factor", "loss", code=2
    )


def test_a_pair_that_two_sets_have_is_one_unit(tmp_path):
    """STS16 has a pair of STS-B and one of its own twice; a run from before texts were kept has no units."""
    run = make(tmp_path / "run", "focal", 1, 0.4, tasks=("STS16",))
    before = read_run(run).results
    rows = [
        (1.0, "STS16 left 0", "STS16 right 0"),
        (2.0, "STS16 left 1", "STS16 right 1"),
        (3.0, "STS16 left 0", "STS16 right 0"),
    ]
    other = PairSet("STSBenchmark", "test", tuple(Pair("", *row) for row in rows), source="made for this test")
    more = evaluate_sts(encoder(0.4, 1), [other], progress=False, model=before.metadata["model"])
    write_cosines(run, more)
    more.merge(before).write(run / "results.json")
    units, universe = number_units(["STSBenchmark/test", "STS16/test"], read_run(run))
    first, second, third = units["STSBenchmark/test"]
    assert universe == N and first == third != second
    assert units["STS16/test"][:2].tolist() == [first, second] and len(set(units["STS16/test"])) == N
    assert number_units(["STS12/test"], read_run(run)) == ({}, 0)
    assert read_fingerprints(run, read_run(run).results).keys() == {"STS16/test", "STSBenchmark/test"}


def test_sets_whose_texts_are_not_kept_are_drawn_apart_and_it_is_said(tmp_path, capsys):
    for seed in (1, 2):
        for loss, noise in (("infonce", 0.5), ("focal", 0.4)):
            file = make(tmp_path / f"{loss}{seed}", loss, seed, noise) / PAIRS_FILE
            with np.load(file) as content:
                kept = {key: content[key] for key in content.files if not key.startswith("texts/")}
            np.savez_compressed(file, **kept)
    said = compare(capsys, tmp_path, "--factor", "loss")
    assert (
        "the texts of the pairs of STS16, STS-B were not kept, so a pair that several sets contain is drawn "
        "independently for each of them" in said
    )


def test_cosines_are_kept_for_the_same_model_and_pairs_only(tmp_path):
    first = make(tmp_path / "run", "focal", 1, 0.4, tasks=("STS16",))
    run = read_run(first)
    kept = read_cosines(first, run.results)["STS16/test"]
    assert np.array_equal(kept[0], GOLD)
    assert 100 * stats.spearmanr(*kept).statistic == pytest.approx(
        run.results.scores["STS16/test/all/spearman"], abs=1e-6
    )
    about = run.results.metadata["model"]
    more = evaluate_sts(encoder(0.4, 1), [pair_set("STSBenchmark")], progress=False, model=about)
    write_cosines(first, more)
    both = more.merge(run.results)
    assert set(read_cosines(first, both)) == {"STS16/test", "STSBenchmark/test"}
    assert set(read_cosines(first, run.results)) == {"STS16/test"}
    texts = read_fingerprints(first, both)
    assert set(texts) == {"STS16/test", "STSBenchmark/test"} and len(set(texts["STS16/test"])) == N
    assert not set(texts["STS16/test"]) & set(texts["STSBenchmark/test"])
    for change in ({"weights_sha256": "new"}, {"pooler": "mean"}, {"precision": "bfloat16"}):
        assert read_cosines(first, replace(both, metadata=both.metadata | {"model": about | change})) == {}
    other_pairs = both.metadata["data"] | {"STS16/test": both.metadata["data"]["STS16/test"] | {"sha256": "others"}}
    changed = replace(both, metadata=both.metadata | {"data": other_pairs})
    assert set(read_cosines(first, changed)) == {"STSBenchmark/test"}
    new = replace(more, metadata=more.metadata | {"model": about | {"weights_sha256": "new"}})
    write_cosines(first, new)
    assert set(read_cosines(first, new)) == {"STSBenchmark/test"}
    (first / PAIRS_FILE).write_bytes(b"PK half")
    write_cosines(first, more)  # measured anew in place of what cannot be read
    assert set(read_cosines(first, both)) == {"STSBenchmark/test"}


def rewrite(folder, **model):
    """The same scores, said to be of a model that is embedded in another way."""
    results = Results.read(folder / "results.json")
    results.metadata["model"] |= model
    results.write(folder / "results.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: rewrite(b, projection="always"), "projection of the evaluation (always, None)"),
        (lambda b: rewrite(b, pooler="mean"), "pooler of the evaluation (mean, None)"),
        (lambda b: rewrite(b, precision="bfloat16"), "precision of the evaluation (bfloat16, None)"),
        (
            lambda b: replace(RunRecord.load(b), dev_sets={"STSBenchmark/dev": "b" * 64}).save(b),
            "dev set (['STSBenchmark/dev bbb",
        ),
    ],
)
def test_other_embeddings_and_dev_sets_do_not_compare(change, message, tmp_path, capsys):
    make(tmp_path / "a", "infonce", 1, 0.5)
    change(make(tmp_path / "b", "focal", 1, 0.4))
    said = compare(capsys, tmp_path, "--factor", "loss", code=2)
    assert message in said and "differ in more" in said


def test_what_is_judged_with_another_library_does_not_compare(tmp_path, capsys):
    make(tmp_path / "a", "infonce", 1, 0.5, versions={"numpy": "1.0"})
    make(tmp_path / "b", "focal", 1, 0.4, versions={"numpy": np.__version__})
    said = compare(capsys, tmp_path, "--factor", "loss", code=2)
    assert f"version of numpy in the evaluation (None, {np.__version__})" in said


def test_long_names_stay_apart(tmp_path, capsys):
    start = "/home/somebody/projects/encoders/pretrained/some-long-name/bert-base-"
    for i, noise in enumerate((0.4, 0.5)):
        folder = make(tmp_path / str(i), "focal", 1, noise)
        record = RunRecord.load(folder)
        record.model["name_or_path"] = f"{start}{'AB'[i]}"
        record.save(folder)
    said = compare(capsys, tmp_path, "--factor", "model_name_or_path")
    assert f"model_name_or_path {start}B against model_name_or_path {start}A" in said


def test_sets_on_either_side_are_told_apart():
    """With the average below, a set may be above: "it holds on" would say the opposite of what is meant."""
    sets = {"STS12": [1.0, 1.1, 0.9, 1.05], "STS13": [-2.0, -2.2, -1.9, -2.1], "STS14": [1.0, -1.0, 0.5, -0.6]}
    rows = []
    for title, differences in sets.items():
        test = compare_seeds([70 + d for d in differences], [70.0] * 4)
        rows.append(Row(title, title, [], [], test, None, test.p, None))
    average = Row("average", "Avg", [], [], compare_seeds([69.0, 69.1, 68.9, 69.05], [70.0] * 4), None)
    said = conclude(Comparison("a", "b", [1, 2, 3, 4], rows, average, "", []))
    assert (
        "Set by set, corrected for 3 tests, a is above on STS12 (+1.01) and below on STS13 (-2.05); "
        "no difference may be claimed on STS14." in said
    )


def test_a_folder_is_known_however_it_is_written_and_is_no_arm(tmp_path, capsys, monkeypatch):
    make(tmp_path / "a", "infonce", 1, 0.5)
    make(tmp_path / "b", "focal", 1, 0.4)
    (tmp_path / "infonce").mkdir()  # an arm of this name is meant, not the folder
    monkeypatch.chdir(tmp_path)
    assert "focal against infonce" in compare(capsys, "a", tmp_path / "a", "b", "--factor", "loss", "--to", "infonce")
    said = compare(capsys, "a", "b", "--factor", "loss", "--sick", "mteb", code=2)
    assert "--sick mteb: not all runs were evaluated on SICK-R; leave --sick out" in said
