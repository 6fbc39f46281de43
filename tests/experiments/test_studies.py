"""The grids of the studies are grids: every run of them would be started."""

from pathlib import Path

import pytest

from hf_focalcse.cli import main as cli
from tests.support.tiny import save_tiny

STUDIES = sorted((Path(__file__).parents[2] / "studies").rglob("*.yaml"))


@pytest.mark.parametrize("grid", STUDIES, ids=lambda path: path.stem)
def test_a_study_can_be_started(tmp_path, monkeypatch, capsys, grid, shared_data):
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "tiny", "bert")
    (tmp_path / "wiki3.txt").write_text("a man\n" * 64)
    (tmp_path / "sts").symlink_to(shared_data / "sts")
    cli.run("sweep", [str(grid), "--dry_run", "--model_name_or_path", "tiny"])
    assert "new) in" in capsys.readouterr().out
