"""What an encoder's own library reads back is what was written."""

import copy

import numpy as np
import pytest
import transformers
from packaging import version
from tiny import CONFIGS, FURTHER, SENTENCES, save_tiny
from tiny_training import make_trainer

from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.publishing.formats import write_encoder


@pytest.mark.parametrize("write", [lambda model, out: model.save_pretrained(out), write_encoder])
def test_a_configuration_that_is_read_as_another_is_refused(tmp_path, monkeypatch, write):
    model = load_model(str(save_tiny(tmp_path / "base")), "cls")
    write(model, tmp_path / "well")
    other = copy.deepcopy(model.encoder.config)
    other.layer_norm_eps = 0.5
    monkeypatch.setattr(type(model.config), "from_pretrained", lambda folder: other)
    with pytest.raises(UserError, match="writes layer_norm_eps 1e-12 of bert into .*out and reads 0.5, .*newer trans"):
        write(model, tmp_path / "out")


@pytest.mark.parametrize("family", [*CONFIGS, *FURTHER])
def test_every_family_is_saved_after_training(tmp_path, family):
    """Trainer changes the configuration, in which not every family reads back the same keys."""
    if family == "gemma3_text" and version.parse(transformers.__version__) < version.parse("5.16"):
        pytest.skip("writes another window than it reads")
    model = load_model(str(save_tiny(tmp_path / "base", family)), "mean", dropout=0.1)
    trainer = make_trainer(tmp_path, model=model, max_steps=1)
    trainer.train()
    trainer.save_whole(tmp_path / "saved")
    np.testing.assert_allclose(
        load_model(str(tmp_path / "saved")).encode(SENTENCES), model.encode(SENTENCES), atol=1e-6
    )
