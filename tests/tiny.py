"""Tiny encoders of every family with a word-piece tokenizer, made from literals: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
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
    made = CONFIGS[family].__class__(**(CONFIGS[family].to_dict() | config))
    AutoModel.from_config(made).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
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
