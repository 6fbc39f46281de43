"""The embedded default of a training run: its encoder, a small corpus and what judges it; what names stand for."""

from __future__ import annotations

from pathlib import Path

from ..encoder.packaged import BASE_MODEL, ENCODER_PACKAGE, ENCODER_SHA256, encoder_path, resolve_model

__all__ = ["BASE_MODEL", "CORPUS", "ENCODER_PACKAGE", "ENCODER_SHA256", "HELD_OUT", "NAME", "PAIRS", "SUPERVISED_NOTE"]
__all__ += ["encoder_path", "resolve_model", "resolve_text"]

NAME = "quickstart"  # as --train_file or --eval_file: what the package carries

SUPERVISED_NOTE = (
    "the starting encoder, all-MiniLM-L6-v2, had supervised training before (over a billion labelled sentence pairs); "
    "what is learnt here comes on top of that and is no result of unsupervised training alone"
)

CORPUS = Path(__file__).with_name("corpus.txt")  # one sentence a line; sources and licences in LICENSES.md
HELD_OUT = Path(__file__).with_name("held_out.txt")  # of the same sources: they judge, and are not trained on
PAIRS = Path(__file__).with_name("quickstart_pairs.tsv")  # header, then sentence1, sentence2, score 0-5; no benchmark


def resolve_text(file: str | None) -> str | Path | None:
    """The file that ``--train_file`` stands for."""
    return CORPUS if file == NAME else file
