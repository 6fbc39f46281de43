"""The files of sentence-transformers in a folder -> what an encoder does with a text besides its layers.

Every key is honoured, carried into an export, or refused with its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError
from .families import TRANSFORMER_FILES
from .poolers import JOINED, POOLERS
from .similarity import SIMILARITIES
from .source import PICKLE, Source, refuse_pickle
from .tail import ACTIVATIONS, TORCH

PACKAGE = "sentence_transformers."
MODES = {  # of the newer schema of Pooling -> our pooler; "cls" is the plain first token
    "cls": "cls_before_pooler",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
OLDER_MODES = {  # the older schema: one flag a mode, concatenated in this order
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
NO_LIMIT = 10**9  # a length from here on stands for none
PLAIN = {  # keys of the Transformer's file -> the values that change nothing
    "transformer_task": ("feature-extraction",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    "module_output_name": ("token_embeddings",),
    "tokenizer_name_or_path": (),
    "processing_kwargs": (),
    "query_length": (),
    "document_length": (),
    "query_expansion": (),
    "unpad_inputs": (True, False),
}
OPTIONS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
WITHOUT_EFFECT = {
    "dtype",
    "torch_dtype",
    "padding_side",
    "attn_implementation",
    "trust_remote_code",
    "use_safetensors",
}


@dataclass
class SentenceFiles:
    """What the files say.

    Args:
        encoder_path: the folder of the encoder in the repository; "" for its root.
        pooler: ours, see `POOLERS`; several joined by +. None: there is no modules.json. source: the file that says
            it.
        include_prompt: whether the tokens of a prompt are pooled.
        modules: what follows pooling, see `build_tail`; folders: where the weights of each lie.
        limit: tokens of a text, special ones included; None: the files say nothing.
        lower_case: whether texts are lower-cased.
        prompts, default_prompt_name: name -> text, and the name of the one that plain encoding uses.
        template: what every text stands in, see `Template`; no file of sentence-transformers says one.
        similarity: how vectors are compared. truncate_dim: how many dimensions are kept of a vector; None: all.
        carried: keys without meaning here, which an export keeps.
    """

    encoder_path: str = ""
    pooler: str | None = None
    source: str = ""
    include_prompt: bool = True
    modules: list[dict[str, Any]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    limit: int | None = None
    lower_case: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    template: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None
    carried: dict[str, Any] = field(default_factory=dict)


def read_sentence_files(source: Source) -> SentenceFiles:
    """Read modules.json and the files that it names; without it only prompts, similarity and lengths are read.

    Raises:
        UserError: a file is damaged, or says something that has no counterpart here.
    """
    found = SentenceFiles()
    name = source.name_or_path
    rows = source.read("modules.json")
    if rows is not None:
        if not (isinstance(rows, list) and all(isinstance(m, dict) and {"type", "path"} <= set(m) for m in rows)):
            raise UserError(
                f"modules.json of {name!r} must be a list of modules, each with type and path; copy it again from its "
                "source"
            )
        read_modules(source, [(kind_of(row, name), str(row["path"])) for row in rows], found)
    read_transformer(source, found)
    read_config(source, found)
    return found


def kind_of(row: dict[str, Any], name: str) -> str:
    """The class of a module, without the places that it had in different versions."""
    kind = str(row["type"])
    if not kind.startswith(PACKAGE):
        raise UserError(
            f"modules.json of {name!r} names the module {kind!r}, which is code of its own and is never run; only "
            "modules of sentence-transformers are read"
        )
    return kind.rpartition(".")[2]


def read_modules(source: Source, rows: list[tuple[str, str]], found: SentenceFiles) -> None:
    """Transformer [WeightedLayerPooling] Pooling, then Dense, LayerNorm, Normalize, Dropout in any order."""
    name, kinds = source.name_or_path, [kind for kind, _ in rows]
    head = 3 if kinds[1:2] == ["WeightedLayerPooling"] else 2
    wanted = ["Transformer", *kinds[1 : head - 1], "Pooling"]
    rest = ("Dense", "LayerNorm", "Normalize", "Dropout")
    unknown = [kind for kind in kinds[head:] if kind not in rest]
    if kinds[:head] != wanted or unknown:
        culprit = (
            unknown[0] if unknown else next((k for k in kinds if k not in ("Transformer", "Pooling")), "no Pooling")
        )
        raise UserError(
            f"{name!r} is a sentence-transformers model of modules {' + '.join(kinds)}; {culprit} has no counterpart "
            f"here, only Transformer + Pooling, followed by {', '.join(rest)}, can be read; start from another encoder"
        )
    found.encoder_path = rows[0][1].strip("/")
    found.source = f"{rows[head - 1][1]}/config.json"
    modes = read_pooling(source, found.source, found)
    found.pooler = JOINED.join(MODES[mode] for mode in modes)
    if head == 3:
        found.pooler = read_layers(source, rows[1][1], modes)
    for kind, path in rows[head:]:
        if kind == "Dropout":  # inert when a text is encoded
            continue
        found.modules.append(read_module(source, kind, path))
        found.folders.append(path)


def read_pooling(source: Source, file: str, found: SentenceFiles) -> list[str]:
    """The modes of pooling, by their newer names, in the order of their vectors.

    Raises:
        UserError: there is no such file, or it holds an unknown key or mode.
    """
    name, content = source.name_or_path, source.read_mapping(file)
    if not content:
        raise UserError(f"{name!r} has no {file}, which says how it pools; copy it from its source")
    known = {"pooling_mode", "include_prompt", "word_embedding_dimension", "embedding_dimension", *OLDER_MODES}
    if unknown := sorted(content.keys() - known):
        raise UserError(f"{file} of {name!r} has the key {unknown[0]!r}, which has no counterpart here; take it out")
    given = content.get("pooling_mode")
    if given is None:
        modes = [mode for flag, mode in OLDER_MODES.items() if content.get(flag)] or ["mean"]
    else:
        modes = [given] if isinstance(given, str) else list(given)
    if wrong := [mode for mode in modes if mode not in MODES]:
        raise UserError(f"{file} of {name!r} pools as {wrong[0]!r}; known are: {', '.join(MODES)}")
    found.include_prompt = bool(content.get("include_prompt", True))
    return modes


def read_layers(source: Source, path: str, modes: list[str]) -> str:
    """The pooler whose layers a WeightedLayerPooling averages.

    Raises:
        UserError: no pooler here averages these layers.
    """
    config, weights = source.read_mapping(f"{path}/config.json"), weights_of(source, path).get("layer_weights")
    start, layers = int(config.get("layer_start", 4)), int(config.get("num_hidden_layers", 12))
    given = [] if weights is None else weights.tolist()
    full = [0.0] * start + given
    for name, row in POOLERS.items():
        if row.averaged and modes == ["mean"] and len(full) == layers + 1:
            wanted = row.layer_weights(layers)
            if all(abs(a / (sum(given) or 1) - b / sum(wanted)) < 1e-6 for a, b in zip(full, wanted, strict=True)):
                return name
    can = ", ".join(name for name, row in POOLERS.items() if row.averaged)
    raise UserError(
        f"{source.name_or_path!r} pools layers from {start} with the weights {given} (WeightedLayerPooling), then "
        f"{' + '.join(modes)}; only the averages of {can} can be read"
    )


def read_module(source: Source, kind: str, path: str) -> dict[str, Any]:
    """A row of `build_tail`.

    Raises:
        UserError: it has a setting without counterpart here, or no weights.
    """
    name, config = source.name_or_path, source.read_mapping(f"{path}/config.json")
    row: dict[str, Any] = {"type": kind}
    for key in ("module_input_name", "module_output_name"):
        if config.pop(key, None) not in (None, "sentence_embedding"):
            raise UserError(f"{path}/config.json of {name!r} sets {key}, which has no counterpart here")
    if kind == "Normalize":
        return row
    if kind == "LayerNorm":
        row["dimension"] = int(config.pop("dimension"))
    else:
        if config.pop("use_residual", False):
            raise UserError(f"{path}/config.json of {name!r} sets use_residual, which has no counterpart here")
        activation = str(config.pop("activation_function", None) or f"{TORCH}activation.Tanh")
        last = activation.rpartition(".")[2]
        if not activation.startswith("torch.") or last not in ACTIVATIONS:
            raise UserError(
                f"{path}/config.json of {name!r} has the activation {activation!r}; these can be read: "
                f"{', '.join(ACTIVATIONS)} of torch.nn"
            )
        row |= {key: int(config.pop(key)) for key in ("in_features", "out_features")}
        row |= {"bias": bool(config.pop("bias", True)), "activation": last}
    if config:
        raise UserError(f"{path}/config.json of {name!r} has the key {min(config)!r}, which has no counterpart here")
    return row


def weights_of(source: Source, path: str) -> dict[str, Any]:
    """The weights of a module; none for one without a file.

    Raises:
        UserError: they are a pickle.
    """
    from safetensors.torch import load_file

    file = source.find(f"{path}/model.safetensors")
    if file is not None:
        return load_file(file)
    if source.find(f"{path}/{PICKLE}") is not None:
        raise refuse_pickle(source.name_or_path, f"{path}/{PICKLE}")
    return {}


def read_transformer(source: Source, found: SentenceFiles) -> None:
    """Lengths and lower-casing.

    Raises:
        UserError: the file changes what the encoder reads or gives in a way that has no counterpart here.
    """
    start = f"{found.encoder_path}/" if found.encoder_path else ""
    file = next((start + file for file in TRANSFORMER_FILES if source.find(start + file) is not None), None)
    content = dict(source.read_mapping(file)) if file else {}
    limit = content.pop("max_seq_length", None)
    found.lower_case = bool(content.pop("do_lower_case", False))
    for key in OPTIONS:
        options = dict(content.pop(key, None) or {})
        limit = limit or options.pop("model_max_length", None)
        if further := sorted(options.keys() - WITHOUT_EFFECT):
            raise UserError(
                f"{file} of {source.name_or_path!r} sets {further[0]!r} in {key}, which is not honoured here"
            )
    for key, value in content.items():
        if key not in PLAIN or not (value in PLAIN[key] or value is None or value == {}):
            raise UserError(
                f"{file} of {source.name_or_path!r} sets {key} to {value!r}, which has no counterpart here; start "
                "from another encoder"
            )
    found.limit = None if limit is None or limit >= NO_LIMIT else int(limit)


def read_config(source: Source, found: SentenceFiles) -> None:
    """Prompts, similarity, truncation, and what an export carries on.

    Raises:
        UserError: a value is not allowed.
    """
    file = "config_sentence_transformers.json"
    name, content = source.name_or_path, dict(source.read_mapping(file))
    content.pop("__version__", None)
    kind = content.pop("model_type", None) or "SentenceTransformer"
    if kind != "SentenceTransformer":
        raise UserError(f"{file} of {name!r} describes a {kind}, which is not a SentenceTransformer")
    prompts = content.pop("prompts", None) or {}
    found.prompts = {key: text or "" for key, text in prompts.items()}
    found.default_prompt_name = content.pop("default_prompt_name", None)
    if found.default_prompt_name is not None and found.default_prompt_name not in found.prompts:
        raise UserError(
            f"{file} of {name!r} names the default prompt {found.default_prompt_name!r}, but its prompts are "
            f"{', '.join(found.prompts) or 'none'}; correct it"
        )
    found.similarity = content.pop("similarity_fn_name", None) or "cosine"
    if found.similarity not in SIMILARITIES:
        raise UserError(
            f"{file} of {name!r} compares by {found.similarity!r}; it must be one of {', '.join(SIMILARITIES)}"
        )
    found.truncate_dim = content.pop("truncate_dim", None)
    found.carried = content
