"""The loss alone, forward and backward: peak memory above the vectors, and time beside torch's cross entropy on the
full matrix of cosines.

python -m benchmarks.loss --rows 16384 --dimensions 768 --json loss.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peaks import apart, fits, gigabytes, peak_of
from benchmarks.ratios import interleave, table, write
from hf_focalcse import Pairs, build_loss
from hf_focalcse.losses.base import cosine

FULL = "cross entropy, full matrix"
LOSSES = ("infonce", "focal")
FULL_MATRICES = 5  # N x N in float32 that the full matrix takes at its peak: cosines, logits, softmax, two gradients


def full(z1: Tensor, z2: Tensor) -> Tensor:
    return F.cross_entropy(cosine(z1, z2) / 0.05, torch.arange(len(z1)))


def ours(name: str, z1: Tensor, z2: Tensor) -> Tensor:
    return build_loss(name, temperature=0.05)(Pairs(z1, z2, torch.arange(len(z1))))


CONTENDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {FULL: full} | {n: partial(ours, n) for n in LOSSES}


def vectors(rows: int, dimensions: int) -> tuple[Tensor, Tensor]:
    """Two views (N, D) of random sentences, their positive cosines about 0.7."""
    z = torch.randn(2, rows, dimensions, generator=torch.Generator().manual_seed(0))
    return z[0].requires_grad_(), (z[0] + z[1]).detach().requires_grad_()


def step(name: str, z1: Tensor, z2: Tensor) -> float:
    """Forward and backward; the loss."""
    z1.grad = z2.grad = None
    loss = CONTENDERS[name](z1, z2)
    loss.backward()
    return loss.item()


def peak(name: str, rows: int, dimensions: int) -> int:
    return peak_of(partial(step, name, *vectors(rows, dimensions)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16384, help="N, of both views")
    parser.add_argument("--dimensions", type=int, default=768)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=LOSSES)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    n, d = options.rows, options.dimensions

    names = [*options.losses, *([FULL] if fits(FULL_MATRICES * 4 * n * n) else [])]
    peaks = {name: apart(peak, name, n, d) for name in names}
    print(f"Peak above the vectors, forward and backward, N = {n:,}, D = {d}")
    for name, size in peaks.items():
        print(f"{name:34}{gigabytes(size):>10}")
    if FULL not in names:
        print(f"{FULL:34}   does not fit ({gigabytes(FULL_MATRICES * 4 * n * n)})")

    timed = n
    while not fits(FULL_MATRICES * 4 * timed * timed):
        timed //= 2
    z1, z2 = vectors(timed, d)
    values = {name: step(name, z1, z2) for name in (FULL, *options.losses)}
    if "infonce" in values and abs(values["infonce"] - values[FULL]) > 1e-5 * values[FULL]:
        raise SystemExit(f"the losses differ: {values}")
    measured = interleave(
        {name: lambda _, name=name: step(name, z1, z2) for name in values}, options.turns, warm_up=0
    )  # the comparison of the values has warmed up
    rows = measured.summary(FULL)
    print("\n" + table(f"Forward and backward, N = {timed:,}, D = {d}", rows, FULL))
    write(options.json, {"peak_bytes": {"rows": n, **peaks}, "seconds": {"rows": timed, **rows}, "losses": values})


if __name__ == "__main__":
    main()
