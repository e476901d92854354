"""The comparisons, one file each: `comparisons(bench)` yields them, ready to run."""

NAMES = ("append", "clients")
