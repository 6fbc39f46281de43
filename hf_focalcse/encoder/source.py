"""Where the files of an encoder lie: a folder or a Hub repository and, for an adapter, also those of its base."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..compat import find_file
from ..errors import UserError, first_line

PICKLE = "pytorch_model.bin"


@dataclass(frozen=True)
class Source:
    """A folder or a Hub repository.

    base: where files are looked for that are not here; of an adapter. hub: ``revision``, for the Hub.
    """

    name_or_path: str
    base: Source | None = None
    hub: dict[str, Any] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return Path(self.name_or_path).is_dir()

    def find(self, file: str) -> Path | None:
        """The local path of a file; None where there is no such file."""
        found = find_file(self.name_or_path, file, **self.hub)
        if found is not None:
            return Path(found)
        return self.base.find(file) if self.base is not None else None

    def holder(self, *files: str) -> Source:
        """The source that has the first of these files to be found; this one where none has any."""
        if self.base is None or any(find_file(self.name_or_path, file, **self.hub) for file in files):
            return self
        return self.base

    def read(self, file: str) -> Any:
        """The content of a JSON file; None where there is no such file.

        Raises:
            UserError: it is not valid JSON.
        """
        path = self.find(file)
        try:
            return None if path is None else json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(
                f"{file} of {self.name_or_path!r} is not valid JSON ({first_line(error)}); copy it again from its "
                "source"
            ) from error

    def read_mapping(self, file: str) -> dict[str, Any]:
        """The content of a JSON file that holds a mapping; an empty one where there is no such file.

        Raises:
            UserError: it holds something else.
        """
        content = self.read(file)
        if content is None:
            return {}
        if not isinstance(content, dict):
            raise UserError(
                f"{file} of {self.name_or_path!r} must be a mapping, not {content!r}; copy it again from its source"
            )
        return content


def refuse_pickle(name: str, file: str) -> UserError:
    """What to say of weights that are a pickle; ``file`` lies in ``name``."""
    safe = file.removesuffix(PICKLE) + "model.safetensors"
    return UserError(
        f"{name!r} holds its weights as a pickle ({file}), which can hold code and is not opened; if you trust it, "
        'convert it there: python -c "import torch; from safetensors.torch import save_file; '
        f"d = torch.load('{file}', map_location='cpu', weights_only=True); "
        f"save_file({{k: v.clone().contiguous() for k, v in d.items()}}, '{safe}', metadata={{'format': 'pt'}})\""
    )
