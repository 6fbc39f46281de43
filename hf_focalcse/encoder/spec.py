"""`EncoderSpec`: all that a folder or a repository says of its encoder, read once."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass, field
from textwrap import fill
from typing import Any

from ..data.template import Template
from .adapters import Adapter
from .prompts import choose_prompt
from .recorded import PLAIN, Pooling, read_record
from .sentence_files import SentenceFiles, read_sentence_files
from .source import Source

COLUMNS = 80


@dataclass
class EncoderSpec:
    """What an encoder does with a text besides its layers, and where that was read.

    Args:
        name_or_path: the folder or the Hub id. revision: of the id.
        model_type: what transformers calls the encoder.
        files: what the files of sentence-transformers or, of a checkpoint of this package, its config.json say.
        projection: the use of the projection, see `FocalCLMixin`; None: nothing says. pooling_source: the file that
            says how it pools.
        adapter: of a folder that holds an adapter only.
        tokenizer: the class of the tokenizer, tokenizer_file: what it reads by.
        positions: the longest text in tokens that the encoder can read.
        pooler: the one that is used. dimensions: of a vector.
        notes: what is worth a sentence.
    """

    name_or_path: str
    revision: str | None = None
    model_type: str = ""
    files: SentenceFiles = field(default_factory=SentenceFiles)
    projection: str | None = None
    pooling_source: str = ""
    adapter: Adapter | None = None
    tokenizer: str = ""
    tokenizer_file: str | None = None
    positions: int = 0
    limit: int = 0
    pooler: str = ""
    dimensions: int = 0
    notes: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """What of it is kept in ``focal_cl`` of the config besides pooler and projection; nothing that is plain."""
        kept = {key: deepcopy(getattr(self.files, key)) for key in PLAIN}
        return {key: value for key, value in kept.items() if value != PLAIN[key]}

    def recorded(self) -> Pooling | None:
        """The pooling of the folder with its default prompt and its template; None where nothing says how it pools."""
        if self.files.pooler is None:
            return None
        prompt = choose_prompt(self.files.prompts, self.files.default_prompt_name)
        return Pooling(
            self.files.pooler, self.projection or "none", self.pooling_source, prompt, self.files.template or ""
        )

    def describe(self) -> str:
        """One paragraph for the reader of a terminal, in lines of at most 80 columns."""
        files = self.files
        parts = [f"{self.model_type} encoder" + (f" in {files.encoder_path}" if files.encoder_path else "")]
        if self.adapter is not None:
            parts.append(self.adapter.describe())
        after = [row["type"] + (f" {row['out_features']}" if "out_features" in row else "") for row in files.modules]
        pooled = " without the prompt" if not files.include_prompt else ""
        parts.append(f"pools by {self.pooler}{pooled}" + "".join(f", then {step}" for step in after))
        cut = f", cut to {files.truncate_dim}" if files.truncate_dim else ""
        sizes = ", ".join(map(str, files.matryoshka_dims))
        cut += f", trained to be cut to {sizes}" if sizes else ""
        parts.append(f"vectors of {self.dimensions} dimensions{cut}, compared by {files.similarity}")
        lower = ", lower-cased" if files.lower_case else ""
        parts.append(f"reads {self.limit} of {self.positions} tokens with {self.tokenizer}{lower}")
        within = None if files.template is None else Template.of(files.template).text
        prompts = describe_prompts(files.prompts, files.default_prompt_name)
        parts.append(prompts if within is None else f"every text within the template {within!r}")
        if files.carried:
            parts.append(f"keeps {', '.join(sorted(files.carried))} of its files without using them")
        said = "; ".join(parts) + "." + "".join(f" {note[:1].upper()}{note[1:]}." for note in self.notes)
        return fill(said, COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)

    def to_dict(self) -> dict[str, Any]:
        """For run.json."""
        content = asdict(self)
        content.pop("tokenizer_file")  # a place on this machine
        return content


def describe_prompts(prompts: dict[str, str], default: str | None) -> str:
    if not any(prompts.values()):
        return "no prompt"
    if default is None or not prompts[default]:
        names = ", ".join(name for name, text in prompts.items() if text)
        return f"no prompt by default; --prompt_name takes one of: {names}"
    return f"prompt {prompts[default]!r} ({default}) before every text"


def read_spec(source: Source, record: Any) -> EncoderSpec:
    """Read a source; record: ``focal_cl`` of its config, which says all of a checkpoint of this package.

    Raises:
        UserError: as `read_sentence_files` does, or the record is damaged.
    """
    spec = EncoderSpec(source.name_or_path, source.hub.get("revision"))
    if record is None:
        spec.files = read_sentence_files(source)
        spec.projection = None if spec.files.pooler is None else "none"
        spec.pooling_source = spec.files.source
        return spec
    pooling = read_record(record, source.name_or_path)
    said = {key: deepcopy(record.get(key, value)) for key, value in PLAIN.items()}
    spec.files = SentenceFiles(pooler=pooling.pooler, **said)
    spec.projection, spec.pooling_source = pooling.projection, pooling.source
    return spec
