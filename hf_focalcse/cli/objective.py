"""What a training run minimises: the objective of its settings, with the frozen encoders that it compares with."""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from ..losses import ContrastiveLoss
from ..objectives import Contrastive, Objective
from ..objectives.reference import load_reference
from ..options.field import listed
from ..options.training import Reference
from ..parsing.settings import Settings
from ..training.engines import whole_model


def prepare_objective(settings: Settings, loss: ContrastiveLoss) -> Objective:
    """The objective, with its references loaded.

    Raises:
        UserError: a reference cannot be loaded, or the settings do not go together.
    """
    return Contrastive(
        loss,
        mask_duplicates=settings.loss.mask_duplicates,
        reference=prepare_references(settings),
        negatives=settings.distributed.negatives,
        max_seq_length=settings.data.max_seq_length,
        reference_weights=settings.reference.reference_weights,
    )


def decide_reference(settings: Settings, loss: ContrastiveLoss) -> Settings:
    """The reference of a recipe is left out when the loss was changed to one that uses none."""
    given = settings.reference.reference_model is not None
    if not given or loss.needs_reference or "reference_model" in settings.explicit:
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
    found = {
        "name_or_path": listed(settings.reference.reference_model),
        "revision": listed(settings.reference.reference_revision) or [None] * len(frozen.each),
        "pooler": [one.model.pooler_name for one in frozen.each],
        "projection": [one.model.projection_use for one in frozen.each],
        "parameters": [sum(p.numel() for p in one.model.parameters()) for one in frozen.each],
    }
    if len(frozen.each) == 1:
        return {name: values[0] for name, values in found.items()}
    return found | {"weights": frozen.weights}
