"""The terms and constraints of shape inference, and the notations that state them."""
