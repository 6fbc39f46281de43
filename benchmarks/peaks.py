"""Peak memory of a piece of work, in a process of its own so that one peak does not hide another (Linux)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil


def peak_of(function: Callable[[], Any]) -> int:
    """Bytes that this process held at most while ``function`` ran, above what it held before."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is held now
    before = status("VmRSS")
    function()
    return status("VmHWM") - before


def status(name: str) -> int:
    """Bytes by ``name`` of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a module's function, called in a fresh process."""
    context = get_context("forkserver")  # a fresh process each time, without the seconds of importing
    context.set_forkserver_preload(["torch", "hf_focalcse.training.trainer"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *args).result()


def fits(needed: float) -> bool:
    """Whether ``needed`` bytes would leave half of the free memory to others."""
    return needed < psutil.virtual_memory().available / 2


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
