"""Losses by name. Every module of this folder registers its own; adding one needs no edit here."""

from importlib import import_module
from pkgutil import iter_modules

from .base import LOSSES, ContrastiveLoss, EqualPairs, EqualTexts, Pairs, missing_reference, settings_of
from .build import build_loss

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "LOSSES",
    "ContrastiveLoss",
    "EqualPairs",
    "EqualTexts",
    "Pairs",
    "build_loss",
    "missing_reference",
    "settings_of",
]
