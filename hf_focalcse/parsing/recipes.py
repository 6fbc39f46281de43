"""Recipes: a .yaml file, shipped or of the user, whose keys are flags -> values of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError, suggest
from .legacy import RENAMED, REPLACED
from .parser import Parser

RECIPES = Path(__file__).parent.with_name("recipes")
GRIDS = Path(__file__).parent.with_name("grids")


def recipe_names() -> list[str]:
    return sorted(file.stem for file in RECIPES.glob("*.yaml"))


def read_recipe(recipe: str, parser: Parser) -> dict[str, Any]:
    """The flags that a shipped recipe or a yaml file gives, as ``{setting: value}``.

    Raises:
        UserError: there is no such recipe or file, it is not valid yaml, or a key is not a flag.
    """
    file = RECIPES / f"{recipe}.yaml"
    if not file.is_file():
        file = Path(recipe)
        if file.suffix not in (".yaml", ".yml"):
            names = recipe_names()
            raise UserError(
                f"there is no recipe {recipe!r}{suggest(recipe, names)}; shipped are {', '.join(names)}, "
                "and a path must end in .yaml"
            )
        if not file.is_file():
            raise UserError(f"there is no recipe file {recipe!r}; give the path of a .yaml with flags as keys")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"recipe {file} is not valid yaml: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"recipe {file} must be a mapping of flags to values, for instance 'loss: focal'")
    values = {}
    known, many = parser.destinations(), parser.taking_lists()
    for key, value in content.items():
        name = RENAMED.get(str(key), str(key))
        if name in REPLACED:
            raise UserError(f"recipe {file}: key {name!r} is not accepted: {REPLACED[name]}")
        if name not in known or name == "recipe":
            raise UserError(f"recipe {file}: there is no setting {name!r}{suggest(name, known)}")
        if isinstance(value, dict) or (isinstance(value, list) and not (value and known[name] in many)):
            kind = {dict: "mapping", list: "list"}[type(value)]
            allowed = "a list of at least one" if known[name] in many else "one number or text"
            raise UserError(f"recipe {file}: the value of {name!r} is the {kind} {value}; it must be {allowed}")
        values[known[name]] = value
    return values


def as_flags(values: dict[str, Any]) -> list[str]:
    """The command line that gives ``values``; None is left out."""
    flags = []
    for key, value in values.items():
        if isinstance(value, list):
            flags += [f"--{key}", *map(str, value)]
        elif value is not None:  # yaml reads a bare no as false, and every flag that takes false takes no
            flags.append(f"--{key}={'no' if value is False else value}")
    return flags
