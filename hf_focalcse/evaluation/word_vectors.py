"""Static word vectors in GloVe's or word2vec's text format, averaged over the words of a sentence."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ..errors import UserError

TOKEN = re.compile(r"\w+|[^\w\s]")
RULE = r"tokens are runs of letters and digits or single signs (\w+|[^\w\s]), looked up as written, else in lower case"


def tokens(text: str) -> list[str]:
    """Words and signs of a sentence."""
    return TOKEN.findall(text)


class WordVectors:
    """Mean of the vectors of a sentence's known words; every occurrence counts.

    A sentence without a known word gets the mean of all vectors read, which favours no other sentence.

    Args:
        path: one word and its numbers a line, separated by spaces, also as .gz; a first line of two numbers (word2vec)
            is a header.
        texts: only vectors of words in these are kept, so that a file of gigabytes needs little memory.

    Raises:
        UserError: no such file, a line that is none of this format, or no word of the texts is in it.
    """

    def __init__(self, path: str | Path, texts: Iterable[str]):
        wanted = {form for text in texts for word in tokens(text) for form in (word, word.lower())}
        self.vectors: dict[str, np.ndarray] = {}
        for word, vector in _read(Path(path), wanted):
            self.vectors.setdefault(word, vector)  # the first of equal words, as the usual readers do
        if not self.vectors:
            raise UserError(
                f"{path} knows none of the {len(wanted):,} words of the sentences; is it the right language?"
            )
        self.mean = np.mean(list(self.vectors.values()), axis=0)
        self.unknown: set[str] = set()  # sentences without a known word

    def encode(self, texts: list[str]) -> np.ndarray:
        """N sentences -> (N, D) float64."""
        return np.stack([self._encode(text) for text in texts])

    def _encode(self, text: str) -> np.ndarray:
        found = [self.vectors.get(word, self.vectors.get(word.lower())) for word in tokens(text)]
        known = [vector for vector in found if vector is not None]
        if not known:
            self.unknown.add(text)
            return self.mean
        return np.mean(known, axis=0)


def _read(path: Path, wanted: set[str]) -> Iterator[tuple[str, np.ndarray]]:
    """The words of a file that are wanted, with their vectors (D,)."""
    size = None
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                line = line.rstrip()
                if number == 1 and re.fullmatch(r"\d+ \d+", line):
                    size = int(line.split()[1])
                    continue
                if size is None:
                    size = line.count(" ")
                word, *numbers = line.rsplit(" ", size)  # a few words of GloVe's have spaces in them
                if size < 2 or len(numbers) != size:
                    raise UserError(
                        f"{path}, line {number}: expected a word and {max(size, 2)} numbers between spaces, "
                        "as in GloVe's or word2vec's text format"
                    )
                if word in wanted:
                    try:
                        vector = np.array(numbers, dtype=np.float64)
                    except ValueError:
                        vector = np.array([np.nan])
                    if not np.isfinite(vector).all():
                        raise UserError(
                            f"{path}, line {number}: the vector of {word!r} has something that is no number"
                        )
                    yield word, vector
    except FileNotFoundError:
        raise UserError(
            f"no such file: {path}; --word_vectors takes a file of GloVe or word2vec in text form"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({error.reason}); word2vec's binary form must be saved as text first"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}") from error
