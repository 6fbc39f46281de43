"""Train the runs that judges are compared on: python studies/judge/train.py OUT [NAME ...]"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from transformers import set_seed

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model, read_sentences
from hf_focalcse.quickstart import CORPUS, encoder_path


class Run(NamedTuple):
    pooler: str
    loss: str
    rate: float
    steps: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.pooler}-{self.loss}-{self.rate:g}-{self.steps}-seed{self.seed}"


RUNS = [
    *(Run("mean", "focal", rate, 40, 1) for rate in (1e-6, 3e-6, 5e-6, 1e-5, 2e-5, 3e-5, 1e-4, 3e-4, 1e-3)),
    *(Run("mean", "focal", 1e-5, 40, seed) for seed in (2, 3)),
    *(Run("mean", "infonce", rate, 40, 1) for rate in (1e-5, 3e-5, 1e-4, 3e-4)),
    *(Run("mean", loss, 1e-5, 100, 2) for loss in ("focal", "infonce")),
    *(Run("mean", loss, 5e-5, 10, 3) for loss in ("focal", "infonce")),
    *(Run("cls", "focal", rate, 40, 1) for rate in (1e-6, 1e-5, 3e-5, 1e-4, 1e-3)),
    *(Run("cls", "infonce", rate, 40, 2) for rate in (1e-5, 3e-5, 3e-4)),
    *(Run("cls", "focal", 3e-5, steps, 3) for steps in (10, 100)),
]


def train(run: Run, folder: Path) -> None:
    set_seed(run.seed)
    model = load_model(str(encoder_path()), run.pooler)
    if model.projection_use != "none":
        model.reset_projection()
    args = FocalCSETrainingArguments(
        str(folder / "unused"),
        max_steps=run.steps,
        learning_rate=run.rate,
        per_device_train_batch_size=64,
        seed=run.seed,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=10,
    )
    trainer = FocalCSETrainer(model, args, build_loss(run.loss), read_sentences(TEXT), max_seq_length=32)
    trainer.train()
    trainer.save_model(str(folder))


TEXT = CORPUS

if __name__ == "__main__":
    out, names = Path(sys.argv[1]), sys.argv[2:]
    for run in RUNS:
        if (not names or run.name in names) and not (out / run.name / "model.safetensors").exists():
            train(run, out / run.name)
