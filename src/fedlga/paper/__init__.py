"""The paper's tables and figures: what is run (items, settings), the runs, the page with what holds here."""
