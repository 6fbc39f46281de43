"""Train runs of the quickstart and judge each with labels and without: python studies/judge/judge.py OUT STS_DIR

Each run leaves its weights in OUT/NAME and its scores in OUT/NAME.json; what is there is not done again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from transformers import set_seed

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model, read_sentences
from hf_focalcse.evaluation import evaluate_sts, load_tasks, read_tasks
from hf_focalcse.quickstart import CORPUS, ENCODER_PACKAGE, NAME


class Run(NamedTuple):
    pooler: str
    loss: str
    rate: float
    steps: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.pooler}-{self.loss}-{self.rate:.0e}-{self.steps}-seed{self.seed}"


RUNS = [
    *(Run("mean", "focal", rate, 40, seed) for rate, seed in ((5e-6, 3), (1e-5, 1), (2e-5, 2), (3e-5, 1))),
    *(Run("mean", "focal", rate, 20, seed) for rate, seed in ((3e-6, 2), (1e-4, 1), (3e-4, 2), (1e-3, 3))),
    *(Run("mean", "infonce", rate, 20, seed) for rate, seed in ((3e-5, 1), (1e-4, 3), (3e-4, 2))),
    *(Run("mean", "infonce", 1e-5, steps, seed) for steps, seed in ((40, 1), (100, 2))),
    *(Run("cls", "focal", rate, 20, seed) for rate, seed in ((1e-5, 1), (1e-4, 1), (1e-3, 2))),
    *(Run("cls", "infonce", rate, 20, seed) for rate, seed in ((3e-5, 3), (3e-4, 1))),
    Run("cls", "focal", 3e-5, 10, 3),
]


def train(run: Run, folder: Path) -> None:
    set_seed(run.seed)
    model = load_model(ENCODER_PACKAGE, run.pooler)
    if model.projection_use != "none":
        model.reset_projection()
    args = FocalCSETrainingArguments(
        str(folder),
        max_steps=run.steps,
        learning_rate=run.rate,
        per_device_train_batch_size=64,
        seed=run.seed,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        report_to="none",
        use_cpu=True,
    )
    trainer = FocalCSETrainer(model, args, build_loss(run.loss), read_sentences(CORPUS), max_seq_length=32)
    trainer.train()
    trainer.save_model(str(folder))


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit("python studies/judge/judge.py OUT STS_DIR: STS_DIR holds STSBenchmark.tsv")
    out = Path(sys.argv[1])
    tasks = [*load_tasks(["STSBenchmark/dev"], sys.argv[2]), *read_tasks(NAME)]
    models = {"base-mean": "mean", "base-cls": "cls_before_pooler"} | {run.name: run for run in RUNS}
    for name, run in models.items():
        file = out / f"{name}.json"
        if file.exists():
            continue
        if isinstance(run, Run):
            train(run, out / name)
        model = load_model(str(out / name)) if isinstance(run, Run) else load_model(ENCODER_PACKAGE, run)
        found = evaluate_sts(model, tasks).scores
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
        print(name, {key: found[task.headline] for task in tasks for key in [task.key]})


if __name__ == "__main__":
    main()
