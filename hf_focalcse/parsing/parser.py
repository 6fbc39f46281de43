"""`Parser`: option dataclasses -> flags, with mistakes answered by a `UserError`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any, TypeVar, get_type_hints

from transformers.hf_argparser import HfArgumentParser, string_to_bool

from ..compat import actions_by_flag, actions_of
from ..encoder.augment import AUGMENTATIONS
from ..encoder.poolers import ALIASES, POOLERS
from ..errors import UserError, suggest
from ..options.field import Option, options_of
from ..options.foreign import FOREIGN
from ..options.tables import ranges

EMPTY_MEANT = ("prompt",)  # whose empty value says something: no prompt
Made = TypeVar("Made")
METAVARS = {string_to_bool: "yes|no", int: "N", float: "X"}  # how --help shows a value of a type
NAMES = {  # what stands for the names that exist in a help text
    "{poolers}": ", ".join([*POOLERS, *ALIASES]),
    "{augmentations}": ", ".join(AUGMENTATIONS),
}


class Parser(HfArgumentParser):
    """`HfArgumentParser` that raises UserError, suggests names, and can say which settings a command line names.

    Args:
        groups: option dataclasses, each a group of flags: the docstring describes the group. A dataclass without
            options is the arguments of transformers, which `FOREIGN` classifies.
    """

    def __init__(self, *groups: type, **kwargs: Any):
        kwargs = {"allow_abbrev": False, "formatter_class": argparse.HelpFormatter} | kwargs
        self.described: dict[str | None, str | None] = {
            title_of(group): summary_of(group) for group in groups if options_of(group)
        }
        taken: list[Any] = [_as_argparse_takes_it(group) for group in groups]
        super().__init__(taken, **kwargs)
        self.options = {name: found for group in groups for name, found in (options_of(group) or FOREIGN).items()}
        self.twice: dict[str, tuple[str, list[str]]] = {}  # option -> flag and values where it was given before
        self.shortened: dict[str, str] = {}  # a flag that only the command line takes -> the flag in full
        allowed = ranges() | {name: found.range for name, found in self.options.items() if found.range}
        for action in actions_of(self):
            found = self.options.get(action.dest, Option())
            self.shortened |= {f"--{name}": f"--{action.dest}" for name in found.short}
            if action.type is string_to_bool and action.nargs is None:
                action.nargs, action.const = "?", True  # a bare --flag sets an optional bool, as in the public scripts
            if action.dest == "resume_from_checkpoint":
                action.nargs, action.const = "?", "last"
            if action.const is False:
                action.help = found.off or f"Turn --{action.dest} off."
            complete_help(
                action, allowed[action.dest].words if action.dest in allowed and action.const is not False else ""
            )
            if action.type in METAVARS and action.choices is None:
                action.metavar = METAVARS[action.type]
            # --help shows each flag once, though dashes are taken for its underscores
            shown = [flag for flag in action.option_strings if "-" not in flag.lstrip("-")]
            action.option_strings = [*shown, *(f"--{name}" for name in found.short if action.const is not False)]

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

    def spelled_out(self, argv: list[str]) -> list[str]:
        """``argv`` as it is recorded: short flags in full, and words before or after all flags behind their flags.

        Raises:
            UserError: there are more such words than the command takes, or a flag says the same.
        """
        full = [self._in_full(word) for word in argv]
        count = next((i for i, word in enumerate(full) if word.startswith("-")), len(full))
        words, others = full[:count], full[count:]
        places = [name for name, found in self.options.items() if found.place]
        if not words and places:
            left = self.parse_known_args(others)[1]
            if left and others[-len(left) :] == left and not any(word.startswith("-") for word in left):
                words, others = left, others[: -len(left)]
        given, flags, lists = self.named(others), [], self.taking_lists()
        for name in places:
            taken, words = (words, []) if name in lists else (words[:1], words[1:])
            if taken and name in given:
                raise UserError(f"{taken[0]!r} and --{name} say the same; leave one of them out")
            flags += [f"--{name}", *taken] if taken else []
        if words:
            raise UserError(f"{words[0]!r} belongs to no flag; see {self.prog} --help")
        return flags + others

    def _in_full(self, word: str) -> str:
        flag, equals, value = word.partition("=")
        return self.shortened.get(flag.replace("-", "_").replace("__", "--", 1), flag) + equals + value

    def refuse_short(self, names: Iterable[str], where: str) -> None:
        """Refuse short names of flags in a file.

        Raises:
            UserError: with the name in full.
        """
        for name in names:
            if full := self.shortened.get(f"--{name}"):
                raise UserError(f"{where}: {name!r} is for the command line alone; write {full[2:]!r} in a file")

    def parse(self, argv: list[str], before: Iterable[str] = ()) -> argparse.Namespace:
        """All of ``argv``; before: flags that it takes precedence over, such as those of a recipe.

        Raises:
            UserError: a flag that does not exist, with the nearest name, or that is empty, a value that belongs to no
                flag, or an option is missing that the command cannot do without.
        """
        argv = self.spelled_out(argv)
        self.check_given(argv)
        namespace, rest = self.parse_known_args([*before, *argv])
        if rest:
            flag = next((a for a in rest if a.startswith("-")), rest[0]).partition("=")[0]
            if not flag.startswith("-"):
                raise UserError(f"{flag!r} belongs to no flag; see {self.prog} --help")
            near = suggest(flag, [*(f"--{name}" for name in self.destinations()), *self.shortened])
            raise UserError(f"there is no flag {flag}{near}; see {self.prog} --help")
        self.complete(namespace)
        return namespace

    def check_given(self, argv: list[str]) -> None:
        """Say which flags are given twice, of which the last counts.

        Raises:
            UserError: a value is empty, as that of a variable that is not set.
        """
        known, given = self.destinations(), dict[str, tuple[str, list[str]]]()
        name = ""
        for word in argv:
            flag, equals, value = word.partition("=")
            if flag.startswith("--"):
                name = known.get(flag[2:].replace("-", "_"), "")
                before, given[name] = given.get(name), (flag, [value] if equals else [])
                if name and before is not None:
                    self.twice[name] = before
            else:
                given.get(name, ("", []))[1].append(word)
        for name, (flag, values) in given.items():
            if name and name not in EMPTY_MEANT and "" in values:
                raise UserError(f"{flag} is empty, as if by a variable that is not set; give a value or leave it out")
            if name in self.twice and self.twice[name] != (flag, values):
                first, last = (" ".join([one, *words]) for one, words in (self.twice[name], (flag, values)))
                print(f"note: {last} counts, not {first}, which comes before it", file=sys.stderr)

    def complete(self, namespace: argparse.Namespace) -> None:
        """Check that all is there that the command needs, and keep one of several values as a plain value.

        Raises:
            UserError: with what is missing and how the command is called.
        """
        for name, found in self.options.items():
            value = getattr(namespace, name, None)
            if found.required and not value:
                what = name.upper() if found.place else f"--{name}"
                raise UserError(f"{what} is missing: {self.format_usage().removeprefix('usage: ').strip()}")
            if found.several and value is not None and len(value) == 1:
                setattr(namespace, name, value[0])


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
    options = options_of(group)
    if not options:
        return group
    types = get_type_hints(group)
    made = []
    for of in fields(group):
        if of.name in options:
            kind = list[str] | None if options[of.name].several else types[of.name]
            default = (
                {"default": of.default} if of.default_factory is MISSING else {"default_factory": of.default_factory}
            )
            made.append(
                (of.name, kind, field(**default, metadata={key: of.metadata[key] for key in ("help", "aliases")}))
            )
    return make_dataclass(group.__name__, made, namespace={"_argument_group_name": title_of(group)})


def summary_of(group: type) -> str:
    """The first paragraph of a dataclass's docstring."""
    return (group.__doc__ or "").partition("\n\n")[0]


def title_of(group: type) -> str | None:
    return getattr(group, "_argument_group_name", None)


def build(kind: type[Made], namespace: argparse.Namespace) -> Made:
    """A dataclass from the parsed values that it has fields for."""
    names = [f.name for f in fields(kind) if f.init and hasattr(namespace, f.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(namespace, name) for name in names})
