"""What an encoder's own library reads back is what was written."""

import copy

import pytest
from tiny import save_tiny

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
