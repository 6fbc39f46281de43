"""What is said of a run claims no more than its interval, and names what it is compared with."""

from made_runs import DEV, made_run

from hf_focalcse.evaluation.verdict import arm_against_start, aside, conclusions, counted, score_table, verdict
from hf_focalcse.runs.record import RunRecord

KEY = f"{DEV}/all/spearman"


def difference(before, after, low, high, said):
    return {"key": KEY, "before": before, "after": after, "low": low, "high": high, "units": 1500, "unit": "pairs",
            "verdict": said}  # fmt: skip


def record(folder, seed=1, said=None, after=80.0, start=None, published=True) -> RunRecord:
    made = RunRecord.load(made_run(folder / str(seed), seed, after))
    made.final = {KEY: after}
    if published:
        made.baseline_of = "as published"
    if said:
        low, high = {"raised": (0.5, 1.5), "lowered": (-1.5, -0.5)}.get(said, (-0.5, 0.5))
        made.differences = {KEY: difference(79.0, after, low, high, said)}
    made.start = {KEY: start} if start is not None else {}
    return made


def test_a_run_without_an_interval_claims_nothing(tmp_path):
    older = record(tmp_path, published=False)
    assert older.baseline_name == "with pooling cls before training"
    said = verdict(older)
    assert (
        "took STSBenchmark/dev/all/spearman from 79.00 to 80.00 (+1.00)" in said and "no difference is claimed" in said
    )
    assert list(conclusions(older)) == [] and aside(older, KEY) == " (with pooling cls before training 79.00)"
    assert score_table(older).rows == [[KEY, "79.00", "80.00", "+1.00", "-", "-"]]
    assert counted([older], KEY) == ""


def test_a_difference_is_said_with_its_interval(tmp_path):
    raised = record(tmp_path, said="raised", start=70.0)
    told = "RAISED STSBenchmark/dev/all/spearman from 79.00 to 80.00 (+1.00, 95 % interval +0.50 to +1.50 over 1,500 "
    assert f"**Contrastive training {told}pairs) against the encoder as published; one seed.**" in verdict(raised)
    assert list(conclusions(raised)) == [f"Contrastive training {told}pairs) against the encoder as published"]
    table = score_table(raised)
    assert table.header[1:3] == ["as published", "with pooling cls before training"]
    assert table.rows == [[KEY, "79.00", "70.00", "80.00", "+1.00", "+0.50 to +1.50", "1,500 pairs"]]
    assert aside(raised, KEY) == " (as published 79.00: raised)"
    lowered = record(tmp_path, said="lowered", after=78.0)
    assert list(conclusions(lowered)) == []  # an alarm tells it
    assert "LOWERED" in verdict(lowered) and "worse on it than the encoder as published" in verdict(lowered)
    none = record(tmp_path, said="no difference was found", after=79.09)
    assert "RAISED" not in verdict(none) and "no difference was found on 1,500 pairs (79.00 and 79.09" in verdict(none)
    assert aside(none, KEY) == " (as published 79.00: no difference was found)"


def test_the_runs_of_an_arm_are_counted(tmp_path):
    runs = [record(tmp_path, seed, said, start=70.0) for seed, said in enumerate(["raised", "raised", "lowered"])]
    assert counted(runs, KEY) == "raised in 2 of 3 runs, lowered in 1"
    assert list(arm_against_start("focal", runs)) == [
        f"focal, {KEY}: 79.00 as published, 70.00 with pooling cls before training, 80.00 trained "
        "(raised in 2 of 3 runs, lowered in 1)"
    ]
