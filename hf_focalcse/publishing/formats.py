"""An encoder -> the files that transformers, sentence-transformers and onnxruntime read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors.torch import save_file

from ..data.views import tokenize
from ..encoder.batches import batches_by_length
from ..encoder.poolers import pooler_of
from ..encoder.saving import HEAD_FILE, check_written_config
from ..errors import UserError
from ..evaluation import PairSet, evaluate_sts, read_pairs
from ..evaluation.metrics import cosine
from ..quickstart import PAIRS
from .parity import CHECKED, compare, lowest_cosine
from .portable import make_portable
from .quantized import write_quantized
from .sentence_files import write_sentence_transformers as write_sentence_transformers  # one of the formats

ONNX_FILE, POOLING_FILE = "onnx/model.onnx", "1_Pooling/config.json"
QUANTIZED_FILE = "onnx/model_quantized.onnx"  # what transformers.js loads in browsers unless told otherwise
INPUTS, EMBEDDING = ["input_ids", "attention_mask"], "sentence_embedding"
BATCH = 64  # texts that are checked together
LOWEST_QUANTIZED = 0.95  # cosine of a vector by 8-bit weights to the checkpoint's


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
            vectors = model.after_pooling(model.pool(layers, attention_mask, input_ids))
            return output.last_hidden_state, vectors[:, : model.truncate_dim]

    path = stage / ONNX_FILE
    path.parent.mkdir()
    texts, _ = model.as_read(CHECKED, model.prompt, model.max_length())
    tokens = tokenize(model.tokenizer, texts[:2], limit)
    outputs = ["last_hidden_state", EMBEDDING]
    axes = {name: {0: "batch", 1: "length"} for name in [*INPUTS, outputs[0]]} | {outputs[1]: {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer, about shapes; the check below covers them
        torch.onnx.export(
            *(Encoder().eval(), tuple(tokens[name] for name in INPUTS), str(path)),
            input_names=INPUTS,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=18,
            dynamo=False,  # the newer exporter writes this machine's paths into the file
        )
    return compare("onnxruntime", model.encode(CHECKED), encoder_of(path, model)(CHECKED))


def write_quantized_onnx(model: Any, stage: Path) -> dict[str, Any]:
    """Write the file of `write_onnx` with weights in 8 bits; what that saves and costs, for the card.

    megabytes, float_megabytes: of both files. lowest_cosine, mean_cosine: of their vectors of ``texts`` texts.
    alone: the lowest cosine of a text encoded alone to the same beside a long one. spearman, float_spearman: x 100 on
    the quickstart's ``pairs`` graded pairs; None where it is undefined.

    Raises:
        UserError: 8 bits are too few for these weights.
    """
    files = [stage / ONNX_FILE, stage / QUANTIZED_FILE]
    write_quantized(*files)
    whole, short = (encoder_of(file, model) for file in files)
    graded = read_pairs(PAIRS)
    texts = list(dict.fromkeys([*CHECKED, *graded.texts()]))
    vectors = [encode(texts) for encode in (whole, short)]
    cosines = cosine(*vectors)
    if not cosines.min() >= LOWEST_QUANTIZED:
        raise UserError(
            f"with weights in 8 bits the vector of {texts[int(np.argmin(cosines))][:40]!r} has a cosine of "
            f"{cosines.min():.3f} to the checkpoint's, so {QUANTIZED_FILE} would be another encoder; export with "
            "--no_quantized_onnx"
        )
    alone = lowest_cosine(np.concatenate([short([text]) for text in CHECKED]), short(CHECKED))
    scores = [spearman_of(dict(zip(texts, of, strict=True)), graded) for of in vectors]
    return {
        "megabytes": round(files[1].stat().st_size / 1e6, 1),
        "float_megabytes": round(files[0].stat().st_size / 1e6, 1),
        "lowest_cosine": round(float(cosines.min()), 6),
        "mean_cosine": round(float(cosines.mean()), 6),
        "texts": len(texts),
        "alone": round(alone, 6),
        "pairs": len(graded.pairs),
        "float_spearman": scores[0],
        "spearman": scores[1],
    }


def spearman_of(vectors: dict[str, np.ndarray], graded: PairSet) -> float | None:
    """x 100, of graded pairs by vectors of the texts; None where it is undefined, since all cosines are alike."""
    encoder = SimpleNamespace(encode=lambda texts: np.stack([vectors[text] for text in texts]))
    try:
        return round(evaluate_sts(encoder, [graded], progress=False).scores[graded.headline], 2)
    except UserError:
        return None


def encoder_of(path: Path, model: Any) -> Callable[[list[str]], np.ndarray]:
    """N texts -> (N, D), as an ONNX file of `write_onnx` gives them, read as ``model`` reads them."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def encode(texts: list[str]) -> np.ndarray:
        found: list[Any] = [None] * len(texts)
        read, limit = model.as_read(texts, model.prompt, model.max_length())
        for rows, *batch in batches_by_length(read, model.tokenizer, limit, BATCH):
            inputs = {name: part.numpy() for name, part in zip(INPUTS, batch, strict=True)}
            for row, vector in zip(rows, session.run([EMBEDDING], inputs)[0], strict=True):
                found[row] = vector
        return np.stack(found)

    return encode
