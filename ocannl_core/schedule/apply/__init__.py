"""How a nest and a schedule become statements."""
