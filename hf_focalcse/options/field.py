"""`option`: a dataclass field with a help text and an `Option`, its classification."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from ..errors import UserError

IDENTITY, PATH, HARMLESS = "identity", "path", "harmless"
ROLES = (IDENTITY, PATH, HARMLESS)


@dataclass(frozen=True)
class Range:
    """The values that an option takes: a predicate, and the same in words, to follow "it must be"."""

    allows: Callable[[Any], bool]
    words: str


def at_least(least: float, words: str = "") -> Range:
    return Range(lambda value: least <= value < math.inf, words or f"at least {least}")


def above(limit: float, words: str = "") -> Range:
    return Range(lambda value: limit < value < math.inf, words or f"above {limit}")


def up_to(least: float, most: float, words: str = "") -> Range:
    return Range(lambda value: least <= value <= most, words or f"{least} to {most}")


def share(words: str = "") -> Range:
    return Range(lambda value: 0 < value <= 1, words or "above 0 and at most 1")


def one_of(*values: str) -> Range:
    return Range(lambda value: value in values, f"{', '.join(values[:-1])} or {values[-1]}")


@dataclass(frozen=True)
class Option:
    """How an option is treated.

    Args:
        role: ``identity`` changes what is learnt or scored, so runs that differ in it are different runs, and a run
            is not resumed from a checkpoint of another one; ``path``
            names a place on this machine, so it is cut to its last part when a run is published and compared by where
            it leads; ``harmless`` changes neither what is learnt nor what is scored.
        why: the reason why the option is harmless; a path with a reason is harmless too.
        range: the values that are allowed.
        replaces: the keys of a recipe or of a grid's base that the option takes the place of when it is given.
        sweep: the reason why a grid may not set the option.
        recorded: run.json holds it even where it has its default (without this, only the options of this package are
            recorded, and those arguments of transformers that differ from their default).
        told: run.json states it better in another place, so `focalcse compare` does not read the setting itself.
        together: the other facts and settings that vary with it when it is the factor of a comparison.
        factor: `focalcse report` tells groups of runs apart by it, unless it is harmless. Without this, another factor
            states it.
        grid: an option of evaluation that a grid may set under ``evaluate``.
        encoder: it names an encoder.
        short: shorter flags for it, without dashes, which the command line alone takes: recipes and grids are kept and
            read by others, so they have the full name.
        place: its value may also stand before all flags, or after them, without a flag; several such options are taken
            in the order of their fields.
        several: it takes one value or several. One is kept as a plain value, as records of version 0.1 hold it.
        required: the command cannot do without it.
        off: for an option that is on by default, what ``--no_NAME`` does.
    """

    role: str = IDENTITY
    why: str = ""
    range: Range | None = None
    replaces: tuple[str, ...] = ()
    sweep: str = ""
    recorded: bool = False
    told: bool = False
    together: tuple[str, ...] = ()
    factor: bool = True
    grid: bool = False
    encoder: bool = False
    short: tuple[str, ...] = ()
    place: bool = False
    several: bool = False
    required: bool = False
    off: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role is {self.role!r}; it must be {', '.join(ROLES)}")
        if (self.role == HARMLESS and not self.why) or (self.role == IDENTITY and self.why):
            raise ValueError("an option with the role harmless needs the reason why; one with identity has none")

    @property
    def harmless(self) -> bool:
        return bool(self.why)


def option(default: Any, *, help: str, aliases: Iterable[str] = (), **classification: Any) -> Any:
    """A field of an option dataclass.

    Args:
        default: a list is copied for each object.
        help: what the option does. Its default and its range are appended when the help is printed; ``{poolers}`` and
            ``{augmentations}`` stand for the names that exist.
        aliases: other flags for it, with their dashes.
        classification: the arguments of `Option`.
    """
    metadata = {"help": help, "aliases": list(aliases), "option": Option(**classification)}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(group: type) -> dict[str, Option]:
    """The options that a dataclass declares, by name."""
    return {f.name: f.metadata["option"] for f in fields(group) if "option" in f.metadata}


def listed(value: Any) -> list[Any]:
    """The values of an option that takes one or several."""
    return [] if value is None else value if isinstance(value, list) else [value]


def defaults_of(group: type) -> dict[str, Any]:
    return {f.name: f.default for f in fields(group) if f.default is not MISSING}


def check_ranges(values: Any, options: dict[str, Option]) -> None:
    """Refuse values of ``options`` that are out of range; ``values`` holds them as attributes, None is not checked.

    Raises:
        UserError: with the flag, its value and what is allowed.
    """
    for name, found in options.items():
        value = getattr(values, name, None)
        if value is not None and found.range is not None and not found.range.allows(value):
            shown = repr(value) if isinstance(value, str) else value
            raise UserError(f"--{name} is {shown}; it must be {found.range.words}")
