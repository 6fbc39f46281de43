"""Rows with text columns -> V views of each row -> token ids (B, V, L); the only file that calls a tokenizer.

Training, encoding, the frozen reference and ``inspect`` all tokenise here. A kind of view is one subclass of `View`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError, on_one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

Row = Mapping[str, str]  # column -> text


@dataclass(frozen=True)
class View:
    """One view of a row. This class itself tokenises the text of its column without changing it.

    A subclass overrides `texts` to change words, or `ids` to change tokens. Whatever it draws at random comes from
    ``draws``, see `Views`.

    Args:
        columns: the columns of the row that the view reads; the texts of several are joined by a space.
        template: a `Template` in which the text stands; None: that of the encoder, if it has one.
    """

    columns: tuple[str, ...] = ("text",)
    template: Any = field(default=None, kw_only=True)
    denoised: ClassVar[bool] = False  # whether a batch says how many tokens of a view are those of the text

    def plain(self, rows: Sequence[Row]) -> list[str]:
        """B rows -> the text of each, before the view changes it.

        The tokens of the plain text of the first view decide which rows are equal, and a frozen reference encodes it.
        """
        return [" ".join(filter(None, (row[column] for column in self.columns))) for row in rows]

    def texts(self, rows: Sequence[Row], draws: np.random.Generator) -> list[str]:
        """B rows -> B texts."""
        return self.plain(rows)

    def text_tokens(self, tokenizer: PreTrainedTokenizerBase, ids: Sequence[Sequence[int]]) -> Tensor:
        """Ids of B views -> how many of them are of the text (B,), of views that are ``denoised``."""
        raise NotImplementedError

    def longest(self, max_seq_length: int) -> int:
        """Tokens that the view makes at most where ``max_seq_length`` are kept of a text."""
        return max_seq_length

    def ids(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_seq_length: int, draws: np.random.Generator
    ) -> list[list[int]]:
        """B texts -> B lists of ids, special tokens included, at most ``max_seq_length`` each.

        What looks like a special token in a text ("[MASK]") is split like any other text.
        """
        reading = {"split_special_tokens": True} if self.template is None else self.template.reading
        return token_ids(tokenizer, texts, max_seq_length, **reading)


@dataclass(frozen=True)
class Repeat(View):
    """Some tokens twice, each beside itself (Wu et al. 2022, ESimCSE): the views of a sentence differ in length.

    Of n tokens, the special ones included, a number below min(10, int(rate n)) is drawn, which may be 0, as in the
    released code; where the code draws once, a sentence is drawn anew here each time that it is read. The repeated
    tokens come on top of ``max_seq_length``.

    Args:
        rate: the share of the tokens that bounds the number of repetitions.
    """

    rate: float = 0.32

    def limit(self, tokens: int) -> int:
        """The number of repetitions is below this, or 0 where it is 0."""
        return min(REPEATED_AT_MOST, int(self.rate * tokens))

    def longest(self, max_seq_length: int) -> int:
        return max_seq_length + max(self.limit(max_seq_length) - 1, 0)

    def ids(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_seq_length: int, draws: np.random.Generator
    ) -> list[list[int]]:
        found = super().ids(tokenizer, texts, max_seq_length, draws)
        return [repeated(row, self.places(len(row), draws)) for row in found]

    def places(self, tokens: int, draws: np.random.Generator) -> list[int]:
        """Which of a sentence's tokens are repeated; never its first and last one."""
        limit = self.limit(tokens)
        count = min(int(draws.integers(limit)), max(tokens - 2, 0)) if limit else 0
        return [int(place) for place in draws.choice(np.arange(1, max(tokens - 1, 1)), count, replace=False)]


REPEATED_AT_MOST = 10


def repeated(ids: Sequence[int], places: Sequence[int]) -> list[int]:
    """Ids with those at ``places`` twice."""
    twice = set(places)
    return [one for place, one in enumerate(ids) for one in [one] * (1 + (place in twice))]


@runtime_checkable
class Collator(Protocol):
    """What makes a batch of B rows, and says of what shape.

    views: V of its batches. max_seq_length: tokens that it keeps of a text. columns: of a row that it reads; None
    where it does not say, so that rows reach it as they are.
    """

    views: int
    max_seq_length: int

    @property
    def columns(self) -> tuple[str, ...] | None: ...

    def __call__(self, rows: Sequence[Any]) -> dict[str, Tensor]: ...


@dataclass
class PlainCollator:
    """A function that makes batches, as a `Collator` that does not say which columns it reads."""

    function: Callable[[Sequence[Any]], dict[str, Tensor]]
    max_seq_length: int
    views: int = 2
    columns: tuple[str, ...] | None = None

    def __call__(self, rows: Sequence[Any]) -> dict[str, Tensor]:
        """The batch that the function makes.

        Raises:
            UserError: the function cannot take the rows, or makes no views, as collators of one text a row do.
        """
        try:
            batch = self.function(rows)
        except UserError:
            raise
        except (TypeError, ValueError, KeyError) as error:
            raise self._refused(f"fails on the rows ({on_one_line(error)})") from error
        if not isinstance(batch, Mapping):
            raise self._refused(f"gives {type(batch).__name__}")
        ids = batch.get("input_ids")
        if not isinstance(ids, Tensor) or ids.dim() != 3:
            raise self._refused("gives no input_ids" if ids is None else f"gives input_ids {tuple(np.shape(ids))}")
        return dict(batch)

    def _refused(self, what: str) -> UserError:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return UserError(
            f"data_collator {name} {what}; a batch here holds input_ids and attention_mask (B, V, L) of V views and "
            "text_ids (B,), as Views makes it: leave data_collator out"
        )


def as_collator(function: Callable[[Sequence[Any]], dict[str, Tensor]], max_seq_length: int) -> Collator:
    """``function``, with ``max_seq_length`` and two views where it does not say these itself."""
    return function if isinstance(function, Collator) else PlainCollator(function, max_seq_length)


class Views:
    """The collator: B rows -> ``input_ids``, ``attention_mask`` (B, V, L) and ``text_ids`` (B,), all int64; and
    ``view_ids`` (B, V), the same of each view, where the views read different columns.

    Views are padded on the right to the longest of all. Rows whose first view has the same tokens before it is changed
    have equal ``text_ids`` (the first 64 bits of BLAKE2b), since the encoder cannot tell them apart. Views that are
    denoised also give ``text_tokens`` (B, V), see `Prompted`.

    Each batch has a random generator of its own, whose seed is made from ``seed`` and the texts of the batch in
    order. A view therefore draws the same in a worker process and in a resumed run, and something else in the next
    epoch, whose batches are shuffled differently.

    Args:
        views: the views of each row in order, or a number of equal views of the column ``text``, which are tokenised
            once: dropout alone makes them differ.
        seed: for what the views draw at random.

    Raises:
        UserError: there is no view, or (when called) a row lacks a column that a view reads.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        views: int | Sequence[View] = 2,
        seed: int = 0,
    ):
        self.views: int = views if isinstance(views, int) else len(views)  # V
        if self.views < 1:
            raise UserError(f"views is {self.views}; it must be at least 1")
        self.kinds = (View(),) if isinstance(views, int) else tuple(views)
        self.tokenizer, self.max_seq_length, self.seed = tokenizer, max_seq_length, seed
        self.prompt = ""

    def prompted(self, prompt: str, template: Any = None) -> Views:
        """These views with a prompt before the text of each, or with each in a `Template` that has none of its own;
        neither counts when texts are compared, and the template not as a part of a text's length.

        Raises:
            UserError: it holds a special token, which views split like any other text.
        """
        said = prompt if template is None else template.text
        for token in self.tokenizer.all_special_tokens:
            if token in said:
                raise UserError(
                    f"the {'prompt' if template is None else 'template'} {said!r} holds the special token {token!r}, "
                    "which training reads like any other text; leave it out"
                )
        self.prompt = prompt
        self.kinds = tuple(kind if kind.template else replace(kind, template=template) for kind in self.kinds)
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the views read, each once."""
        return tuple(dict.fromkeys(column for kind in self.kinds for column in kind.columns))

    @property
    def of_different_texts(self) -> bool:
        """Whether the views of a row read different columns."""
        return len({kind.columns for kind in self.kinds}) > 1

    @property
    def first(self) -> View:
        """The view of the anchors."""
        return self.kinds[0]

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        missing = [column for column in self.columns if column not in rows[0]]
        if missing:
            raise UserError(
                f"a view reads the column {missing[0]!r}, but the rows have {', '.join(map(repr, rows[0]))}; rename "
                "the column, or name another one in the `columns` of the view"
            )
        plain = self.first.plain(rows)
        of_texts = np.array([text_id(text) for text in plain])
        draws = np.random.default_rng([self.seed, *of_texts.view(np.uint32)])
        found = []
        for kind in self.kinds:
            texts, limit = kind.texts(rows, draws), self.max_seq_length
            if kind.template is None:
                texts = [self.prompt + text for text in texts]
            else:
                texts, limit = kind.template.fill(self.tokenizer, texts, limit, split_special_tokens=True), UNCUT
            found.append(kind.ids(self.tokenizer, texts, limit, draws))
        padded = pad([ids for view in found for ids in view], self.tokenizer.pad_token_id)  # (V * B, L)
        ids, mask = (part.unflatten(0, (len(found), len(rows))).transpose(0, 1) for part in padded)  # (B, V, L)
        # A real copy: a view with stride 0 cannot be pinned (DataLoader(pin_memory=True) raises) nor masked in place.
        copies = self.views // len(found)
        batch = {
            "input_ids": ids.repeat(1, copies, 1),
            "attention_mask": mask.repeat(1, copies, 1),
            "text_ids": self._ids_of(self.first, plain, found[0]),
        }
        if self.first.denoised:
            batch["text_tokens"] = torch.stack(
                [kind.text_tokens(self.tokenizer, ids) for kind, ids in zip(self.kinds, found, strict=True)], 1
            )
        if self.of_different_texts:
            each = zip(self.kinds, found, strict=True)
            batch["view_ids"] = torch.stack([self._ids_of(kind, kind.plain(rows), ids) for kind, ids in each], 1)
        return batch

    def _ids_of(self, kind: View, plain: Sequence[str], ids: list[list[int]]) -> Tensor:
        """(B,), one of each text by its tokens; ids: of this view, which are those where it changes nothing."""
        if (type(kind).texts, type(kind).ids) != (View.texts, View.ids):
            texts = [self.prompt + text for text in plain]
            ids = token_ids(self.tokenizer, texts, self.max_seq_length, split_special_tokens=True)
        return torch.tensor([ids_id(row) if text else PADDING_ID for text, row in zip(plain, ids, strict=True)])


ViewCollator = Views  # its name in version 0.1


def blank_row(collator: Collator) -> dict[str, str]:
    """A row without text, which fills up a batch: its ``text_ids`` is `PADDING_ID`."""
    return dict.fromkeys(collator.columns or ("text",), "")


def text_id(text: str) -> int:
    """The first 64 bits of BLAKE2b, as int64."""
    return _first_bits(text.encode("utf-8", "surrogatepass"))


def ids_id(ids: Sequence[int]) -> int:
    """The same of token ids."""
    return _first_bits(b"ids" + np.array(ids, "<i4").tobytes())


def _first_bits(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


PADDING_ID = text_id("")  # no sentence is empty; on several ranks a blank row fills up the last batch


UNCUT = 10**9  # as a length: nothing is cut
LONG = 64  # characters for each token that is kept, beyond which a text is first cut to so many
BESIDE = 64  # tokens that such a text must have beyond those that are kept, so that the cut changes none of these


def token_ids(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
    *,
    split_special_tokens: bool | None = None,
    add_special_tokens: bool = True,
) -> list[list[int]]:
    """B texts -> B lists of at most ``max_length`` ids.

    split_special_tokens: whether what looks like a special token in a text is split like any other text, as in
    training. None is what the tokenizer's own settings say, as in every library that encodes with the model.
    """

    def tokenized(some: Sequence[str], length: int) -> list[list[int]]:
        found: list[list[int]] = tokenizer(
            list(some),
            truncation=True,
            max_length=length,
            split_special_tokens=split_special_tokens,
            add_special_tokens=add_special_tokens,
        )["input_ids"]
        return found

    most = LONG * (max_length + BESIDE)
    cut = [text[:most] for text in texts]
    for i, text in enumerate(texts):  # the tokens of a line of megabytes would take gigabytes
        if len(text) > most and len(tokenized([cut[i]], max_length + BESIDE)[0]) < max_length + BESIDE:
            cut[i] = text
    return tokenized(cut, max_length)


def cut_texts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], tokens: int, split_special_tokens: bool | None = None
) -> list[str]:
    """B texts -> the same, each cut where its first ``tokens`` tokens end, special ones not counted.

    Raises:
        UserError: the tokenizer cannot say where a token ends in its text.
    """
    _, spans = spans_of(tokenizer, texts, split_special_tokens=split_special_tokens, add_special_tokens=False)
    found = []
    for text, of in zip(texts, spans, strict=True):
        last = min(tokens, len(of))
        while 0 < last < len(of) and of[last][0] < of[last - 1][1]:  # within a character of several tokens
            last -= 1
        found.append(text if last == len(of) else text[: of[last - 1][1]] if last else "")
    return found


def spans_of(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **reading: Any
) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """B texts -> the ids of each, uncut, and the places in the text where each token begins and ends.

    Raises:
        UserError: the tokenizer cannot say where a token ends in its text.
    """
    if not tokenizer.is_fast:
        raise UserError(
            f"the tokenizer {type(tokenizer).__name__} does not say where a token ends in its text, by which a text "
            "within a template is cut; save its tokenizer.json beside the encoder"
        )
    found = tokenizer(list(texts), return_offsets_mapping=True, truncation=False, **reading)
    return found["input_ids"], found["offset_mapping"]


def ids_by_file(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """B texts -> what a tokenizer.json itself makes of each, special tokens included."""
    return [found.ids for found in tokenizer.encode_batch(list(texts))]


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> Any:
    """B texts -> all that an encoder takes, padded as other libraries do: ids and mask (B, L), token types if any."""
    return tokenizer(list(texts), padding=True, truncation=True, max_length=max_length, return_tensors="pt")


def pad(rows: Sequence[list[int]], filler: int) -> tuple[Tensor, Tensor]:
    """Ids of B sentences -> ids filled up on the right and mask, (B, L) int64."""
    longest = max(1, *map(len, rows))  # an empty text may have no token at all
    ids = torch.tensor([row + [filler] * (longest - len(row)) for row in rows], dtype=torch.int64)
    mask = torch.arange(longest) < torch.tensor([len(row) for row in rows]).unsqueeze(1)
    return ids, mask.long()
