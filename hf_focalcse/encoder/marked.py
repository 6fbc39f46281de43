"""Whether an encoder and its templates have the mask token that is pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..data.prompted import Prompted
from ..data.views import UNCUT, token_ids
from ..errors import UserError
from .poolers import pooler_of


def check_marked(model: Any) -> None:
    """Check that the mask token of a template is there to be pooled, where it is.

    Raises:
        UserError: there is no such template, or the tokenizer has no mask token or splits it.
    """
    template, marked = model.template, pooler_of(model.pooler_name).marked
    if marked and (template is None or not template.masked):
        raise UserError(
            f"pooler {model.pooler_name!r} takes the vector of the mask token of a template; give --prompt_template "
            "with {mask} behind {text}, or promptbert for the published one"
        )
    if marked and model.projection_use == "always":
        raise UserError(
            f"projection 'always' is asked for with pooler {model.pooler_name!r}, which is embedded without one; give "
            "'training' or 'none'"
        )
    if template is not None and template.masked:
        around = "".join(template.around(model.tokenizer))
        if token_ids(model.tokenizer, [around], UNCUT)[0].count(model.tokenizer.mask_token_id) != 1:
            raise UserError(
                f"the tokenizer of this encoder reads the mask token of the template {template.text!r} as "
                "plain text (split_special_tokens in its tokenizer_config.json); take that out"
            )


def check_prompted(model: Any, views: Sequence[Any], max_seq_length: int) -> None:
    """Check that the encoder can be trained and used with views in templates.

    Raises:
        UserError: they are not all in templates, one is not as the others, the encoder embeds otherwise than they do,
            or a template is too long.
    """
    if not all(isinstance(view, Prompted) for view in views) or len({view.denoised for view in views}) > 1:
        raise UserError("views in templates of their own are all so, and all denoised or none; make all `Prompted`")
    if model.template != views[0].template or not pooler_of(model.pooler_name).marked:
        now = "no template" if model.template is None else f"the template {model.template.text!r}"
        raise UserError(
            f"the first view stands in the template {views[0].template.text!r} and is pooled at its mask token, but "
            f"the encoder embeds with {now} and pooler {model.pooler_name}; load it with pooler='mask' and "
            f"prompt_template={views[0].template.name!r}"
        )
    for view in views:
        longest = max_seq_length + view.template.tokens(model.tokenizer)
        if longest > model.reach():
            raise UserError(
                f"max_seq_length is {max_seq_length}, and with the template {view.template.text!r} that is {longest} "
                f"tokens, but this encoder takes {model.reach()}; give a smaller --max_seq_length"
            )
