"""Presentation: figures, the HTML page, the picture of a partition."""
