"""What --eval_file stands for: a user's pairs, or the sets that the package carries."""

from __future__ import annotations

from pathlib import Path

from .. import quickstart
from .copies import judge_by_copies
from .pair_sets import read_pairs
from .protocol import Task


def read_tasks(file: str | Path) -> list[Task]:
    """The tasks in ``file``; "quickstart" names the judge that the package carries, then its graded pairs.

    Raises:
        UserError: the file cannot be read.
    """
    if str(file) == quickstart.NAME:
        return [judge_by_copies(quickstart.HELD_OUT, quickstart.NAME), read_pairs(quickstart.PAIRS)]
    return [read_pairs(file)]
