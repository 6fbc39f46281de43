"""Peak memory of one training step above the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def peak_of(function: Callable[[], Any]) -> int:
    """Bytes of memory that this process held at most while ``function`` ran, above what it held before (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is held now
    before = status("VmRSS")
    function()
    return status("VmHWM") - before


def status(name: str) -> int:
    """Bytes by ``name`` of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
