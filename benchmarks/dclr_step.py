"""Seconds per training step of several losses, step by step in turn in one process.

python -m benchmarks.dclr_step --train_file sentences.txt --batch 64 --turns 7 --json dclr_step.json

A step is what training does: tokenise the batch (for the reference too), forward, loss, backward, AdamW. Each loss has
its own copy of the encoder; the reference is the same encoder, frozen, with mean pooling.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from functools import partial

from benchmarks.ratios import interleave, table, write
from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model, read_sentences
from hf_focalcse.quickstart import encoder_path

LOSSES = {
    "infonce": {},
    "focal": {},
    "dclr": {},
    "dclr, weighting self": {"weighting": "self"},
    "dclr, noise only": {"weighting": "none"},
}


def make_trainer(name: str, model, folder: str, batch: int) -> FocalCSETrainer:
    args = FocalCSETrainingArguments(
        output_dir=folder, per_device_train_batch_size=batch, eval_strategy="no", save_strategy="no",
        load_best_model_at_end=False, use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    loss = build_loss(name.partition(",")[0], **LOSSES[name])
    reference = load_model(str(encoder_path()), "mean") if loss.needs_reference else None
    trainer = FocalCSETrainer(copy.deepcopy(model), args, loss, [{"text": "a"}], reference=reference)
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def step(trainer: FocalCSETrainer, batches: list[list[dict[str, str]]], turn: int) -> None:
    trainer.training_step(trainer.model, trainer.data_collator(batches[turn]))
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    trainer.state.global_step += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    size, count = options.batch, options.turns + 1  # one batch to warm up
    sentences = read_sentences(options.train_file, max_samples=size * count, seed=42)
    batches = [[sentences[i] for i in range(turn * size, (turn + 1) * size)] for turn in range(count)]
    model = load_model(str(encoder_path()), "cls")
    with tempfile.TemporaryDirectory() as folder:
        trainers = {name: make_trainer(name, model, folder, size) for name in LOSSES}
        contenders = {name: partial(step, trainer, batches) for name, trainer in trainers.items()}
        rows = interleave(contenders, options.turns).summary("infonce")
    print(table(f"A step of {size} sentences", rows, "infonce"))
    cost = trainers["dclr"].reference_cost()
    print(f"reference: {cost['reference_seconds_per_batch']:.3f} s a batch, "
          f"{cost['reference_share_of_step']:.1%} of forward and backward (warm-up included)")  # fmt: skip
    write(options.json, {"seconds": rows, "reference": cost})


if __name__ == "__main__":
    main()
