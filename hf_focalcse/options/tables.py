"""The tables by which the rest of the package classifies options, all made from the fields' metadata."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from .evaluation import Evaluation
from .field import IDENTITY, PATH, Option, Range, defaults_of, options_of
from .foreign import FOREIGN
from .training import GROUPS


@cache
def own_options() -> dict[str, Option]:
    """The options of training that this package adds, by name."""
    return {name: found for group in GROUPS for name, found in options_of(group).items()}


@cache
def _known() -> dict[str, Option]:
    return {name: found for name, found in FOREIGN.items() if not name.endswith("*")} | own_options()


@cache
def defaults() -> dict[str, Any]:
    """The options of training that this package adds -> their defaults."""
    return {name: value for group in GROUPS for name, value in defaults_of(group).items()}


def option_of(name: str) -> Option:
    """How the setting ``name`` is treated; an undeclared setting has the role ``identity``."""
    if name in _known():
        return _known()[name]
    rows = [row for row in FOREIGN if row.endswith("*") and name.startswith(row[:-1])]
    return FOREIGN[max(rows, key=len)] if rows else Option(IDENTITY)


def paths() -> set[str]:
    """The settings that name a place on this machine."""
    return {name for name, found in _known().items() if found.role == PATH}


def harmless() -> dict[str, str]:
    """The settings that never change what is learnt or scored -> why."""
    return {name: found.why for name, found in _known().items() if found.harmless}


def ranges() -> dict[str, Range]:
    """The settings with a range -> the range."""
    return {name: found.range for name, found in _known().items() if found.range is not None}


def replaces() -> dict[str, tuple[str, ...]]:
    """A flag -> the keys of a recipe that it takes the place of."""
    return {name: found.replaces for name, found in _known().items() if found.replaces}


def set_by_sweep() -> dict[str, str]:
    """The flags that no grid may set -> why."""
    return {name: found.sweep for name, found in _known().items() if found.sweep}


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of all settings of a run, those that change what is learnt or scored: every one that is not declared harmless.

    Resuming, sweeping, comparing and reporting all ask here, so that a new option counts without further work. Tokens
    of the Hub are never part of it.
    """
    of_runs = (name for name in settings if not (option_of(name).harmless or name.endswith("token")))
    return {name: settings[name] for name in of_runs}


def recorded() -> set[str]:
    """The arguments of transformers that run.json holds even where they have their default."""
    return {name for name, found in _known().items() if found.recorded}


def told_otherwise() -> set[str]:
    """The settings that run.json states better in another place."""
    return {name for name, found in _known().items() if found.told}


def together() -> dict[str, set[str]]:
    """A factor of a comparison -> what varies with it."""
    return {name: set(found.together) for name, found in _known().items() if found.together}


def is_factor(name: str) -> bool:
    """Whether a report tells groups of runs apart by the setting ``name``; without `Option.factor`, it tells them
    apart by what the setting led to."""
    return bool(identity({name: None})) and option_of(name).factor


def grid_evaluation() -> tuple[str, ...]:
    """The options of evaluation that a grid may set under ``evaluate``."""
    return tuple(name for name, found in options_of(Evaluation).items() if found.grid)
