"""`Parser`: option dataclasses -> flags, with mistakes answered by a `UserError`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import field, fields, make_dataclass
from typing import Any, TypeVar, get_type_hints

from transformers.hf_argparser import HfArgumentParser, string_to_bool

from ..compat import actions_by_flag, actions_of
from ..encoder.augment import AUGMENTATIONS
from ..encoder.poolers import ALIASES, POOLERS
from ..errors import UserError, suggest
from ..options.field import options_of
from ..options.tables import ranges

Made = TypeVar("Made")
METAVARS = {string_to_bool: "yes|no", int: "N", float: "X"}  # how --help shows a value of a type
NAMES = {  # what stands for the names that exist in a help text
    "{poolers}": ", ".join([*POOLERS, *ALIASES]),
    "{augmentations}": ", ".join(AUGMENTATIONS),
}


class Parser(HfArgumentParser):
    """`HfArgumentParser` that raises UserError, suggests names, and can say which settings a command line names.

    Args:
        groups: option dataclasses, each a group of flags: the docstring describes the group.
    """

    def __init__(self, *groups: type, **kwargs: Any):
        kwargs = {"allow_abbrev": False, "formatter_class": argparse.HelpFormatter} | kwargs
        self.described: dict[str | None, str | None] = {
            title_of(group): group.__doc__ for group in groups if options_of(group)
        }
        taken: list[Any] = [_as_argparse_takes_it(group) for group in groups]
        super().__init__(taken, **kwargs)
        allowed = ranges() | {n: o.range for group in groups for n, o in options_of(group).items() if o.range}
        for action in actions_of(self):
            if action.type is string_to_bool and action.nargs is None:
                action.nargs, action.const = "?", True  # a bare --flag sets an optional bool, as in the public scripts
            if action.dest == "resume_from_checkpoint":
                action.nargs, action.const = "?", "last"
            if action.const is False:
                action.help = f"Turn --{action.dest} off."
            complete_help(action, allowed[action.dest].words if action.dest in allowed else "")
            if action.type in METAVARS and action.choices is None:
                action.metavar = METAVARS[action.type]

    def add_argument_group(self, title: str | None = None, description: str | None = None, **kwargs: Any) -> Any:
        return super().add_argument_group(title, description or self.described.get(title), **kwargs)

    def error(self, message: str) -> Any:
        raise UserError(f"{message}; see {self.prog} --help")

    def destinations(self) -> dict[str, str]:
        """Flag name without dashes -> name of the setting."""
        return {o.lstrip("-"): a.dest for o, a in actions_by_flag(self).items() if o.startswith("--")}

    def taking_lists(self) -> set[str]:
        """The settings that take several values."""
        return {action.dest for action in actions_of(self) if action.nargs in ("+", "*")}

    def named(self, argv: Iterable[str]) -> set[str]:
        """The settings that ``argv`` names."""
        known = self.destinations()
        flags = (a.partition("=")[0][2:] for a in argv if a.startswith("--"))
        return {known[flag] for flag in flags if flag in known}

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """All of ``argv``.

        Raises:
            UserError: a flag that does not exist, with the nearest name, or a value that belongs to no flag.
        """
        namespace, rest = self.parse_known_args(argv)
        if rest:
            flag = next((a for a in rest if a.startswith("-")), rest[0]).partition("=")[0]
            if not flag.startswith("-"):
                raise UserError(f"{flag!r} belongs to no flag; see {self.prog} --help")
            near = suggest(flag, [f"--{name}" for name in self.destinations()])
            raise UserError(f"there is no flag {flag}{near}; see {self.prog} --help")
        return namespace


def complete_help(action: argparse.Action, allowed: str = "") -> None:
    """Append the range and the default to a help text, and fill in the names that exist."""
    if not action.help or argparse.SUPPRESS in (action.help, action.default):
        return
    text, *default = action.help.partition(" Default:")
    for placeholder, names in NAMES.items():
        text = text.replace(placeholder, names)
    if allowed:
        text += f" It must be {allowed}."
    unset = action.default is None or action.default is False or action.default in ("", [])
    if not unset and "default" not in action.help.lower():
        default = [f" Default: {'yes' if action.default is True else '%(default)s'}."]
    action.help = text + "".join(default)


def _as_argparse_takes_it(group: type) -> type:
    """An option dataclass with what argparse takes of its metadata: `HfArgumentParser` hands all of it on."""
    if not options_of(group):
        return group
    types = get_type_hints(group)
    made = [
        (f.name, types[f.name],
         field(default=f.default, metadata={key: f.metadata[key] for key in ("help", "aliases")}))
        for f in fields(group)
    ]  # fmt: skip
    return make_dataclass(group.__name__, made, namespace={"_argument_group_name": title_of(group)})


def title_of(group: type) -> str | None:
    return getattr(group, "_argument_group_name", None)


def build(kind: type[Made], namespace: argparse.Namespace) -> Made:
    """A dataclass from the parsed values that it has fields for."""
    names = [f.name for f in fields(kind) if f.init and hasattr(namespace, f.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(namespace, name) for name in names})


def placed(argv: list[str], *names: str) -> list[str]:
    """Leading arguments without a flag as the flags ``names``."""
    count = next((i for i, argument in enumerate(argv) if argument.startswith("-")), len(argv))
    flags = [part for name, value in zip(names, argv[:count], strict=False) for part in (f"--{name}", value)]
    return flags + argv[min(count, len(names)) :]
