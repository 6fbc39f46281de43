"""Evaluation on semantic textual similarity and reranking; knows no model class, only ``encode``."""

from ..data.graded_pairs import PairSet, read_pairs
from ..runs.scores import Results
from .evaluate import evaluate_sts
from .rerank import evaluate_rerank
from .rerank_sets import RerankSet, load_rerank
from .tasks import STS_TASKS, load_tasks

__all__ = [
    "STS_TASKS",
    "PairSet",
    "RerankSet",
    "Results",
    "evaluate_rerank",
    "evaluate_sts",
    "load_rerank",
    "load_tasks",
    "read_pairs",
]
