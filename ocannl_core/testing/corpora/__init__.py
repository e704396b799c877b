"""Corpora of cases for backends, beyond the conformance suite.

- `primitive_edges`: every primitive in every declared format, at the edges of the format;
- `published_vectors`: functions of this project beside test vectors of other projects.

A case has a name such as `primitives/exp/float32`. `allowances` names cases, too.
"""
