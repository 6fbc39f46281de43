"""The tokenizer of a checkpoint, which reads as its tokenizer.json says, or a refusal that says what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..data.views import UNCUT, ids_by_file, token_ids
from ..errors import UserError, first_line
from .source import Source, refuse_pointer

TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILES = (  # every folder with a tokenizer has one of these
    *(TOKENIZER_FILE, "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
)
# Lines whose ids differ wherever transformers puts a normalizer, a splitter or an end token of its own in.
PROBES = (
    "A man plays the guitar.",
    "query: state-of-the-art e.g. dogs can't",
    "  two  spaces ",
    "PARIS Paris paris",
    "été 2026 ½ ﬁne",
    "私は犬 🙂",
    "<s> [CLS] </s>",
    "tab\tnew\nline",
    "x" * 120,
)


def load_tokenizer(source: Source, path: str = "", lower_case: bool = False, pad_token_id: int | None = None) -> Any:
    """The tokenizer of a checkpoint; it pads on the right.

    transformers builds parts of some tokenizers from their class, whatever tokenizer.json says; where that changes
    ids, the file is followed instead. path: the folder of the encoder in the repository. lower_case: texts are
    lower-cased before all else. pad_token_id: of the encoder's config, for a tokenizer that has no padding token.

    Raises:
        UserError: there is none, it cannot be read, or it has no padding token.
    """
    name, start = source.name_or_path, f"{path}/" if path else ""
    # Without a vocabulary transformers makes an empty tokenizer, which reads every word as unknown.
    if not any(source.find(start + file) for file in VOCABULARY_FILES):
        raise UserError(
            f"there is no tokenizer in {name!r}: none of {', '.join(VOCABULARY_FILES)}; copy it from the "
            "encoder that the checkpoint was trained from"
        )
    holder = source.holder(*(start + file for file in VOCABULARY_FILES))
    hub = {**holder.hub, "trust_remote_code": False} | ({"subfolder": path} if path else {})
    file = source.find(start + TOKENIZER_FILE)
    try:
        tokenizer = AutoTokenizer.from_pretrained(holder.name_or_path, **hub)
        if file is not None and disagreement(tokenizer, file, PROBES):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(holder.name_or_path, **hub)
    except Exception as error:  # tokenizers raises plain Exception on a damaged file
        if file is not None and (pointer := refuse_pointer(file)):
            raise pointer from error
        if file is None and lacks_sentencepiece(source, start):
            raise UserError(
                f"the tokenizer of {name!r} is a SentencePiece model, which needs two more packages: pip install "
                "sentencepiece protobuf; or take a version of this encoder that has a tokenizer.json"
            ) from error
        raise UserError(
            f"the tokenizer of {name!r} is damaged ({first_line(error)}); copy it again from the encoder that "
            "the checkpoint was trained from"
        ) from error
    if tokenizer.pad_token_id is None and pad_token_id is not None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_token_id)
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer of {name!r} has no padding token; set one and save it beside the model")
    if file is not None:
        require_file(tokenizer, file, name, PROBES)
    if lower_case:
        lower(tokenizer)
    tokenizer.padded_left, tokenizer.padding_side = tokenizer.padding_side == "left", "right"
    return tokenizer


def lacks_sentencepiece(source: Source, start: str) -> bool:
    """Whether the vocabulary is a SentencePiece model, and nothing here reads it."""
    models = [file for file in VOCABULARY_FILES if file.endswith(".model") and source.find(start + file) is not None]
    return bool(models) and not all(find_spec(package) for package in ("sentencepiece", "google.protobuf"))


def disagreement(tokenizer: PreTrainedTokenizerBase, file: Path, lines: Sequence[str]) -> str | None:
    """The first line of which a tokenizer makes other ids than its tokenizer.json says; None: there is none."""
    raw = Tokenizer.from_file(str(file))
    raw.no_padding()
    raw.no_truncation()
    if getattr(tokenizer, "lowers", False):
        raw.normalizer = lowering(raw.normalizer)
    given, wanted = token_ids(tokenizer, lines, UNCUT), ids_by_file(raw, lines)
    return next((line for line, one, other in zip(lines, given, wanted, strict=True) if one != other), None)


def require_file(tokenizer: PreTrainedTokenizerBase, file: Path, name: str, lines: Sequence[str]) -> None:
    """Check that a tokenizer reads lines as its tokenizer.json says.

    Raises:
        UserError: with the line that it reads otherwise.
    """
    line = disagreement(tokenizer, file, lines)
    if line is not None:
        raise UserError(
            f"the tokenizer of {name!r} makes other ids of {line[:60]!r} than its {TOKENIZER_FILE}, so that every "
            "library would give its own vectors; save the tokenizer again with the transformers that it was made with"
        )


def lower(tokenizer: Any) -> None:
    """Let a tokenizer lower-case texts before all else, as sentence-transformers does."""
    backend = tokenizer.backend_tokenizer
    backend.normalizer = lowering(backend.normalizer)
    tokenizer.lowers = True


def lowering(normalizer: Any) -> Any:
    return normalizers.Sequence([normalizers.Lowercase(), *([normalizer] if normalizer else [])])


def end_is_marked(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the last token of every text is a special one, which a pooler of last tokens counts on."""
    ids = token_ids(tokenizer, ["a"], UNCUT)[0]
    return bool(ids) and ids[-1] in tokenizer.all_special_ids
