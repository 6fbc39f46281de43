"""Texts -> vectors and similarities with the arguments of ``SentenceTransformer``, so that what is written for that
class, evaluators and mteb among it, takes an encoder of this package.

Shape letters: N texts, L tokens, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..compat import plain_forward
from ..data.template import Template, as_read
from ..errors import UserError, suggest
from . import mteb
from .batches import batches_by_length
from .devices import choose_device
from .lengths import positions_of, take_limit
from .poolers import JOINED
from .prompts import choose_prompt, prompt_tokens
from .recorded import PLAIN
from .similarity import SIMILARITIES, as_rows, as_tensor, resolve_similarity
from .source import Source
from .tail import dimensions_after
from .tokenizer import load_tokenizer

if TYPE_CHECKING:
    _Base = PreTrainedModel
else:
    _Base = object

NO_PROMPTS = {"query": "", "document": ""}  # of every model of sentence-transformers
INPUTS = ("sentences", "texts")  # what the first argument is called in older versions of that library, and in 0.1 here
KNOWN = ("inputs prompt_name prompt batch_size show_progress_bar output_value precision convert_to_numpy "
         "convert_to_tensor device normalize_embeddings truncate_dim max_length bf16").split()  # fmt: skip
DOCUMENTS = ("document", "passage", "corpus")  # what the prompt of a text that is searched may be called


class CardData:
    """Where evaluators of sentence-transformers leave their scores; the model card is made from results.json alone."""

    def __init__(self) -> None:
        self.eval_results_dict: dict[Any, dict[str, Any]] = {}  # evaluator -> its newest scores

    def set_evaluation_metrics(
        self, evaluator: Any, metrics: Mapping[str, Any], epoch: int = 0, step: int = 0
    ) -> None:
        self.eval_results_dict[evaluator] = dict(metrics)


class EncodingMixin(_Base):
    """How an encoder of this package is used. ``prompts``: name -> text put in front of each sentence; where neither
    ``prompt`` nor ``prompt_name`` is given, the one called ``default_prompt_name`` is. ``truncate_dim``: dimensions
    that are kept of each vector, None for all."""

    prompts: dict[str, str]
    default_prompt_name: str | None = None
    template: Template | None = None  # in which every text stands, in the place of a prompt before it
    truncate_dim: int | None = None
    include_prompt = True  # whether the tokens of a prompt are pooled
    tail: Any
    spec: Any = None  # what `load_model` read of its folder, an `EncoderSpec`
    model_card_data: CardData
    known_fingerprint: Any = None  # see `mteb.fingerprint`
    _similarity = "cosine"
    _prompt: str | None = None  # the one that `encode` is using
    _tokenizer: PreTrainedTokenizerBase | None = None
    _limit: int | None = None  # tokens of a text by the files of sentence-transformers that it was loaded from

    # ---- tokens

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer saved beside the weights, unless another was set."""
        if self._tokenizer is None:
            lower = self.config.focal_cl.get("lower_case", False)
            self._tokenizer = load_tokenizer(Source(self.config.name_or_path or ""), lower_case=lower)
            take_limit(self, self._tokenizer, self._limit)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def max_length(self) -> int:
        """The number of tokens that the encoder reads of a text: what its positions and its tokenizer allow, and its
        template leaves."""
        return self.reach() - (0 if self.template is None else self.template.tokens(self.tokenizer))

    def reach(self) -> int:
        """The number of tokens that the encoder reads at all."""
        limit = self.tokenizer.model_max_length  # first, since reading the tokenizer says how far positions go
        return int(min(limit, self.positions))

    @property
    def first_position(self) -> int:
        """The position id of a sentence's first token."""
        raise NotImplementedError

    @property
    def positions(self) -> int:
        """The number of tokens that the encoder can read, see `positions_of`."""
        return positions_of(self)

    @property
    def max_seq_length(self) -> int:
        """`max_length` under the name of sentence-transformers; it can be set, and an export then carries it."""
        return self.max_length()

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        if not 3 <= tokens <= self.positions:
            raise UserError(f"max_seq_length is {tokens}; this encoder takes 3 to {self.positions} tokens")
        self.tokenizer.model_max_length = tokens

    # ---- prompts and dimensions

    def resolve_prompt(self, prompt: str | None, prompt_name: str | None) -> str:
        """The text in front of each sentence; ``prompt`` counts before ``prompt_name``.

        Raises:
            UserError: the model has no prompt of this name.
        """
        return choose_prompt(self.prompts, self.default_prompt_name, prompt, prompt_name if prompt is None else None)

    def take_record(self, record: Mapping[str, Any]) -> None:
        """Embed as ``focal_cl`` of a config says, apart from the pooler; what it leaves out is plain."""
        self.prompts = NO_PROMPTS | record.get("prompts", {})
        self.default_prompt_name = record.get("default_prompt_name")
        self.template = Template.of(record["template"]) if record.get("template") else None
        self.truncate_dim = record.get("truncate_dim")
        self.include_prompt = record.get("include_prompt", True)
        self.similarity_fn_name = record.get("similarity", "cosine")

    def keep_record(self) -> None:
        """Write what `take_record` reads into the config, as it is now."""
        now = {
            "prompts": self.own_prompts(),
            "default_prompt_name": self.default_prompt_name,
            "template": None if self.template is None else self.template.name,
            "truncate_dim": self.truncate_dim,
            "include_prompt": self.include_prompt,
            "similarity": self.similarity_fn_name,
        }
        kept = {key: value for key, value in self.config.focal_cl.items() if key not in now}
        self.config.focal_cl = kept | {key: value for key, value in now.items() if value != PLAIN[key]}

    def own_prompts(self) -> dict[str, str]:
        """The prompts that were read or set, without those that sentence-transformers adds to every model."""
        recorded: dict[str, str] = self.config.focal_cl.get("prompts", {})
        return recorded if self.prompts == NO_PROMPTS | recorded else dict(self.prompts)

    @property
    def prompt(self) -> str:
        """The text in front of every text that is not given another: in training, evaluation and `encode`."""
        return self.resolve_prompt(None, None)

    @property
    def unpooled(self) -> int:
        """How many tokens at the beginning of a text are not pooled: those of its prompt, if the encoder says so."""
        if self.include_prompt:
            return 0
        return prompt_tokens(self.tokenizer, self.prompt if self._prompt is None else self._prompt)

    @property
    def dimensions(self) -> int:
        """D, before any truncation."""
        focal = self.config.focal_cl
        pooled = self.config.hidden_size * len(focal["pooler"].split(JOINED))
        return dimensions_after(int(pooled), focal.get("modules", []))

    @property
    def matryoshka_dims(self) -> list[int]:
        """The sizes to which its vectors may be cut, by its training, the largest first; it may be none."""
        return list(self.config.focal_cl.get("matryoshka_dims", []))

    def get_embedding_dimension(self) -> int:
        """The dimensions of what `encode` gives."""
        return min(self.truncate_dim or self.dimensions, self.dimensions)

    def get_sentence_embedding_dimension(self) -> int:
        """`get_embedding_dimension`, under its older name."""
        return self.get_embedding_dimension()

    # ---- similarity

    @property
    def similarity_fn_name(self) -> str:
        """cosine, dot, euclidean or manhattan: what `similarity` computes."""
        return self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: Any) -> None:
        self._similarity = resolve_similarity(name)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """(N, D) and (M, D), or one vector (D,) each -> (N, M); distances are negative, so that larger is more
        alike."""
        one = as_rows(embeddings1)
        return SIMILARITIES[self._similarity].all(one, as_rows(embeddings2).to(one))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """(N, D) and (N, D) -> (N,): each with the one in the same place."""
        one = as_tensor(embeddings1)
        return SIMILARITIES[self._similarity].pairs(one, as_tensor(embeddings2).to(one))

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb keeps of the model with its scores; needs mteb."""
        return mteb.describe(self)

    # ---- text -> vectors

    def encode(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 64,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        max_length: int | None = None,
        bf16: bool = False,
        **others: Any,
    ) -> Any:
        """N texts -> (N, D) float32 in the order given, or one text -> (D,), pooled as the config says.

        Without dropout, in batches of texts with about as many tokens. The arguments are those of
        ``SentenceTransformer.encode``, and mteb's calls are understood as well; the model is in the mode it was in
        before.

        prompt, prompt_name: text in front of each sentence, see `resolve_prompt`. convert_to_tensor: a tensor on the
        model's device in place of an array. convert_to_numpy: False gives a list of N such tensors. device: where the
        model is moved before. truncate_dim: dimensions kept, before ``normalize_embeddings`` gives length 1.
        max_length: tokens kept of a text (default: all that the encoder can read). bf16: matrix products in bfloat16,
        several times faster on hardware that has them; cosines change in the third digit.

        Raises:
            UserError: an input is no text, or an argument is unknown or asks for what this encoder does not do.
        """
        inputs, prompt_name, others = understand(self, inputs, prompt_name, others)
        refuse(self, others, output_value, precision, device, batch_size, truncate_dim)
        single = isinstance(inputs, str)
        texts = [inputs] if single else as_texts(inputs)
        before = self.resolve_prompt(prompt, prompt_name)
        if device is not None:
            self.to(choose_device(str(device)))  # type: ignore[arg-type]
        limit = min(max_length or self.max_length(), self.max_length())
        self._prompt = before
        try:
            texts, cut = self.as_read(texts, before, limit)
            vectors = self._encode(texts, batch_size, min(cut, self.reach()), bool(show_progress_bar), bf16)
        finally:
            self._prompt = None
        kept = self.truncate_dim if truncate_dim is None else truncate_dim
        vectors = vectors if kept is None else np.ascontiguousarray(vectors[:, :kept])
        if normalize_embeddings:
            vectors = normalize(torch.from_numpy(vectors), dim=1).numpy()
        if convert_to_numpy and not convert_to_tensor:
            return vectors[0] if single else vectors
        tensor = torch.from_numpy(vectors).to(self.device)
        if single:
            return tensor[0]
        return tensor if convert_to_tensor else list(tensor)

    def as_read(self, texts: Sequence[str], prompt: str, limit: int) -> tuple[list[str], int]:
        """(texts as the tokenizer gets them, the number of tokens at which they are still to be cut).

        Raises:
            UserError: there is a template, and a prompt as well.
        """
        if prompt and self.template is not None:
            raise UserError(
                f"the prompt {prompt!r} is asked for, but this encoder reads every text within the template "
                f"{self.template.text!r}; leave one of them out"
            )
        return as_read(self.tokenizer, texts, limit, prompt, self.template, evaluated=True)

    def encode_query(self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None,
                     **arguments: Any) -> Any:  # fmt: skip
        """`encode` with the prompt called "query", where the model has one and no other is asked for."""
        if prompt is None and prompt_name is None and "query" in self.prompts:
            prompt_name = "query"
        return self.encode(inputs, prompt_name, prompt, **arguments)

    def encode_document(self, inputs: Any = None, prompt_name: str | None = None, prompt: str | None = None,
                        **arguments: Any) -> Any:  # fmt: skip
        """`encode` with the prompt called "document", "passage" or "corpus", where the model has one and no other is
        asked for."""
        if prompt is None and prompt_name is None:
            prompt_name = next((name for name in DOCUMENTS if name in self.prompts), None)
        return self.encode(inputs, prompt_name, prompt, **arguments)

    @torch.no_grad()  # not inference_mode: FSDP2 would keep the weights it gathered here as inference tensors
    def _encode(self, texts: list[str], batch_size: int, limit: int, bar: bool, bf16: bool) -> np.ndarray:
        """N texts -> (N, D) float32."""
        result = np.empty((len(texts), self.dimensions), dtype=np.float32)
        if not texts:
            return result
        was_training = self.training
        self.eval()
        try:
            with (
                plain_forward(self),  # scores do not depend on the precision that training runs in
                torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext(),
                tqdm(total=len(texts), desc="encoding", disable=not bar, leave=False) as progress,
            ):
                for rows, *batch in batches_by_length(texts, self.tokenizer, limit, batch_size):
                    result[rows] = self(*(part.to(self.device) for part in batch)).float().cpu().numpy()
                    progress.update(len(rows))
        finally:
            self.train(was_training)
        return result


# ---- what `encode` was given


def understand(
    model: Any, inputs: Any, prompt_name: str | None, others: dict[str, Any]
) -> tuple[Any, str | None, dict[str, Any]]:
    """(texts, name of the prompt, arguments that nothing is known of), whoever calls: `INPUTS`, or mteb."""
    others = dict(others)
    for name in INPUTS:
        if inputs is None and name in others:
            inputs = others.pop(name)
    if "task_metadata" in others:
        task, _, _, kind = (others.pop(name, None) for name in mteb.ASKED)
        inputs = mteb.texts_of(inputs)
        prompt_name = mteb.prompt_name_of(model.prompts, task, getattr(kind, "value", kind))
    return inputs, prompt_name, others


def refuse(model: Any, others: dict[str, Any], output_value: Any, precision: Any, device: Any, batch_size: Any,
           truncate_dim: Any) -> None:  # fmt: skip
    """Name an argument of `encode` that cannot be honoured.

    Raises:
        UserError: there is one.
    """
    pool = others.pop("pool", None)
    if pool is None:
        others.pop("chunk_size", None)  # of a pool's processes
    if pool is not None or isinstance(device, (list, tuple)):
        raise UserError(
            "encode works on one device, not on a pool of processes; give device='cuda:0', or encode parts of the "
            "texts in processes of your own"
        )
    for name in others:
        raise UserError(f"encode takes no argument {name!r}{suggest(name, KNOWN)}; it takes {', '.join(KNOWN)}")
    if output_value != "sentence_embedding":
        raise UserError(
            f"output_value is {output_value!r}; encode gives 'sentence_embedding' alone: for the vectors of tokens "
            "call model.encoder(**model.tokenizer(texts, padding=True, return_tensors='pt'))"
        )
    if precision not in (None, "float32"):
        raise UserError(
            f"precision is {precision!r}; encode gives float32 alone: sentence_transformers.quantize_embeddings makes "
            "other precisions from its vectors"
        )
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(f"batch_size is {batch_size!r}; it is a number of texts, at least 1")
    if truncate_dim is not None and not (isinstance(truncate_dim, int) and 1 <= truncate_dim <= model.dimensions):
        raise UserError(f"truncate_dim is {truncate_dim!r}; this encoder's vectors have 1 to {model.dimensions}")


def as_texts(inputs: Any) -> list[str]:
    """A list of str from whatever gives texts one by one.

    Raises:
        UserError: it does not.
    """
    if inputs is None or isinstance(inputs, (Mapping, bytes)) or not hasattr(inputs, "__iter__"):
        raise UserError(
            f"encode takes a text or a list of texts, not {type(inputs).__name__}; of a data set give one column, for "
            "instance dataset['text']"
        )
    texts = list(inputs)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(
                f"text {i + 1} of {len(texts)} is {text!r:.40}, a {type(text).__name__}; encode takes texts alone: "
                "leave it out, or give one column of a data set, for instance dataset['text']"
            )
    return texts
