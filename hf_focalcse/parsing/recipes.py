"""Recipes: a .yaml file, shipped or of the user, whose keys are flags -> values of settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from .legacy import RENAMED, REPLACED
from .parser import Parser
from .shipped import RECIPES, find_yaml, load_yaml, shipped_names


def recipe_names() -> list[str]:
    return shipped_names(RECIPES)


STAGES = "stages"  # the key of a recipe whose stages are trained one after the other
FIXED = ("output_dir", "resume_from_checkpoint", "recipe", "stage", "seed")  # of all stages alike


def read_recipe(recipe: str, parser: Parser, stage: str | None = None) -> dict[str, Any]:
    """The flags that a shipped recipe or a yaml file gives, as ``{setting: value}``.

    stage: of a recipe that has stages, whose keys take precedence over those beside ``stages``; None: its last one.

    Raises:
        UserError: there is no such recipe, file or stage, it is not valid yaml, or a key is not a flag.
    """
    file, content = load_recipe(recipe)
    stages = stages_of(recipe)
    if stage is not None and stage not in stages:
        there = f"its stages are {', '.join(stages)}" if stages else "it has no stages"
        raise UserError(f"--stage is {stage!r}, but recipe {recipe}: {there}; name one of those, or leave it out")
    if stages:
        content = {key: value for key, value in content.items() if key != STAGES}
        content |= stages[stage or list(stages)[-1]]
    return flags_in(file, content, parser)


def load_recipe(recipe: str) -> tuple[Path, dict[str, Any]]:
    """A recipe's file and what it holds.

    Raises:
        UserError: there is none, or it is no mapping.
    """
    file = find_yaml("recipe", recipe, RECIPES, "flags as keys")
    content = load_yaml("recipe", file)
    if not isinstance(content, dict):
        raise UserError(f"recipe {file} must be a mapping of flags to values, for instance 'loss: focal'")
    return file, content


def stages_of(recipe: str | None) -> dict[str, dict[str, Any]]:
    """Name -> flags of each stage of a recipe, in order; none where it is one run.

    Raises:
        UserError: they are written otherwise.
    """
    if recipe is None:
        return {}
    file, content = load_recipe(recipe)
    found = content.get(STAGES)
    if found is None:
        return {}
    if not isinstance(found, dict) or len(found) < 2 or not all(isinstance(flags, dict) for flags in found.values()):
        raise UserError(
            f"recipe {file}: {STAGES} must be a mapping of two stages or more, each a name with its flags, for "
            "instance 'mlm: {objective: mlm}'"
        )
    for name, flags in found.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", str(name)):
            raise UserError(
                f"recipe {file}: the stage {name!r} names a folder; give it letters, digits, - and _ alone"
            )
        fixed = [key for key in FIXED if key in flags]
        if fixed:
            raise UserError(f"recipe {file}: {fixed[0]} is that of all stages; take it out of stage {name!r}")
    return {str(name): flags for name, flags in found.items()}


def flags_in(file: Path, content: dict[str, Any], parser: Parser) -> dict[str, Any]:
    """The same of what a recipe holds, its keys checked."""
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
