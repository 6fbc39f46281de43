"""Seconds of scoring an encoder on the seven STS test sets: ours against encoding set by set with a peer.

python -m benchmarks.evaluation --sts_dir STS --fraction 0.1 --turns 7 --json evaluation.json
python -m benchmarks.evaluation --sts_dir STS --turns 1 --warm_up 0 --bf16

Ours is `evaluate_sts`: each distinct sentence once over all sets, sorted by tokens, with all its scores. The peer
encodes column by column of each set in batches of 128 with sentence-transformers, as mteb does, and correlates:
`--peer mteb` runs that package's own tasks on the same pairs (it must be installed), `--peer plain` a loop without it.
--fraction takes the first pairs of each set: less of what occurs twice, so its ratio is lower than that of whole sets.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from benchmarks.ratios import interleave, table, write
from hf_focalcse import evaluate_sts, load_model
from hf_focalcse.evaluation import STS_TASKS, load_tasks
from hf_focalcse.evaluation.metrics import cosine, spearman
from hf_focalcse.quickstart import encoder_path

BATCH = 128
WANTED_RATIO, SCORES_EQUAL = 1.5, 0.01
OURS, OURS_BF16 = "hf_focalcse", "hf_focalcse, bf16"


def sets(names: list[str] | None, folder: str, fraction: float) -> list[Any]:
    """The test sets, SICK-R as MTEB has it, each with the first ``fraction`` of its pairs."""
    found = [task for task in load_tasks(names, folder) if task.key != "SICK-R/senteval-test"]
    return [replace(task, pairs=task.pairs[: max(round(fraction * len(task.pairs)), 8)]) for task in found]


def ours(model: Any, tasks: Sequence[Any], bf16: bool = False) -> dict[str, float]:
    """Spearman x 100 over all pairs of each set."""
    encoder = SimpleNamespace(encode=partial(model.encode, bf16=bf16))
    scores = evaluate_sts(encoder, tasks, progress=False).scores
    return {task.key: scores[f"{task.key}/all/spearman"] for task in tasks}


def plain(model: Any, tasks: Sequence[Any]) -> dict[str, float]:
    """The same by sentence-transformers, which sorts what it is given by characters, once a column of a set."""
    found = {}
    for task in tasks:
        columns = ([pair.sentence1 for pair in task.pairs], [pair.sentence2 for pair in task.pairs])
        first, second = (model.encode(texts, batch_size=BATCH, show_progress_bar=False) for texts in columns)
        found[task.key] = 100 * spearman(cosine(first, second), task.scores)
    return found


def mteb_tasks(model: Any, tasks: Sequence[Any]) -> Callable[[], dict[str, float]]:
    """The tasks of the mteb package with the pairs of ``tasks`` in place of a download."""
    import mteb
    from datasets import Dataset
    from mteb.models import SentenceTransformerEncoderWrapper

    wrapped = SentenceTransformerEncoderWrapper(model)
    made = {}
    for task in tasks:
        name = task.key.partition("/")[0]
        one = mteb.get_task(name)
        columns = {"score": list(task.scores), "sentence1": [pair.sentence1 for pair in task.pairs]}
        one.dataset = {"test": Dataset.from_dict(columns | {"sentence2": [pair.sentence2 for pair in task.pairs]})}
        one.data_loaded = True
        made[task.key] = one

    def run() -> dict[str, float]:
        kwargs = {"batch_size": BATCH, "show_progress_bar": False}
        of = {key: one.evaluate(wrapped, split="test", encode_kwargs=dict(kwargs)) for key, one in made.items()}
        return {key: 100 * scores["default"]["cosine_spearman"] for key, scores in of.items()}

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sts_dir", required=True, help="folder with the STS sets as .tsv")
    parser.add_argument("--sets", nargs="+", choices=list(STS_TASKS), help="default: all seven")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the pairs of each set, the first ones")
    parser.add_argument("--model", help="a sentence-transformers folder; default: the quickstart's encoder")
    parser.add_argument("--peer", choices=("plain", "mteb"), default="plain")
    parser.add_argument("--bf16", action="store_true", help="a further row with matrix products in bfloat16")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--warm_up", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)

    from sentence_transformers import SentenceTransformer

    path = options.model or str(encoder_path())
    model, tasks = load_model(path, "mean"), sets(options.sets, options.sts_dir, options.fraction)
    other = SentenceTransformer(path, device="cpu")
    peer = f"{'mteb' if options.peer == 'mteb' else 'sentence-transformers'}, set by set"
    runs: dict[str, Callable[[], dict[str, float]]] = {
        peer: mteb_tasks(other, tasks) if options.peer == "mteb" else partial(plain, other, tasks),
        OURS: partial(ours, model, tasks),
    }
    if options.bf16:
        runs[OURS_BF16] = partial(ours, model, tasks, True)
    scores: dict[str, dict[str, float]] = {}

    def contender(name: str) -> Callable[[int], None]:
        return lambda turn: scores.update({name: runs[name]()})

    measured = interleave({name: contender(name) for name in runs}, options.turns, options.warm_up)
    rows = measured.summary(OURS)
    print(table(f"{len(tasks)} sets, {sum(len(task.pairs) for task in tasks):,} pairs", rows, OURS))
    others = {name: found for name, found in scores.items() if name != OURS}
    apart = {name: max(abs(found[key] - scores[OURS][key]) for key in found) for name, found in others.items()}
    for name, most in apart.items():
        print(f"largest difference of a score, {name}: {most:.4f}")
    ratio = rows[peer]["ratio_median"]
    print(f"{peer} / {OURS}: {ratio:.2f} (at least {WANTED_RATIO}: {ratio >= WANTED_RATIO})")
    write(options.json, {"options": vars(options) | {"json": None}, "rows": rows, "scores": scores, "apart": apart})
    if apart[peer] > SCORES_EQUAL:  # bfloat16 is another precision, and moves small sets more
        raise SystemExit(f"the scores differ by more than {SCORES_EQUAL}")


if __name__ == "__main__":
    main()
