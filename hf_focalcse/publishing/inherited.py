"""The licence that an encoder inherits: the one that the card of its base encoder names, and nothing else."""

from __future__ import annotations

from typing import Any

import yaml
from huggingface_hub.repocard import metadata_load
from transformers.utils import logging

from ..compat import find_file

logger = logging.get_logger(__name__)
LICENCE = ("license", "license_name", "license_link")  # the last two where the first is "other"


def inherited_licence(name_or_path: str, revision: str | None = None) -> dict[str, str]:
    """What README.md of a folder or a Hub repository says of its licence; empty where it says nothing or is not to be
    had, since a licence is never guessed."""
    if not name_or_path:
        return {}
    hub: dict[str, Any] = {"revision": revision} if revision else {}
    try:
        card = find_file(name_or_path, "README.md", **hub)
        said = (metadata_load(card) if card else None) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        logger.info("the card of %s could not be read (%s): no licence is inherited", name_or_path, error)
        return {}
    return {key: said[key] for key in LICENCE if isinstance(said.get(key), str)}
