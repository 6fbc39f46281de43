"""What every kind of task offers, so that evaluation and training need not know the kinds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from tqdm.auto import tqdm

from ..errors import UserError

BLOCK = 4096  # sentences encoded at a time: enough to batch those of equal length, and the bar moves after each
FLAT = 1e-6  # a smaller spread of cosines is rounding in float32


class Encoder(Protocol):
    def encode(self, texts: list[str]) -> np.ndarray:
        """N sentences -> (N, D)."""


@dataclass(frozen=True)
class Scored:
    """What a task makes of the vectors of its texts.

    scores: score key -> value, x 100 where it is a share or a correlation. facts: what results.json says of the set
    beside `Task.describe`. pairs: (2, N) gold score and cosine of every pair, for a set of graded pairs. units: score
    key -> (U,) values x 100 whose mean is that score, for scores that are a mean over queries, sentences or documents.
    """

    scores: dict[str, float]
    facts: dict[str, Any] = field(default_factory=dict)
    pairs: np.ndarray | None = None
    units: dict[str, np.ndarray] = field(default_factory=dict)


class Task(Protocol):
    """A set that an encoder is scored on: graded pairs, queries with candidates, or whatever has these members.

    ``score`` gets the vectors of the texts that ``texts`` names, and may ask for those of others, which are then not
    kept: a set that is too large for memory names none, and encodes its texts in blocks.
    """

    @property
    def key(self) -> str:
        """``STS16/test``: how every score of this set begins."""

    @property
    def headline(self) -> str:
        """``STS16/test/all/spearman``: the score that the set is known by, which chooses the best checkpoint."""

    def texts(self) -> list[str]:
        """What is to be encoded once and kept while all tasks are scored; texts may occur several times."""

    def score(self, vectors: Vectors) -> Scored:
        """Score the vectors.

        Raises:
            UserError: they give no score, for instance because they are all alike.
        """

    def fingerprints(self) -> np.ndarray:
        """(N,) int64, one of each unit (pair, query, sentence): equal for equal units, in this set or another."""

    def describe(self) -> dict[str, Any]:
        """What results.json says about the data.

        It holds ``unit`` (the units' name in the plural), ``pairs`` (the number of rows that are scored),
        ``expected_pairs`` (that of the published set, or None), ``subsets``, ``source``, ``revision``, ``sha256``,
        ``text`` ("raw" or "tokenised") and ``empty_sentences``.
        """


class Vectors:
    """The vectors of an encoder, those of the texts in ``texts`` each encoded once, longest first.

    Raises:
        UserError: a vector is zero or not finite, or the encoder does not return (N, D).
    """

    def __init__(self, encoder: Encoder, texts: Iterable[str], progress: bool = False):
        self.encoder = encoder
        self.rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        self.kept = encode_once(encoder, self.rows, progress)

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """N texts -> (N, D); texts that were not named before are encoded now."""
        if any(text not in self.rows for text in texts):
            return Vectors(self.encoder, texts).of(texts)
        return self.kept[[self.rows[text] for text in texts]]


def encode_once(encoder: Encoder, rows: Mapping[str, int], progress: bool) -> np.ndarray:
    """Encode each text once, longest first. rows: text -> its row in the (N, D) that is returned.

    Raises:
        UserError: a vector is zero or not finite, or the encoder does not return (N, D).
    """
    ordered = sorted(rows, key=len, reverse=True)
    vectors = np.empty((len(ordered), 0))
    disable = None if progress else True  # None: where stderr is no terminal
    with tqdm(total=len(ordered), desc="Encoding", unit=" sentences", disable=disable, leave=False) as bar:
        for start in range(0, len(ordered), BLOCK):
            texts = ordered[start : start + BLOCK]
            block = np.asarray(encoder.encode(texts))
            if block.ndim != 2 or len(block) != len(texts):
                raise UserError(
                    f"the encoder returned an array {block.shape} for {len(texts)} sentences; it must be (N, D)"
                )
            if start == 0:
                vectors = np.empty((len(ordered), block.shape[1]), dtype=block.dtype)
            vectors[[rows[text] for text in texts]] = block
            bar.update(len(texts))
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1))
    if bad.size:
        what = "zero" if np.isfinite(vectors[bad[0]]).all() else "not finite"
        raise UserError(
            f"the encoder's vector of {list(rows)[bad[0]]!r} is {what}, as for {bad.size} of {len(rows)} sentences: "
            + getattr(encoder, "why_zero", "its weights are damaged, or half precision overflowed (leave out --bf16)")
        )
    return vectors


def require_spread(key: str, cosines: np.ndarray) -> None:
    """Check that the cosines of a set differ.

    Raises:
        UserError: they are all alike.
    """
    if np.ptp(cosines) < FLAT:
        raise UserError(
            f"all {len(cosines)} cosines of {key} equal {cosines[0]:.6f}: the encoder has collapsed, "
            "it gives every sentence the same direction; evaluate another checkpoint, or train with a lower rate"
        )


def fingerprints(texts: Iterable[str]) -> np.ndarray:
    """N texts -> (N,) int64, equal for equal texts on every machine."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<i8").astype(np.int64)
