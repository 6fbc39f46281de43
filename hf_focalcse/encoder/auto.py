"""The ``…ForFocalCL`` classes and their Auto class, made from the rows of families.py.

``BertForFocalCL`` and its like are names of this module: they can be imported and pickled like any other class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import transformers

from ..compat import auto_class_parts, register
from .families import FAMILIES, Family
from .head import FocalCLMixin, SideHead

_AUTO, _MAPPING = auto_class_parts()


def make_class(family: Family) -> type[FocalCLMixin]:
    """The class that trains encoders of a family."""
    kind = FocalCLMixin if family.projection else SideHead
    base = getattr(transformers, f"{family.base or family.name}PreTrainedModel")
    encoder = getattr(transformers, f"{family.name}{family.encoder}")
    document = f"A `transformers.{encoder.__name__}` that is trained to embed sentences, see `FocalCLMixin`."
    content = {"__module__": __name__, "__doc__": document, "family": family, "encoder_class": encoder}
    content["config_class"] = getattr(transformers, f"{family.name}Config")  # Gemma's base class has another
    return type(family.class_name, (kind, base), content)


class AutoModelForFocalCL(_AUTO):  # type: ignore[valid-type, misc]
    """Picks the class by the checkpoint's config: ``AutoModelForFocalCL.from_pretrained("bert-base-uncased")``."""

    _model_mapping: Any = _MAPPING

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As of every Auto class, which would ask whether to run code that lies in the folder; this one refuses it."""
        return super().from_pretrained(*args, **({"trust_remote_code": False} | kwargs))


MODELS: dict[Any, type[FocalCLMixin]] = {  # config class -> our class
    getattr(transformers, f"{family.name}Config"): make_class(family) for family in FAMILIES
}
for _config, _model in MODELS.items():
    globals()[_model.__name__] = _model
    register(_MAPPING, _config, _model)

if TYPE_CHECKING:  # the classes made above

    def __getattr__(name: str) -> type[FocalCLMixin]: ...
