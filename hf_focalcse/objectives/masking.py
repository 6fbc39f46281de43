"""Masked tokens: which are hidden, the head that guesses them, and the loss of the guesses.

What is drawn for a sentence depends on the seed of the step and on its text alone, so that the number of processes,
the padding and an interruption change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING
from transformers.utils import logging

from ..encoder.chunks import checkpointed
from ..errors import UserError
from .base import Batch
from .pairs import ranks, sum_of_ranks

REPLACED = 0.8  # of the chosen tokens become the mask token
RANDOM = 0.5  # of the others become any token; the rest stay as they are
IGNORED = -100


@dataclass(frozen=True)
class Draws:
    """Uniform numbers (B, L) by which tokens are chosen and changed, and the random tokens that may replace them."""

    chosen: Tensor
    replaced: Tensor
    random: Tensor
    ids: Tensor


def draw(seed: int, text_ids: Tensor, mask: Tensor, vocabulary: int, view: int = 0) -> Draws:
    """For each sentence as many numbers as it has tokens; padding gets 1, which chooses nothing.

    text_ids: (B,), equal where texts are equal, which are then drawn alike. mask: (B, L). view: of the sentence.
    """
    lengths, texts = mask.sum(1).tolist(), text_ids.cpu().numpy().view(np.uint64).tolist()
    numbers = np.ones((3, *mask.shape))
    ids = np.zeros(mask.shape, np.int64)
    for row, (length, text) in enumerate(zip(lengths, texts, strict=True)):
        generator = np.random.default_rng([seed, text, view])
        numbers[:, row, :length] = generator.random((3, length))
        ids[row, :length] = generator.integers(vocabulary, size=length)
    chosen, replaced, random = torch.from_numpy(numbers).to(mask.device)
    return Draws(chosen, replaced, random, torch.from_numpy(ids).to(mask.device))


def draw_views(batch: Batch, vocabulary: int) -> Draws:
    """`draw` for each view of the sentences of a batch: numbers (B * V, L)."""
    masks = batch["attention_mask"].unbind(1)
    views = [draw(batch["seed"], batch["text_ids"], mask, vocabulary, view) for view, mask in enumerate(masks)]
    names = [field.name for field in fields(Draws)]
    return Draws(*(torch.stack([getattr(view, name) for view in views], 1).flatten(0, 1) for name in names))


def hide(ids: Tensor, special: Tensor, draws: Draws, probability: float, mask_id: int) -> tuple[Tensor, Tensor]:
    """Ids (B, L) with some hidden of those that are not special; and labels (B, L), -100 where nothing is guessed."""
    chosen = (draws.chosen < probability) & ~special
    replaced = chosen & (draws.replaced < REPLACED)
    random = chosen & ~replaced & (draws.random < RANDOM)
    hidden = torch.where(random, draws.ids, ids.masked_fill(replaced, mask_id))
    return hidden, ids.masked_fill(~chosen, IGNORED)


def by_words(chosen: Tensor, continues: Tensor) -> Tensor:
    """The draws (B, L) by which tokens are chosen, those of a word's first token for all of them.

    continues: (B, L), bool: tokens that go on with the word before.
    """
    places = torch.arange(chosen.shape[1], device=chosen.device).expand_as(continues)
    first = places.masked_fill(continues, 0).cummax(1).values
    return chosen.gather(1, first)


class MaskedTokens(nn.Module):
    """Hides tokens of sentences and has a head of the encoder guess them: the mean cross entropy of all guesses.

    Args:
        probability: of a token, or of a word, to be hidden.
        whole_words: hide words as a whole where the tokenizer marks what goes on with a word by "##".
        named: what the probability is called where it is refused.
    """

    def __init__(self, probability: float, whole_words: bool, named: str = "mask_probability"):
        super().__init__()
        if not 0 < probability < 1:
            raise UserError(f"{named} is {probability}; it must be above 0 and below 1 (0.15 is usual)")
        self.probability, self.whole_words = probability, whole_words
        self._model: list[Any] = []  # in a list, so that the encoder is no part of this module

    def attach(self, model: Any) -> None:
        """Make the head for an encoder, from its checkpoint where that has one.

        Raises:
            UserError: its tokenizer has no mask token, or its type no such head.
        """
        tokenizer = model.tokenizer
        if tokenizer.mask_token_id is None:
            raise UserError(
                f"the tokenizer of this {model.config.model_type} encoder has no mask token, so nothing can be "
                "hidden; start from an encoder that was trained with one"
            )
        self._model[:] = [model]
        self.mask_id = tokenizer.mask_token_id
        vocabulary = model.config.vocab_size
        special, continues = special_tokens(tokenizer, vocabulary), torch.zeros(vocabulary, dtype=torch.bool)
        marked = [i for name, i in tokenizer.get_vocab().items() if name.startswith("##") and i < vocabulary]
        continues[marked] = self.whole_words
        self.special, self.continues = special, continues  # no buffers: the tokenizer has them in every run
        self.head = masked_head(model).to(next(model.parameters()))

    def loss(self, batch: Batch) -> Tensor:
        """The mean over the hidden tokens of all views and processes, 0 where there is none."""
        model, ids, mask = self._model[0], batch["input_ids"], batch["attention_mask"]  # (B, V, L)
        special = self.special.to(ids.device)[ids] | (mask == 0)
        if "real" in batch:  # all ranks run the last batch whole (FSDP2 and ZeRO-3 count on it)
            special |= ~batch["real"].view(-1, 1, 1)
        ids, mask, special = ids.flatten(0, 1), mask.flatten(0, 1), special.flatten(0, 1)  # (B * V, L)
        draws = draw_views(batch, model.config.vocab_size)
        draws = replace(draws, chosen=by_words(draws.chosen, self.continues.to(ids.device)[ids]))
        hidden, labels = hide(ids, special, draws, self.probability, self.mask_id)
        total: Any = 0.0
        for rows in torch.arange(len(ids), device=ids.device).split(model.chunk_size or max(len(ids), 1)):
            chunk = hidden[rows], mask[rows], labels[rows]
            total = total + (checkpointed(self._sum, *chunk) if model.chunk_size else self._sum(*chunk))
        count = sum_of_ranks(int((labels != IGNORED).sum()), ids.device)
        found: Tensor = total * (ranks() / max(count, 1))
        return found

    def _sum(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        states = self._model[0].encoder(input_ids=ids, attention_mask=mask).last_hidden_state  # (B, L, D)
        wanted = labels != IGNORED
        return cross_entropy_sum(self.head(states[wanted]), labels[wanted])


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits (n, vocabulary) and labels (n,) -> the sum over n, in float32 at least."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, labels, reduction="sum")


def special_tokens(tokenizer: Any, vocabulary: int) -> Tensor:
    """Which of the tokens (vocabulary,) stand for no text; the unknown token stands for some."""
    found = torch.zeros(vocabulary, dtype=torch.bool)
    found[[one for one in tokenizer.all_special_ids if one != tokenizer.unk_token_id]] = True
    return found


class GivenStates(nn.Module):
    """Stands in the place of an encoder and gives the states that it is told."""

    states: Tensor

    def forward(self, *_: Any, **__: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.states)


class TiedDecoder(nn.Module):
    """Scores all tokens by the input embeddings, which stay a part of the encoder alone.

    weight, bias: where the parameters lie, as (module, name); they are looked up at each call, since engines replace
    them.
    """

    def __init__(self, weight: tuple[nn.Module, str], bias: tuple[nn.Module, str] | None):
        super().__init__()
        self._at = [weight, bias]

    def forward(self, states: Tensor) -> Tensor:
        weight, bias = (None if at is None else gathered(getattr(*at)) for at in self._at)
        return F.linear(states, weight, bias)  # type: ignore[arg-type]


def gathered(parameter: Any) -> Any:
    """A parameter whole, where FSDP2 has shared it out; its gradient is averaged over the ranks, as others are."""
    if not hasattr(parameter, "full_tensor"):
        return parameter
    from torch.distributed.tensor import Partial

    return parameter.full_tensor(grad_placements=[Partial("avg")] * parameter.device_mesh.ndim)


class MaskedHead(nn.Module):
    """The head of a masked language model without its encoder: states (n, D) -> logits (n, vocabulary)."""

    def __init__(self, whole: Any, encoder: Any):
        super().__init__()
        decoder = whole.get_output_embeddings()
        self.given = [GivenStates()]
        setattr(whole, whole.base_model_prefix, self.given[0])
        if whole.config.tie_word_embeddings:
            bias = owner_of(whole, getattr(decoder, "bias", None), besides=decoder)
            tied = TiedDecoder((encoder.get_input_embeddings(), "weight"), bias)
            if bias is None and getattr(decoder, "bias", None) is not None:
                tied.register_parameter("bias", decoder.bias)
                tied._at[1] = (tied, "bias")
            put_in_place(whole, decoder, tied)
        self.parts = whole

    def forward(self, states: Tensor) -> Tensor:
        self.given[0].states = states.unsqueeze(0)
        logits: Tensor = self.parts(input_ids=None).logits
        return logits.squeeze(0)


def put_in_place(whole: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module where another one is."""
    for module in whole.modules():
        for name, child in module.named_children():
            if child is old:
                setattr(module, name, new)
                return


def owner_of(whole: nn.Module, parameter: Any, besides: nn.Module) -> tuple[nn.Module, str] | None:
    """The other module that holds the same parameter, and its name there."""
    for module in whole.modules():
        for name, own in module.named_parameters(recurse=False):
            if own is parameter and module is not besides:
                return module, name
    return None


def masked_head(model: Any) -> MaskedHead:
    """The head that the checkpoint of an encoder has, or a new one where it has none.

    Raises:
        UserError: there is no masked language model of this type.
    """
    config, name = model.config, model.config.name_or_path
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise UserError(
            f"a {config.model_type} encoder has no head that guesses masked tokens; use an encoder of another type, "
            "such as BERT, RoBERTa or ModernBERT"
        )
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        plain = AutoConfig.from_pretrained(name, trust_remote_code=False)
        whole = AutoModelForMaskedLM.from_pretrained(
            name, config=plain, use_safetensors=True, trust_remote_code=False, dtype=torch.float32
        )
    except (OSError, ValueError):
        whole = AutoModelForMaskedLM.from_config(type(config)(**config.to_diff_dict()))
    finally:
        logging.set_verbosity(verbosity)
    return MaskedHead(whole, model.encoder)
