"""Encode each text once and score tasks of every kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import UserError
from ..runs.scores import Results, averages
from .protocol import Encoder, Task, Vectors
from .sizes import score_sizes
from .tasks import STS_TASKS


def evaluate_sts(
    encoder: Encoder,
    tasks: Sequence[Task],
    progress: bool = True,
    model: Mapping[str, Any] | None = None,
    sizes: Sequence[int] = (),
) -> Results:
    """Score ``encoder`` on ``tasks`` of any kind, see `Task`; ``model`` is kept in the metadata.

    sizes: besides the vectors as they are, the first so many dimensions of them are scored, see `score_sizes`.

    `load_tasks` gives the STS, which it is named after, `read_pairs` and `load_rerank` read a user's files.

    Raises:
        UserError: there are no tasks, or vectors of the encoder are not finite, zero, or all alike.
    """
    if not tasks:
        raise UserError(f"no set to evaluate on; name at least one of {', '.join(STS_TASKS)}")
    vectors = Vectors(encoder, (text for task in tasks for text in task.texts()), progress)
    found = {task.key: task.score(vectors) for task in tasks}
    data = {task.key: task.describe() | found[task.key].facts for task in tasks}
    whole = {key: value for of in found.values() for key, value in of.scores.items()}
    scores = {key: round(value, 6) for key, value in (whole | score_sizes(tasks, vectors, sizes)).items()}
    return replace(
        Results.of(scores | averages(scores, data), data, model),
        pairs={key: of.pairs for key, of in found.items() if of.pairs is not None},
        units={key: values for of in found.values() for key, values in of.units.items()},
        texts={task.key: task.fingerprints() for task in tasks},
    )
