"""What the head must know of each type of encoder: one row a family.

A new family is one row here. Nothing heavy is imported, so that the package knows its names without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROMPTBERT, PROMPTROBERTA = ("promptbert", "promptbert-2"), ("promptroberta", "promptroberta-2")
BERT_RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob")


@dataclass(frozen=True)
class Family:
    """One type of encoder. A path is a chain of attributes, beginning at the encoder (a ``BertModel``).

    Args:
        name: what transformers calls it: "Bert" stands for BertConfig, BertModel and BertPreTrainedModel.
        dropout: the names of its dropout rates in the config.
        projection: the path of the Linear in a pooler of Linear and tanh on the first token, which then is the
            training projection. None: the encoder has no such pooler, and the projection lies in a side file.
        embeddings: paths of what gives the first layer its input (B, L, D); the first of them that is there counts.
        positions: the path of what is added to that, where it is not added within it.
        layers: the path of the list of layers.
        after_attention: the path, from a layer, of the module that takes the output of its attention; from there on no
            token reads another. None: the last layer is never computed for first tokens alone.
        packable: whether the encoder takes position ids and hands further arguments on to its attention, so that
            sentences can be packed without padding.
        after_padding: whether positions count from the one behind the padding index, and not from 0.
        pooler: how a checkpoint pools that says nothing about it.
        templates: which of the named templates PromptBERT's two views have, see `NAMED`: by how its tokenizers read
            quotation marks.
        base: the name in its PreTrainedModel, where that is another. encoder: the end of its class's name.
        auto: the class of transformers that reads a plain encoder of it.
        arguments: what its forward pass is given besides ids and mask.
        since: the first version of transformers that has it, where some versions 4 do not.
    """

    name: str
    dropout: tuple[str, ...] = BERT_RATES
    projection: str | None = None
    embeddings: tuple[str, ...] = ("embeddings",)
    positions: str | None = None
    layers: str = "encoder.layer"
    after_attention: str | None = None
    packable: bool = False
    after_padding: bool = False
    pooler: str = "cls"
    templates: tuple[str, str] = PROMPTBERT
    base: str = ""
    encoder: str = "Model"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    auto: str = "AutoModel"
    since: str = ""

    @property
    def class_name(self) -> str:
        """The class of this package that trains such an encoder."""
        return f"{self.name}ForFocalCL"

    def template(self, name: str) -> str:
        """``promptbert`` and ``promptbert-2`` -> what this family has in their place; any other template as it is."""
        return self.templates[PROMPTBERT.index(name)] if name in PROMPTBERT else name


# Where sentence-transformers has kept lengths and lower-casing.
TRANSFORMER_FILES = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
DECODER: dict[str, Any] = {  # of the kind of Llama: attention has the only dropout, and keeps nothing for later tokens
    "dropout": ("attention_dropout",),
    "embeddings": ("embed_tokens",),
    "layers": "layers",
    "pooler": "last",
    "arguments": {"use_cache": False},
}
FAMILIES = (
    Family("Albert", projection="pooler", embeddings=("encoder.embedding_hidden_mapping_in",), packable=True),
    Family("Bert", projection="pooler.dense", after_attention="attention.output", packable=True),
    Family(
        "Camembert",
        projection="pooler.dense",
        after_attention="attention.output",
        after_padding=True,
        templates=PROMPTROBERTA,
    ),
    Family("DebertaV2", templates=PROMPTROBERTA),
    Family("DistilBert", ("dropout", "attention_dropout"), packable=True),
    Family(
        "Electra",
        embeddings=("embeddings_project", "embeddings"),  # the first only where embeddings are narrower than D
        after_attention="attention.output",
        packable=True,
    ),
    Family(
        "EuroBert",
        ("attention_dropout",),
        embeddings=("embed_tokens",),
        layers="layers",
        pooler="mean",
        templates=PROMPTROBERTA,
        since="5.3",
    ),
    Family("Gemma3Text", **(DECODER | {"pooler": "mean", "base": "Gemma3", "since": "4.50"})),
    Family("Llama", **DECODER),
    Family("Mistral", **DECODER),
    Family(
        "ModernBert",
        ("attention_dropout", "embedding_dropout", "mlp_dropout"),
        templates=PROMPTROBERTA,
        since="4.48",
    ),
    Family("MPNet", projection="pooler.dense", after_padding=True),
    Family("NomicBert", pooler="mean", since="5.5"),
    Family(
        "OPT",
        **(DECODER | {"dropout": ("dropout", "attention_dropout"), "embeddings": ("decoder.embed_tokens",)})
        | {"positions": "decoder.embed_positions", "layers": "decoder.layers"},
    ),
    Family("Qwen2", **DECODER),
    Family("Qwen3", **DECODER, since="4.51"),
    Family(
        "Roberta",
        projection="pooler.dense",
        after_attention="attention.output",
        packable=True,
        after_padding=True,
        templates=PROMPTROBERTA,
    ),
    Family(
        "T5",
        ("dropout_rate",),
        embeddings=("encoder.embed_tokens",),
        layers="encoder.block",
        encoder="EncoderModel",
        auto="AutoModelForTextEncoding",
        pooler="mean",
    ),
    Family(
        "XLMRoberta",
        projection="pooler.dense",
        after_attention="attention.output",
        packable=True,
        after_padding=True,
        templates=PROMPTROBERTA,
    ),
)
