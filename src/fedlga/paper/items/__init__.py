"""The paper's figures and tables: each item with its points, columns, claims and figure. ITEMS lists them."""

from fedlga.paper.items.base import SIX, Item, Point
from fedlga.paper.items.catalogue import ITEMS

__all__ = ["ITEMS", "SIX", "Item", "Point"]
