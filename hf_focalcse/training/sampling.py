"""Epochs whose last batch is kept on several ranks: padding fills it up, so that all ranks run whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import Dataset, Sampler


class Padded(Dataset):
    """A data set that goes on with rows without text after its end."""

    def __init__(self, dataset: Any, blank: dict[str, str]):
        self.dataset, self.blank = dataset, blank

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.dataset[index] if index < len(self.dataset) else self.blank


class PaddedSampler(Sampler):
    """The order of accelerate's seeded sampler, then indices past the end until the batches of all ranks are whole.

    Args:
        dataset: the data set without padding.
        whole: sentences that the batches of all ranks hold together.
        seed: of the order.
    """

    def __init__(self, dataset: Any, whole: int, seed: int):
        self.order = SeedableRandomSampler(dataset, data_seed=seed)
        self.length = -(-len(dataset) // whole) * whole

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        yield from self.order
        yield from range(len(self.order), self.length)
