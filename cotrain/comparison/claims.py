"""What the paper claims, and whether the runs agree: decided by the interval of the paired differences, not by hand."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from cotrain.comparison.statistics import clear_sign, interval

VERDICTS = {-1: "agrees", 0: "cannot be told", 1: "disagrees"}


@dataclass(frozen=True)
class Claim:
    """One of two numbers is lower than the other. Both are given by seed, in percent."""

    text: str
    lower: Mapping[int, float]
    higher: Mapping[int, float]

    @property
    def differences(self) -> list[float]:
        return [self.lower[seed] - self.higher[seed] for seed in sorted(self.lower.keys() & self.higher.keys())]

    @property
    def verdict(self) -> str:
        return VERDICTS[clear_sign(self.differences)]

    @property
    def sentence(self) -> str:
        found = self.differences
        if not found:
            return f"{self.text}: {self.verdict} (no run has finished)."
        shown = f"{statistics.mean(found):+.2f} points"
        if len(found) > 1:
            low, high = interval(found, 0.95)
            shown += f", 95 % interval {low:+.2f} to {high:+.2f}"
        return f"{self.text}: {self.verdict} ({shown}, n = {len(found)})."
