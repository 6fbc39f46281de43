"""A tiny run with everything a card can show, and its export; made once."""

from pathlib import Path

import pytest

from hf_focalcse import cli
from hf_focalcse.publishing.export import export_model
from tiny import SENTENCES, save_tiny

TOKEN = "hf_plantedTOKENplantedTOKEN"


def write_inputs(folder: Path) -> Path:
    """A tiny encoder, text and graded pairs to train and judge with."""
    save_tiny(folder / "tiny", initializer_range=0.4)
    (folder / "text.txt").write_text("".join(f"{s} {i}\n" for i in range(4) for s in SENTENCES))
    rows = [(a, b, 5 - abs(i - j) / 2) for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)]
    (folder / "graded.tsv").write_text(
        "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{score}\n" for a, b, score in rows)
    )
    return folder


TRAIN = "--train_file {0}/text.txt --eval_file {0}/graded.tsv --per_device_train_batch_size 8 --max_steps 4 "
TRAIN += "--eval_steps 2 --logging_steps 1 --use_cpu --model_name_or_path {0}/tiny --output_dir {0}/out"


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
