"""Recipes: a .yaml file, shipped or of the user, whose keys are flags -> values of settings."""

from __future__ import annotations

from typing import Any

from ..errors import UserError, suggest
from .legacy import RENAMED, REPLACED
from .parser import Parser
from .shipped import RECIPES, find_yaml, load_yaml, shipped_names


def recipe_names() -> list[str]:
    return shipped_names(RECIPES)


def read_recipe(recipe: str, parser: Parser) -> dict[str, Any]:
    """The flags that a shipped recipe or a yaml file gives, as ``{setting: value}``.

    Raises:
        UserError: there is no such recipe or file, it is not valid yaml, or a key is not a flag.
    """
    file = find_yaml("recipe", recipe, RECIPES, "flags as keys")
    content = load_yaml("recipe", file)
    if not isinstance(content, dict):
        raise UserError(f"recipe {file} must be a mapping of flags to values, for instance 'loss: focal'")
    values = {}
    known, many = parser.destinations(), parser.taking_lists()
    parser.refuse_short(map(str, content), f"recipe {file}")
    for key, value in content.items():
        name = RENAMED.get(str(key), str(key))
        if name in REPLACED:
            raise UserError(f"recipe {file}: key {name!r} is not accepted: {REPLACED[name]}")
        if name == "recipe":
            raise UserError(f"recipe {file} names another recipe ({value}); write the keys of that one into it")
        if name not in known:
            raise UserError(f"recipe {file}: there is no setting {name!r}{suggest(name, known)}")
        if isinstance(value, dict) or (isinstance(value, list) and not (value and known[name] in many)):
            kind = {dict: "mapping", list: "list"}[type(value)]
            allowed = "a list of at least one" if known[name] in many else "one number or text"
            raise UserError(f"recipe {file}: the value of {name!r} is the {kind} {value}; it must be {allowed}")
        if value is None:
            raise UserError(f"recipe {file}: {name!r} has no value; give one, or take the line out")
        if known[name] in values:
            raise UserError(f"recipe {file}: {name!r} says the same as another key; leave one of them out")
        values[known[name]] = value
    return values
