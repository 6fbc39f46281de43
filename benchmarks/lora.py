"""Seconds of a training step by LoRA against one of full training, in turn in one process, and what each trains.

python -m benchmarks.lora --train_file sentences.txt --ranks 16 --turns 9 --json lora.json
"""

from __future__ import annotations

import argparse
import tempfile

from benchmarks.ratios import interleave, sentences_of, table, write
from benchmarks.step import make_ours
from hf_focalcse import add_lora, load_model
from hf_focalcse.encoder.lora import trained_parameters
from hf_focalcse.quickstart import encoder_path

FULL = "full training"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--max_length", type=int, default=32)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    options.device, options.bf16, options.torch_compile = "cpu", False, False
    sentences = sentences_of(options.train_file, options.batch * (options.turns + 1))
    batches = [sentences[i * options.batch :][: options.batch] for i in range(options.turns + 1)]
    models = {FULL: load_model(str(encoder_path()), "cls")}
    models |= {f"LoRA of rank {r}": add_lora(load_model(str(encoder_path()), "cls"), r) for r in options.ranks}
    with tempfile.TemporaryDirectory() as folder:
        steps = {name: make_ours(model, folder, options) for name, model in models.items()}
        contenders = {name: lambda turn, step=step: step(batches[turn]) for name, step in steps.items()}
        figures = interleave(contenders, options.turns).summary(FULL)
    for name, model in models.items():
        figures[name]["trained_parameters"] = trained_parameters(model)
        print(f"{name}: {trained_parameters(model):,} parameters are trained")
    print(table("all-MiniLM-L6-v2", figures, FULL))
    write(options.json, {"seconds": figures})


if __name__ == "__main__":
    main()
