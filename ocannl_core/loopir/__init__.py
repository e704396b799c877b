"""The loop language: what every backend compiles, and what the interpreter defines the meaning of."""
