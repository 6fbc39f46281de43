"""An encoder -> the files that transformers, sentence-transformers and onnxruntime read."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ..data.views import tokenize
from ..encoder.poolers import pooler_of
from ..encoder.saving import HEAD_FILE, check_written_config
from .parity import CHECKED, compare
from .portable import make_portable
from .sentence_files import write_sentence_transformers as write_sentence_transformers  # one of the formats

ONNX_FILE, POOLING_FILE = "onnx/model.onnx", "1_Pooling/config.json"


def write_encoder(model: Any, stage: Path) -> int:
    """Write the plain encoder and its tokenizer; the number of tokens that it reads.

    A projection goes into a file of its own where the encoder has no place for it.
    """
    limit = int(model.reach())
    architectures = model.config.architectures
    model.encoder.save_pretrained(stage)
    check_written_config(model.encoder.config, stage)
    model.config.architectures = architectures  # shared with the encoder, which wrote its own
    tokenizer = model.tokenizer
    before, tokenizer.model_max_length = tokenizer.model_max_length, limit
    tokenizer.save_pretrained(stage)
    tokenizer.model_max_length = before
    if not model.encoder_has_pooler and model.projection_use != "none":
        head = {f"mlp.{k}": v.detach().contiguous() for k, v in model.mlp.state_dict().items()}
        save_file(head, stage / HEAD_FILE, metadata={"format": "pt"})
    make_portable(stage)
    return limit


def write_onnx(model: Any, stage: Path, limit: int) -> float:
    """Write ids and mask -> last_hidden_state and sentence_embedding; the lowest cosine to torch.

    Raises:
        UserError: onnxruntime gives other vectors.
    """
    import onnxruntime
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            row = pooler_of(model.pooler_name)
            output = model.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                output_hidden_states=row.all_layers,
                **model.family.arguments,
            )
            layers = output.hidden_states if row.all_layers else (output.last_hidden_state,)
            vectors = model.after_pooling(row.pool(layers, attention_mask, input_ids))
            return output.last_hidden_state, vectors[:, : model.truncate_dim]

    path = stage / ONNX_FILE
    path.parent.mkdir()
    texts, _ = model.as_read(CHECKED, model.prompt, model.max_length())
    tokens = tokenize(model.tokenizer, texts[:2], limit)
    inputs, outputs = ["input_ids", "attention_mask"], ["last_hidden_state", "sentence_embedding"]
    axes = {name: {0: "batch", 1: "length"} for name in [*inputs, outputs[0]]} | {outputs[1]: {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer, about shapes; the check below covers them
        torch.onnx.export(
            *(Encoder().eval(), tuple(tokens[name] for name in inputs), str(path)),
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=18,
            dynamo=False,  # the newer exporter writes this machine's paths into the file
        )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tokens = tokenize(model.tokenizer, texts, limit)
    found = session.run(outputs[1:], {name: tokens[name].numpy() for name in inputs})[0]
    return compare("onnxruntime", model.encode(CHECKED), found)
