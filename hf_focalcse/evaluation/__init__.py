"""Evaluation by tasks of any kind (graded pairs, queries to rank); knows no model class, only ``encode``."""

from ..runs.scores import Results
from .difference import Difference, differences
from .evaluate import evaluate_sts
from .matching import MatchSet
from .pair_sets import PairSet, read_pairs
from .protocol import Task
from .rerank import RerankSet
from .rerank_files import load_rerank
from .sources import read_tasks
from .tasks import STS_TASKS, load_tasks

__all__ = [
    "STS_TASKS",
    "Difference",
    "MatchSet",
    "PairSet",
    "RerankSet",
    "Results",
    "Task",
    "differences",
    "evaluate_sts",
    "load_rerank",
    "load_tasks",
    "read_pairs",
    "read_tasks",
]
