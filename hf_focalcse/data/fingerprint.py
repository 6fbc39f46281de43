"""The fingerprint of training text: equal for equal sentences in the same order, whatever they came from."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable

import numpy as np


class Fingerprint:
    """SHA-256 of all sentences in UTF-8, joined, followed by their lengths in bytes as int64."""

    def __init__(self) -> None:
        self._digest, self._lengths = hashlib.sha256(), array("q")

    def add(self, sentences: Iterable[bytes]) -> None:
        """The next sentences."""
        texts = list(sentences)
        self._digest.update(b"".join(texts))
        self._lengths.extend(map(len, texts))

    def hexdigest(self) -> str:
        whole = self._digest.copy()
        whole.update(np.frombuffer(self._lengths, np.int64).astype("<i8").tobytes())
        return whole.hexdigest()
