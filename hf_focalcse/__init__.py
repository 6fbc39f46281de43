"""Train, judge and publish unsupervised sentence embeddings: Focal-InfoNCE and its family on Hugging Face Trainer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .encoder.families import FAMILIES

__version__ = "0.1.0"

_PUBLIC = {  # name -> module; loaded on first use, so that the command line answers at once
    "AutoModelForFocalCL": "encoder.auto",
    **{family.class_name: "encoder.auto" for family in FAMILIES},  # BertForFocalCL and so on
    "load_model": "encoder.loading",
    "add_lora": "encoder.lora",
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
    "load_tasks": "evaluation",
    "read_pairs": "evaluation",
    "export_model": "publishing.export",
    "push": "publishing.hub",
    "UserError": "errors",
}
__all__ = [*_PUBLIC, "__version__"]

if TYPE_CHECKING:
    from .data.sentences import read_sentences
    from .data.views import View, ViewCollator, Views
    from .encoder.auto import AutoModelForFocalCL
    from .encoder.loading import load_model
    from .encoder.lora import add_lora
    from .errors import UserError
    from .evaluation import evaluate_sts, load_tasks, read_pairs
    from .losses import ContrastiveLoss, Pairs, build_loss
    from .publishing.export import export_model
    from .publishing.hub import push
    from .training.args import FocalCSETrainingArguments
    from .training.trainer import FocalCSETrainer


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
