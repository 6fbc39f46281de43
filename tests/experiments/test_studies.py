"""The grids of the studies are grids: every run of them would be started. Their scores can be collected."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import DEV, made_run, write_results
from tiny import save_tiny

from hf_focalcse.cli import main as cli

STUDIES = sorted((Path(__file__).parents[2] / "studies").rglob("*.yaml"))


@pytest.mark.parametrize("grid", STUDIES, ids=lambda path: path.stem)
def test_a_study_can_be_started(tmp_path, monkeypatch, capsys, grid, shared_data):
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "tiny", "bert")
    (tmp_path / "wiki3.txt").write_text("a man\n" * 64)
    (tmp_path / "sts").symlink_to(shared_data / "sts")
    cli.run("sweep", [str(grid), "--dry_run", "--model_name_or_path", "tiny"])
    assert "new) in" in capsys.readouterr().out


def test_the_scores_of_a_study_are_collected(tmp_path):
    for seed, dev in ((1, 83.0), (2, 84.0)):
        made_run(tmp_path / f"focal-seed{seed}", seed, dev, [70.0, 72, 74, 76, 78, 80, 63], m=0.3, learning_rate=3e-5)
        record = json.loads((tmp_path / f"focal-seed{seed}/run.json").read_text())
        record["hardware"] |= {"cpu_cores": 2, "gpus": []}
        (tmp_path / f"focal-seed{seed}/run.json").write_text(json.dumps(record))
    write_results(tmp_path / "before", {f"{DEV}/all/spearman": 79.0, f"{DEV}/all/pearson": 1.0})
    script = Path(__file__).parents[2] / "studies/collect.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, cwd=script.parents[1],
                          env={"PYTHONPATH": str(script.parents[1])})  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["runs"]) == ["focal-seed1", "focal-seed2"]
    run = found["runs"]["focal-seed2"]
    assert (run["loss"], run["m"], run["seed"], run["learning_rate"]) == ("focal", 0.3, 2, 3e-5)
    assert run["scores"][f"{DEV}/all/spearman"] == 84.0 and run["scores"][f"{DEV}/uniformity"] == -2.5
    assert run["scores"]["average/senteval-sickr/all/spearman"] == round(513 / 7, 6)
    assert found["before_training"]["before"]["scores"] == {f"{DEV}/all/spearman": 79.0}


def test_the_study_s_text_has_what_its_scores_say_of_alignment_and_uniformity():
    folder = Path(__file__).parents[2] / "studies"
    command = [sys.executable, folder / "geometry.py", folder / "minilm/results.json"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(folder.parent)})
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line]
    assert len([line for line in said if line.startswith("- ")]) == 6
    missing = set(said) - set((folder / "minilm/README.md").read_text().splitlines())
    assert not missing
