"""What a training step computes: an objective turns the views of a batch into one scalar."""

from .base import Objective
from .contrastive import Contrastive

__all__ = ["Contrastive", "Objective"]
