#!/usr/bin/env python
"""Train a sentence encoder without labels; the same as ``focalcse train``.

accelerate launch run_unsup.py --loss focal                    # the embedded quickstart
accelerate launch run_unsup.py --recipe bert-base              # a published configuration
accelerate launch run_unsup.py --model_name_or_path bert-base-uncased --train_file sentences.txt
"""

from hf_focalcse.cli.main import run

if __name__ == "__main__":
    run("train")
