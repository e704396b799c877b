"""Kernels as instructions on machine types, for languages outside of the C family.

- `builder`: the protocol of a language: about twenty instructions and three control structures;
- `floats`: conversions of floats of less than 32 bits;
- `numbers`: primitives, conversions of numbers, words of 128 bits;
- `kernels`: statements, indices, checks of positions; the source of a routine.
"""
