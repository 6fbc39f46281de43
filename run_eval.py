#!/usr/bin/env python
"""Judge a sentence encoder on the STS tasks; the same as ``focalcse eval``.

python run_eval.py --model_name_or_path runs/quickstart-focal-seed42
python run_eval.py --model_name_or_path bert-base-uncased --pooler avg_first_last --sts_dir STS
"""

from hf_focalcse.cli.main import run

if __name__ == "__main__":
    run("eval")
