"""Train, judge and publish unsupervised sentence embeddings: Focal-InfoNCE and its family on Hugging Face Trainer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {  # name -> module; loaded on first use, so that the command line answers at once
    "AutoModelForFocalCL": "encoder.modeling",
    "BertForFocalCL": "encoder.modeling",
    "DistilBertForFocalCL": "encoder.modeling",
    "ElectraForFocalCL": "encoder.modeling",
    "ModernBertForFocalCL": "encoder.modeling",
    "MPNetForFocalCL": "encoder.modeling",
    "RobertaForFocalCL": "encoder.modeling",
    "XLMRobertaForFocalCL": "encoder.modeling",
    "load_model": "encoder.modeling",
    "build_loss": "losses",
    "Pairs": "losses",
    "ContrastiveLoss": "losses",
    "FocalCSETrainer": "training.trainer",
    "FocalCSETrainingArguments": "training.args",
    "View": "data.views",
    "Views": "data.views",
    "ViewCollator": "data.views",
    "read_sentences": "data.sentences",
    "evaluate_sts": "evaluation",
    "UserError": "errors",
}
__all__ = [*_PUBLIC, "__version__"]

if TYPE_CHECKING:
    from .data.sentences import read_sentences
    from .data.views import View, ViewCollator, Views
    from .encoder.modeling import (
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
    from .errors import UserError
    from .evaluation import evaluate_sts
    from .losses import ContrastiveLoss, Pairs, build_loss
    from .training.args import FocalCSETrainingArguments
    from .training.trainer import FocalCSETrainer


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
