"""The comparisons, one file each: `comparisons(bench)` yields them, ready to run."""

NAMES = (
    "append",
    "batch",
    "hot_session",
    "held_snapshot",
    "bytes",
    "history",
    "branch",
    "verify",
    "streaming",
    "clients",
    "scale",
)
