"""Encoder folders as they are found: each gives the vectors of sentence-transformers, or is refused in a sentence.

From the folder, after a training step that changes nothing, and after the export of what that left.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import transformers
from packaging import version

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.publishing.formats import write_encoder, write_sentence_transformers

CLOSE = 1 - 1e-6
REFUSED = {  # kinds that may be refused, or must be -> what is said
    "static": "StaticEmbedding has no counterpart here",
    "router": "Router has no counterpart here",
    "plain_bert": "says how it pools; choose with --pooler",
    "qwen3_chat": "says how it pools; choose with --pooler",
    "bert_pickled": r"as a pickle \(pytorch_model.bin\), .*convert it there",
    "code_unknown": "needs code that lies beside it",
    "code_bert": "positions of the type 'alibi'",
}
TRAINED = ("bert_two_dense", "bert_default_prompt", "bert_limit_16", "lora_adapter", "t5_encoder", "qwen3_left")
EXPORTED = (*TRAINED, "bert_layers", "bert_in_subfolder", "gemma3_bidirectional", "bert_unigram", "roberta_own_split")


@pytest.fixture(scope="session")
def zoo(shared, tmp_path_factory):
    """(the folder of the kinds, what is expected of them), written once by the script that knows them."""
    folder = tmp_path_factory.mktemp("zoo")
    script = shared / "prototypes/encoder_zoo.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True)
    return folder, json.loads((folder / "expected.json").read_text(encoding="utf-8"))


def lowest(found, wanted) -> float:
    one, other = np.asarray(found, float), np.asarray(wanted, float)
    assert one.shape == other.shape
    return float(((one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)).min())


def test_every_kind_gives_the_vectors_of_sentence_transformers_or_is_refused(zoo, monkeypatch):
    folder, expected = zoo
    monkeypatch.setattr(sys, "stdin", None)  # whoever asks a question fails
    texts, wrong = expected["sentences"], {}
    for kind, row in expected["kinds"].items():
        if kind in REFUSED:
            assert row["expect"] != "same"
            with pytest.raises(UserError, match=REFUSED[kind]):
                load_model(str(folder / kind))
            continue
        model = load_model(str(folder / kind))
        found = {
            "vectors": lowest(model.encode(texts), row["vectors"]),
            "query": lowest(model.encode_query(texts), row.get("query", row["vectors"])),
            "document": lowest(model.encode_document(texts), row.get("document", row["vectors"])),
        }
        wrong |= {(kind, what): cosine for what, cosine in found.items() if not cosine >= CLOSE}
        assert model.max_length() == row["max_seq_length"], kind
        assert "as_loaded" not in row or lowest(model.encode(texts), row["as_loaded"]) < CLOSE  # the trap is one
    assert not wrong
    assert not list(folder.rglob("RAN"))


def test_code_that_fits_by_its_type_is_told_by_its_weights(zoo, tmp_path):
    folder = zoo[0] / "code_bert"
    config = json.loads((folder / "config.json").read_text())
    del config["position_embedding_type"]
    for file in folder.iterdir():
        if file.is_file() and file.name != "modules.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="was made for code of its own .*its weights do not fit BertModel"):
        load_model(str(tmp_path), "mean")


@pytest.mark.parametrize("kind", EXPORTED)
def test_training_and_export_keep_what_the_base_says(zoo, tmp_path, kind):
    from sentence_transformers import SentenceTransformer

    folder, expected = zoo
    texts, row = expected["sentences"], expected["kinds"][kind]
    model = load_model(str(folder / kind), dropout=0.1)
    if kind in TRAINED:
        args = FocalCSETrainingArguments(
            output_dir=str(tmp_path / "out"), max_steps=1, learning_rate=0.0, weight_decay=0.0, use_cpu=True,
            per_device_train_batch_size=3, save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        rows = [{"text": text} for text in texts]
        trainer = FocalCSETrainer(model, args, build_loss("infonce"), train_dataset=rows, dev=[])
        trainer.train()
        trainer.save_whole(tmp_path / "out")
        model = load_model(str(tmp_path / "out"))
        assert lowest(model.encode(texts), row["vectors"]) >= CLOSE
    stage = tmp_path / "stage"
    stage.mkdir()
    if kind == "gemma3_bidirectional" and version.parse(transformers.__version__) < version.parse("5.16"):
        with pytest.raises(UserError, match="writes sliding_window .* and reads"):
            write_encoder(model, stage)
        return
    write_sentence_transformers(model, stage, write_encoder(model, stage))
    other = SentenceTransformer(str(stage), device="cpu", trust_remote_code=False)
    assert lowest(other.encode(texts), row["vectors"]) >= CLOSE
    assert lowest(other.encode_query(texts), row.get("query", row["vectors"])) >= CLOSE
    assert lowest(load_model(str(stage)).encode(texts), row["vectors"]) >= CLOSE
    said, base = (json.loads((of / "config_sentence_transformers.json").read_text()) for of in (stage, folder / kind))
    for key in base.keys() - {"__version__"}:
        assert said[key] == base[key], key


@pytest.mark.exhaustive
def test_further_layouts_of_the_hub_give_the_vectors_of_sentence_transformers(shared, tmp_path):
    """From the folder and from its export, read here and there."""
    from sentence_transformers import SentenceTransformer

    script = Path(__file__).parents[1] / "support/wild_zoo.py"
    command = [sys.executable, str(script), str(shared / "prototypes/encoder_zoo.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    expected = json.loads((tmp_path / "expected.json").read_text(encoding="utf-8"))
    texts, wrong = expected["sentences"], {}
    assert len(expected["kinds"]) > 50
    for kind, row in expected["kinds"].items():
        model = load_model(str(tmp_path / kind))
        stage = tmp_path / f"{kind}-export"
        stage.mkdir()
        write_sentence_transformers(model, stage, write_encoder(model, stage))
        others = model, SentenceTransformer(str(stage), device="cpu"), load_model(str(stage))
        for name in ("vectors", "query", "document"):
            encode = {"vectors": "encode"}.get(name, f"encode_{name}")
            wanted = row.get(name, row["vectors"])
            found = [lowest(getattr(other, encode)(texts), wanted) for other in others]
            wrong |= {(kind, name): found} if min(found) < CLOSE else {}
        assert model.max_length() == row.get("max_seq_length", model.max_length()), kind
    assert not wrong
