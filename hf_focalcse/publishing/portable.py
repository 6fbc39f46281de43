"""The files of an encoder and its tokenizer, so written that transformers 4 and 5 read the same from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..runs.atomic import write_json
from ..runs.record import last_part

HERE_ONLY = (
    "_name_or_path",
    "name_or_path",
    "backend",
    "is_local",
    "local_files_only",
    "auto_map",
    "custom_pipelines",
)  # of no use elsewhere, or names code of others, which is never run
PLAIN_TOKENIZER = "PreTrainedTokenizerFast"  # the class that follows tokenizer.json in every version


def make_portable(stage: Path) -> None:
    """Rewrite config.json, tokenizer_config.json and tokenizer.json where a version of transformers, or TEI, would
    otherwise read something else than was saved."""
    edit(stage / "config.json", portable_config)
    make_tokenizer_portable(stage)


def make_tokenizer_portable(stage: Path) -> None:
    """The same of the files of the tokenizer alone."""
    file = stage / "tokenizer.json"
    edit(stage / "tokenizer_config.json", portable_tokenizer if file.is_file() else dict)
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if content.get("truncation") or content.get("padding"):  # how it was last called, which Tokenizer.from_file obeys
        write_json(file, content | {"truncation": None, "padding": None})


def edit(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change a JSON file, and take what belongs to this machine out of it."""
    content = change(json.loads(path.read_text(encoding="utf-8")))
    write_json(path, without_places({key: value for key, value in content.items() if key not in HERE_ONLY}))


def without_places(value: Any) -> Any:
    """``value`` with the texts that are a path on this machine cut to its last part.

    Only whole texts: tokens such as "</s>", templates and prompts have slashes too, and must stay as they are.
    """
    if isinstance(value, dict):
        return {key: item if key == "prompts" else without_places(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_places(item) for item in value]
    if isinstance(value, str) and Path(value).is_absolute() and len(Path(value).parts) > 2 and "\n" not in value:
        return last_part(value)
    return value


def portable_tokenizer(content: dict[str, Any]) -> dict[str, Any]:
    content = dict(content)
    if isinstance(content.get("extra_special_tokens"), list):  # transformers 4 reads a mapping there
        content["additional_special_tokens"] = content.pop("extra_special_tokens")
    return content | {
        "tokenizer_class": PLAIN_TOKENIZER,
        # without it transformers 4 makes token_type_ids, which DistilBERT, ModernBERT and T5 do not take
        "model_input_names": ["input_ids", "attention_mask"],
    }


def portable_config(content: dict[str, Any]) -> dict[str, Any]:
    """The older keys of rotary positions, which both versions read; transformers 4 passes over the newer one and takes
    10000 for theta."""
    if content.get("is_causal") is False and "use_bidirectional_attention" not in content:
        # the name that text-embeddings-inference reads
        content = content | {"use_bidirectional_attention": True}
    rope = content.get("rope_parameters")
    if not rope:
        return content
    content = {key: value for key, value in content.items() if key != "rope_parameters"}
    one, local = (rope["full_attention"], rope.get("sliding_attention")) if "full_attention" in rope else (rope, None)
    of_kinds = "global_attn_every_n_layers" in content  # as ModernBERT calls them
    content["global_rope_theta" if of_kinds else "rope_theta"] = one["rope_theta"]
    if local:
        content["local_rope_theta" if of_kinds else "rope_local_base_freq"] = local["rope_theta"]
    if one.get("rope_type", "default") != "default":
        content["rope_scaling"] = {key: value for key, value in one.items() if key != "rope_theta"}
    return content
