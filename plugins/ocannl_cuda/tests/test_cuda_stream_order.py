"""The order of work on several streams, on emulated devices whose streams run it as late, or as early,
as their waits allow.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from textwrap import dedent

import pytest

from plugins.ocannl_cuda.tests import test_cuda_events, test_cuda_interop
from plugins.ocannl_cuda.tests.emulated import needs_emulation

pytestmark = needs_emulation


def orders(*early: str) -> pytest.MarkDecorator:
    """Return a mark for tests with streams that run their work as early as they may, as
    CUDA_EMULATOR_EARLY states them; with memory of its own for every tensor, and with memory that
    is used again.
    """
    every = [
        {"CUDA_EMULATOR_EARLY": each, "CUDA_EMULATOR_POOLED": pooled}
        for each, pooled in product(early, "01")
    ]
    return pytest.mark.parametrize("order", every, ids=lambda order: "-".join(order.values()))


every_order, every_order_of_two = orders("", "0", "others"), orders("", "0", "1")


def on_one(program: str, folder: Path, order: dict[str, str]) -> None:
    """Run a program of work with streams of a user, `stream`, beside that of the device."""
    start = """
    import ocannl_cuda
    with device:
        stream = device.driver.Stream(1)
        first, last = (device.driver.pagelocked_empty(12, np.float32) for _ in "ab")
    first[:] = cells.ravel()
    ctx[x] = np.zeros((4, 3))
    step()
    device.synchronize()
    addresses = [ctx.buffer(each).address for each in (x, y)]

    def read(address, of=stream):
        '''Enqueue a copy to the host on the stream of the user, or on another one.'''
        with device.current():
            device.driver.memcpy_dtoh_async(last, address, of)

    def wait():
        '''Wait for the stream of the user, and for no other.'''
        with device.current():
            stream.synchronize()
    """
    end = """
    device.synchronize()
    with device:
        device.driver.Context.synchronize()
        del stream, first, last, read
    """
    text = "\n".join(map(dedent, (start, program, end)))
    test_cuda_interop.check(test_cuda_interop.interop(text, folder, **order))


def on_two(program: str, folder: Path, order: dict[str, str]) -> None:
    test_cuda_events.check(test_cuda_events.on_two(program, folder, **order))


@every_order
def test_an_export_lets_the_stream_of_its_consumer_wait(
    order: dict[str, str], tmp_path: Path
) -> None:
    program = """
    buffer = ctx.buffer(y)
    ctx[x] = cells
    step()
    capsule = buffer.__dlpack__(stream=stream.handle)
    read(addresses[1])
    wait()
    assert last.tolist() == (2 * cells).ravel().tolist()
    """
    on_one(program, tmp_path, order)


@every_order
@pytest.mark.parametrize("way", ["capsule", "description"])
def test_memory_is_used_again_after_the_work_of_the_consumer_that_drops_it(
    way: str, order: dict[str, str], tmp_path: Path
) -> None:
    program = f"""
    def lent():
        third = oc.Context("cuda")
        run = third.compile(oc.train.forward(y))
        third[x] = cells
        run()
        buffer = third.buffer(y)
        {"given = buffer.__dlpack__(stream=stream.handle)" if way == "capsule" else ""}
        {"given = buffer, buffer.__cuda_array_interface__" if way == "description" else ""}
        return given, buffer.address

    given, address = lent()
    gc.collect()
    device.synchronize()
    read(address, {"stream" if way == "capsule" else "None"})
    del given
    gc.collect()
    again = [oc.Context("cuda") for _ in range(3)]  # one gets the memory
    for each in again:
        run = each.compile(oc.train.forward(x * 5.0))
        each[x] = 7.0
        run()
    device.synchronize()
    with device:
        device.driver.Context.synchronize()
    assert last.tolist() == (2 * cells).ravel().tolist()
    """
    on_one(program, tmp_path, order)


@every_order
def test_work_inside_of_on_stream_is_in_order_with_that_stream(
    order: dict[str, str], tmp_path: Path
) -> None:
    program = """
    for number in range(3):
        first += 1
        with ocannl_cuda.on_stream(stream):
            with device.current():
                device.driver.memcpy_htod_async(addresses[0], first, stream)
            step()
            read(addresses[1])
        wait()
        assert last.tolist() == (2 * (cells + number + 1)).ravel().tolist()
    """
    on_one(program, tmp_path, order)


@every_order
def test_adopted_memory_is_kept_until_the_work_that_reads_it_has_finished(
    order: dict[str, str], tmp_path: Path
) -> None:
    program = """
    class Freed(Tensor):
        '''Memory that its library writes as soon as nobody refers to it.'''

        def __del__(self):
            with device.current():
                device.driver.memcpy_htod_async(self.buffer.address, first, stream)

    first[:] = -1.0
    buffer = made(cells)
    device.synchronize()
    given = Described(buffer)
    given.owned = Freed(buffer)
    result = oc.placeholder("result", batch=[4], output=[3])
    ctx.adopt(x, given)
    del given
    step()
    copied = oc.Context("cuda")
    copied.compile(oc.train.forward(result * 1.0))
    copied.copy_from(ctx, {result: y})
    other = oc.Context("cuda")
    run = other.compile(oc.train.forward(x * 5.0))
    other[x] = 7.0
    del ctx, step
    gc.collect()
    run()  # looks for memory that is held no longer
    wait()
    assert copied[result].tolist() == (2 * cells).tolist()
    """
    on_one(program, tmp_path, order)


@every_order
def test_page_locked_blocks_are_filled_again_after_their_copies(
    order: dict[str, str], tmp_path: Path
) -> None:
    program = """
    sums = []
    for value in range(4):
        ctx[x] = np.full((4, 3), value)
        step()
        host = HostBuffer(np.empty((4, 3), np.float32), info)
        ocannl_cuda.ocannl_transfer(host, ctx.buffer(y))  # nobody waits for it
        ctx[x] = np.full((4, 3), 50 + value)
        step()
        sums.append(ctx[y].tolist())
    assert sums == [np.full((4, 3), 2 * (50 + value)).tolist() for value in range(4)]
    """
    on_one(
        "from ocannl_core.backend_api import HostBuffer\ninfo = ctx.buffer(y).info\n"
        + dedent(program),
        tmp_path,
        order,
    )


@every_order_of_two
@pytest.mark.parametrize("graphs", ["0", "1"])
def test_a_streamed_merge_buffer_is_read_before_its_source_is_written_again(
    graphs: str, order: dict[str, str], tmp_path: Path
) -> None:
    program = """
        from ocannl_core.runtime.store import BufferStore
        merge = second.compile(merged(total, y))
        second[total], sums = 0, 0
        BufferStore.follow = lambda store, event: None  # the backend orders a merge by itself
        for value in range(1, 5):
            first[x] = value
            step()
            second.fill_merge(y, source=first, streamed=True)
            first[x] = 50
            merge()
            step()
            sums += 2 * value
            assert second[total].tolist() == [sums] * 4
            assert first[y].tolist() == [100] * 4
        """
    on_two(program, tmp_path, order | {"OCANNL_CUDA__GRAPHS": graphs})


@every_order_of_two
def test_a_copy_between_devices_is_in_order_with_the_work_of_both(
    order: dict[str, str], tmp_path: Path
) -> None:
    program = """
        second[p], first[x] = 0, 0
        step()
        buffers = second.buffer(p), first.buffer(y)
        for value in range(3, 8):
            first[x] = value
            step()
            ocannl_cuda.ocannl_transfer(*buffers)
            follow()
            first[x] = 100
            step()  # overwrites what is being copied
            assert second[z].tolist() == [2 * value + 1] * 4
            assert first[y].tolist() == [200] * 4
        """
    on_two(program, tmp_path, order)


@every_order_of_two
def test_a_node_of_a_graph_follows_all_of_its_dependences(
    order: dict[str, str], tmp_path: Path
) -> None:
    program = """
        from ocannl_cuda.graphs import BoundLaunch, CudaGraph
        from ocannl_cuda.launches import KernelLaunch
        device, launches = device_of(first.target), []
        own = device.own
        device.own = lambda thing: (own(thing), launches.append(thing))
        left, right, a, b = (oc.placeholder(each, output=[4], dtype="int32") for each in "lrab")
        for each in (left, right, a, b):
            first[each] = 0
        runs = [first.compile(added(*each)) for each in ((left, a), (right, b), (right, left))]
        for each in runs:
            each()
        device.own = own
        three = [BoundLaunch(each, {}) for each in launches if isinstance(each, KernelLaunch)]
        assert len(three) == 3
        first[a], first[b] = 1, 10
        with device:
            graph = CudaGraph(device, three, {})
            graph.replay()
        assert first[left].tolist() == [1] * 4
        assert first[right].tolist() == [11] * 4
        """
    on_two(program, tmp_path, order | {"OCANNL_CUDA__GRAPHS": "1"})
