"""Online reductions: a product, statistics of its rows, and a product with them, in one kernel."""
