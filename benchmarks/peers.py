"""The steps that would be run otherwise: SimCSE's and those of sentence-transformers, from the same weights as ours.

All embed by [CLS] -> Linear -> tanh and score by cosine / temperature, so that without dropout the losses agree with
InfoNCE on pooler ``cls``. Each is called with a list of texts, does what one training step does (tokenise, forward,
backward, optimizer) and returns the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoTokenizer, BertModel


def simcse_loss(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """Cross entropy of cosines (N, N) made by broadcasting: N x N x D values at a time."""
    cosines = F.cosine_similarity(z1.unsqueeze(1), z2.unsqueeze(0), dim=-1)
    return F.cross_entropy(cosines / temperature, torch.arange(len(z1), device=z1.device))


class Peer(nn.Module):
    """One step a call. ``autocast``: dtype of the forward pass, None computes in that of the weights."""

    optimizer: torch.optim.Optimizer
    autocast: torch.dtype | None = None

    def loss(self, texts: Sequence[str]) -> Tensor:
        raise NotImplementedError

    def __call__(self, texts: Sequence[str]) -> float:
        device = next(self.parameters()).device.type
        with torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None):
            loss = self.loss(texts)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


class SimCSE(Peer):
    """SimCSE's step: both views padded to the batch's longest in one forward of 2B rows, N x N x D cosines, AdamW as
    its Trainer had it.

    Args:
        encoder: a folder or Hub id of a BERT.
        head: weights of the Linear before the tanh; copied.
        dropout: of the encoder; None leaves it at what its config says.
    """

    def __init__(
        self,
        encoder: str,
        head: nn.Linear,
        dropout: float | None = None,
        max_length: int = 32,
        temperature: float = 0.05,
        learning_rate: float = 3e-5,
        device: str = "cpu",
    ):
        super().__init__()
        self.tokenizer = AutoTokenizer.from_pretrained(encoder)
        self.encoder = BertModel.from_pretrained(encoder, add_pooling_layer=False, **rates(dropout))
        self.head = copy_of(head)
        self.max_length, self.temperature = max_length, temperature
        self.to(device).train()
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=learning_rate, weight_decay=0.0)

    def loss(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenizer(
            [*texts, *texts], padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        ).to(self.encoder.device)  # (2B, L)
        vectors = torch.tanh(self.head(self.encoder(**tokens).last_hidden_state[:, 0]))  # (2B, D)
        z1, z2 = vectors.chunk(2)
        return simcse_loss(z1, z2, self.temperature)


class SentenceTransformers(Peer):
    """Its MultipleNegativesRankingLoss on (text, text), or with ``mini_batch_size`` the cached one: two columns, each
    tokenised, padded and embedded on its own, and the fused AdamW of its Trainer. Arguments as for `SimCSE`."""

    def __init__(
        self,
        encoder: str,
        head: nn.Linear,
        dropout: float | None = None,
        max_length: int = 32,
        temperature: float = 0.05,
        learning_rate: float = 3e-5,
        device: str = "cpu",
        mini_batch_size: int | None = None,
    ):
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Dense, Transformer
        from sentence_transformers.sentence_transformer import losses
        from sentence_transformers.sentence_transformer.modules import Pooling

        super().__init__()
        body = Transformer(encoder, max_seq_length=max_length, config_kwargs=rates(dropout))
        size = head.in_features
        top = copy_of(head)
        dense = Dense(size, size, init_weight=top.weight, init_bias=top.bias)
        model = SentenceTransformer(modules=[body, Pooling(size, "cls"), dense], device=device)
        kind: Any = losses.MultipleNegativesRankingLoss
        options = {}
        if mini_batch_size is not None:
            kind, options = losses.CachedMultipleNegativesRankingLoss, {"mini_batch_size": mini_batch_size}
        self.criterion = kind(model, scale=1 / temperature, **options).train()
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)

    def loss(self, texts: Sequence[str]) -> Tensor:
        model = self.criterion.model
        columns = [model.preprocess(list(texts)) for _ in range(2)]
        columns = [{k: v.to(model.device) if torch.is_tensor(v) else v for k, v in c.items()} for c in columns]
        return self.criterion(columns, None)


def rates(dropout: float | None) -> dict[str, float]:
    """Both dropout rates as a BERT's config names them; empty leaves them."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return {} if dropout is None else dict.fromkeys(names, dropout)


def copy_of(head: nn.Linear) -> nn.Linear:
    """A Linear with the same weights and a life of its own."""
    linear = nn.Linear(head.in_features, head.out_features)
    linear.load_state_dict(head.state_dict())
    return linear
