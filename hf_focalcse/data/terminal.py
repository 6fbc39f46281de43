"""Text from files of unknown origin -> what is safe to print on a terminal."""

from ..errors import printable as printable


def shown(text: str, width: int) -> str:
    """`printable`, cut to at most ``width`` characters."""
    escaped = printable(text[: width + 1])
    return escaped if len(escaped) <= width else escaped[: width - 1] + "…"
