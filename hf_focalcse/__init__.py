"""Train, judge and publish unsupervised sentence embeddings: Focal-InfoNCE and its family on Hugging Face Trainer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {  # name -> module; loaded on first use, so that the command line answers at once
    "AutoModelForFocalCL": "modeling",
    "BertForFocalCL": "modeling",
    "DistilBertForFocalCL": "modeling",
    "ElectraForFocalCL": "modeling",
    "ModernBertForFocalCL": "modeling",
    "MPNetForFocalCL": "modeling",
    "RobertaForFocalCL": "modeling",
    "XLMRobertaForFocalCL": "modeling",
    "load_model": "modeling",
    "build_loss": "losses",
    "Pairs": "losses",
    "ContrastiveLoss": "losses",
    "FocalCSETrainer": "trainer",
    "FocalCSETrainingArguments": "training_args",
    "ViewCollator": "data",
    "read_sentences": "data",
    "evaluate_sts": "evaluation",
    "UserError": "errors",
}
__all__ = [*_PUBLIC, "__version__"]

if TYPE_CHECKING:
    from .data import ViewCollator, read_sentences
    from .errors import UserError
    from .evaluation import evaluate_sts
    from .losses import ContrastiveLoss, Pairs, build_loss
    from .modeling import (
        AutoModelForFocalCL,
        BertForFocalCL,
        DistilBertForFocalCL,
        ElectraForFocalCL,
        ModernBertForFocalCL,
        MPNetForFocalCL,
        RobertaForFocalCL,
        XLMRobertaForFocalCL,
        load_model,
    )
    from .trainer import FocalCSETrainer
    from .training_args import FocalCSETrainingArguments


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
