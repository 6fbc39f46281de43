"""The settings of losses and objectives as flags, read from their source so that torch need not be imported."""

from __future__ import annotations

import argparse
import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from transformers.hf_argparser import string_to_bool

from .parser import METAVARS

KINDS = {"float": float, "int": int, "bool": bool, "str": str}  # annotation of a setting -> type of its flag


@dataclass(frozen=True)
class LossSetting:
    name: str
    kind: type
    default: Any
    help: str


def loss_settings() -> dict[str, list[LossSetting]]:
    """Loss name -> the settings its constructor declares, with help from the ``Args`` part of its docstring."""
    return _settings_in("losses", keyword_only=False)


def objective_settings() -> dict[str, list[LossSetting]]:
    """Objective name -> its settings, which are the keyword-only arguments of its constructor."""
    return _settings_in("objectives", keyword_only=True)


@cache
def _settings_in(room: str, keyword_only: bool) -> dict[str, list[LossSetting]]:
    found: dict[str, list[LossSetting]] = {}
    for file in sorted(Path(__file__).parent.with_name(room).glob("[!_]*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [k.value.value for k in getattr(node, "keywords", []) if k.arg == "name"]
            if not (isinstance(node, ast.ClassDef) and names):
                continue
            described = _argument_lines(ast.get_docstring(node) or "")
            init = next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
            arguments, defaults = init.args.kwonlyargs, [d for d in init.args.kw_defaults if d is not None]
            if not keyword_only:
                arguments, defaults = init.args.args[1:] + arguments, [*init.args.defaults, *defaults]
            found[names[0]] = [
                LossSetting(
                    a.arg,
                    KINDS[ast.unparse(a.annotation or ast.Name("str")).split(" |")[0]],
                    ast.literal_eval(default),
                    described.get(a.arg, ""),
                )
                for a, default in zip(arguments, defaults, strict=True)
            ]
    return found


def _argument_lines(docstring: str) -> dict[str, str]:
    """The ``name: text`` lines under ``Args:`` of a docstring, continuation lines joined."""
    described: dict[str, str] = {}
    name = None
    for line in docstring.partition("Args:\n")[2].splitlines():
        head, colon, text = line.strip().partition(": ")
        if line.startswith("    ") and not line.startswith("     ") and colon:
            name, described[head] = head, text
        elif name and line.strip():
            described[name] += " " + line.strip()
    return described


def add_loss_settings(
    parser: argparse.ArgumentParser, losses: dict[str, list[LossSetting]], title: str = "settings of the losses"
) -> None:
    """A flag for each name of a setting; losses (or objectives) that share a name share the flag."""
    owners: dict[str, list[str]] = {}
    for loss, settings in losses.items():
        for setting in settings:
            owners.setdefault(setting.name, []).append(loss)
    group = parser.add_argument_group(title)
    for settings in losses.values():
        for setting in settings:
            having = owners.pop(setting.name, None)
            if having is None:
                continue
            flags = [f"--{setting.name}"] + (["--temp"] if setting.name == "temperature" else [])
            kind: dict[str, Any] = {"type": setting.kind, "metavar": METAVARS.get(setting.kind)}
            if setting.kind is bool:
                kind = {"type": string_to_bool, "metavar": METAVARS[string_to_bool], "nargs": "?", "const": True}
            text = f"[{', '.join(having)}] {setting.help}{_default_of(setting.name, having, losses)}"
            text = text.replace("%", "%%")
            group.add_argument(*flags, dest=setting.name, default=None, help=text, **kind)


def _default_of(name: str, having: list[str], losses: dict[str, list[LossSetting]]) -> str:
    """The sentence on the default of a setting, loss by loss where they differ."""
    defaults = {loss: s.default for loss in having for s in losses[loss] if s.name == name}
    given = {loss: value for loss, value in defaults.items() if value not in (None, "")}
    shown = {loss: "no" if value is False else str(value) for loss, value in given.items()}
    if not shown:
        return ""
    if len(set(defaults.values())) == 1:
        return f" Default: {next(iter(shown.values()))}."
    return f" Default: {', '.join(f'{value} in {loss}' for loss, value in shown.items())}."
