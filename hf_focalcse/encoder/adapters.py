"""LoRA adapters: a folder that holds the change to an encoder's weights, which is added to its base on loading."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import UserError
from ..runs.folder import ADAPTER_FILE
from .fields import Fields
from .parts import read_weights
from .source import WEIGHTS, Source

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", ADAPTER_FILE
ADAPTER_FOLDER = "adapter"  # in the output folder of a training by LoRA, beside the merged encoder
RECORD_FILE = "focal_cl.json"  # of an adapter trained here: what config.json of a whole encoder says under that key
READ = {
    *("base_model_name_or_path", "revision", "peft_type"),
    *("r", "lora_alpha", "use_rslora", "alpha_pattern", "use_dora"),
}
WITHOUT_EFFECT = {  # how it was trained, or what its weights tell: which layers it changes, and their ranks
    *("task_type", "auto_mapping", "peft_version", "inference_mode", "lora_dropout", "init_lora_weights"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern"),
    *("megatron_core", "qalora_group_size", "runtime_config", "eva_config", "loftq_config", "ensure_weight_tying"),
}
PLAIN: tuple[Any, ...] = (
    None,
    False,
    "none",
    [],
    {},
)  # what any other setting of peft must be: some change more than weights
BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")  # other ways to begin change the base's weights
NEVER_MERGED = {"alora_invocation_tokens", "layer_replication"}  # nor by peft
PROMPTS = re.compile("PROMPT|PREFIX|P_TUNING|CPT")  # kinds of adapters that add tokens
CLASSES = {  # task of an adapter -> the end of the class of peft that loads it with its base
    "FEATURE_EXTRACTION": "ForFeatureExtraction",
    "CAUSAL_LM": "ForCausalLM",
    "SEQ_2_SEQ_LM": "ForSeq2SeqLM",
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
MAGNITUDE = re.compile(r"\.lora_magnitude_vector(\.weight)?$")


@dataclass(frozen=True)
class Adapter:
    """What adapter_config.json says.

    rank: of A and B, where a weight has no other. alpha: B A is multiplied by it over the rank, or, where ``by_root``,
    over the root of the rank. alphas: a pattern of a layer's path -> its own alpha. dora: the rows of a changed weight
    have lengths of their own.
    """

    base: str
    revision: str | None
    rank: int
    alpha: float
    by_root: bool = False
    alphas: dict[str, float] = field(default_factory=dict)
    dora: bool = False

    def describe(self) -> str:
        return f"{'DoRA' if self.dora else 'LoRA'} adapter of rank {self.rank} on {self.base}, merged"

    def scale(self, path: str, rank: int) -> float:
        """The factor of the product of B and A, of this rank, in the layer at a path."""
        own = (alpha for pattern, alpha in self.alphas.items() if re.fullmatch(rf"(.*\.)?({pattern})", path))
        return next(own, self.alpha) / (math.sqrt(rank) if self.by_root else rank)


def read_adapter(source: Source) -> Adapter | None:
    """The adapter of a folder or repository; None where there is none.

    Raises:
        UserError: it is of a kind that cannot be merged here, names no base, or has weights of a whole encoder beside
            it.
    """
    if source.find(CONFIG_FILE) is None:
        return None
    name, config = source.name_or_path, source.read_mapping(CONFIG_FILE)
    whole = next((file for file in WEIGHTS if source.find(file) is not None), None)
    if whole is not None:
        raise UserError(
            f"{name!r} holds a whole encoder ({whole}) and an adapter ({CONFIG_FILE}), which transformers adds to it "
            "only where peft is installed; move the files of the adapter into a folder of their own, and give one of "
            "the two"
        )
    base = config.get("base_model_name_or_path")
    if not base:
        raise UserError(f"{name!r} is an adapter, but its {CONFIG_FILE} does not name its base; add it there")
    kind = config.get("peft_type")
    if kind != "LORA":
        remedy = remedy_of(name, config, not PROMPTS.search(str(kind)))
        raise UserError(f"{name!r} is a {kind} adapter of {base!r}; only LoRA can be merged here: {remedy}")
    further = {key: value for key, value in config.items() if key not in READ | WITHOUT_EFFECT and value not in PLAIN}
    if config.get("init_lora_weights") not in BEGINNINGS:
        further["init_lora_weights"] = config["init_lora_weights"]
    for key, value in further.items():
        remedy = remedy_of(name, config, not further.keys() & NEVER_MERGED)
        raise UserError(f"{name!r} is an adapter of {base!r} with {key} {value!r}, not merged here: {remedy}")
    fields = Fields(config, CONFIG_FILE, name)
    return Adapter(
        str(base),
        config.get("revision"),
        rank=fields.take("r", int, least=1),
        alpha=fields.take("lora_alpha", float),
        by_root=fields.take("use_rslora", bool, False),
        alphas=read_alphas(fields.take("alpha_pattern", dict, {}), name),
        dora=fields.take("use_dora", bool, False),
    )


def read_alphas(found: dict[str, Any], name: str) -> dict[str, float]:
    """The alphas of single layers.

    Raises:
        UserError: one is no number, or its pattern no regular expression.
    """
    for pattern, alpha in found.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(
                f"{CONFIG_FILE} of {name!r} has the alpha_pattern {pattern!r}, no regular expression ({error})"
            ) from error
        if isinstance(alpha, bool) or not isinstance(alpha, int | float):
            raise UserError(f"{CONFIG_FILE} of {name!r} has the alpha {alpha!r} for {pattern!r}; it must be a number")
    return dict(found)


def remedy_of(name: str, config: dict[str, Any], mergeable: bool) -> str:
    """What to do with an adapter that is not merged here; mergeable: whether peft does it."""
    if not mergeable:
        return "it is no change of weights that peft could merge either, so start from its base or another encoder"
    loader = f"AutoPeftModel{CLASSES.get(str(config.get('task_type')), '')}.from_pretrained({name!r})"
    return (
        f"merge it with peft ({loader}.merge_and_unload().save_pretrained(FOLDER)), copy the tokenizer and the "
        "further files of its base into that folder and give it"
    )


@torch.no_grad()
def merge_adapter(model: Any, adapter: Adapter, source: Source) -> None:
    """Add B A, scaled, to the weights of an encoder.

    Raises:
        UserError: there are no safetensors, or a weight of the adapter has no counterpart in the encoder.
    """
    file = source.find(WEIGHTS_FILE)
    if file is None:
        raise UserError(
            f"adapter {source.name_or_path!r} has no {WEIGHTS_FILE}; a pickled one is not opened, so save it again "
            "with peft"
        )
    weights = read_weights(file)
    parameters, changes = dict(model.encoder.named_parameters()), {}
    for key in sorted(weights):
        stem, part, _ = key.rpartition(".lora_A.")
        if part:
            changes[stem] = key
        elif ".lora_B." not in key and not MAGNITUDE.search(key):
            remedy = remedy_of(source.name_or_path, source.read_mapping(CONFIG_FILE), True)
            raise UserError(
                f"adapter {source.name_or_path!r} holds {key!r}, which is no change of a linear layer: {remedy}"
            )
    for stem, key in changes.items():
        path = stem.removeprefix("base_model.model.")
        scale = adapter.scale(path, len(weights[key]))
        while f"{path}.weight" not in parameters and "." in path:
            path = path.partition(".")[2]  # of a model with a head: "bert.encoder…"
        weight, up = parameters.get(f"{path}.weight"), weights.get(key.replace(".lora_A.", ".lora_B."))
        down = weights[key].float()
        if weight is None or up is None or (len(up), down.shape[1]) != tuple(weight.shape):
            raise UserError(
                f"adapter {source.name_or_path!r} changes {stem!r}, which {adapter.base!r} does not have in that "
                "shape; it is of another base"
            )
        weight += scale * up.float() @ down
        if adapter.dora:
            length = next((value for name, value in weights.items() if MAGNITUDE.sub("", name) == stem), None)
            if length is None:
                raise UserError(
                    f"adapter {source.name_or_path!r} is one of DoRA, but has no lengths of the rows of {stem!r}; "
                    "save it again with peft"
                )
            weight *= (length.float() / weight.norm(dim=1)).unsqueeze(1)
