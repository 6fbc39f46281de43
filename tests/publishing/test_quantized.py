"""8-bit weights: the same graph, a quarter of the bytes, and vectors that do not depend on the batch."""

import numpy as np
import pytest
from tiny import record_mean, save_tiny

from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.publishing import formats
from hf_focalcse.publishing.formats import ONNX_FILE, QUANTIZED_FILE, encoder_of, write_onnx, write_quantized_onnx
from hf_focalcse.publishing.parity import CHECKED
from hf_focalcse.publishing.quantized import BLOCK, _blocks, _rows

onnx = pytest.importorskip("onnx")


def test_a_matrix_in_8_bits_is_the_matrix_up_to_half_a_step():
    values = np.random.default_rng(0).normal(size=(40, 3 * BLOCK - 5)).astype(np.float32)
    values[3] = 0
    codes, scales = map(onnx.numpy_helper.to_array, _blocks("w", values))
    assert codes.shape == (40, 3, BLOCK) and codes.dtype == np.uint8 and scales.shape == (120,)
    again = ((codes.astype(np.float32) - 128) * scales.reshape(40, 3, 1)).reshape(40, -1)[:, : values.shape[1]]
    step = np.repeat(scales.reshape(40, 3), BLOCK, 1)[:, : values.shape[1]]
    assert (np.abs(again - values) <= step * 0.501).all() and not again[3].any()
    codes, scales = map(onnx.numpy_helper.to_array, _rows("w", values))
    assert codes.dtype == np.int8 and (np.abs(codes * scales - values) <= scales * 0.501).all()


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])  # albert: layers share their matrices
def test_an_encoder_in_8_bits(tmp_path, family):
    model = load_model(str(record_mean(save_tiny(tmp_path / "base", family, initializer_range=0.4))))
    stage = tmp_path / "stage"
    stage.mkdir()
    write_onnx(model, stage, model.max_length())
    cost = write_quantized_onnx(model, stage)
    assert 0.99 < cost["lowest_cosine"] < 1 and cost["alone"] >= 1 - 1e-6, cost
    graph = onnx.load(stage / QUANTIZED_FILE).graph
    kinds = [node.op_type for node in graph.node]
    assert "MatMulNBits" in kinds and {"Cast", "Gather"} <= set(kinds)
    large = [t.name for t in graph.initializer if t.data_type == 1 and np.prod(t.dims) >= 256 and len(t.dims) == 2]
    assert all(name.endswith("_scales") for name in large), large  # no matrix was left in float32
    found = encoder_of(stage / QUANTIZED_FILE, model)(CHECKED)
    assert found.shape == model.encode(CHECKED).shape


@pytest.fixture(autouse=True)
def smallest(monkeypatch):
    """Matrices of tiny encoders are quantised too."""
    monkeypatch.setattr("hf_focalcse.publishing.quantized.SMALLEST", 256)


def test_weights_that_8_bits_spoil_are_refused(tmp_path, monkeypatch):
    model = load_model(str(record_mean(save_tiny(tmp_path / "base", initializer_range=0.4))))
    stage = tmp_path / "stage"
    stage.mkdir()
    write_onnx(model, stage, model.max_length())
    monkeypatch.setattr(formats, "write_quantized", lambda source, target: target.write_bytes(source.read_bytes()))
    cost = write_quantized_onnx(model, stage)
    assert cost["lowest_cosine"] == cost["alone"] == 1 and cost["spearman"] == cost["float_spearman"]
    other = load_model(str(record_mean(save_tiny(tmp_path / "other", initializer_range=0.4, seed=1))))
    (tmp_path / "elsewhere").mkdir()
    write_onnx(other, tmp_path / "elsewhere", other.max_length())
    spoilt = (tmp_path / "elsewhere" / ONNX_FILE).read_bytes()
    monkeypatch.setattr(formats, "write_quantized", lambda source, target: target.write_bytes(spoilt))
    with pytest.raises(UserError, match=r"has a cosine of .* to the checkpoint's.* export with --no_quantized_onnx"):
        write_quantized_onnx(model, stage)
