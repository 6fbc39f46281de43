"""How files of text are to be read, where that was said, and what messages about them offer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import UserError
from .guesses import DELIMITERS, PLAIN, delimiter_of

TABLES = ("csv", "tsv", "jsonl", "json", "parquet", "xlsx")
BINARY = ("parquet", "xlsx")
TEXTS = ("txt", "md")  # one sentence on each line
FORMATS = (*TEXTS, *TABLES)


class Hints(NamedTuple):
    """What a message about a damaged file offers besides mending the file; the words follow the remedy."""

    undecodable: str = ""
    encoding: str = ""  # what names an encoding, such as " or give --encoding {}"
    ragged: str = ""
    delimiter: str = ""  # the same for a delimiter
    quotes: str = ""  # how a file without quoting is read
    column: str = "give a file with one column, or plain text"  # where there are several; the remedy itself
    nested: str = ""  # the same for a text in a nested object, such as ", as with --text_column {}"
    named: str = ""  # what takes a sentence for the name of a column
    keep: str = ""  # what takes lines as they are


NO_HINTS = Hints()


OF_FLAGS = {
    "encoding": ", or name its encoding with --encoding {}",
    "quotes": "; a file without quoting is read with --quotes none",
}
REPLACED = ", or put U+FFFD there with --encoding_errors replace"
OF_SENTENCES = OF_FLAGS | {
    "ragged": "; plain sentences go into a .txt file",
    "delimiter": ", or give --delimiter {} and name the column of the sentences with --text_column",
    "nested": ", as with --text_column {}",
    "named": ", or give --text_column with these words if they are the name",
    "keep": "; to take whole lines all the same, give --delimiter none",
}
COLUMN = "name one with --text_column"
FILE_HINTS = Hints(column=COLUMN, **OF_SENTENCES)  # of a command that reads sentences and trains on none
PAIRS_TOO = " for sentences, or two or three with --columns for pairs and their hard negatives"
SENTENCE_HINTS = Hints(undecodable=REPLACED, column=COLUMN + PAIRS_TOO, **OF_SENTENCES)
PAIR_HINTS = Hints(
    undecodable=REPLACED,
    delimiter=", or give --delimiter {} and name the columns of the pairs with --columns",
    **OF_FLAGS,
)


@dataclass(frozen=True)
class Reading:
    """How files are read, where that was said.

    errors: "strict" refuses bytes that are not of the encoding, "replace" puts U+FFFD in their place.
    encoding: None is UTF-8, or what a byte order mark says.
    delimiter: a sign, or a name of `guesses.DELIMITERS`; "none": lines are text, whatever they look like.
    quotes: "double" or "none", whether cells may stand in double quotes; None: as usual in the format.

    Raises:
        UserError: a value is not allowed.
    """

    errors: str = "strict"
    encoding: str | None = None
    delimiter: str | None = None
    quotes: str | None = None

    def __post_init__(self) -> None:
        if self.errors not in ("strict", "replace"):
            raise UserError(f"--encoding_errors is {self.errors!r}; it must be strict or replace")
        if self.encoding is not None:
            require_encoding(self.encoding)
        if self.quotes not in (None, "double", "none"):
            raise UserError(f"--quotes is {self.quotes!r}; it must be double or none")
        sign = self.delimiter
        if sign is not None and sign != PLAIN and (len(delimiter_of(sign)) != 1 or sign in '"\r\n'):
            raise UserError(f"--delimiter is {sign!r}; it must be {', '.join(DELIMITERS)}, none, or one sign")

    @property
    def plain(self) -> bool:
        """Whether each line of a text file is one text."""
        return self.delimiter in (None, PLAIN)

    def require_used(self, formats: Collection[str], where: str) -> None:
        """Raise UserError where something was said that applies to no file of these formats, and would be ignored."""
        texts, tables = TEXTS, ("csv", "tsv")
        for flag, value, applies, what in (
            ("delimiter", self.delimiter, TEXTS if self.delimiter == PLAIN else (*texts, *tables), "between columns"),
            ("quotes", self.quotes, tables if self.plain else (*texts, *tables), "around cells"),
            ("encoding", self.encoding, tuple(set(FORMATS) - set(BINARY)), "of text files"),
        ):
            if value is not None and not set(formats) & set(applies):
                ways = ", ".join(f".{name}" for name in FORMATS if name in applies)
                raise UserError(
                    f"--{flag} is {value!r}, what is {what}, which applies to {ways} but not to {where}; leave it out"
                )


AS_USUAL = Reading()  # where nothing was said


def require_encoding(name: str) -> None:
    """Raise UserError unless Python knows a text encoding called ``name``."""
    try:
        "".encode(name)
    except (LookupError, UnicodeError, ValueError) as error:
        raise UserError(
            f"--encoding {name!r} is not known; give a name such as utf-8, utf-16, cp1252, latin-1, gb18030 or "
            "shift_jis"
        ) from error
