"""Evaluation on semantic textual similarity; knows no model class, only ``encode``."""

from hf_focalcse.evaluation.evaluate import Results, evaluate_sts
from hf_focalcse.evaluation.tasks import STS_TASKS, PairSet, load_tasks, read_pairs

__all__ = ["STS_TASKS", "PairSet", "Results", "evaluate_sts", "load_tasks", "read_pairs"]
