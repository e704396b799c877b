"""Parameters and other state of models, and the blocks that share them."""
