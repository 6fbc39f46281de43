"""Encoders as the Hub has them beyond the zoo: other heads and prefixes, half precision, tokenizer settings, schemas.

    python wild_zoo.py ENCODER_ZOO.PY OUT

writes OUT/<kind>/ for each and OUT/expected.json, both in the form of the zoo's own script, on which this one builds.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

spec = importlib.util.spec_from_file_location("encoder_zoo", sys.argv[1])
z: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(z)
z.KINDS.clear()
of, kind, edit = z.of, z.kind, z.edit
CLS, MEAN, LAST, NORMALIZE, BERT, ROBERTA = z.CLS, z.MEAN, z.LAST, z.NORMALIZE, z.BERT_TOKENS, z.ROBERTA
XLM = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
MODERN = z.ENDS | {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 8, "global_attn_every_n_layers": 2}
GEMMA = z.GROUPED | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
GEMMA |= {"query_pre_attn_scalar": 16}
QWEN2 = {key: value for key, value in z.GROUPED.items() if key != "head_dim"}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "pad_token_id": 1, "eos_token_id": 2}
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 130}
bert, modern = z.bert, of("modernbert", z.wordpiece, BERT, **MODERN)
qwen3 = of("qwen3", z.qwen_bpe, z.QWEN, **z.GROUPED)
roberta = of("roberta", z.roberta_bpe, ROBERTA, type_vocab_size=1)
DEFAULT = {"prompts": z.PROMPTS, "default_prompt_name": "query"}


def weights(change=lambda state: state, dtype=None, part=""):
    def apply(folder: Path) -> None:
        file = folder / part / "model.safetensors"
        state = {key: value.to(dtype or value.dtype).contiguous() for key, value in change(load_file(file)).items()}
        save_file(state, file, metadata={"format": "pt"})

    return apply


def prefixed(start: str, old: str = "", new: str = ""):
    return weights(lambda state: {start + (key.replace(old, new) if old else key): v for key, v in state.items()})


def config(file="config.json", **changes):
    return partial(edit, name=file, **changes)


def whole(file: str, content: Any):
    return lambda folder: z.write_json(folder / file, content)


def resized(size: int):
    def apply(folder: Path) -> None:
        model = transformers.AutoModel.from_pretrained(folder)
        model.resize_token_embeddings(size)
        model.save_pretrained(folder)

    return apply


def with_added_tokens(folder: Path) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(["zürich", "guitar!"])
    tokenizer.save_pretrained(folder)
    edit(folder, tokenizer_class="PreTrainedTokenizerFast", model_input_names=["input_ids", "attention_mask"])
    resized(len(tokenizer))(folder)


def baked(folder: Path) -> None:
    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.enable_padding(length=64, pad_id=0, pad_token="[PAD]")
    tokenizer.enable_truncation(10)
    tokenizer.save(file)


def vocabulary_only(folder: Path) -> None:
    ids = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.get)) + "\n")
    (folder / "tokenizer.json").unlink()
    edit(folder, tokenizer_class="BertTokenizer", do_lower_case=True)


def half_in_shards(folder: Path) -> None:
    model = transformers.AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.half().save_pretrained(folder, max_shard_size="30KB")


def newer_places(folder: Path) -> None:
    rows = json.loads((folder / "modules.json").read_text())
    rows[0]["type"] = "sentence_transformers.base.modules.transformer.Transformer"
    for row in rows[1:]:
        name = row["type"].rpartition(".")[2]
        row["type"] = f"sentence_transformers.sentence_transformer.modules.{name.lower()}.{name}"
    z.write_json(folder / "modules.json", rows)


# ---- published layouts

make = of("xlm-roberta", z.unigram, ROBERTA, **XLM)
kind(
    "bge_m3",
    "cls, Normalize, XLMRobertaTokenizer with NFKC",
    make,
    CLS,
    NORMALIZE,
    then=config("tokenizer_config.json", tokenizer_class="XLMRobertaTokenizer", model_max_length=8192),
    exact=True,
)
kind(
    "multilingual_e5_small",
    "BERT, Unigram, pad 0 in config, 1 in tokenizer",
    of("bert", z.unigram, ROBERTA),
    MEAN,
    NORMALIZE,
    then=config("tokenizer_config.json", tokenizer_class="XLMRobertaTokenizer"),
    exact=True,
)
kind(
    "gte_modernbert",
    "keys of another version",
    modern,
    CLS,
    then=config(reference_compile=False, deterministic_flash_attn=False, repad_logits_with_grad=False),
)
kind(
    "arctic",
    "no pooler stored",
    bert,
    CLS,
    NORMALIZE,
    files={"prompts": {"query": "Represent this: "}},
    then=weights(lambda state: {key: v for key, v in state.items() if "pooler" not in key}),
)
kind("labse", "Dense tanh", bert, CLS, z.dense(32, 32, "activation.Tanh", bias=True), NORMALIZE)
kind("minilm", "padding and truncation in tokenizer.json", bert, MEAN, then=baked)

# ---- weights

for family, name, words, tokens, extra in (
    ("bert", "BertForMaskedLM", z.wordpiece, BERT, {}),
    ("bert", "BertForPreTraining", z.wordpiece, BERT, {}),
    ("modernbert", "ModernBertForMaskedLM", z.wordpiece, BERT, MODERN),
    ("roberta", "RobertaForMaskedLM", z.roberta_bpe, ROBERTA, {"type_vocab_size": 1}),
    ("roberta", "RobertaForSequenceClassification", z.roberta_bpe, ROBERTA, {"type_vocab_size": 1, "num_labels": 3}),
    ("xlm-roberta", "XLMRobertaForMaskedLM", z.unigram, ROBERTA, XLM),
    ("camembert", "CamembertForMaskedLM", z.unigram, ROBERTA, XLM),
    ("mpnet", "MPNetForMaskedLM", z.wordpiece, BERT, {"pad_token_id": 0}),
    ("electra", "ElectraForPreTraining", z.wordpiece, BERT, {"embedding_size": 16}),
    ("albert", "AlbertForMaskedLM", z.wordpiece, BERT, {"embedding_size": 16}),
    ("deberta-v2", "DebertaV2ForMaskedLM", z.wordpiece, BERT, DEBERTA),
    ("distilbert", "DistilBertForMaskedLM", z.wordpiece, BERT, DISTIL),
    ("eurobert", "EuroBertForMaskedLM", z.wordpiece, BERT, z.ENDS | {"mask_token_id": 4}),
    ("nomic_bert", "NomicBertForMaskedLM", z.wordpiece, BERT, {}),
    ("gemma3_text", "Gemma3ForCausalLM", z.wordpiece, BERT, GEMMA),
    ("qwen2", "Qwen2ForCausalLM", z.qwen_bpe, z.QWEN, QWEN2),
    ("qwen3", "Qwen3ForCausalLM", z.qwen_bpe, z.QWEN, z.GROUPED | {"tie_word_embeddings": True}),
    ("t5", "T5ForConditionalGeneration", z.unigram, ROBERTA, T5 | {"decoder_start_token_id": 1}),
):
    kind(name, "the weights of a head around them", of(family, words, tokens, name, **extra), MEAN)
kind("t5_gated", "gated", of("t5", z.unigram, ROBERTA, "T5EncoderModel", feed_forward_proj="gated-gelu", **T5), MEAN)
kind("prefix", "bert.", bert, MEAN, then=prefixed("bert."))
kind("gamma", "names of TensorFlow", bert, MEAN, then=prefixed("bert.", "LayerNorm.weight", "LayerNorm.gamma"))
kind("half", "float16", bert, MEAN, then=weights(dtype=torch.float16))
kind("half_in_shards", "float16 in shards", bert, MEAN, then=half_in_shards)
kind(
    "half_dense", "float16", bert, MEAN, z.dense(32, 16, bias=True), then=weights(dtype=torch.float16, part="2_Dense")
)
kind("padded_vocabulary", "more embeddings than tokens", bert, MEAN, then=resized(256))

# ---- tokens

tokens = partial(config, "tokenizer_config.json")
kind("added_tokens", "of a user", bert, MEAN, then=with_added_tokens)
kind("vocabulary_only", "vocab.txt", bert, MEAN, then=vocabulary_only)
kind("truncation_left", "cut at the beginning", bert, MEAN, files={"limit": 12}, then=tokens(truncation_side="left"))
kind("beyond_positions", "512 of 130", bert, MEAN, files={"limit": 512}, limit=130)
cased = of("bert", partial(z.wordpiece, lower=False), BERT)
kind("lower_cased", "do_lower_case on cased words", cased, MEAN, files={"lower": True})
kind("no_tokenizer_config", "tokenizer.json alone", bert, MEAN, then=lambda f: (f / "tokenizer_config.json").unlink())
kind("token_types", "asked for", bert, MEAN, then=tokens(model_input_names=["input_ids", "token_type_ids"]))
kind("padded_left", "rotary", of("modernbert", z.wordpiece, BERT | {"padding_side": "left"}, **MODERN), CLS)
kind(
    "limit_null",
    "tokenizer's counts",
    bert,
    MEAN,
    then=lambda f: (whole("sentence_bert_config.json", {"max_seq_length": None})(f), tokens(model_max_length=20)(f)),
)

# ---- directions and positions

kind("bidirectional_off", "is_causal false on BERT", of("bert", z.wordpiece, BERT, is_causal=False), MEAN)
kind("decoder_mean", "BERT made causal", of("bert", z.wordpiece, BERT, is_decoder=True), MEAN)
window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
kind("qwen2_window", "sliding window", of("qwen2", z.qwen_bpe, z.QWEN, **(QWEN2 | window)), LAST)
kind("gemma3_causal", "causal, mean", of("gemma3_text", z.wordpiece, BERT, **GEMMA), MEAN)
rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e6}
kind("rope_scaled", "yarn", of("qwen3", z.qwen_bpe, z.QWEN, rope_parameters=rope, **z.GROUPED), LAST)
endless = partial(z.byte_level, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "$A")
kind("no_end", "no end token", of("qwen3", endless, z.QWEN, **z.GROUPED), LAST)

# ---- files of sentence-transformers

kind("two_modes", "cls and mean", bert, z.pool("cls_token", "mean_tokens"))
kind("no_mode", "mean", bert, z.pool())
kind("listed_modes", "mean, cls", bert, MEAN, then=whole("1_Pooling/config.json", {"pooling_mode": ["mean", "cls"]}))
for name, maker, mode in (("words", bert, "mean"), ("bytes", roberta, "mean"), ("first", bert, "cls"),
                          ("last", qwen3, "last")):  # fmt: skip
    mode = {"last": "lasttoken"}.get(mode, f"{mode}_tokens" if mode == "mean" else f"{mode}_token")
    kind(f"prompt_left_out_{name}", "include_prompt", maker, z.pool(mode, include_prompt=False), files=DEFAULT)
kind("cut", "truncate_dim", bert, MEAN, NORMALIZE, files={"truncate_dim": 8})
kind("null_prompt", "null", bert, MEAN, files={"prompts": {"query": "query: ", "document": None}})
kind("newer_places", "of modules", bert, MEAN, NORMALIZE, then=newer_places)
kind("older_arguments", "model_args", modern, MEAN, then=whole("sentence_bert_config.json", {
    "max_seq_length": 64, "model_args": {"torch_dtype": "float16", "attn_implementation": "eager"},
    "tokenizer_args": {"padding_side": "left"}, "config_args": {}}))  # fmt: skip
kind(
    "older_file",
    "sentence_roberta_config.json",
    roberta,
    MEAN,
    files={"limit": 20},
    then=lambda f: (f / "sentence_bert_config.json").rename(f / "sentence_roberta_config.json"),
)
kind("activations", "GELU, SiLU", bert, MEAN, z.dense(32, 16, "activation.GELU"), z.dense(16, 8, "activation.SiLU"))
kind("normalized_before", "Normalize, Dense", bert, MEAN, NORMALIZE, z.dense(32, 16, bias=True))

if __name__ == "__main__":
    z.main(Path(sys.argv[2]), sys.argv[3:], z.KINDS)
