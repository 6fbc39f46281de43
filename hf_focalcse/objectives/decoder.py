"""A decoder that is the encoder itself: its layers, where no token reads a later one, and attention to one vector."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..compat import is_rerun_in_backward
from ..errors import UserError


class Place(NamedTuple):
    """Where cross-attention comes into a layer: behind the module ``after`` (a path from the layer), with a layer norm
    of its own unless the layers are normed before their parts (``normed`` false). layers: the path of their list."""

    layers: str = "encoder.layer"
    after: str = "attention"
    normed: bool = True


PLACES = {  # by the name of a `Family`; the others have no such place, or share one layer
    **dict.fromkeys(("Bert", "Camembert", "Electra", "MPNet", "Roberta", "XLMRoberta"), Place()),
    "DistilBert": Place("transformer.layer", "sa_layer_norm"),
    "ModernBert": Place("layers", "attn", normed=False),
}


class CrossAttention(nn.Module):
    """Attention of tokens (n, L, D) to one vector each (n, D), whose weight is 1 whatever is asked for: neither
    queries nor keys would ever get a gradient, so there are none.

    states + dropout(W_o a(W_v s + b_v) + b_o), and its layer norm where there is one; a drops the vector for single
    heads of single tokens.

    Args:
        config: of the encoder. rates: its dropout of attention, and of what a part of a layer adds.
        normed: whether a layer norm follows.
    """

    def __init__(self, config: Any, rates: tuple[float, float], normed: bool):
        super().__init__()
        size = config.hidden_size
        self.heads = config.num_attention_heads
        self.value, self.output = nn.Linear(size, size), nn.Linear(size, size)
        for linear in (self.value, self.output):
            nn.init.normal_(linear.weight, std=getattr(config, "initializer_range", 0.02))
            nn.init.zeros_(linear.bias)
        self.drop_heads, self.drop = map(nn.Dropout, rates)
        self.norm = nn.LayerNorm(size, eps=getattr(config, "layer_norm_eps", 1e-12)) if normed else nn.Identity()

    def forward(self, states: Tensor, vectors: Tensor) -> Tensor:
        weights = self.drop_heads(states.new_ones(*states.shape[:2], self.heads, 1))  # (n, L, H, 1)
        value = self.value(vectors).unflatten(1, (self.heads, -1)).unsqueeze(1)  # (n, 1, H, d)
        found: Tensor = self.norm(states + self.drop(self.output((weights * value).flatten(2))))
        return found


class SentenceDecoder(nn.Module):
    """Reads a sentence from its first token on, knowing its vector; all weights but those of the attention to the
    vector are the encoder's.

    Raises:
        UserError: encoders of this type have no place for it, or backward would run their layers again without it.
    """

    def __init__(self, model: Any):
        super().__init__()
        name = model.family.name
        if name not in PLACES:
            raise UserError(
                f"a {model.config.model_type} encoder cannot be its own decoder here; use one of "
                f"{', '.join(PLACES)}, or --objective mlm"
            )
        if model.recomputing:
            raise refused_recomputing()
        rates = model.dropout_rates()
        of_attention = next(rate for key, rate in rates.items() if "attention" in key)
        of_parts = [rate for key, rate in rates.items() if "attention" not in key][-1]
        self.place = PLACES[name]
        self.cross = nn.ModuleList(
            CrossAttention(model.config, (of_attention, of_parts), self.place.normed)
            for _ in range(model.config.num_hidden_layers)
        )
        self._model = [model]  # in a list, so that the encoder is no part of this module

    def forward(self, ids: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        """Ids and mask (n, L), padded on the right, and vectors (n, D) -> states (n, L, D), each of the tokens up to
        its own."""
        model = self._model[0]
        layers = attrgetter(self.place.layers)(model.encoder)
        if any(map(is_rerun_in_backward, layers)):
            raise refused_recomputing()
        handles = [
            attrgetter(self.place.after)(layer).register_forward_hook(
                lambda module, given, found, cross=cross: self._join(cross, found, vectors)
            )
            for layer, cross in zip(layers, self.cross, strict=True)
        ]
        seen = causal_mask(model.config, ids.shape[1], vectors)
        try:
            found = model.encoder(input_ids=ids, attention_mask=seen, **model.family.arguments)
        finally:
            for handle in handles:
                handle.remove()
        states: Tensor = found.last_hidden_state
        return states

    @staticmethod
    def _join(cross: nn.Module, found: Any, vectors: Tensor) -> Any:
        """What a module gives, alone or first in a tuple, with cross-attention."""
        if isinstance(found, tuple):
            return cross(found[0], vectors), *found[1:]
        return cross(found, vectors)


def causal_mask(config: Any, length: int, vectors: Tensor) -> Any:
    """What is added to the cosines of attention so that no token reads a later one, (n, 1, L, L); one for each kind
    of layer where an encoder has several.

    Padding needs none: it lies on the right. vectors: (n, …), whose type and device it has.
    """
    places = torch.arange(length, device=vectors.device)
    distance = places.unsqueeze(1) - places

    def added(seen: Tensor) -> Tensor:
        zeros = vectors.new_zeros(length, length)
        return zeros.masked_fill(~seen, -torch.inf).expand(len(vectors), 1, length, length)

    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return added(distance >= 0)
    near = {kind: length if kind == "full_attention" else config.sliding_window for kind in kinds}
    return {kind: added((distance >= 0) & (distance <= window)) for kind, window in near.items()}


def refused_recomputing() -> UserError:
    return UserError(
        "--objective tsdae does not go with activation checkpointing, which would run the layers again without what "
        "the decoder adds to them; use --chunk_size 8, which takes as little memory"
    )
