"""The inverse of the printers of loop programs and of plans, so that tests are written as text."""
