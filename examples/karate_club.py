"""A graph network that divides a karate club from the side of two of its members.

In 1977 Zachary recorded the friendships of 34 members of a club that then split in two. `python
examples/karate_club.py` trains a graph convolution on the sides of the instructor and the
president, and prints how many of the other 32 it places as they went.

Messages are read at one end of each edge and added up at the other: `h[source]` and
`oc.scatter`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

Ids = npt.NDArray[np.int32]

FRIENDS = """1 2 3 4 5 6 7 8 10 11 12 13 17 19 21 31/2 3 7 13 17 19 21 30/3 7 8 9 13 27 28 32/
7 12 13/6 10/6 10 16/16//30 32 33/33////33/32 33/32 33///32 33/33/32 33//32 33/25 27 29 32 33/
25 27 31/31/29 33/33/31 33/32 33/32 33/32 33/33/"""
"""For each member the friends of a higher number."""
MEMBERS, INSTRUCTOR, PRESIDENT = 34, 0, 33
WITH_INSTRUCTOR = {*range(9), 10, 11, 12, 13, 16, 17, 19, 21}


def edges() -> tuple[Ids, Ids]:
    """Return both ends of all edges: each friendship in both directions, and each member's own."""
    lists = [[int(n) for n in text.split()] for text in FRIENDS.replace("\n", "").split("/")]
    pairs = [(member, friend) for member, friends in enumerate(lists) for friend in friends]
    both = [*pairs, *((b, a) for a, b in pairs), *((n, n) for n in range(len(lists)))]
    source, target = np.array(both, np.int32).T
    return source, target


@oc.op
def convolve(h: oc.Tensor, source: oc.Tensor, target: oc.Tensor, weight: oc.Tensor) -> oc.Tensor:
    """Return for each member a sum over its edges (Kipf and Welling, 2017)."""
    return oc.scatter(target, h[source] * weight, size=MEMBERS)


@oc.op
def network(members: oc.Tensor, *ends: oc.Tensor, width: int = 16) -> oc.Tensor:
    """Return two scores for each member; all that it sees of them is their edges."""
    h = oc.nn.dense(members, output=[width])
    h = oc.tanh(convolve(h, *ends))
    return convolve(oc.nn.dense(h, output=[2]), *ends)


class Result(NamedTuple):
    """The predicted side of each member, and how many of the unlabelled are right."""

    sides: list[int]
    right: int


def train(steps: int) -> Result:
    source, target = edges()
    degree = np.bincount(source)
    weight = (1 / np.sqrt(degree[source] * degree[target])).astype(np.float32)
    ends = [oc.tensor(each, batch_axes=1) for each in (source, target, weight)]
    everyone = oc.tensor(np.eye(MEMBERS, dtype=np.float32), batch_axes=1)
    scores = network(everyone, *ends)

    known, sides = (
        oc.tensor(np.array(ids, np.int32), batch_axes=1)
        for ids in ([INSTRUCTOR, PRESIDENT], [0, 1])
    )
    loss = oc.nn.cross_entropy(scores[known], sides)
    optimizer = oc.train.AdamW(learning_rate=0.02, weight_decay=0.05)
    ctx = oc.Context()
    ctx.init_params(loss)
    step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss), keep=[loss, scores])
    for _ in range(steps):
        step()
    found = ctx[scores].argmax(axis=1)
    truth = np.array([int(member not in WITH_INSTRUCTOR) for member in range(MEMBERS)])
    return Result(found.tolist(), int((found == truth).sum()) - 2)


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args(arguments)
    with oc.Session(seed=0):
        result = train(options.steps)
    print("with the instructor:", *(n for n, side in enumerate(result.sides) if side == 0))
    print(f"{result.right} of 32 members are placed right")
    return result


if __name__ == "__main__":
    main()
