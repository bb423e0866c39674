"""Statistics over seeds: mean and spread, and whether two methods differ."""

import statistics
from collections.abc import Mapping, Sequence

ENOUGH_SEEDS = 3  # to call one better: two differences can be alike by chance
SAME = 1e-9  # percentage points; differences this close are equal, but for rounding


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def paired(first: Mapping[int, float], other: Mapping[int, float], confidence: float = 0.95) -> str:
    """The mean difference in error over common seeds with Student's interval, and whether `other` is better."""
    differences = [other[seed] - first[seed] for seed in sorted(first.keys() & other.keys())]
    if len(differences) < 2:
        return "".join(f"{difference:+.2f}, one seed" for difference in differences)
    low, high = interval(differences, confidence)
    shown = f"{statistics.mean(differences):+.2f} ({low:+.2f} to {high:+.2f})"
    if len(differences) < ENOUGH_SEEDS:
        return f"{shown}, {len(differences)} seeds"
    return f"{shown}: {('better', 'unclear', 'worse')[clear_sign(differences, confidence) + 1]}"


def clear_sign(differences: Sequence[float], confidence: float = 0.95) -> int:
    """-1 or 1 if Student's interval for the mean is below or above 0; 0 if it is neither, or there are too few."""
    if len(differences) < ENOUGH_SEEDS or max(differences) - min(differences) < SAME:
        return 0  # an interval of width 0 says nothing about chance
    low, high = interval(differences, confidence)
    return 1 if low > 0 else -1 if high < 0 else 0


def interval(differences: Sequence[float], confidence: float) -> tuple[float, float]:
    """Student's confidence interval for the mean."""
    from scipy.special import stdtrit  # slow to import

    mean, n = statistics.mean(differences), len(differences)
    reach = stdtrit(n - 1, (1 + confidence) / 2) * statistics.stdev(differences) / n**0.5
    return mean - reach, mean + reach


def in_words(seeds: Sequence[int]) -> str:
    return f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
