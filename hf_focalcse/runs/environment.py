"""What a run ran on: versions of libraries, hardware, and the commit of the code."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = (
    "hf_focalcse",
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
)


def library_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """The version of Python and of each package in ``names`` that is installed.

    This package has none where a checkout is run that is not installed.
    """
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def describe_hardware() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch else []
    return {"machine": platform.machine(), "cpu_cores": os.cpu_count(), "gpus": gpus}


def current_commit() -> str | None:
    """The commit of the checkout that this package is run from, with a + where files differ; None without one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None

    def git(*command: str) -> str:
        return subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *command], capture_output=True, text=True, check=True
        ).stdout

    try:
        return git("rev-parse", "HEAD").strip() + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
