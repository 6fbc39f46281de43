"""What ``focalcse inspect`` looks for, and in which batches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Search:
    """The options of ``focalcse inspect``, with m, temperature and length known.

    phi: the reference's cosine from which a negative is suspected to be false. near: the cosine above which two
    sentences are near-duplicates. whole: also find the nearest neighbours in the whole file. top: pairs to show.
    """

    model_name_or_path: str
    batches: int
    batch_size: int
    seed: int
    max_seq_length: int
    m: float
    temperature: float
    mask_duplicates: bool
    dropout_views: bool
    reference_model: str | None
    phi: float
    near: float
    whole: bool
    top: int
