"""What --measure_steps costs: one measurement against a dev evaluation and a training step, in turn in one process.

python -m benchmarks.measuring --train_file sentences.txt --sts_dir STS --turns 3 --json measuring.json
"""

from __future__ import annotations

import argparse
import copy
import tempfile

from benchmarks.ratios import interleave, sentences_of, table, write
from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model
from hf_focalcse.evaluation import load_tasks
from hf_focalcse.quickstart import encoder_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--sts_dir", required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    rows = [{"text": text} for text in sentences_of(options.train_file, max(options.batch, 1000))]
    model = load_model(str(encoder_path()), "cls")
    with tempfile.TemporaryDirectory() as folder:
        args = FocalCSETrainingArguments(
            folder, use_cpu=True, disable_tqdm=True, report_to=[], per_device_train_batch_size=options.batch
        )
        make = [copy.deepcopy(model), args, build_loss("focal"), rows]
        labelled = FocalCSETrainer(*make, load_tasks(["STSBenchmark/dev"], options.sts_dir))
        bare = FocalCSETrainer(*make)
        bare.current_gradient_accumulation_steps = 1
        batch = bare.data_collator(rows[: options.batch])
        contenders = {
            f"training step of {options.batch}": lambda _: bare.training_step(bare.model, batch),
            "measurement, dev pairs": lambda _: labelled.measure(),
            "measurement, views": lambda _: bare.measure(),
            "evaluation on STS-B dev": lambda _: labelled.score(),
        }
        measured = interleave(contenders, options.turns)
    base = f"training step of {options.batch}"
    figures = measured.summary(base)
    print(table("all-MiniLM-L6-v2", figures, base))
    write(options.json, {"seconds": figures})


if __name__ == "__main__":
    main()
