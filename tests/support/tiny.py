"""Tiny encoders of every family with a word-piece tokenizer, made from literals: nothing is downloaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AutoModel,
    BertConfig,
    CamembertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    EuroBertConfig,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    MPNetConfig,
    NomicBertConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    T5Config,
    XLMRobertaConfig,
    set_seed,
)

WORDS = """a the of in on is was not man woman dog cat child plays runs eats reads sleeps guitar ball book park house
river city old young small large red green two three people water music song game quickly slowly with under over"""
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [
    *SPECIAL,
    *WORDS.split(),
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
]
SIZE = {"vocab_size": len(VOCABULARY) + 1, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
COMMON = SIZE | {"intermediate_size": 32, "max_position_embeddings": 66}

CONFIGS = {
    "albert": AlbertConfig(
        **COMMON, embedding_size=8, pad_token_id=0, bos_token_id=2, eos_token_id=3,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    ),
    "bert": BertConfig(**COMMON),
    "roberta": RobertaConfig(**COMMON, type_vocab_size=1, pad_token_id=0, bos_token_id=2, eos_token_id=3),
    "xlm-roberta": XLMRobertaConfig(**COMMON, type_vocab_size=1, pad_token_id=0, bos_token_id=2, eos_token_id=3),
    "mpnet": MPNetConfig(**COMMON, pad_token_id=0),
    "distilbert": DistilBertConfig(
        vocab_size=SIZE["vocab_size"], dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=66
    ),
    "electra": ElectraConfig(**COMMON, embedding_size=8),
    "modernbert": ModernBertConfig(
        **COMMON, pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
        attention_dropout=0.1, embedding_dropout=0.1, mlp_dropout=0.1,
    ),
}  # fmt: skip

ENDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
GROUPED = COMMON | ENDS | {"num_key_value_heads": 1, "head_dim": 8}
WITH_DROPOUT = GROUPED | {"attention_dropout": 0.1}
FURTHER = {  # families that share the code of those above, so that few tests go through them
    "camembert": CamembertConfig(**COMMON, type_vocab_size=1, **ENDS),
    "deberta-v2": DebertaV2Config(**COMMON, pad_token_id=0, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "eurobert": EuroBertConfig(**COMMON, **ENDS, mask_token_id=4, attention_dropout=0.1),
    "gemma3_text": Gemma3TextConfig(**WITH_DROPOUT, use_bidirectional_attention=True),
    "llama": LlamaConfig(**WITH_DROPOUT),
    "mistral": MistralConfig(**WITH_DROPOUT, sliding_window=None),
    "nomic_bert": NomicBertConfig(**COMMON, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    "opt": OPTConfig(**(COMMON | ENDS | {"word_embed_proj_dim": 16, "ffn_dim": 32}), dropout=0.1),
    "qwen2": Qwen2Config(**{k: v for k, v in WITH_DROPOUT.items() if k != "head_dim"}),
    "qwen3": Qwen3Config(**WITH_DROPOUT),
    "t5": T5Config(vocab_size=SIZE["vocab_size"], d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2),
}


def tiny_tokenizer(max_length: int = 64) -> PreTrainedTokenizerFast:
    """Lower-casing word pieces, [CLS] … [SEP]."""
    ids = {token: i for i, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=max_length, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def save_tiny(folder: Path, family: str = "bert", seed: int = 0, **config: float) -> Path:
    """A randomly initialised plain encoder with its tokenizer, as somebody else would have saved it."""
    set_seed(seed)
    plain = (CONFIGS | FURTHER)[family]
    made = plain.__class__(**(plain.to_dict() | config))
    AutoModel.from_config(made).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def record_mean(folder: Path) -> Path:
    """Make a folder say, as sentence-transformers does, that its encoder pools by mean."""
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


SENTENCES = [
    "a man plays the guitar in the park",
    "the old woman reads a book",
    "two children",
    "a small red dog runs quickly over the green river with three people",
    "the cat sleeps",
    "music",
    "a young child eats in the house",
    "the city is not large",
]

# What somebody without this package does with a folder: load it, embed two rows, keep what was said.
PLAIN = """
import io, json, logging, sys, contextlib, warnings
said = io.StringIO()
with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging as hf
    hf.disable_progress_bar()
    handler = logging.StreamHandler(said)
    logging.getLogger("transformers").addHandler(handler)
    torch.set_num_threads(1)
    answers = {}
    for folder in sys.argv[2:]:
        said.seek(0), said.truncate()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
            tokenizer = AutoTokenizer.from_pretrained(folder)
        with torch.no_grad():
            batch = tokenizer(json.loads(sys.argv[1]), padding=True, return_tensors="pt")
            output = model(**{k: batch[k] for k in ("input_ids", "attention_mask")})
        pooled = output.get("pooler_output")
        answers[folder] = {
            "missing": sorted(info["missing_keys"]), "unexpected": sorted(info["unexpected_keys"]),
            "said": said.getvalue() + "".join(str(w.message) for w in caught), "class": type(model).__name__,
            "cls": output.last_hidden_state[:, 0].tolist(), "pooled": None if pooled is None else pooled.tolist(),
        }
assert not [name for name in sys.modules if name.startswith("hf_focalcse")]
print(json.dumps(answers))
"""


def plain_load(*folders: Path) -> dict:
    """{folder: what a fresh process without this package found there}."""
    run = subprocess.run(
        [sys.executable, "-c", PLAIN, json.dumps(SENTENCES), *map(str, folders)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])  # older tokenizers print a warning of their own before it
