"""What a training step computes: an objective turns the views of a batch into one scalar.

Every module of this folder registers its own by name; adding one needs no edit here.
"""

from importlib import import_module
from pkgutil import iter_modules

from .base import OBJECTIVES, Objective, settings_of
from .contrastive import Contrastive

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["OBJECTIVES", "Contrastive", "Objective", "settings_of"]
