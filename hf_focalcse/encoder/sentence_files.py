"""The files of sentence-transformers in a folder -> what an encoder does with a text besides its layers.

Every key is honoured, carried into an export, or refused with its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError
from .families import TRANSFORMER_FILES
from .fields import Fields
from .lengths import NO_LIMIT
from .parts import read_weights
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
        lower_case: whether texts are lower-cased. padding_side: of the tokenizer, where the files name one.
        prompts, default_prompt_name: name -> text, and the name of the one that plain encoding uses.
        template: what every text stands in, see `Template`; no file of sentence-transformers says one.
        similarity: how vectors are compared. truncate_dim: how many dimensions are kept of a vector; None: all.
        matryoshka_dims: the sizes to which vectors may be cut, by the training of the encoder, the largest first.
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
    padding_side: str | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    template: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None
    matryoshka_dims: list[int] = field(default_factory=list)
    carried: dict[str, Any] = field(default_factory=dict)


def read_sentence_files(source: Source) -> SentenceFiles:
    """Read modules.json and the files that it names; without it only prompts, similarity and lengths are read.

    Raises:
        UserError: a file is damaged, or says something that has no counterpart here.
    """
    found = SentenceFiles()
    read_config(source, found)  # first, since it names what is no SentenceTransformer at all
    rows = source.read("modules.json")
    if rows is not None:
        read_modules(source, [read_row(row, source.name_or_path) for row in as_list(rows, source)], found)
    read_transformer(source, found)
    return found


def as_list(rows: Any, source: Source) -> list[Any]:
    if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
        return rows
    raise UserError(
        f"modules.json of {source.name_or_path!r} must be a list of modules, each with type and path; copy it again "
        "from its source"
    )


def read_row(row: dict[str, Any], name: str) -> tuple[str, str]:
    """(class, folder) of a module in modules.json.

    Raises:
        UserError: one of them is missing, or the folder lies elsewhere.
    """
    fields = Fields(row, "modules.json", name)
    kind, path = kind_of(fields.take("type", str), name), fields.take("path", str).strip("/")
    if ".." in path.replace("\\", "/").split("/"):
        raise fields.wrong(f"names the folder {path!r}, which lies outside")
    return kind, path


def kind_of(kind: str, name: str) -> str:
    """The class of a module, without the places that it had in different versions."""
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
    found.encoder_path = rows[0][1]
    found.source = f"{rows[head - 1][1]}/config.json"
    modes = read_pooling(source, found.source, found)
    found.pooler = JOINED.join(MODES[mode] for mode in modes)
    if head == 3:
        found.pooler = read_layers(source, rows[0][1], rows[1][1], modes)
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
    fields = Fields(content, file, name)
    flags = [mode for flag, mode in OLDER_MODES.items() if fields.take(flag, bool, False)]
    given = content.get("pooling_mode")
    modes = flags or ["mean"] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(modes, list) or not modes:
        raise fields.wrong(f"has pooling_mode {given!r}; it must be a name or a list of names")
    if wrong := [mode for mode in modes if mode not in [*MODES]]:
        raise UserError(f"{file} of {name!r} pools as {wrong[0]!r}; known are: {', '.join(MODES)}")
    found.include_prompt = fields.take("include_prompt", bool, True)
    return modes


def read_layers(source: Source, root: str, path: str, modes: list[str]) -> str:
    """The pooler whose layers a WeightedLayerPooling averages; root: the folder of the encoder.

    Raises:
        UserError: no pooler here averages these layers.
    """
    file, weights = f"{path}/config.json", weights_of(source, path).get("layer_weights")
    fields = Fields(source.read_mapping(file), file, source.name_or_path)
    start, layers = fields.take("layer_start", int, 4, least=0), fields.take("num_hidden_layers", int, 12, least=1)
    if source.read_mapping(f"{root}/config.json" if root else "config.json").get("output_hidden_states") is not True:
        raise UserError(
            f"{source.name_or_path!r} pools several layers (WeightedLayerPooling), but its config.json lacks "
            '"output_hidden_states": true, without which sentence-transformers pools the last one alone; add it, or '
            "take that module out of modules.json"
        )
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
    file = f"{path}/config.json"
    fields = Fields(source.read_mapping(file), file, source.name_or_path)
    row: dict[str, Any] = {"type": kind}
    for key in ("module_input_name", "module_output_name"):
        if fields.take(key, str, "sentence_embedding") != "sentence_embedding":
            raise fields.wrong(f"sets {key}, which has no counterpart here")
    if kind == "LayerNorm":
        row["dimension"] = fields.take("dimension", int, least=1)
    elif kind == "Dense":
        if fields.take("use_residual", bool, False):
            raise fields.wrong("sets use_residual, which has no counterpart here")
        activation = fields.take("activation_function", str, f"{TORCH}activation.Tanh")
        last = activation.rpartition(".")[2]
        if not activation.startswith("torch.") or last not in ACTIVATIONS:
            raise fields.wrong(
                f"has the activation {activation!r}; these can be read: {', '.join(ACTIVATIONS)} of torch.nn"
            )
        row |= {key: fields.take(key, int, least=1) for key in ("in_features", "out_features")}
        row |= {"bias": fields.take("bias", bool, True), "activation": last}
    if fields.rest:
        raise fields.wrong(f"has the key {min(fields.rest)!r}, which has no counterpart here")
    return row


def weights_of(source: Source, path: str) -> dict[str, Any]:
    """The weights of a module; none for one without a file.

    Raises:
        UserError: they are a pickle, or damaged.
    """
    file = source.find(f"{path}/model.safetensors")
    if file is not None:
        return read_weights(file)
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
    fields = Fields(source.read_mapping(file) if file else {}, file or "", source.name_or_path)
    limit = fields.take("max_seq_length", float, None, least=1)
    found.lower_case = fields.take("do_lower_case", bool, False)
    for key in OPTIONS:
        options = Fields(fields.take(key, dict, {}), f"{file} ({key})", source.name_or_path)
        limit = limit or options.take("model_max_length", float, None, least=1)
        found.padding_side = options.take("padding_side", str, found.padding_side)
        if further := sorted(options.rest.keys() - WITHOUT_EFFECT):
            raise fields.wrong(f"sets {further[0]!r} in {key}, which is not honoured here")
    for key, value in fields.rest.items():
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
    name, fields = source.name_or_path, Fields(source.read_mapping(file), file, source.name_or_path)
    fields.rest.pop("__version__", None)
    kind = fields.take("model_type", str, "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise UserError(
            f"{file} of {name!r} describes a {kind}, which is not a SentenceTransformer; start from an encoder that "
            "gives one vector a text"
        )
    found.prompts = fields.texts("prompts")
    found.default_prompt_name = fields.take("default_prompt_name", str, None)
    if found.default_prompt_name is not None and found.default_prompt_name not in found.prompts:
        raise UserError(
            f"{file} of {name!r} names the default prompt {found.default_prompt_name!r}, but its prompts are "
            f"{', '.join(found.prompts) or 'none'}; correct it"
        )
    found.similarity = fields.take("similarity_fn_name", str, "cosine")
    if found.similarity not in SIMILARITIES:
        raise UserError(
            f"{file} of {name!r} compares by {found.similarity!r}; it must be one of {', '.join(SIMILARITIES)}"
        )
    found.truncate_dim = fields.take("truncate_dim", int, None, least=1)
    found.matryoshka_dims = fields.sizes("matryoshka_dims")
    found.carried = fields.rest
