"""A folder or a Hub id -> an encoder with its tokenizer, which embeds as its files say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from ..data.template import Template
from ..errors import UserError, first_line
from .adapters import CONFIG_FILE, RECORD_FILE, merge_adapter, read_adapter
from .auto import MODELS
from .direction import check_direction
from .lengths import NO_LIMIT, has_position_table, take_limit
from .lora import read_projection
from .marked import check_marked
from .packaged import resolve_model
from .parts import fill
from .poolers import POOLERS
from .prompts import add_prompt, choose_prompt
from .recorded import PLAIN
from .saving import HEAD_FILE
from .sentence_files import weights_of
from .source import Source
from .spec import EncoderSpec, read_spec
from .tokenizer import TOKENIZER_FILE, end_is_marked, load_tokenizer, require_file
from .weights import check_finite, check_weights, load_weights
from .weights import require_projection as require_projection  # for those who load


def load_model(
    name_or_path: str,
    pooler: str | None = None,
    projection: str | None = None,
    dropout: float | None = None,
    revision: str | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    default_pooler: bool = False,
    prompt_template: str | None = None,
) -> Any:
    """A ``…ForFocalCL`` encoder with its tokenizer, from a folder or a Hub id; ``spec`` says what was read there.

    Weights are read from safetensors only. They are float32 whatever they were saved as, since training starts here.
    No code of the folder is run. A folder that holds a LoRA adapter is merged with its base.

    pooler, projection: default to what the checkpoint records (``focal_cl`` in its config, else the files of
    sentence-transformers), which stays known as ``model.published``. dropout: sets every dropout rate of the encoder,
    under the names that its family uses. default_pooler: where nothing is recorded, take the pooler of the encoder's
    family, [CLS] with the projection, as training does.
    prompt, prompt_name: the text before every text, or the name of one that the folder has; default: its default one,
    and "" for none. prompt_template: what every text stands in, see `Template`, and "" for none.

    Raises:
        UserError: no such folder or repository, a type of encoder without a head here, no safetensors, missing
            weights, a module or setting without counterpart here, or nothing says how the encoder pools.
    """
    place = resolve_model(name_or_path, revision)
    with place.explaining():
        source, adapter = find_source(place.path, place.revision)
        name = source.name_or_path
        record = source.read_mapping("config.json").get("focal_cl")
        record = record if adapter is None else record_of(source, record)
        spec = read_spec(source, record)  # before the config, since it names what is no text encoder at all
        path = spec.files.encoder_path
        config = load_config(source, path)
    check_config(config, name, spec.files.pooler is not None)
    if dropout is not None:
        set_dropout(config, dropout)
    spec.adapter = adapter
    recorded = spec.recorded()
    if pooler is None and recorded is not None:
        pooler, projection = recorded.pooler, projection or recorded.projection
    elif pooler is None and default_pooler:
        pooler = MODELS[type(config)].family.pooler
    elif pooler is None:
        raise UserError(
            f"nothing in {name_or_path!r} says how it pools; choose with --pooler (in Python: "
            f"load_model({name_or_path!r}, pooler='mean')): {', '.join(POOLERS)}"
        )
    files = spec.files
    chosen = choose_prompt(files.prompts, files.default_prompt_name, prompt, prompt_name)
    files.prompts, files.default_prompt_name = add_prompt(files.prompts, chosen)
    if prompt_template is not None:
        named = MODELS[type(config)].family.template(prompt_template)
        files.template = Template.of(named).name if prompt_template else None
    if chosen and files.template:
        raise UserError(
            f"the prompt {chosen!r} and the template {files.template!r} would both stand before a text; give "
            "--prompt '' or --prompt_template '' for none"
        )
    kept = {key: value for key, value in (record or {}).items() if key not in PLAIN}  # whose values are in the spec
    config.focal_cl = kept | spec.record() | {"pooler": pooler, "projection": projection}
    model, info = load_weights(source.base or source, config, path)
    projection_missing = check_weights(model, info, name)
    if adapter is not None:
        merge_adapter(model, adapter, source)
        if read_projection(model, source.find(HEAD_FILE)):
            projection_missing = False
            model.side_parts.add("mlp")
    model.tokenizer = load_tokenizer(source, path, files.lower_case, getattr(config, "pad_token_id", None))
    check_tokenizer(model, name)
    check_marked(model)
    if files.padding_side is not None:
        model.tokenizer.padded_left = files.padding_side == "left"
    take_limit(model, model.tokenizer, files.limit)
    if not model.encoder_has_pooler:
        projection_missing = "mlp" not in model.side_parts
    check_limit(model, name)
    load_tail(model, source, files.folders if record is None else None)
    check_finite(model, name)
    model.projection_is_random, model.published = projection_missing, recorded
    found = source.find(f"{path}/{TOKENIZER_FILE}" if path else TOKENIZER_FILE)
    spec.tokenizer_file = None if found is None else str(found)
    model.spec = describe(model, spec)
    return model


def describe(model: Any, spec: EncoderSpec) -> EncoderSpec:
    """The spec with what only the loaded encoder tells."""
    spec.model_type, spec.pooler, spec.dimensions = model.config.model_type, model.pooler_name, model.dimensions
    spec.tokenizer = type(model.tokenizer).__name__
    spec.positions, spec.limit = model.positions, model.max_length()
    if model.template is not None and end_is_marked(model.tokenizer):
        spec.notes.append(
            "the tokenizer ends every text with a special token, which stands behind the template's last"
        )
    if "last" in model.pooler_name.split("+") and not end_is_marked(model.tokenizer) and model.template is None:
        spec.notes.append(
            "the last token of a text is pooled, but the tokenizer ends it with no special token: the vector is that "
            "of its last word"
        )
    if (said := check_direction(model, spec.name_or_path)) is not None:
        spec.notes.append(said)
    if getattr(model.tokenizer, "padded_left", False) and shifts_when_padded(model):
        spec.notes.append(
            "its tokenizer pads on the left, which shifts this encoder's positions by the padding of a batch; here, "
            "and in exports, texts are padded on the right"
        )
    if getattr(model.config, "max_position_embeddings", None) is None and (
        model.tokenizer.model_max_length >= NO_LIMIT
    ):
        spec.notes.append(
            f"nothing says how long a text may be, so it is cut at {spec.limit} tokens; max_seq_length in its "
            "sentence_bert_config.json says more"
        )
    if getattr(model.config, "auto_map", None):
        spec.notes.append(
            f"its own code (auto_map) is not run: {type(model.encoder).__name__} of transformers reads it"
        )
    if heads := heads_of(model.config):
        spec.notes.append(f"the classifier of its {heads[0]} is left out")
    if spec.files.pooler is not None and spec.files.pooler != spec.pooler:
        spec.notes.append(f"the folder records the pooler {spec.files.pooler}, but {spec.pooler} is asked for")
    return spec


def shifts_when_padded(model: Any) -> bool:
    """Whether padding before a text changes its positions."""
    return has_position_table(model) and not model.family.after_padding


def find_source(name_or_path: str, revision: str | None) -> tuple[Source, Any]:
    """Where an encoder's files lie, and the adapter that they hold, if that is all that lies there.

    Raises:
        UserError: there is no such folder or repository, or it holds no checkpoint.
    """
    folder = require_folder(name_or_path)
    if revision is not None and folder.is_dir():
        raise UserError(
            f"revision {revision!r} is given for the folder {name_or_path!r}; only a Hub id has them, so leave it out"
        )
    hub = {"revision": revision} if revision else {}
    source = Source(str(folder) if folder.is_dir() else name_or_path, hub=hub)
    try:
        adapter = read_adapter(source)
    except OSError:  # no such repository, or it cannot be reached
        load_config(source)  # refuses with the reason
        raise
    if adapter is None:
        return source, None
    try:
        base, below = find_source(adapter.base, adapter.revision)
    except UserError as error:
        raise UserError(f"{name_or_path!r} is an adapter, and its base cannot be read: {error}") from error
    if below is not None:
        raise UserError(f"{name_or_path!r} is an adapter of another adapter, {adapter.base!r}; merge that one first")
    return Source(source.name_or_path, base, hub), adapter


def record_of(source: Source, of_base: Any) -> Any:
    """``focal_cl`` of an adapter: of its own file; None where its files of sentence-transformers say how it embeds;
    else that of its base."""
    own = Source(source.name_or_path, hub=source.hub)
    if own.find(RECORD_FILE) is not None:
        return own.read_mapping(RECORD_FILE)
    return None if own.find("modules.json") is not None else of_base


def require_folder(name_or_path: str) -> Path:
    """A model's name as a path, which exists unless the name can be a Hub id.

    Raises:
        UserError: there is no such folder, or it holds no checkpoint.
    """
    folder = Path(name_or_path).expanduser()
    looks_local = folder.is_absolute() or name_or_path.startswith((".", "~")) or name_or_path.count("/") > 1
    if folder.is_dir():
        if not any((folder / name).is_file() for name in ("config.json", "modules.json", CONFIG_FILE)):
            raise UserError(
                f"folder {name_or_path!r} has no config.json, so it is not a checkpoint; give the folder that has one"
            )
    elif folder.exists() or looks_local:
        raise UserError(f"there is no model folder {name_or_path!r}; give a checkpoint folder or a Hub id (org/name)")
    return folder


# ---- config


def load_config(source: Source, path: str = "") -> PretrainedConfig:
    """The config of a checkpoint; path: the folder of the encoder.

    Raises:
        UserError: it cannot be read, or is of code that lies in the folder.
    """
    start, name = f"{path}/" if path else "", source.name_or_path
    try:
        holder = source.holder(start + "config.json")
        where = {"subfolder": path} if path else {}
        return AutoConfig.from_pretrained(holder.name_or_path, trust_remote_code=False, **where, **holder.hub)
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, StrictDataclassError) as error:
        content = source.read_mapping(start + "config.json") if source.is_folder else {}
        if "auto_map" in content or "trust_remote_code" in str(error):
            kind = f" of type {content['model_type']!r}" if "model_type" in content else ""
            raise UserError(
                f"the encoder {name!r}{kind} needs code that lies beside it (auto_map in its config.json), which is "
                "never run; start from another encoder, or from a version of this one that transformers has built in"
            ) from error
        if source.is_folder:
            raise UserError(
                f"the config.json of {name!r} cannot be used ({first_line(error)}); give the folder "
                "of a model that transformers can load"
            ) from error
        raise UserError(
            f"no model {name!r}: there is no such folder and it could not be loaded from the Hub "
            f"({first_line(error)}); check the name, or give the path of a downloaded folder"
        ) from error


def check_config(config: PretrainedConfig, name: str, embeds: bool) -> None:
    """Refuse an encoder that has no head here, or that transformers would compute otherwise than it was trained.

    embeds: whether the folder says that it is made to embed texts.

    Raises:
        UserError: with its type, or the setting.
    """
    if getattr(config, "word_embed_proj_dim", None) not in (None, config.hidden_size):
        raise UserError(
            f"{name!r} gives vectors of another size ({config.word_embed_proj_dim}) than its layers have "
            f"({config.hidden_size}), which is not read here; start from another encoder"
        )
    if type(config) not in MODELS:
        families = ", ".join(sorted(c.model_type for c in MODELS))
        raise UserError(f"model {name!r} is of type {config.model_type!r}; supported are: {families}")
    if quantised := getattr(config, "quantization_config", None):
        kind = quantised.get("quant_method") if isinstance(quantised, dict) else type(quantised).__name__
        raise UserError(
            f"{name!r} holds weights of few bits (quantization_config in its config.json: {kind}), which only their "
            "own library computes with; start from the encoder that they were made from"
        )
    scores = hasattr(config, "sentence_transformers") or (heads_of(config) and config.num_labels == 1)
    if scores and not embeds:
        raise UserError(
            f"{name!r} is a CrossEncoder ({', '.join(config.architectures or [])}), which scores pairs of texts and "
            "has no vector for one; start from the encoder that it was trained from"
        )
    if getattr(config, "auto_map", None) and MODELS[type(config)].family.arguments:
        raise UserError(
            f"{name!r} names code of its own (auto_map in its config.json), which is never run and may let tokens "
            f"read those behind them, as transformers' {config.model_type} does not; start from another encoder or, "
            "if its code computes the same, take auto_map out of its config.json"
        )
    positions = getattr(config, "position_embedding_type", None) or "absolute"
    if positions not in ("absolute", "rope", "rotary"):
        raise UserError(
            f"{name!r} has positions of the type {positions!r} (position_embedding_type in its config.json), which "
            "transformers no longer computes; start from another encoder"
        )


def heads_of(config: PretrainedConfig) -> list[str]:
    """The classes with a classifier that the weights were saved from."""
    return [name for name in config.architectures or [] if name.endswith("ForSequenceClassification")]


def set_dropout(config: PretrainedConfig, rate: float) -> None:
    """Set every dropout rate of an encoder's config.

    Raises:
        UserError: the rate is not in [0, 1).
    """
    if not 0 <= rate < 1:
        raise UserError(f"dropout is {rate}; it must be at least 0 and below 1 (SimCSE uses 0.1)")
    for name in MODELS[type(config)].family.dropout:
        setattr(config, name, rate)


# ---- what belongs to the encoder


def load_tail(model: Any, source: Source, folders: list[str] | None) -> None:
    """Read the weights of what follows pooling; folders: where they lie, None: of a checkpoint of this package, in its
    side file or, of an export, in the folders that its modules.json names last.

    Raises:
        UserError: they are nowhere.
    """
    if not model.tail.state_dict():
        return
    if folders is None:
        if "tail" in model.side_parts:
            return
        rows = source.read("modules.json") or []
        folders = [str(row["path"]) for row in rows][-len(model.tail) :]
    for module, folder in zip(model.tail, folders, strict=False):
        load_module(module, source, folder)
    if len(folders) < len(model.tail):
        raise UserError(
            f"checkpoint {source.name_or_path!r} lacks the weights of its layers after pooling (Dense, LayerNorm); "
            "copy its side file or the folders of its modules from its source"
        )


def load_module(module: Any, source: Source, folder: str) -> None:
    """Read the weights of a module after pooling.

    Raises:
        UserError: they are missing or of another shape.
    """
    if module.state_dict():
        fill(module, weights_of(source, folder), f"{folder} of {source.name_or_path!r}")


def require_exact(model: Any, lines: Sequence[str]) -> None:
    """Check on some lines that the tokenizer reads as its tokenizer.json says.

    Raises:
        UserError: with the line that it reads otherwise.
    """
    file = model.spec.tokenizer_file
    if file is not None and Path(file).is_file():
        require_file(model.tokenizer, Path(file), model.spec.name_or_path, lines)


def check_limit(model: Any, name_or_path: str) -> None:
    """Refuse a length that leaves nothing of a text.

    Raises:
        UserError: with the number of special tokens.
    """
    limit, special = model.reach(), model.tokenizer.num_special_tokens_to_add()
    if limit <= special:
        raise UserError(
            f"{name_or_path!r} reads {limit} tokens of a text (max_seq_length in its sentence_bert_config.json, or "
            f"model_max_length of its tokenizer), of which {special} are special ones, so that nothing of the text is "
            "left; correct it"
        )


def check_tokenizer(model: Any, name_or_path: str) -> None:
    """Refuse a tokenizer with ids that the encoder has no embedding for.

    Raises:
        UserError: with both numbers.
    """
    highest, size = max(model.tokenizer.get_vocab().values(), default=0), model.config.vocab_size
    if highest >= size:
        raise UserError(
            f"the tokenizer of {name_or_path!r} has ids up to {highest}, its encoder only {size} embeddings; they are "
            "of different models, so copy both from the same one"
        )
