"""Dependences of launches, which decide over the branches of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ocannl_cuda.dependences import MemoryAccess, dependences
from plugins.ocannl_cuda.tests.emulated import NOTHING_LEFT, Outcome, left_of, needs_emulation, run

Launch = tuple[MemoryAccess, ...]


@st.composite
def memory_accesses(draw: st.DrawFn) -> MemoryAccess:
    start = draw(st.integers(0, 12))
    return MemoryAccess(start, start + draw(st.integers(0, 4)), draw(st.booleans()))


launches = st.lists(st.lists(memory_accesses(), max_size=3).map(tuple), max_size=12)


def conflict(first: Launch, second: Launch) -> bool:
    """Return True if one launch writes bytes that the other one accesses."""
    return any(
        max(a.start, b.start) < min(a.end, b.end) and (a.is_written or b.is_written)
        for a in first
        for b in second
    )


def followed(found: Sequence[tuple[int, ...]]) -> list[set[int]]:
    """Return for each launch those that it follows, directly or not."""
    every: list[set[int]] = []
    for direct in found:
        every.append({*direct, *(far for each in direct for far in every[each])})
    return every


@given(launches)
def test_launches_that_conflict_follow_each_other(given: list[Launch]) -> None:
    every = followed(dependences(given))
    for later, second in enumerate(given):
        for earlier, first in enumerate(given[:later]):
            assert not conflict(first, second) or earlier in every[later]


@given(launches)
def test_no_dependence_follows_from_others(given: list[Launch]) -> None:
    found = dependences(given)
    every = followed(found)
    for direct in found:
        assert not any(one in every[other] for one in direct for other in direct)


@given(st.lists(st.sets(st.integers(0, 4), max_size=3), max_size=10), st.data())
def test_launches_over_separate_tensors_follow_only_those_that_conflict(
    touched: list[set[int]], data: st.DataObject
) -> None:
    given = [
        tuple(MemoryAccess(8 * place, 8 * place + 8, data.draw(st.booleans())) for place in places)
        for places in touched
    ]
    needed = [
        {earlier for earlier in range(later) if conflict(given[earlier], given[later])}
        for later in range(len(given))
    ]
    for direct, exact in zip(dependences(given), needed, strict=True):
        assert set(direct) <= exact


BRANCHES = """
    import hashlib
    import numpy as np
    import ocannl_core as oc
    from ocannl_cuda import graphs

    random = np.random.default_rng(0)
    x, y = (oc.placeholder(name, batch=[8], output=[16]) for name in "xy")
    hidden = x
    for number in range(4):
        hidden = oc.tanh(oc.param(f"w{number}", output=[16]) @ hidden + oc.param(f"b{number}"))
    loss = oc.einsum("...|... => 0", (hidden - y) ** 2.0)
    ctx = oc.Context("cuda")
    update = oc.train.sgd_update(loss, learning_rate=0.01)
    step = ctx.compile(oc.train.grad_update(loss) + update)
    ctx.init_params(loss)
    for tensor in (x, y):
        ctx[tensor] = random.standard_normal((8, 16)).astype(np.float32)
    if is_wrong:
        graphs.dependences = lambda launches: [()] * len(launches)
    for _ in range(5):
        step()
    print(hashlib.sha256(b"".join(ctx[p].tobytes() for p in loss.params)).hexdigest())
"""


def trained(folder: Path, *, graphs: bool, is_wrong: bool = False) -> Outcome:
    """Return the end of a program that trains a network whose gradients are branches."""
    program = f"    is_wrong = {is_wrong}\n{BRANCHES}"
    return run(program, folder, OCANNL_CUDA__GRAPHS=str(int(graphs)))


@needs_emulation
def test_a_training_step_has_branches_and_the_bits_of_single_launches(tmp_path: Path) -> None:
    plain, replayed = (trained(tmp_path, graphs=graphs) for graphs in (False, True))
    assert (plain.errors, replayed.errors) == ("", "")
    assert replayed.output == plain.output
    assert replayed.left["graph_launches"] == 4
    assert replayed.left["graph_levels"] < replayed.left["graph_nodes"]
    assert left_of(replayed) == NOTHING_LEFT


@needs_emulation
def test_launches_that_state_no_dependences_run_too_early_on_the_emulated_driver(
    tmp_path: Path,
) -> None:
    plain = trained(tmp_path, graphs=False)
    wrong = trained(tmp_path, graphs=True, is_wrong=True)
    assert (wrong.errors, wrong.code) == ("", 0)
    assert wrong.output != plain.output
