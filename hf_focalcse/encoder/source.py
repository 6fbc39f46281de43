"""Where the files of an encoder lie: a folder or a Hub repository and, for an adapter, also those of its base."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..compat import find_file
from ..errors import UserError, first_line

PICKLE, INDEX = "pytorch_model.bin", ".index.json"
WEIGHTS = ("model.safetensors", "model.safetensors" + INDEX, PICKLE, PICKLE + INDEX)
POINTER = b"version https://git-lfs"


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
    """What to say of weights that are a pickle, or several with an index; ``file`` lies in ``name``."""
    start = file.removesuffix(INDEX).removesuffix(PICKLE)
    if file.endswith(INDEX):
        lines = (
            "import glob, json, torch; from safetensors.torch import save_file; "
            "safe = lambda f: f.replace('pytorch_model', 'model').replace('.bin', '.safetensors'); "
            "[save_file({k: v.clone().contiguous() for k, v in "
            "torch.load(f, map_location='cpu', weights_only=True).items()}, safe(f), metadata={'format': 'pt'}) "
            f"for f in glob.glob('{start}pytorch_model-*.bin')]; i = json.load(open('{file}')); "
            "i['weight_map'] = {k: safe(f) for k, f in i['weight_map'].items()}; "
            "json.dump(i, open('{start}model.safetensors.index.json', 'w'))".replace("{start}", start)
        )
    else:
        lines = (
            "import torch; from safetensors.torch import save_file; "
            f"d = torch.load('{file}', map_location='cpu', weights_only=True); "
            "save_file({k: v.clone().contiguous() for k, v in d.items()}, "
            f"'{start}model.safetensors', metadata={{'format': 'pt'}})"
        )
    return UserError(
        f"{name!r} holds its weights as a pickle ({file}), which can hold code and is not opened; if you trust it, "
        f'convert it there: python -c "{lines}"'
    )


def refuse_pointer(file: Path) -> UserError | None:
    """What to say of a file that stands for one of Git LFS, which was not fetched; None of any other."""
    with file.open("rb") as opened:
        if opened.read(len(POINTER)) != POINTER:
            return None
    return UserError(
        f"{file} is not the file itself but the pointer of Git LFS to it; fetch it with git lfs pull, or download it "
        "with hf download"
    )
