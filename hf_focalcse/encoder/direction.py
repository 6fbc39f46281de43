"""Whether tokens read those behind them: no key of a config says it for every type, so it is tried."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UserError
from .poolers import pooler_of

KEYS = ("is_decoder", "is_causal")  # of a config, either of which makes some encoders causal


@torch.no_grad()
def reads_ahead(model: Any) -> bool:
    """Whether the first token's vector depends on the tokens behind it."""
    first, *others = (min(i, model.config.vocab_size - 1) for i in (7, 8, 9))
    ids = torch.tensor([[first, other] for other in others], device=model.device)
    hidden = model.encoder(
        input_ids=ids, attention_mask=torch.ones_like(ids), **model.family.arguments
    ).last_hidden_state[:, 0]
    return bool((hidden[0] - hidden[1]).abs().max() > 1e-6)


def check_direction(model: Any, name: str) -> str | None:
    """What to say of an encoder that is made causal by its config; None where there is nothing to say.

    Raises:
        UserError: the first token is pooled but reads no other, so that all texts would get the same vector.
    """
    set_keys = [key for key in KEYS if getattr(model.config, key, None) is True]
    if not (set_keys or model.family.arguments) or reads_ahead(model):
        return None
    if pooler_of(model.pooler_name).first_only:
        why = f" ({set_keys[0]} in its config.json)" if set_keys else ""
        raise UserError(
            f"the tokens of {name!r} read only those before them{why}, so that its first token, which pooler "
            f"{model.pooler_name} takes, is the same for every text; give --pooler last or --pooler mean"
        )
    return f"{set_keys[0]} in its config.json lets a token read only those before it" if set_keys else None
