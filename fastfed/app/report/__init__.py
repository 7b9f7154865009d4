"""Reports of runs: one self-contained HTML page with interactive charts, and figures for a paper beside it.

``fastfed.report.write(["runs/a", "runs/b"], "report")`` reads run directories; ``fastfed.report.page([Entry("mine",
sim.history)])`` takes histories from memory.
"""

from .entries import Entry, Group, differing, gather, group, main_metric, read
from .files import NotOurs, write
from .look import Look, Unknown
from .page import page, results
from .summary import is_share

__all__ = [
    "Entry",
    "Group",
    "Look",
    "NotOurs",
    "Unknown",
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
