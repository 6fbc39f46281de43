"""Text from files of unknown origin -> what is safe to print on a terminal."""


def printable(text: str) -> str:
    """Control characters, and others that a terminal would act on or not show, as escapes such as ``\\x1b``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(text: str, width: int) -> str:
    """`printable`, cut to at most ``width`` characters."""
    escaped = printable(text[: width + 1])
    return escaped if len(escaped) <= width else escaped[: width - 1] + "…"
