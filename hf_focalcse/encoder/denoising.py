"""What a template alone says at its mask token, which PromptBERT takes out of every view in training."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.prompted import Prompted, shifted_positions
from ..data.views import pad
from ..errors import UserError


@dataclass(frozen=True)
class Denoising:
    """The templates of V views without a text.

    Args:
        ids, mask: (V, L'). prefixes: (V,), how many tokens stand before the text.
    """

    ids: Tensor
    mask: Tensor
    prefixes: Tensor

    @classmethod
    def of(cls, model: Any, views: Sequence[Prompted]) -> Denoising:
        """
        Raises:
            UserError: the encoder takes no positions, by which a template is told how long its text was.
        """
        if "position_ids" not in inspect.signature(model.encoder_class.forward).parameters:
            raise UserError(
                f"a {model.config.model_type} encoder takes no positions, by which the template without its text is "
                "told how long that was; give --template_denoising no"
            )
        found = [view.template.empty(model.tokenizer) for view in views]
        ids, mask = pad([row for row, _ in found], model.tokenizer.pad_token_id)
        return cls(ids, mask, torch.tensor([prefix for _, prefix in found]))

    def states(self, model: Any, text_tokens: Tensor) -> Tensor:
        """How long each view's text is, (B, V) -> the pooled states of the templates without them, (B, V, D).

        Each length of a batch goes through the encoder once, with gradient and a dropout of its own, which the
        sentences of that length share, as in the released code.
        """
        views = torch.arange(text_tokens.shape[1], device=text_tokens.device).expand_as(text_tokens)
        pairs = torch.stack([views, text_tokens], -1).flatten(0, 1)  # (B * V, 2)
        different, where = pairs.unique(dim=0, return_inverse=True)  # (R, 2), (B * V,)
        view, lengths = different.unbind(1)
        ids, mask, prefixes = (part.to(text_tokens.device)[view] for part in (self.ids, self.mask, self.prefixes))
        positions = shifted_positions(ids.shape[1], prefixes, lengths) + model.first_position  # (R, L')
        output = model.encoder(input_ids=ids, attention_mask=mask, position_ids=positions, **model.family.arguments)
        states: Tensor = model.pool((output.last_hidden_state,), mask, ids)  # (R, D)
        return states[where].unflatten(0, text_tokens.shape)
