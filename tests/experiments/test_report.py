"""Made-up runs -> groups, figures as numbers, the page and its Markdown."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from made_runs import DEV, made_run, write_results
from scipy import stats

from hf_focalcse.cli import main as cli
from hf_focalcse.errors import UserError
from hf_focalcse.experiments import figures, report, sections
from hf_focalcse.experiments.differences import settings_of
from hf_focalcse.experiments.groups import read_study
from hf_focalcse.experiments.study import Summary
from hf_focalcse.runs.differing import differing
from hf_focalcse.runs.record import RunRecord

KEY = f"{DEV}/all/spearman"


@pytest.fixture
def runs(tmp_path):
    """Focal at three seeds, InfoNCE at two, and m 0.5 at one."""
    folder = tmp_path / "runs"
    for seed, dev in ((1, 83.0), (2, 84.0), (3, 84.5)):
        made_run(folder / f"focal-seed{seed}", seed, dev, [70.0, 72, 74, 76, 78, 80, dev - 20], m=0.3)
    for seed, dev in ((1, 83.25), (2, 83.75)):
        made_run(folder / f"infonce-seed{seed}", seed, dev, [71.0, 73, 75, 77, 79, 81, dev - 20], loss="infonce")
    made_run(folder / "wide-seed1", 1, 78.0, m=0.5)
    return folder


def write(runs, *flags):
    """(HTML, Markdown, folder) of `focalcse report`."""
    out = runs.parent / "out"
    cli.main(["report", str(runs), "--output_dir", str(out), *flags])
    return (out / "report.html").read_text(), (out / "report.md").read_text(), out


class Page(HTMLParser):
    """Tables as rows of text, tags with their attributes, and text outside of tables."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.tables, self.text, self.cell = [], [], "", None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.cell = self.tables[-1][-1]

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cell = None

    def handle_data(self, data):
        self.text += data
        if self.cell is not None:
            self.cell[-1] += data.replace("\xa0", " ")  # which keeps a deviation on one line


# ---- numbers


def test_the_table_holds_means_and_deviations_by_hand(runs):
    html, _, _ = write(runs)
    header, *rows = Page(html).tables[0]
    of = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    # dev of focal: mean (83 + 84 + 84.5) / 3 = 83.8333; deviations .8333, .1667, .6667: sd = sqrt(1.1667 / 2) = .7638
    assert of["focal"]["STS-B dev"] == "83.83 ± 0.76" and of["focal"]["n"] == "3"
    # the averages are (450 + 63) / 7 = 73.2857, (450 + 64) / 7 = 73.4286, (450 + 64.5) / 7 = 73.5
    assert of["focal"]["Avg (SentEval)"] == "73.40 ± 0.11"
    assert of["focal"]["STS12"] == "70.00 ± 0.00" and of["focal"]["SICK-R (SentEval)"] == "63.83 ± 0.76"
    # (83.25 + 83.75) / 2, sqrt(2 * .25^2)
    assert of["infonce"]["STS-B dev"] == "83.50 ± 0.35" and of["infonce"]["n"] == "2"
    assert of["wide"]["STS-B dev"] == "78.00" and of["wide"]["STS12"] == "-"
    assert of["all-minilm (cls), before training"]["STS-B dev"] == "79.00"


def test_the_sentence_on_the_highest_mean_says_seeds_gap_and_loss(runs):
    study = read_study([runs])
    (of_dev,) = [sections._highest(start, groups, KEY, "STS-B dev") for start, groups in study.starts().items()]
    assert of_dev == (
        "all-minilm (cls): the highest mean STS-B dev is that of focal (83.83, ± 0.76, 3 seeds), 4.83 above its start "
        "(79.00; 95 % over seeds +2.94 to +6.73). Next is infonce (83.50, ± 0.35, 2 seeds), "
        "0.33 lower: less than the spread over seeds. Groups of one seed (1) are left out of this sentence."
    )


def test_a_group_is_below_its_start_only_where_its_interval_is(tmp_path):
    for name, scores in {"good": (83.0, 84.0), "low": (70.0, 70.5), "near": (78.0, 79.5), "one": (60.0,)}.items():
        for seed, score in enumerate(scores):
            made_run(
                tmp_path / f"{name}-{seed}", seed, score, m={"good": 0.3, "low": 0.4, "near": 0.5, "one": 0.6}[name]
            )
    ((start, groups),) = read_study([tmp_path]).starts().items()
    said = sections._highest(start, groups, KEY, "STS-B dev")
    named = said.partition("below the start: ")[2].partition(". Next")[0]
    assert named and "0.4" in named and not any(other in named for other in ("0.5", "0.6"))


def test_interval_is_students_t():
    summary = Summary.of([83.0, 84.0, 84.5])
    assert summary.interval() == pytest.approx(stats.t.interval(0.95, 2, summary.mean, stats.sem([83.0, 84.0, 84.5])))
    assert Summary.of([1.5]).interval() == (1.5, 1.5) and Summary.of([1.5]).sd is None and Summary.of([]) is None


def test_a_mean_is_above_or_below_a_score_only_where_its_interval_leaves_it_out():
    summary = Summary.of([83.0, 84.0, 84.5])  # 81.94 to 85.73
    assert summary.against(81.0, "x") == "2.83 above x (81.00; 95 % over seeds +0.94 to +4.73)"
    assert summary.against(86.0, "x") == "2.17 BELOW x (86.00; 95 % over seeds -4.06 to -0.27)"
    assert summary.against(83.0, "x") == "not told apart from x (83.00; 95 % over seeds -1.06 to +2.73)"
    assert Summary.of([80.0]).against(83.0, "x") == "-3.00 against x (83.00; one seed, no interval)"


def test_curves_begin_before_training_and_average_the_steps_all_have(runs):
    (group,) = [group for group in read_study([runs]).groups if group.name == "focal"]
    assert group.curve(KEY) == pytest.approx({0: 79.0, 10: 82.8333, 20: 83.8333}, abs=1e-4)
    made_run(runs / "focal-seed4", 4, 84.0, m=0.3, log=[{"step": 10, f"eval_{KEY}": 80.0}])
    (group,) = [group for group in read_study([runs]).groups if group.name == "focal"]
    assert group.curve(KEY) == pytest.approx({0: 79.0, 10: (82 + 83 + 83.5 + 80) / 4})


@pytest.mark.parametrize("m", [0.0, 0.2, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [0.05, 0.1])
def test_figure_1_turns_at_minus_half_m(m, temperature):
    cosines = np.linspace(-1, 1, 200_001)
    logits = figures.negative_logit(cosines, m, temperature)
    at, lowest = figures.turning_point(m, temperature)
    assert at == -m / 2 and cosines[logits.argmin()] == pytest.approx(at, abs=1e-5)
    assert lowest == pytest.approx(logits.min(), abs=1e-9)
    # equal to InfoNCE's at 1 - m, as steep as it at (1 - m) / 2
    assert figures.negative_logit(1 - m, m, temperature) == pytest.approx((1 - m) / temperature)
    step = 1e-6
    slope = figures.negative_logit((1 - m) / 2 + step, m, 1) - figures.negative_logit((1 - m) / 2 - step, m, 1)
    assert slope / (2 * step) == pytest.approx(1)


def test_cosines_are_added_up_over_seeds_and_averaged_over_bins(tmp_path):
    for seed in (1, 2):
        counts = {"random": [0, 3, 1, 0], "lowest fifth": [0, 0, seed, 0], "highest fifth": [0, 0, 0, 5]}
        made_run(tmp_path / f"a-seed{seed}", seed, 80.0 + seed, m=0.3, counts=counts)
    (group,) = read_study([tmp_path]).groups
    counts = figures.cosine_counts(group, DEV)
    assert counts == {"random": [0, 6, 2, 0], "lowest fifth": [0, 0, 3, 0], "highest fifth": [0, 0, 0, 10]}
    # four bins with middles -.75, -.25, .25, .75
    assert figures.mean_cosine(counts["random"]) == pytest.approx((6 * -0.25 + 2 * 0.25) / 8)
    assert figures.mean_cosine(counts["highest fifth"]) == 0.75 and figures.mean_cosine([0, 0]) is None


def test_bands_of_the_score_are_shown_where_they_are_counted(tmp_path):
    run = made_run(tmp_path / "runs/a-seed1", 1, 80.0, counts={"random": [1, 1], "lowest fifth": [1, 0]})
    results = json.loads((run / "results.json").read_text())
    results["metadata"]["data"][DEV]["cosines"]["bands"] = {"0-1": [2, 0], "4-5": [0, 3]}
    (run / "results.json").write_text(json.dumps(results))
    table = next(table for table in Page(write(tmp_path / "runs")[0]).tables if "random" in table[0])
    assert table == [["", "random", "0-1", "4-5"], ["a", "0.00", "-0.50", "0.50"]]


# ---- groups


def test_groups_differ_in_more_than_the_seed_and_are_named_by_their_folders(runs):
    study = read_study([runs])
    assert {g.name: [run.seed for run in g.runs] for g in study.groups} == {
        "focal": [1, 2, 3], "infonce": [1, 2], "wide": [1],
    }  # fmt: skip
    assert study.varied() == ["loss", "m"]


def test_misleading_folders_do_not_decide(tmp_path):
    made_run(tmp_path / "same-seed1", 1, 80.0, m=0.3)
    made_run(tmp_path / "same-seed2", 2, 81.0, m=0.2)
    groups = read_study([tmp_path]).groups
    assert [group.name for group in groups] == ["m 0.3", "m 0.2"]


def test_logging_and_places_are_no_settings_but_the_learning_rate_is(tmp_path):
    made_run(tmp_path / "a-seed1", 1, 80.0, logging_steps=5, disable_tqdm=True, save_total_limit=5)
    made_run(tmp_path / "a-seed2", 2, 80.0, logging_steps=10)
    assert len(read_study([tmp_path]).groups) == 1
    made_run(tmp_path / "a-seed3", 3, 80.0, learning_rate=1e-5)
    assert len(read_study([tmp_path]).groups) == 2


def test_what_training_found_replaces_what_was_asked_for(tmp_path):
    """An alias of a pooler is no setting of its own, for the report and for the comparison alike."""
    for seed, asked in ((1, "avg"), (2, "mean")):
        made_run(tmp_path / f"a-seed{seed}", seed, 80.0, pooler=asked)
        record = json.loads((tmp_path / f"a-seed{seed}/run.json").read_text())
        record["model"]["pooler"] = "mean"
        (tmp_path / f"a-seed{seed}/run.json").write_text(json.dumps(record))
        write_results(tmp_path / f"a-seed{seed}", {KEY: 80.0}, f"a-seed{seed}".encode().hex(), pooler="mean")
    (group,) = read_study([tmp_path]).groups
    assert group.factors["pooler"] == "mean"
    first, second = (settings_of(RunRecord.load(tmp_path / f"a-seed{seed}"), lambda _: True) for seed in (1, 2))
    assert list(differing(first, second)) == ["output_dir", "seed"]


def test_another_text_of_the_same_name_is_another_group(tmp_path):
    for seed in (1, 2):
        made_run(tmp_path / f"a-seed{seed}", seed, 80.0)
    record = json.loads((tmp_path / "a-seed2/run.json").read_text())
    record["data"]["sha256"] = "other"
    (tmp_path / "a-seed2/run.json").write_text(json.dumps(record))
    assert len(read_study([tmp_path]).groups) == 2


CHECKPOINTS = ("runs/first-stage/checkpoint-40", "runs/second-stage/checkpoint-40", "/data/third/checkpoint-40")


def start_from(run, encoder, base=None, **model):
    """The record of ``run``, changed to training from ``encoder``."""
    record = json.loads((run / "run.json").read_text())
    record["model"] |= {"name_or_path": encoder, "base_model": base} | model
    (run / "run.json").write_text(json.dumps(record))
    return run


def test_encoders_whose_paths_end_alike_are_other_groups_and_their_paths_stay_hidden(tmp_path):
    for name, encoder in zip("abcd", (*CHECKPOINTS, "./runs/first-stage/checkpoint-40/"), strict=True):
        start_from(made_run(tmp_path / f"runs/{name}-seed1", 2 if name == "d" else 1, 80.0, m=0.3), encoder, "bert")
    study = read_study([tmp_path / "runs"])
    assert [[run.name for run in group.runs] for group in study.groups] == [
        ["a-seed1", "d-seed1"], ["b-seed1"], ["c-seed1"],
    ]  # fmt: skip
    assert not study.skipped and study.varied() == ["encoder"]
    first, second, third = study.starts()
    assert first == "first-stage/checkpoint-40 (cls)" and second == "second-stage/checkpoint-40 (cls)"
    assert re.fullmatch(r"checkpoint-40 \(path [0-9a-f]{6}\) \(cls\)", third)
    for text in write(tmp_path / "runs")[:2]:
        assert "runs/first-stage" not in text and "/data" not in text and "third" not in text


def test_references_and_revisions_are_told_apart(tmp_path):
    for seed, path in enumerate(("/home/one/a/teacher", "/home/one/b/teacher", "/home/one/b/teacher"), 1):
        run = made_run(tmp_path / f"x{seed}", seed, 80.0, loss="dclr")
        start_from(run, "all-minilm", reference={"name_or_path": path, "pooler": "mean"})
    assert [g.factors["reference"] for g in read_study([tmp_path]).groups] == ["a/teacher, mean", "b/teacher, mean"]
    start_from(tmp_path / "x3", "all-minilm", revision="v2")
    assert [*read_study([tmp_path]).starts()] == ["all-minilm (cls)", "all-minilm at v2 (cls)"]


def test_scores_before_training_go_to_the_encoder_that_they_are_of(tmp_path):
    for name, encoder in zip("abc", CHECKPOINTS, strict=True):
        start_from(made_run(tmp_path / f"{name}-seed1", 1, 80.0), encoder, "bert")
    key = "STS12/test/all/spearman"
    write_results(tmp_path / "before", {key: 60.0}, name=f"/elsewhere/{CHECKPOINTS[1]}")
    assert [group.before(key) for group in read_study([tmp_path]).groups] == [None, 60.0, None]
    write_results(tmp_path / "before", {key: 60.0, KEY: 79.0}, name="checkpoint-40")  # of which of the three?
    assert [group.before(key) for group in read_study([tmp_path]).groups] == [None, None, None]


def test_a_seeded_sample_is_one_group_though_its_text_differs(tmp_path):
    for seed in (1, 2):
        made_run(tmp_path / f"few-seed{seed}", seed, 80.0, kept=100)
    made_run(tmp_path / "all-seed1", 1, 83.0)
    study = read_study([tmp_path])
    assert {group.name: len(group.runs) for group in study.groups} == {"few": 2, "all": 1}
    (series,) = study.ablations()
    assert series.setting == "sentences" and [value for value, _ in series.points] == [100, 28_503]


def test_ablations_change_one_setting_and_a_loss_with_all_that_is_its_own(tmp_path):
    made_run(tmp_path / "a-seed1", 1, 80.0, m=0.3)
    made_run(tmp_path / "b-seed1", 1, 81.0, m=0.1)
    made_run(tmp_path / "c-seed1", 1, 82.0, m=0.3, temperature=0.1)
    made_run(tmp_path / "d-seed1", 1, 83.0, m=0.2, temperature=0.07)  # differs in two from all
    made_run(tmp_path / "e-seed1", 1, 84.0, loss="infonce")
    made_run(tmp_path / "f-seed1", 1, 84.0, loss="dclr", phi=0.9, temperature=0.1)
    found = {s.setting: [(v, g.name) for v, g in s.points] for s in read_study([tmp_path]).ablations()}
    assert found.pop("m") == [(0.1, "b"), (0.3, "a")]
    assert found.pop("temperature") == [(0.05, "a"), (0.1, "c")]
    assert found == {"loss": [("focal", "c"), ("dclr", "f")]}  # at 0.1; the one at 0.05 came before it in the list
    loss = [s for s in read_study([tmp_path]).ablations() if s.setting == "loss"]
    assert [g.name for _, g in loss[0].points] == ["a", "b", "e"] and not loss[0].numeric


def test_the_encoder_as_published_has_a_row_where_another_pooling_was_trained(runs):
    for folder in runs.iterdir():
        record = json.loads((folder / "run.json").read_text())
        found = {"key": KEY, "before": 86.0, "after": 84.0, "low": -2.5, "high": -1.5, "units": 9, "unit": "pairs"}
        changed = {"baseline": record["baseline"] | {KEY: 86.0}, "start": record["baseline"]}
        changed |= {"baseline_of": "as published", "differences": {KEY: found | {"verdict": "lowered"}}}
        (folder / "run.json").write_text(json.dumps(record | changed))
    study = read_study([runs])
    assert {(group.before(KEY), group.published(KEY)) for group in study.groups} == {(79.0, 86.0)}
    assert {curve[0] for run in study.runs for key, curve in run.curves.items() if key == KEY} == {79.0}
    text = write(runs)[1]
    assert "| all-minilm, as published |" in text and "| all-minilm (cls), before training |" in text
    for folder in runs.iterdir():  # the pooling that is recorded: one row
        record = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(record | {"start": {}}))
    assert {group.runs[0].before_is for group in read_study([runs]).groups} == {"as published"}


def test_the_table_says_which_score_is_no_spearman(runs):
    text = write(runs)[1]
    assert "Scores are Spearman x 100" in text and "Spearman x 100. Bold" in text
    for folder in runs.iterdir():
        record = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(record | {"final": record["final"] | {"q/copies/mrr": 54.0}}))
    text = write(runs)[1]
    assert "Scores are Spearman or MRR x 100" in text and "Spearman or MRR x 100. Bold" in text
    assert "| q/copies (MRR) |" in text


def test_the_baseline_that_was_evaluated_alone_fills_the_row_before_training(runs):
    write_results(runs / "before", {KEY: 79.001, "STS12/test/all/spearman": 60.0})
    study = read_study([runs])
    assert list(study.others) == ["all-minilm (cls), before training"]
    assert {group.before("STS12/test/all/spearman") for group in study.groups} == {60.0}
    write_results(runs / "before", {KEY: 78.9, "STS12/test/all/spearman": 60.0})  # another encoder of that name
    study = read_study([runs])
    assert list(study.others) == ["all-minilm (cls_before_pooler) in before, not trained here"]
    assert {group.before("STS12/test/all/spearman") for group in study.groups} == {None}


def test_an_encoder_judged_before_its_projection_is_the_start_of_the_default_pooler(runs):
    key = "STS12/test/all/spearman"
    write_results(runs / "before", {key: 60.0}, pooler="cls_before_pooler", projection="none")
    study = read_study([runs])
    assert list(study.others) == ["all-minilm (cls), before training"]
    assert {group.before(key) for group in study.groups} == {60.0}
    for other in ({"pooler": "cls", "projection": "always"}, {"whitening": "the pairs"}):
        write_results(runs / "before", {key: 60.0}, **other)
        assert {group.before(key) for group in read_study([runs]).groups} == {None}


def test_the_sentence_on_the_plane_counts_the_groups_whose_start_was_measured(runs):
    for name in ("infonce-seed1", "infonce-seed2"):
        record = json.loads((runs / name / "run.json").read_text())
        (runs / name / "run.json").write_text(json.dumps(record | {"baseline": {}}))
    assert (
        "Means of 2 groups against the encoder before training, on STSBenchmark/dev: 0 have both lower (better), 2 "
        "uniformity alone, 0 alignment alone, 0 neither. For 1 more, the encoder before training was not measured on "
        "it."
    ) in Page(write(runs)[0]).text
    record = json.loads((runs / "wide-seed1/run.json").read_text())
    del record["baseline"][f"{DEV}/alignment"]
    (runs / "wide-seed1/run.json").write_text(json.dumps(record))
    assert "Means of 1 groups" in Page(write(runs)[0]).text  # half a measurement is none


@pytest.mark.parametrize("m, above", [(0.5, [(-2, 0), (0.5, 2)]), (1.4, [(-2, -0.4), (0, 2)])])
def test_where_focals_logit_exceeds_infonces(tmp_path, m, above):
    made_run(tmp_path / "a-seed1", 1, 80.0, m=m)
    cosines = np.linspace(-1, 1, 100)  # none of them an end of an interval
    within = np.any([(low < cosines) & (cosines < high) for low, high in above], axis=0)
    assert ((figures.negative_logit(cosines, m, 1) > cosines) == within).all()
    said = next(sections.negative_logits(read_study([tmp_path]))).text
    assert {
        0.5: "exceeds InfoNCE's logit above 1 - m (0.5), the paper's bound of a hard negative, and at every negative "
        "cosine;",
        1.4: "exceeds InfoNCE's logit at every positive cosine and below 1 - m (-0.4);",
    }[m] in said


def test_the_precision_of_the_dev_scores_is_trainings(runs):
    weights = b"focal-seed1".hex()
    record = json.loads((runs / "focal-seed1/run.json").read_text())
    (runs / "focal-seed1/run.json").write_text(json.dumps(record | {"final": {KEY: 83.0, f"{DEV}/alignment": 0.1}}))
    write_results(runs / "focal-seed1", {"STS12/test/all/spearman": 70.0}, weights, precision="bfloat16")
    (of,) = [run.facts["scored in"] for run in read_study([runs]).runs if run.name == "focal-seed1"]
    assert of == "bfloat16, but STSBenchmark/dev by training in float32"
    write_results(runs / "focal-seed1", {KEY: 83.0}, weights, precision="bfloat16")
    assert [run.facts["scored in"] for run in read_study([runs]).runs][:2] == ["bfloat16", "float32"]


def test_pictures_of_names_that_a_slug_cannot_tell_apart(tmp_path, recwarn):
    for i, name in enumerate(("损失甲", "损失乙"), 1):
        counts = {"random": [i, 3, 1, 0], "lowest fifth": [0, 0, i, 0], "highest fifth": [0, 0, 0, 5]}
        made_run(tmp_path / f"runs/{name}-seed1", 1, 80.0, m=i / 10, counts=counts)
    _, markdown, out = write(tmp_path / "runs")
    shown = re.findall(r"\]\((report_files/[^)]+)\)", markdown)
    assert len(shown) == len(set(shown)) == len(list((out / "report_files").iterdir()))
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


# ---- what cannot be used


def test_scores_through_another_projection_than_trainings_do_not_count(runs):
    weights, at = b"focal-seed1".hex(), runs / "focal-seed1"
    write_results(at, {KEY: 99.0}, weights, projection="always")
    study = read_study([runs])
    assert study.skipped == {
        "focal-seed1": "results.json was measured with pooler cls, projection always, while training used pooler cls, "
        "projection training; evaluate the folder without --pooler and --whiten"
    }
    write_results(at, {KEY: 85.0}, weights, pooler="cls_before_pooler", projection="none")  # the same vectors
    assert not read_study([runs]).skipped
    write_results(at, {KEY: 85.0}, weights, whitening="the pairs")
    assert "was measured whitened" in read_study([runs]).skipped["focal-seed1"]


def test_every_folder_that_does_not_count_is_named(runs):
    (runs / "killed-seed1/checkpoint-10").mkdir(parents=True)
    (runs / "broken-seed1").mkdir()
    (runs / "broken-seed1/run.json").write_text('{"loss": ')
    made_run(runs / "odd-seed1", 1, 80.0)
    record = json.loads((runs / "odd-seed1/run.json").read_text())
    (runs / "odd-seed1/run.json").write_text(json.dumps(record | {"log": ["no line"]}))
    made_run(runs / "stale-seed1", 1, 80.0)
    write_results(runs / "stale-seed1", {KEY: 99.0}, "other weights")
    made_run(runs / "again-seed1", 1, 99.0, m=0.3)
    html, markdown, _ = write(runs)
    last = dict(Page(html).tables[-1][1:])
    assert last.keys() == {"killed-seed1", "broken-seed1", "odd-seed1", "stale-seed1", "focal-seed1"}
    assert "not finished" in last["killed-seed1"] and "other weights" in last["stale-seed1"]
    assert "again-seed1" in last["focal-seed1"]  # the first by name counts
    assert all(name in markdown for name in last)


def test_folders_of_one_name_are_all_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("p", "q"):
        made_run(tmp_path / folder / "a-seed1", 1, 80.0, m=0.3 if folder == "p" else 0.2)
        (tmp_path / folder / "killed").mkdir()
    study = read_study(["p", "q", tmp_path / "p"])  # one of them twice
    assert set(study.skipped) == {"p/killed", "q/killed"}
    assert [run.name for run in study.runs] == ["p/a-seed1", "q/a-seed1"]
    assert set(read_study([tmp_path / "p", tmp_path / "q/killed"]).skipped) == {"p/killed", "q/killed"}


def test_a_section_without_data_is_left_out_with_its_reason(tmp_path):
    made_run(tmp_path / "runs/a-seed1", 1, 80.0, loss="infonce", log=[])
    html, markdown, _ = write(tmp_path / "runs")
    titles = re.findall("<h2[^>]*>([^<]+)", html)
    assert titles == ["Scores", "What the tests say", "Spread over seeds", "The plane of alignment and uniformity",
                      "Settings, budget and origin", "Left out"]  # fmt: skip
    for reason in ("no run measured spearman twice", "no run has a loss with m", "no results.json has counts",
                   "no two groups differ in one setting alone"):  # fmt: skip
        assert reason in html and reason in markdown


@pytest.mark.parametrize("make", ["nothing", "empty", "damaged"])
def test_a_folder_without_a_finished_run_ends_in_one_sentence(tmp_path, capsys, make):
    folder = tmp_path / "runs"
    if make != "nothing":
        (folder / "a").mkdir(parents=True)
    if make == "damaged":
        (folder / "a/run.json").write_text("[]")
    with pytest.raises(SystemExit) as stop:
        cli.main(["report", str(folder)])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and "give" in said and "Traceback" not in said
    assert not (folder / "report").exists()


def test_a_comparison_without_a_sentence_is_refused(tmp_path):
    file = tmp_path / "compare.json"
    with pytest.raises(UserError, match="cannot be read as JSON .*; give what"):
        report.read_comparisons([str(file)])
    file.write_text("{}")
    with pytest.raises(UserError, match="contains no sentence; give what"):
        report.read_comparisons([str(file)])


# ---- the page


def test_the_page_loads_nothing_and_is_the_same_each_time(runs):
    first, markdown, out = write(runs)
    page = Page(first)
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "form")
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/svg+xml;base64,")), attributes
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in first and "@import" not in first
    assert write(runs)[:2] == (first, markdown)
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == len(list((out / "report_files").iterdir())) > 8
    assert all(image["alt"].strip() for image in images)
    tables = sum(tag == "table" for tag, _ in page.tags)
    assert tables == first.count("<caption>") >= 3
    for name in re.findall(r"\]\((report_files/[^)]+)\)", markdown):
        assert (out / name).read_bytes().startswith(b"<?xml")


def test_markdown_and_page_hold_the_same_figures(runs):
    html, markdown, _ = write(runs)
    page = Page(html)
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in markdown.splitlines()
            if line.startswith("|") and ":--" not in line]  # fmt: skip
    plain = [[cell.strip().removeprefix("**").removesuffix("**") for cell in row] for row in rows]
    cells = [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in plain]
    assert cells == [[cell.strip() for cell in row] for table in page.tables for row in table]
    for sentence in re.findall("^> (.+)$", markdown, re.M):
        assert re.sub(r"\\(.)", r"\1", sentence) in " ".join(page.text.split())  # a long one is folded


EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(2)> | [x](javascript:y) $\\frac$ `'


def test_text_of_the_records_stays_text(tmp_path):
    for seed in (1, 2):
        made_run(tmp_path / f"runs/a-seed{seed}", seed, 80.0 + seed, encoder=EVIL, pooler=EVIL, m=0.3)
    made_run(tmp_path / r"runs/_$\frac$-seed1", 1, 80.0, m=0.2, encoder=EVIL, pooler=EVIL)
    record = json.loads((tmp_path / "runs/a-seed1/run.json").read_text())
    record |= {"notes": [EVIL], "alarms": [EVIL], "versions": {EVIL: EVIL}, "git_commit": "<b>"}
    (tmp_path / "runs/a-seed1/run.json").write_text(json.dumps(record))
    (tmp_path / "runs/<i>x").mkdir()
    compare = tmp_path / "compare.json"
    compare.write_text(json.dumps({"tests": [{"sentence": f"It differs. {EVIL}"}], "name": "unsaid"}))
    html, markdown, _ = write(tmp_path / "runs", "--compare", str(compare))
    assert "<script" not in html and "<img src=x" not in html and "<i>" not in html and "<b>" not in html
    assert {tag for tag, _ in Page(html).tags} <= set(
        "html head meta title style body main h1 nav ul li a section h2 p div table caption span thead tbody tr th td "
        "figure img figcaption code details summary strong".split()
    )
    assert not re.search(r"(?<!\\)<", markdown.replace("\n> ", "\n")) and not re.search(r"(?<!\\)\]\(java", markdown)
    assert "alert(1)" in Page(html).text and "It differs." in Page(html).text and "unsaid" not in html


def test_averages_come_first_and_the_highest_of_a_column_is_bold(runs):
    html, markdown, _ = write(runs)
    header, *rows = Page(html).tables[0]
    assert header[:4] == ["", "n", "Avg (SentEval)", "STS12"] and header[-1] == "STS-B dev"
    of = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    bold = re.findall("<strong>([^<]+)</strong>", html)
    best = [of["focal"][title] for title in header[2:] if title.startswith(("SICK", "STS-B dev"))]
    best += [of["infonce"][title] for title in header[2:] if not title.startswith(("SICK", "STS-B dev"))]
    assert sorted(text.replace("\xa0", " ") for text in bold) == sorted(best)
    assert f"**{of['focal']['STS-B dev']}**" in markdown and f"**{of['infonce']['STS12']}**" in markdown
    rows = [["a", "1", "70.00", "-"], ["b", "2", "70.00 ± 1.00", "-"], ["c", "1", "69.99", "-"]]
    assert sections._highest_cells(rows) == {(0, 2), (1, 2)}  # as they are shown
    assert not sections._highest_cells(rows[:1])  # one row is no comparison


def test_the_title_is_the_user_s(runs):
    html, markdown, _ = write(runs, "--title", "Mine <1>")
    assert "<title>Mine &lt;1&gt;</title>" in html and "<h1>Mine &lt;1&gt;</h1>" in html
    assert markdown.startswith("# Mine \\<1\\>\n")
    assert "<h1>What the runs show</h1>" in write(runs)[0]


def test_a_phone_folds_what_is_long_and_the_rest_of_the_world_does_not(runs, tmp_path):
    compared = tmp_path / "compare.json"
    compared.write_text(json.dumps({"conclusion": f"a is above b{' by far' * 40}. That is no proof. Nor is this."}))
    html, _, _ = write(runs, "--compare", str(compared))
    folded = re.findall("<summary>([^<]+)</summary>", html)
    assert folded[:2] == ["Sections", f"a is above b{' by far' * 40}."]
    assert "<p>That is no proof. Nor is this.</p>" in html
    assert {"3 pictures", "2 tables"} & set(folded) and len(folded) >= 6
    scores, tests, *_ = html.split("<section")[1:]
    assert "<table" in scores and "<details" not in scores and '<details class="finding">' in tests
    assert "details::details-content" in html and "(min-width: 40.01rem), print" in html
    assert "@media (prefers-color-scheme: dark)" in html


def test_no_path_of_the_machine_and_no_training_text(runs):
    (runs / "killed").mkdir()
    record = json.loads((runs / "wide-seed1/run.json").read_text())
    record |= {
        "notes": ["the encoder /home/somebody/models/mine"],
        "alarms": ["resumed from ../far/away/checkpoint-3"],
    }
    record["model"]["name_or_path"] = record["settings"]["eval_file"] = "/home/somebody/models/mine"
    record["data"]["source"] = "/home/somebody/texts/wiki.txt"
    (runs / "wide-seed1/run.json").write_text(json.dumps(record))
    for text in write(runs)[:2]:
        assert "far/away" not in text and "the encoder mine" in text
        assert "/home/" not in text and str(runs.parent) not in text and "A sentence of the corpus" not in text
        assert "wiki.txt" in text


def test_a_report_is_no_run_and_is_replaced(runs):
    cli.main(["report", str(runs)])
    stale, own = runs / "report/report_files/old.svg", runs / "report/report_files/own.svg"
    stale.write_text("")
    own.write_text("of the user")
    with (runs / "report/report.md").open("a") as page:
        page.write("![a picture of an earlier report](report_files/old.svg)\n")
    cli.main(["report", str(runs)])
    assert not stale.exists() and own.exists() and not read_study([runs]).skipped


def test_sentences_of_several_files_name_their_file(tmp_path):
    for name in ("cls", "mean"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"comparisons": [{"conclusion": "a is above b"}]}))
    files = [str(tmp_path / f"{name}.json") for name in ("cls", "mean")]
    assert report.read_comparisons(files) == ["cls: a is above b", "mean: a is above b"]
    assert report.read_comparisons(files[:1]) == ["a is above b"]
    for folder in "uv":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cls.json").write_text((tmp_path / "cls.json").read_text())
    same = [str(tmp_path / folder / "cls.json") for folder in "uv"]
    assert report.read_comparisons(same) == ["u/cls: a is above b", "v/cls: a is above b"]
    (tmp_path / "cls.json").write_text(json.dumps({"conclusion": "a is above b.", "notes": ["seed 3 is left out"]}))
    assert report.read_comparisons(files[:1]) == ["a is above b. Note: seed 3 is left out."]
