"""The allocator over the addresses of a device."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from ocannl_core.base.errors import UsageError
from ocannl_core.runtime.arena import Arena

ALIGNMENTS = st.sampled_from([1, 16, 64, 256])


class AnArena(RuleBasedStateMachine):
    """Blocks never overlap, and free ranges are exactly the rest of the arena."""

    blocks = Bundle("blocks")

    @initialize(
        start=st.integers(0, 100).map(lambda n: 64 * n),
        nbytes=st.integers(0, 64).map(lambda n: 64 * n),
        grows_to=st.integers(0, 64).map(lambda n: 64 * n),
    )
    def begin(self, start: int, nbytes: int, grows_to: int) -> None:
        def extend(least: int) -> int:
            added = -(-least // 64) * 64
            if self.arena.nbytes + added > grows_to:
                return 0
            return added

        self.arena = Arena(start, nbytes, alignment=64, extend=extend)
        self.most = max(nbytes, grows_to)
        self.held: dict[int, int] = {}

    @rule(target=blocks, nbytes=st.integers(0, 1000), alignment=ALIGNMENTS)
    def allocate(self, nbytes: int, alignment: int) -> int | None:
        try:
            address = self.arena.allocate(nbytes, alignment)
        except MemoryError:
            size = max(-(-nbytes // 64), 1) * 64
            for start, end in self.arena.free_ranges:
                assert -(-start // alignment) * alignment + size > end
            return None
        assert address % max(alignment, 64) == 0
        self.held[address] = max(nbytes, 1)
        return address

    @rule(address=consumes(blocks))
    def free(self, address: int | None) -> None:
        if address is not None:
            self.arena.free(address)
            del self.held[address]
            with pytest.raises(UsageError, match="freed once"):
                self.arena.free(address)

    @invariant()
    def the_arena_is_divided(self) -> None:
        arena = getattr(self, "arena", None)
        if arena is None:
            return
        assert arena.nbytes <= self.most
        held = [(start, start + -(-size // 64) * 64) for start, size in self.held.items()]
        parts = sorted([*held, *arena.free_ranges])
        position = arena.start
        for start, end in parts:
            assert start == position
            position = end
        assert position == arena.start + arena.nbytes
        free = arena.free_ranges
        assert all(a[1] < b[0] for a, b in pairwise(free)), "neighbors joined"
        assert arena.free_nbytes == sum(end - start for start, end in free)


TestAnArena = AnArena.TestCase


@given(st.lists(st.integers(0, 5000), max_size=30), st.randoms())
def test_a_freed_arena_is_one_piece(sizes: list[int], random) -> None:
    arena = Arena(1 << 16, 1 << 20)
    blocks = [arena.allocate(size) for size in sizes]
    random.shuffle(blocks)
    for address in blocks:
        arena.free(address)
    assert arena.free_ranges == ((1 << 16, (1 << 16) + (1 << 20)),)


def test_a_finalizer_may_free_during_an_allocation() -> None:
    arena = Arena(0, 1 << 10)

    class Owner:
        pass

    owner, address = Owner(), arena.allocate(512)
    owner.itself = owner  # type: ignore[attr-defined]
    weakref.finalize(owner, arena.free, address)
    del owner
    with arena._lock:  # as in an allocation that the collector interrupts
        gc.collect()
    assert arena.free_nbytes == 1 << 10


@pytest.mark.parametrize("alignment", [0, -1, 3])
def test_an_alignment_is_a_power_of_two(alignment: int) -> None:
    with pytest.raises(UsageError, match="power of two"):
        Arena(0, 64, alignment=alignment)
    with pytest.raises(UsageError, match="power of two"):
        Arena(0, 64).allocate(1, alignment)


def test_the_error_of_a_full_arena_has_its_sizes() -> None:
    arena = Arena(0, 1 << 10)
    arena.allocate(1000)
    with pytest.raises(MemoryError, match="no room for 1 bytes: 0 of 1024 are free, 0 in one"):
        arena.allocate(1)


def test_a_range_is_not_negative() -> None:
    with pytest.raises(UsageError, match="neither of which is negative"):
        Arena(-64, 64)
