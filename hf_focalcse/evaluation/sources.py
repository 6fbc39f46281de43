"""What --eval_file stands for: labelled pairs, text that judges without labels, or what the package carries."""

from __future__ import annotations

from pathlib import Path

from .. import quickstart
from ..data.askubuntu import texts_of
from ..data.places import ending, find_files
from ..data.reading import TEXTS
from ..errors import UserError
from .copies import judge_by_copies
from .pair_sets import read_pairs
from .protocol import Task
from .rerank_files import is_rerank_table, load_rerank


def read_tasks(given: str | Path) -> list[Task]:
    """The tasks in a file, or in each file of a folder or a pattern.

    A table holds labelled pairs, see `read_pairs`; text (.txt, .md) sentences that judge without labels, see
    `judge_by_copies`. A table of queries with candidates is one to rerank, and of AskUbuntu's folder the dev set is.
    "quickstart" names the judge that the package carries, then its graded pairs.

    Raises:
        UserError: a file cannot be read, or two of them would have one name.
    """
    if str(given) == quickstart.NAME:
        return [judge_by_copies(quickstart.HELD_OUT, quickstart.NAME), read_pairs(quickstart.PAIRS)]
    if texts_of(given) is not None:
        return [*load_rerank(given, ["dev"])]  # its test set is for the end
    if is_rerank_table(Path(given)):
        return [*load_rerank(given)]
    files = find_files([given], "--eval_file").files
    tasks: list[Task] = [judge_by_copies(file) if ending(file) in TEXTS else read_pairs(file) for file in files]
    named: dict[str, str] = {}
    for task, file in zip(tasks, files, strict=True):
        if (first := named.setdefault(task.key, file)) != file:
            raise UserError(f"{first} and {file} would both be scored as {task.key}; rename one of the files")
    return tasks
