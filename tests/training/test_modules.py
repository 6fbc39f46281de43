"""What a training leaves opens in sentence-transformers with our vectors, or not at all."""

import json
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
import torch
from tiny import SENTENCES, save_tiny
from tiny_training import make_trainer

from hf_focalcse.encoder.loading import load_model


def run(folder, family="bert", pooler="cls", projection=None, **arguments):
    model = load_model(str(save_tiny(folder / "base", family, initializer_range=0.4)), pooler, projection)
    arguments = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2} | arguments
    trainer = make_trainer(folder, model=model, **arguments)
    trainer.train()
    trainer.save_whole(folder / "out")
    return trainer


def opened(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("family", "pooler", "projection"),
    [("bert", "cls", None), ("bert", "cls", "always"), ("electra", "cls", "always"), ("roberta", "mean", None)],
)
def test_training_folders_and_checkpoints_open_in_sentence_transformers(tmp_path, family, pooler, projection):
    run(tmp_path, family, pooler, projection)
    texts = [*SENTENCES, "dog " * 100]
    for folder in (tmp_path / "out", tmp_path / "out/checkpoint-2"):
        ours = load_model(str(folder))
        assert (ours.pooler_name, ours.projection_use) == (
            pooler,
            projection or ("training" if pooler == "cls" else "none"),
        )
        theirs = opened(folder)
        np.testing.assert_allclose(theirs.encode(texts), ours.encode(texts), atol=1e-5)
        assert theirs.max_seq_length == ours.max_seq_length
        assert (folder / "2_Dense").exists() is (projection == "always")


def test_an_average_of_layers_is_opened_as_it_embeds(tmp_path):
    """By a module that averages them: without modules.json it would take the mean of the last and say nothing."""
    trainer = run(tmp_path, pooler="avg_first_last", save_strategy="no")
    trainer.save_model(tmp_path / "other")
    for folder in (tmp_path / "out", tmp_path / "other"):
        ours = load_model(str(folder))
        assert ours.pooler_name == "avg_first_last"
        np.testing.assert_allclose(opened(folder).encode(SENTENCES), ours.encode(SENTENCES), atol=1e-5)


def test_sentence_transformers_need_not_be_there_to_train(tmp_path, monkeypatch):
    def version(package):
        if package == "sentence-transformers":
            raise PackageNotFoundError
        return "1"

    monkeypatch.setattr("hf_focalcse.publishing.sentence_files.version", version)
    make_trainer(tmp_path).save_model()
    said = json.loads((tmp_path / "out/config_sentence_transformers.json").read_text())
    assert said["__version__"] == {"transformers": "1", "pytorch": "1"}
    np.testing.assert_allclose(
        opened(tmp_path / "out").encode(SENTENCES), load_model(str(tmp_path / "out")).encode(SENTENCES), atol=1e-5
    )


def test_writing_the_modules_draws_nothing(tmp_path):
    """A run that is resumed from a checkpoint draws what the uninterrupted one draws."""
    trainer = make_trainer(tmp_path, model=load_model(str(save_tiny(tmp_path / "base")), "cls", "always"))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trainer.save_model(tmp_path / "other")
    assert torch.equal(torch.rand(3), expected)
    assert (tmp_path / "other/2_Dense/model.safetensors").exists()
