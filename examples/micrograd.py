"""The example of micrograd's README: a few numbers, and how the result depends on two of them.

`python examples/micrograd.py` prints the value 24.7041 and the derivatives 138.8338 and 645.5773.
"""

from __future__ import annotations

import ocannl_core as oc


def expression() -> tuple[oc.Tensor, oc.Tensor, oc.Tensor]:
    """Return the parameters `a` and `b`, and the number computed from them."""
    a, b = oc.param("a", init=[-4.0]), oc.param("b", init=[2.0])
    c = a + b
    d = a * b + b**3
    c += c + 1
    c += 1 + c - a
    d += d * 2 + oc.relu(b + a)
    d += 3 * d + oc.relu(b - a)
    e = c - d
    f = e**2
    return a, b, f / 2 + 10 / f


def main() -> None:
    a, b, g = expression()
    ctx = oc.Context()
    step = ctx.compile(oc.train.grad_update(g))
    ctx.init_params(g)
    step()
    print(f"g = {ctx.item(g):.4f}")
    print(f"dg/da = {ctx.item(a.grad):.4f}")
    print(f"dg/db = {ctx.item(b.grad):.4f}")


if __name__ == "__main__":
    main()
