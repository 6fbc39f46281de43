"""Peak memory of training steps above the model, each contender in a process of its own.

python -m benchmarks.memory --batch 2048 --chunk_size 64 --json memory.json

The peak is that of two steps and holds everything that they add: activations, loss, gradients and the optimizer's
state, which the first step makes at its end and later ones hold from their beginning. Ours chunked stands beside
sentence-transformers' cached loss at the same batch and chunk, and SimCSE's step at the largest batch that fits (it
keeps the activations of all rows, and N x N x D cosines). That all compute the same loss is checked first, without
dropout; so are loss and gradients of ours chunked against unchunked.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from functools import partial
from typing import Any

import torch

from benchmarks.peaks import apart, fits, gigabytes, peak_of
from benchmarks.peers import SentenceTransformers, SimCSE
from benchmarks.ratios import sentences_of, write
from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model
from hf_focalcse.quickstart import CORPUS, encoder_path

STEPS = 2
OURS, CACHED, SIMCSE = "ours", "sentence-transformers, cached", "SimCSE's step"


class Ours:
    """One step of the trainer a call: texts -> the loss."""

    def __init__(
        self,
        model: Any,
        batch: int,
        chunk_size: int | None,
        loss: str = "infonce",
        length: int = 32,
        bf16: bool = False,
    ):
        model.chunk_size = chunk_size
        self.folder = tempfile.TemporaryDirectory()
        args = FocalCSETrainingArguments(
            output_dir=self.folder.name, per_device_train_batch_size=batch, eval_strategy="no", save_strategy="no",
            load_best_model_at_end=False, use_cpu=True, disable_tqdm=True, bf16=bf16,
        )  # fmt: skip
        trainer = FocalCSETrainer(model, args, build_loss(loss), [{"text": "a"}], max_seq_length=length)
        trainer.create_optimizer()
        trainer.current_gradient_accumulation_steps = 1
        self.trainer = trainer
        self.model = trainer.accelerator.prepare(trainer.model)  # autocast is put around it there

    def __call__(self, texts: list[str]) -> float:
        trainer = self.trainer
        loss = trainer.training_step(self.model, trainer.data_collator([{"text": text} for text in texts]))
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return loss.item()


def encoder(dropout: float | None = None) -> Any:
    """The quickstart's encoder with a projection that is the same in every process."""
    model = load_model(str(encoder_path()), "cls", dropout=dropout)
    model.reset_projection(torch.Generator().manual_seed(0))
    return model


def contender(name: str, batch: int, chunk_size: int | None, dropout: float | None = None) -> Any:
    model = encoder(dropout or (1e-9 if dropout == 0 else None))  # both views equal are refused
    if name == OURS:
        return Ours(model, batch, chunk_size)
    kind = {SIMCSE: SimCSE, CACHED: partial(SentenceTransformers, mini_batch_size=chunk_size)}[name]
    return kind(str(encoder_path()), model.projection_linear, dropout)


def measure(name: str, batch: int, chunk_size: int | None, file: str) -> dict[str, float]:
    """Peak bytes and seconds of two steps, and of ours the estimate made before them."""
    step, texts = contender(name, batch, chunk_size), sentences_of(file, batch)
    estimate = {"estimate": step.trainer.step_memory.needed} if name == OURS else {}
    started = time.perf_counter()
    peak = peak_of(lambda: [step(texts) for _ in range(STEPS)])
    return {"batch": batch, "peak": peak, "seconds": time.perf_counter() - started} | estimate


def losses(file: str, batch: int = 64, chunk_size: int = 16) -> dict[str, float]:
    """The loss of every contender on the same texts without dropout."""
    texts = sentences_of(file, batch)
    return {name: contender(name, batch, chunk_size, 0.0)(texts) for name in (OURS, CACHED, SIMCSE)}


def chunked_against_whole(file: str, batch: int, chunk_size: int) -> float:
    """Relative difference of the loss or, where it is larger, of the gradient as one vector."""
    texts, found = sentences_of(file, batch), []
    model = encoder(1e-9)
    for size in (None, chunk_size):
        trainer = Ours(copy.deepcopy(model), batch, size).trainer
        loss = trainer.training_step(trainer.model, trainer.data_collator([{"text": text} for text in texts]))
        gradients = [p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]
        found.append((loss.reshape(1).double(), torch.cat(gradients).double()))
    return max(((a - b).norm() / a.norm()).item() for a, b in zip(*found, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--chunk_size", type=int, default=64)
    parser.add_argument("--equal_batch", type=int, default=256, help="batch at which chunked and unchunked must agree")
    parser.add_argument("--train_file", default=str(CORPUS), help="sentences, one a line")
    parser.add_argument("--contenders", nargs="+", choices=(OURS, CACHED, SIMCSE), default=(OURS, CACHED, SIMCSE))
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    file, batch, chunk = options.train_file, options.batch, options.chunk_size

    values = apart(losses, file)
    print("Loss without dropout: " + ", ".join(f"{name} {value:.6f}" for name, value in values.items()))
    if max(values.values()) - min(values.values()) > 1e-4 * values[OURS]:
        raise SystemExit("the losses differ")
    difference = apart(chunked_against_whole, file, options.equal_batch, chunk)
    print(f"Chunked against unchunked at batch {options.equal_batch}: largest relative difference {difference:.1e}")
    if difference > 1e-5:
        raise SystemExit("chunks change the loss or the gradient")

    rows: dict[str, dict[str, float]] = {}
    print(f"\n{f'{STEPS} steps above the model, batch':40}{'peak':>10}{'seconds':>9}{'estimate':>10}")

    def run(name: str, size: int) -> None:
        row = rows[f"{name}, {size}"] = apart(measure, name, size, chunk, file)
        estimate = gigabytes(row["estimate"]) if "estimate" in row else ""
        print(f"{name + f', {size}':40}{gigabytes(row['peak']):>10}{row['seconds']:9.1f}{estimate:>10}", flush=True)

    for name in options.contenders:
        if name != SIMCSE:
            run(name, batch)
            continue
        fitting, whole = batch, apart(measure, OURS, 32, None, file)["peak"] / 32  # bytes of a sentence, all kept
        while not fits(fitting * whole + 3 * 4 * fitting**2 * 384):
            fitting //= 2
        for kind in (SIMCSE, OURS):
            run(kind, fitting)
    print(f"SimCSE's cosines alone at batch {batch}: {gigabytes(4 * batch**2 * 384)}")
    write(options.json, {"losses": values, "chunked_difference": difference, "steps": rows})


if __name__ == "__main__":
    main()
