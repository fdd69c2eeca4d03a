"""The paper's tables and figures: what is run (items), the runs (work), what they say (found)."""

from .found import Claim, claims, markdown, table, verdict, write
from .items import ITEMS, Item, Point, Setting, papers_number, setting
from .work import Work, begun_otherwise, missing, performed, summary_of, works

__all__ = [
    "ITEMS",
    "Claim",
    "Item",
    "Point",
    "Setting",
    "Work",
    "begun_otherwise",
    "claims",
    "markdown",
    "missing",
    "papers_number",
    "performed",
    "setting",
    "summary_of",
    "table",
    "verdict",
    "works",
    "write",
]
