"""Summarizes ratios of blocks for the benchmark scripts."""
import math
import statistics


def interval(values):
    """Median, and the narrowest pair of order statistics that covers it with 95%."""
    values, n = sorted(values), len(values)
    below, rank = 0.0, 0
    while rank < n // 2:
        below += math.comb(n, rank) / 2**n
        if 2 * below > 0.05:
            break
        rank += 1
    return statistics.median(values), values[max(rank - 1, 0)], values[n - max(rank, 1)]
