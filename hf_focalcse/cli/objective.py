"""What a training run minimises: the objective of its settings, with the frozen encoders that it compares with."""

from __future__ import annotations

from typing import Any

from ..data.pairs import PairRows
from ..data.prompted import Prompted
from ..data.template import Template
from ..data.views import Repeat, View
from ..errors import UserError
from ..losses import ContrastiveLoss, build_loss
from ..objectives import OBJECTIVES, Contrastive, Objective
from ..objectives.reference import load_reference
from ..options.field import listed
from ..options.methods import Reference
from ..parsing.settings import Settings
from ..quickstart import resolve_model
from ..training.engines import whole_model
from .preparation import view_templates

# the flags that only a contrastive objective has
CONTRASTIVE = (
    *("loss", "mask_duplicates", "hard_negative_weight", "negatives", "view", "repetition_rate", "view_templates"),
    *("template_denoising", "augmentation", "do_mlm", "mlm_weight", "mlm_probability"),
    *("reference_model", "reference_pooler", "reference_revision", "reference_weights"),
)


def prepare_loss(settings: Settings) -> ContrastiveLoss | None:
    """The loss inside the objective; None where that compares no sentences.

    Raises:
        UserError: the loss cannot be built, or the command line gives what only a contrastive objective has.
    """
    name = settings.loss.objective
    projection = {"mlp_only_train", "reinit_projection"} & settings.explicit
    if projection and not OBJECTIVES[name].projects:
        raise UserError(
            f"--{min(projection)} is about the projection of [CLS], and --objective {name} does not use it; leave the "
            "flag out"
        )
    if issubclass(OBJECTIVES[name], Contrastive):
        return build_loss(settings.loss.loss, **settings.loss_settings)
    given = [flag for flag in (*CONTRASTIVE, *settings.loss_settings) if flag in settings.explicit]
    if given:
        raise UserError(
            f"--{given[0]} belongs to contrastive objectives, and --objective {name} compares no sentences; leave it "
            "out"
        )
    return None


def prepare_objective(settings: Settings, loss: ContrastiveLoss | None, sentences: Any, model: Any) -> Objective:
    """The objective for the training text, with its references loaded.

    Raises:
        UserError: a reference cannot be loaded, or the settings do not go together.
    """
    kind: Any = OBJECTIVES[settings.loss.objective]
    if loss is None:
        if isinstance(sentences, PairRows):
            raise UserError(
                f"--objective {kind.name} takes sentences, and the training text is pairs; name one column with "
                "--text_column"
            )
        plain: Objective = kind(**settings.objective_settings)
        return plain
    made: Objective = kind(
        loss,
        mask_duplicates=settings.loss.mask_duplicates,
        reference=prepare_references(settings),
        negatives=settings.distributed.negatives,
        max_seq_length=settings.data.max_seq_length,
        reference_weights=settings.reference.reference_weights,
        views=prepare_views(settings, sentences, model),
        hard_negative_weight=prepare_weight(settings, sentences),
        **prepare_masking(settings),
        **settings.objective_settings,
    )
    return made


def prepare_weight(settings: Settings, sentences: Any) -> float:
    """The weight of hard negatives.

    Raises:
        UserError: it is given, and the training text has none.
    """
    weight = settings.loss.hard_negative_weight
    if weight is not None and len(getattr(sentences, "columns", ())) < 3:
        raise UserError(
            f"--hard_negative_weight is {weight:g}, but the training text has no column of hard negatives; leave it "
            "out, or name three with --columns"
        )
    return 1.0 if weight is None else weight


def prepare_masking(settings: Settings) -> dict[str, float]:
    """The weight of masked language modelling beside the loss, and the share of hidden tokens; nothing without it."""
    if not settings.loss.do_mlm:
        return {}
    weight, probability = settings.loss.mlm_weight, settings.loss.mlm_probability
    return {
        "mlm_weight": 0.1 if weight is None else weight,
        "mlm_probability": 0.15 if probability is None else probability,
    }


def prepare_views(settings: Settings, sentences: Any, model: Any) -> int | list[View]:
    """The views of each sentence that the settings ask for, or the columns of pairs.

    Raises:
        UserError: views of one sentence are asked for where the training text is pairs.
    """
    if isinstance(sentences, PairRows):
        if settings.views.view != "plain":
            raise UserError(
                f"--view {settings.views.view} makes two views of one text, but {sentences.report.source} is read as "
                f"pairs ({', '.join(sentences.columns)}); leave it out, or name one column with --text_column"
            )
        return [View(columns=(column,)) for column in sentences.columns]
    if settings.views.view == "plain":
        return 2
    if settings.views.view == "prompt":
        named = (Template.of(model.family.template(name)) for name in view_templates(settings))
        denoised = settings.views.template_denoising is not False
        return [Prompted(template=template, denoised=denoised) for template in named]
    return [View(), Repeat() if (rate := settings.views.repetition_rate) is None else Repeat(rate=rate)]


def decide_reference(settings: Settings, loss: ContrastiveLoss | None) -> Settings:
    """The reference of a recipe is left out when the loss was changed to one that uses none."""
    given = settings.reference.reference_model is not None
    if not given or (loss is not None and loss.needs_reference) or "reference_model" in settings.explicit:
        return settings
    note = f"recipe {settings.recipe}: no reference is loaded, since the loss does not use one"
    return settings.noting(note, reference=Reference())


def prepare_references(settings: Settings) -> list[Any] | None:
    """The frozen encoders that the loss compares with, or None where there are none.

    Raises:
        UserError: one cannot be loaded, nothing says how it pools, or a flag has another number of values.
    """
    chosen = settings.reference
    names = listed(chosen.reference_model)
    if not names:
        return None
    poolers, revisions = listed(chosen.reference_pooler), listed(chosen.reference_revision)
    poolers = poolers * len(names) if len(poolers) == 1 else poolers
    for flag, values in (("pooler", poolers), ("revision", revisions)):
        if values and len(values) != len(names):
            raise UserError(
                f"--reference_{flag} has {len(values)} value(s) and --reference_model {len(names)}; give one for "
                "each, or leave it out"
            )
    none = [None] * len(names)
    with whole_model():
        return [load_reference(*of) for of in zip(names, poolers or none, revisions or none, strict=True)]


def describe_reference(settings: Settings, objective: Objective) -> dict[str, Any] | None:
    """What run.json says of the frozen encoders, in lists where there are several; their cost is added at the end."""
    frozen = objective.reference
    if frozen is None:
        return None
    names = listed(settings.reference.reference_model)
    found = {
        "name_or_path": names,
        "base_model": [resolve_model(name).base for name in names],
        "revision": listed(settings.reference.reference_revision) or [None] * len(frozen.each),
        "pooler": [one.model.pooler_name for one in frozen.each],
        "projection": [one.model.projection_use for one in frozen.each],
        "parameters": [sum(p.numel() for p in one.model.parameters()) for one in frozen.each],
    }
    if len(frozen.each) == 1:
        return {name: values[0] for name, values in found.items()}
    return found | {"weights": frozen.weights}
