"""Recipes and grids alike: a .yaml that the package ships, by name, or one of the user, by path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError, suggest

RECIPES = Path(__file__).parent.with_name("recipes")
GRIDS = Path(__file__).parent.with_name("grids")


def shipped_names(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))


def find_yaml(kind: str, name: str, folder: Path, content: str) -> Path:
    """The file ``name`` of ``folder``, or at the path ``name``.

    Args:
        kind: "recipe" or "grid", for messages.
        content: what such a file holds, for messages.

    Raises:
        UserError: there is none.
    """
    file = folder / f"{name}.yaml"
    if file.is_file():
        return file
    file = Path(name)
    if file.suffix not in (".yaml", ".yml"):
        names = shipped_names(folder)
        raise UserError(
            f"there is no {kind} {name!r}{suggest(name, names)}; the shipped {kind}s are {', '.join(names)}, "
            "and a path must end in .yaml"
        )
    if not file.is_file():
        raise UserError(f"there is no {kind} file {name!r}; give the path of a .yaml with {content}")
    return file


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice in a mapping, of which yaml would silently drop one."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            line = node.start_mark.line + 1
            raise UserError(f"{self.name}: the key {twice!r} occurs twice in the mapping that begins in line {line}")
        return super().construct_mapping(node, deep)


def load_yaml(kind: str, file: Path) -> Any:
    """The content of a .yaml.

    Raises:
        UserError: it is not valid, or a key occurs twice in a mapping.
    """
    try:
        with open(file, encoding="utf-8") as stream:
            return yaml.load(stream, _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{kind} {file} is not valid yaml: {' '.join(str(error).split())}") from error


def as_flags(values: dict[str, Any]) -> list[str]:
    """The command line that gives ``values``; None is left out."""
    flags = []
    for key, value in values.items():
        if isinstance(value, list):
            flags += [f"--{key}", *map(str, value)]
        elif value is not None:  # yaml reads a bare no as false, and every flag that takes false takes no
            flags.append(f"--{key}={'no' if value is False else value}")
    return flags
