"""Whether the scores of two encoders differ by more than the choice of pairs, queries or sentences explains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from ..errors import UserError
from ..runs.scores import Results, headline, set_of
from .statistics import SAME, draw_counts, mean_differences, percentile_interval, spearman_differences

RESAMPLES = 1000
FEWEST = 20  # units: of fewer, the percentile interval is too narrow to claim a difference
NONE: Literal["no difference was found"] = "no difference was found"
Verdict = Literal["raised", "lowered", "no difference was found"]


@dataclass(frozen=True)
class Difference:
    """One score, x 100, of two encoders on the same units, with the 95 % interval of after - before.

    The interval is the percentile interval of the paired bootstrap over the units. units: how many different ones
    there are; unit: what they are, in the plural ("pairs", "queries", "sentences"). verdict: "raised" or "lowered"
    only where the interval leaves out 0 and there are at least 20 units.
    """

    key: str
    before: float
    after: float
    low: float
    high: float
    units: int
    unit: str
    verdict: Verdict

    @property
    def change(self) -> float:
        return self.after - self.before

    def sentence(self) -> str:
        """``raised from 79.10 to 80.20 (+1.10, 95 % interval +0.40 to +1.80 over 1,500 pairs)``, without the key."""
        interval = f"{self.change:+.2f}, 95 % interval {self.low:+.2f} to {self.high:+.2f}"
        if self.verdict != NONE:
            units = f"{self.units:,} {self.unit}"
            return f"{self.verdict} from {self.before:.2f} to {self.after:.2f} ({interval} over {units})"
        few = ", which are too few for a verdict" if self.units < FEWEST else ""
        return f"{NONE} on {self.units:,} {self.unit}{few} ({self.before:.2f} and {self.after:.2f}; {interval})"


def differences(before: Results, after: Results, resamples: int = RESAMPLES) -> dict[str, Difference]:
    """Score key -> `Difference`, of every set that both were just measured on (or `recall` found their values).

    Of a set of pairs it is the Spearman correlation over all pairs, of others every score that is a mean over units. A
    unit that a set holds several times is drawn as one. The draws are the same at each call.

    Raises:
        UserError: a set is not the same in both.
    """
    found: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    for key in before.pairs.keys() & after.pairs.keys():
        (gold, one), (_, other) = before.pairs[key], after.pairs[key]
        require_same(before, after, key)
        found[headline(key)] = partial(spearman_differences, gold, other[None], one[None])
    for key in before.units.keys() & after.units.keys():
        require_same(before, after, set_of(key))
        found[key] = partial(mean_differences, after.units[key] - before.units[key])
    return {key: _difference(key, found[key], before, after, resamples) for key in after.scores if key in found}


def require_same(before: Results, after: Results, key: str) -> None:
    """Check that the set ``key`` holds the same units in both.

    Raises:
        UserError: it does not.
    """
    if before.metadata["data"][key]["sha256"] != after.metadata["data"][key]["sha256"]:
        raise UserError(f"{key} is not the same set before and after, so its scores do not compare; evaluate again")


def _difference(
    key: str, statistic: Callable[[np.ndarray], np.ndarray], before: Results, after: Results, resamples: int
) -> Difference:
    """statistic: (R, N) how often each unit was drawn -> (R,) differences."""
    of = set_of(key)
    distinct, units = np.unique(after.texts[of], return_inverse=True)
    rng = np.random.default_rng(0)
    drawn = [statistic(counts[:, units]) for counts in draw_counts(len(distinct), resamples, rng)]
    low, high = percentile_interval(np.concatenate(drawn))
    verdict: Verdict = NONE
    if len(distinct) >= FEWEST and (low > SAME or high < -SAME):
        verdict = "raised" if low > SAME else "lowered"
    unit = after.metadata["data"][of].get("unit", "pairs")
    return Difference(key, before.scores[key], after.scores[key], low, high, len(distinct), unit, verdict)
