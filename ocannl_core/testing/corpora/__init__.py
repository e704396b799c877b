"""Corpora of cases for backends, beyond the conformance suite.

- `primitive_edges`: every primitive in every declared format, at the edges of the format;
- `reference_cases`: computations with results of other projects, which distributions add;
- `opinfo`: samples of PyTorch as such cases.

A case has a name such as `primitives/exp/float32`. `allowances` names cases, too.
"""
