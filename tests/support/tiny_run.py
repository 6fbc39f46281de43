"""A run that takes seconds: its inputs, its flags, and the token that must turn up nowhere."""

from pathlib import Path

from tiny import SENTENCES, save_tiny

TOKEN = "hf_plantedTOKENplantedTOKEN"


def write_inputs(folder: Path) -> Path:
    """A tiny encoder, text and graded pairs to train and judge with."""
    save_tiny(folder / "tiny", initializer_range=0.4)
    (folder / "text.txt").write_text("".join(f"{s} {letter}\n" for letter in "wxyz" for s in SENTENCES))
    rows = [(a, b, 5 - abs(i - j) / 2) for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)]
    (folder / "graded.tsv").write_text(
        "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{score}\n" for a, b, score in rows)
    )
    return folder


TRAIN = "--train_file {0}/text.txt --eval_file {0}/graded.tsv --per_device_train_batch_size 8 --max_steps 4 "
TRAIN += "--eval_steps 2 --logging_steps 1 --use_cpu --model_name_or_path {0}/tiny --output_dir {0}/out"
