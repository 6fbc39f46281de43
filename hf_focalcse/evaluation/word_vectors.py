"""Static word vectors in GloVe's or word2vec's text format, averaged over the words of a sentence."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ..errors import UserError, on_one_line

TOKEN = re.compile(r"\w+|[^\w\s]")
RULE = r"tokens are runs of letters and digits or single signs (\w+|[^\w\s]), looked up as written, else in lower case"


def tokens(text: str) -> list[str]:
    """The words and signs of a sentence, see `RULE`."""
    return TOKEN.findall(text)


class WordVectors:
    """A sentence is the mean of the vectors of its known words, each as often as it occurs.

    A sentence without a known word gets the mean of all vectors that were read, which favours no other sentence.

    Args:
        path: a text file, also as .gz, with a word and its numbers on each line, separated by spaces. A first line of
            two numbers (word2vec) is a header.
        texts: only vectors of their words are kept, so that a file of gigabytes takes little memory.

    Raises:
        UserError: there is no such file, a line has another form, or the file has no word of the texts.
    """

    why_zero = "the vectors of its words are zero in the file, or they cancel each other; copy the file again"

    def __init__(self, path: str | Path, texts: Iterable[str]):
        wanted = {form for text in texts for word in tokens(text) for form in (word, word.lower())}
        self.vectors: dict[str, np.ndarray] = {}
        for word, vector in _read(Path(path), wanted):
            self.vectors.setdefault(word, vector)  # of equal words the first counts, as in other readers
        if not self.vectors:
            raise UserError(
                f"{path} has none of the {len(wanted):,} words of the sentences; give vectors of the language of the "
                "sentences"
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
    """The wanted words of a file, with their vectors (D,)."""
    size = promised = None
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                line = line.rstrip()
                if number == 1 and re.fullmatch(r"\d+ \d+", line):
                    promised, size = map(int, line.split())
                    continue
                if size is None:
                    size = line.count(" ")
                word, *numbers = line.rsplit(" ", size)  # some words of GloVe contain spaces
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
                            f"{path}, line {number}: the vector of {word!r} contains something other than finite "
                            "numbers; mend or remove the line"
                        )
                    yield word, vector
        if promised is not None and number - 1 != promised:
            raise UserError(
                f"{path} has {number - 1:,} vectors, where its first line says {promised:,}; copy it again"
            )
    except FileNotFoundError:
        raise UserError(
            f"no such file: {path}; --word_vectors takes a file of GloVe or word2vec in text form"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({error.reason}); word2vec's binary form must be saved as text first"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path} ({on_one_line(error)}); check that the file is whole") from error
