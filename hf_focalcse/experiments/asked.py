"""What a training run is asked to do, and in what a recorded command line differs from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..data.places import exists
from ..errors import UserError
from ..options.field import listed
from ..options.tables import identity, own_options, paths, set_by_sweep
from ..parsing.legacy import translate
from ..parsing.losses import loss_settings, objective_settings
from ..parsing.settings import Settings, parse
from ..runs.differing import differing


def settings_asked(settings: Settings) -> dict[str, Any]:
    """Every setting that can change what is learnt, with the defaults of the loss filled in and paths resolved."""
    chosen = [*loss_settings()[settings.loss.loss], *objective_settings()[settings.loss.objective]]
    own = {setting.name: setting.default for setting in chosen}
    found = settings.own() | own | settings.loss_settings | settings.objective_settings | settings.training.to_dict()
    return dict(json.loads(json.dumps(identity(placed(found)), default=str)))


def placed(found: dict[str, Any]) -> dict[str, Any]:
    """The settings with the whole path of each file and folder that they name; of DeepSpeed's file, its content."""
    encoders = {name for name, option in own_options().items() if option.encoder}
    for name in ((paths() & own_options().keys()) | encoders) & found.keys():
        where = [str(Path(value).resolve()) if exists(value) else value for value in listed(found[name])]
        found[name] = where if isinstance(found[name], list) else next(iter(where), None)
    if isinstance(found.get("deepspeed"), str):
        found["deepspeed"] = json.loads(Path(found["deepspeed"]).read_text(encoding="utf-8"))
    return found


def differences_from_command(
    asked: dict[str, Any], command: list[str], kept: dict[str, Any] | None = None
) -> list[str]:
    """The settings in which a recorded command line differs from ``asked``, in words.

    kept: the settings as they were when the command was started. They replace those that the command line itself does
    not name, since its recipe may have been edited in the meantime.

    Raises:
        UserError: the command line can no longer be parsed, and no settings were kept.
    """
    before: dict[str, Any] = {}
    named: frozenset[str] = frozenset()
    try:
        settings = parse(flags_of(command))
        before, named = settings_asked(settings), settings.explicit
    except UserError:  # for instance because its recipe was deleted
        if kept is None:
            raise
        before = dict.fromkeys(kept)
    known = before.keys() | asked.keys()  # a setting of another version of this package is no difference
    kept = identity(placed(dict(kept or {})))
    before |= {key: value for key, value in kept.items() if key in known and key not in named}
    return [f"{key} is {there!r} there and {here!r} here" for key, (there, here) in differing(before, asked).items()]


def flags_of(command: list[str]) -> list[str]:
    """A command line without the words that start it."""
    return command[next((i for i, word in enumerate(command) if word.startswith("--")), len(command)) :]


def same_command(command: list[str], started: list[str]) -> bool:
    """Whether ``command`` is ``started`` with no other flags than those that the sweep itself adds."""
    words, first = translate(flags_of(command), []), translate(flags_of(started), [])
    added = {word.partition("=")[0][2:] for word in words[len(first) :] if word.startswith("--")}
    return words[: len(first)] == first and added <= set_by_sweep().keys()
