"""A tiny run with everything a card can show, and its export; made once."""

import pytest
from tiny_run import TRAIN, write_inputs

from hf_focalcse.cli import main as cli
from hf_focalcse.publishing.export import export_model


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The output folder of a run that was given absolute paths."""
    folder = write_inputs(tmp_path_factory.mktemp("secret-place"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        cli.run("train", TRAIN.format(folder).split(), script="run_unsup.py")
    return folder / "out"


@pytest.fixture(scope="session")
def exported(trained, tmp_path_factory):
    """Its export, as it would be pushed to org/focal-tiny; copy it before changing it."""
    target = {"repo_id": "org/focal-tiny", "license": "mit", "language": "en"}
    folder, _ = export_model(trained, tmp_path_factory.mktemp("export") / "hub", publication=target)
    return folder
