"""The yaml of a grid -> mappings whose form has been checked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from ..parsing import shipped
from ..parsing.shipped import GRIDS, find_yaml

KEYS = ("name", "note", "base", "axes", "evaluate")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=,-]*")


def find_grid(grid: str) -> Path:
    return find_yaml("grid", grid, GRIDS, "name, base and axes")


def read_axes(axes: dict[str, Any], file: str) -> dict[str, dict[str, dict[str, Any]]]:
    """{axis: {label: {flag: value}}}; a list has the values of the flag named like the axis, labelled flag-value."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for axis, values in axes.items():
        where = f"{file}: axis {axis}"
        if isinstance(values, list):
            named = [(f"{axis}-{value}", {axis: value}) for value in values]
        elif isinstance(values, dict):
            named = [(str(label), mapping(flags, f"{where}, {label}")) for label, flags in values.items()]
        else:
            raise UserError(f"{where} must be a list of values of --{axis}, or a mapping of names to flags")
        if not named:
            raise UserError(f"{where} has no value; give at least one, or leave the axis out")
        for label, _ in named:
            check_name(label, where)
            if [other for other, _ in named].count(label) > 1:
                raise UserError(f"{where}: {label} occurs twice; leave one out")
        found[axis] = dict(named)
    if not found:
        raise UserError(f"{file}: axes is empty; give at least one, for instance 'seed: [1, 2, 3]'")
    return found


def name_of(picked: dict[str, str]) -> str:
    """The name of the run that has a label on each axis, such as loss-focal_seed-1."""
    return "_".join(picked.values())


def name_before(picked: dict[str, str], axes: dict[str, Any]) -> str:
    """The name that version 0.1 gave it, such as lossfocal-seed1. axes: as the yaml has them."""
    listed = {axis for axis, values in axes.items() if isinstance(values, list)}
    return "-".join(
        axis + label.removeprefix(f"{axis}-") if axis in listed else label for axis, label in picked.items()
    )


def as_flags(values: dict[str, Any], where: str) -> list[str]:
    """The mapping as a command line.

    Raises:
        UserError: a value is missing or is a mapping.
    """
    for key, value in values.items():
        if value is None or isinstance(value, dict) or value == []:
            raise UserError(
                f"{where}: {key} is {value!r}; it must be a number, a text, true, false, or a list of these"
            )
    return shipped.as_flags(values)


def mapping(value: Any, where: str, allowed: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where} must be a mapping, not {value!r}")
    value = {str(key): item for key, item in value.items()}
    for key in value:
        if allowed is not None and key not in allowed:
            raise UserError(f"{where}: there is no key {key!r}{suggest(key, allowed)}; allowed: {', '.join(allowed)}")
    return value


def check_name(text: str, where: str) -> None:
    if not NAME.fullmatch(text):
        raise UserError(f"{where}: {text!r} cannot be part of a folder's name; use letters, digits, _ . + = , and -")
