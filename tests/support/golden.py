"""The golden cases of the family of methods, and how near a value must come to them."""

import json
from functools import cache
from pathlib import Path

import torch

NEAR = {"rtol": 0, "atol": 1e-9}


@cache
def all_cases(folder: Path) -> list[dict]:
    return json.loads((folder / "golden" / "family.json").read_text())


def case_of(folder: Path, method: str, number: int) -> tuple[dict, dict, dict]:
    """Inputs (lists of floats as float64 tensors), settings and expected values of a case."""
    found = next(c for c in all_cases(folder) if (c["method"], c["case"]) == (method, number))
    return {name: tensor(value) for name, value in found["inputs"].items()}, found["settings"], found["expected"]


def tensor(value):
    """Numbers in lists, however deep -> a tensor, float64 where they are floats; anything else as it is."""
    if isinstance(value, dict):
        return {name: tensor(of) for name, of in value.items()}
    try:
        found = torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
    except (TypeError, ValueError):
        return value
    whole = isinstance(found, torch.Tensor) and all(isinstance(one, int) for one in flat(value))
    return found.long() if whole else found


def flat(value):
    return [one for part in value for one in flat(part)] if isinstance(value, list) else [value]


def check(found, expected, what=""):
    """Equal to 1e-9."""
    found = found.detach() if isinstance(found, torch.Tensor) else found
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64), torch.as_tensor(expected, dtype=torch.float64), **NEAR,
        msg=lambda said: f"{what}: {said}",
    )  # fmt: skip
