"""Seconds per training step of several losses, step by step in turn in one process, so that other load cancels.

python -m benchmarks.dclr_step --train_file sentences.txt --batch 64 --rounds 10

A step is what training does: tokenise the batch (for the reference too), forward, loss, backward, AdamW. Each loss has
its own copy of the encoder; the reference is the same encoder, frozen, with mean pooling.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time

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
    trainer = FocalCSETrainer(copy.deepcopy(model), args, loss, [{"text": ""}], reference=reference)
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def step(trainer: FocalCSETrainer, rows: list[dict[str, str]]) -> float:
    """One step; its seconds."""
    started = time.perf_counter()
    batch = trainer.data_collator(rows)
    trainer.training_step(trainer.model, batch)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    trainer.state.global_step += 1
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    sentences = read_sentences(options.train_file, max_samples=options.batch * (options.rounds + 1), seed=42)
    model = load_model(str(encoder_path()), "cls")
    seconds: dict[str, list[float]] = {name: [] for name in LOSSES}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {name: make_trainer(name, model, folder, options.batch) for name in LOSSES}
        names = list(LOSSES)
        for turn in range(options.rounds + 1):
            rows = [sentences[i] for i in range(turn * options.batch, (turn + 1) * options.batch)]
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                taken = step(trainers[name], rows)
                if turn:  # the first round warms up
                    seconds[name].append(taken)
    base = seconds["infonce"]
    print(f"{options.rounds} rounds, batch {options.batch}")
    print(f"{'loss':24}{'median s':>10}{'ratio of sums':>15}{'median ratio':>14}")
    for name, taken in seconds.items():
        ratios = [a / b for a, b in zip(taken, base, strict=True)]
        print(
            f"{name:24}{statistics.median(taken):10.3f}{sum(taken) / sum(base):15.3f}{statistics.median(ratios):14.3f}"
        )
    cost = trainers["dclr"].reference_cost()
    print(f"reference: {cost['reference_seconds_per_batch']:.3f} s a batch, "
          f"{cost['reference_share_of_step']:.1%} of forward and backward (warm-up included)")  # fmt: skip


if __name__ == "__main__":
    main()
