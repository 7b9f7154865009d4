"""Reports of runs, as `fastfed report` writes them, from Python."""

from .app.report import (
    Entry,
    Group,
    NotOurs,
    differing,
    gather,
    group,
    is_share,
    main_metric,
    page,
    read,
    results,
    write,
)

__all__ = [
    "Entry",
    "Group",
    "NotOurs",
    "differing",
    "gather",
    "group",
    "is_share",
    "main_metric",
    "page",
    "read",
    "results",
    "write",
]
