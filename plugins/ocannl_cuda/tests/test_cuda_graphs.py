"""Routines that replay as CUDA graphs, with the real PyCUDA above an emulated driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.ocannl_cuda.tests.emulated import NOTHING_LEFT, Outcome, left_of, needs_emulation, run

pytestmark = needs_emulation

TRAINING = """
    import hashlib
    import numpy as np
    import ocannl_core as oc

    random = np.random.default_rng(0)
    x = oc.tensor(random.standard_normal((6, 4, 3)).astype(np.float32), batch_axes=2)
    y = oc.tensor(random.standard_normal((6, 4, 2)).astype(np.float32), batch_axes=2)
    i = oc.static_index("i", range=6)
    hidden = oc.tanh(oc.param("w", output=[5]) @ x[i] + oc.param("b", output=[5], init=0.0))
    loss = oc.einsum("...|... => 0", (oc.param("v") @ hidden - y[i]) ** 2.0)
    ctx = oc.Context("cuda")
    code = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.02)
    step = ctx.compile(code, bindings=[i])
    ctx.init_params(loss)
    for number in (0, 1, 1, 5, 2, 3, 3, 4, 0):
        step(i=number)
    print(hashlib.sha256(b"".join(ctx[p].tobytes() for p in loss.params)).hexdigest())
"""


def with_graphs(program: str, folder: Path, **variables: str) -> Outcome:
    return run(program, folder, OCANNL_CUDA__GRAPHS="1", **variables)


def test_a_replayed_step_has_the_bits_of_one_launched_kernel_by_kernel(tmp_path: Path) -> None:
    plain, replayed = run(TRAINING, tmp_path), with_graphs(TRAINING, tmp_path)
    assert (plain.errors, replayed.errors) == ("", "")
    assert replayed.output == plain.output
    assert plain.left["graph_launches"] == 0
    # the first run launches kernels, and those that follow replay
    assert replayed.left["graph_launches"] == 8
    assert replayed.left["launches"] < plain.left["launches"] / 3
    assert left_of(replayed) == NOTHING_LEFT


def test_a_graph_follows_its_tensors_to_other_memory(tmp_path: Path) -> None:
    outcome = with_graphs(
        """
        import numpy as np
        import ocannl_core as oc
        x, w = oc.tensor(np.ones((8, 8), np.float32)), oc.tensor(np.eye(8, dtype=np.float32))
        hidden = oc.einsum("ij; jk => ik", x, w)
        y = oc.tanh(oc.einsum("ij; ik => jk", hidden, hidden))
        ctx = oc.Context("cuda")
        routine = ctx.compile(oc.train.forward(y), keep=[y, x])
        for _ in range(3):
            routine()
        first = ctx[y]
        address = ctx.buffer(x).address
        other = oc.Context("cuda")  # shares the cells of the literal
        other.compile(oc.train.forward(oc.exp(x)), keep=[x])()
        ctx[x] = np.zeros((8, 8), np.float32)  # so it gets memory of its own here
        assert ctx.buffer(x).address != address
        for _ in range(3):
            routine()
            assert not ctx[y].any()
        assert np.allclose(first, np.tanh(8.0))
        """,
        tmp_path,
    )
    assert (outcome.errors, outcome.code) == ("", 0)
    assert outcome.left["graph_launches"] > 0
    assert left_of(outcome) == NOTHING_LEFT


SCAN = """
    import numpy as np
    import ocannl_core as oc
    xs = oc.tensor(np.arange(30, dtype=np.float32).reshape(10, 3) / 30, batch_axes=1)
    w = oc.tensor(np.full((3, 3), 0.25, np.float32), input_axes=1)

    def body(carry, x):
        new = oc.tanh(w @ carry + x)
        return new, new

    ys, last = oc.scan(body, oc.tensor(np.zeros(3, np.float32)), xs)
    ctx = oc.Context("cuda")
    routine = ctx.compile(oc.train.forward(ys), keep=[ys])
    for _ in range(4):
        routine()
    print(ctx[ys].tobytes().hex())
"""


def test_a_loop_over_time_is_unrolled_into_one_graph(tmp_path: Path) -> None:
    plain, replayed = run(SCAN, tmp_path), with_graphs(SCAN, tmp_path)
    assert (plain.errors, replayed.errors) == ("", "")
    assert replayed.output == plain.output
    assert replayed.left["graph_launches"] == 3


def test_operations_in_python_and_checks_of_positions_split_a_graph(tmp_path: Path) -> None:
    outcome = with_graphs(
        """
        import numpy as np
        import ocannl_core as oc
        table = oc.tensor(np.arange(12, dtype=np.float32).reshape(4, 3))
        ids = oc.placeholder("ids", batch=[5], dtype="int32")
        rows = oc.take(table, ids, axis=0)
        y = oc.exp(oc.tanh(rows) * 2.0)
        ctx = oc.Context("cuda")
        routine = ctx.compile(oc.train.forward(y))
        for number in range(4):
            ctx[ids] = np.array([0, 1, 2, 3, number])
            routine()
            expected = np.exp(2 * np.tanh(np.arange(12).reshape(4, 3)[[0, 1, 2, 3, number]]))
            assert np.allclose(ctx[y], expected)
        ctx[ids] = np.array([0, 1, 2, 3, 4])
        try:
            routine()
        except oc.UsageError as error:
            print(error)
        """,
        tmp_path,
    )
    assert (outcome.errors, outcome.code) == ("", 0)
    assert "4" in outcome.output
    assert left_of(outcome) == NOTHING_LEFT


FAILING = """
    import numpy as np
    import ocannl_core as oc
    x = oc.tensor(np.ones((8, 8), np.float32))
    product = oc.einsum("ij; jk => ik", x, x)
    y = oc.einsum("ij; ik => jk", product, product)  # each cell reads all rows of the other one
    ctx = oc.Context("cuda")
    routine = ctx.compile(oc.train.forward(y), name="evaluation")
    try:
        for _ in range(3):
            routine()
        ctx.synchronize()
    except (oc.LinkError, oc.DeviceError) as error:
        print(error)
"""


@pytest.mark.parametrize("function", ["cuGraphInstantiateWithFlags", "cuGraphLaunch"])
def test_a_graph_that_the_driver_refuses_is_an_error_with_its_kernels(
    function: str, tmp_path: Path
) -> None:
    outcome = with_graphs(FAILING, tmp_path, CUDA_EMULATOR_FAIL=f"{function}:1")
    assert (outcome.errors, outcome.code) == ("", 0)
    assert f"{function} failed" in outcome.output
    assert "a graph of 2 launches" in outcome.output
    assert "kernel k_" in outcome.output
    assert left_of(outcome) == NOTHING_LEFT


def test_a_kernel_that_cannot_be_captured_is_named(tmp_path: Path) -> None:
    # the first run has two launches; the next one is captured
    outcome = with_graphs(FAILING, tmp_path, CUDA_EMULATOR_FAIL="cuLaunchKernel:4")
    assert (outcome.errors, outcome.code) == ("", 0)
    assert "cuLaunchKernel failed" in outcome.output
    assert "a graph" not in outcome.output
    assert "kernel k_" in outcome.output
    assert left_of(outcome) == NOTHING_LEFT


def test_the_late_error_of_a_kernel_names_the_routines_that_ran(tmp_path: Path) -> None:
    program = f"""{FAILING}
    from ocannl_cuda.device import device_of
    device_of(ctx.target).note_run("training")
    try:
        raise device_of(ctx.target).failure(RuntimeError("unspecified launch failure"))
    except oc.DeviceError as error:
        print(error)
    """
    outcome = run(program, tmp_path)
    assert "some kernel of training, since the last synchronization" in outcome.output


def test_blocking_launches_are_not_captured(tmp_path: Path) -> None:
    outcome = with_graphs(FAILING, tmp_path, CUDA_LAUNCH_BLOCKING="1")
    assert (outcome.errors, outcome.code) == ("", 0)
    assert outcome.left["graph_launches"] == 0


def test_a_process_ends_cleanly_with_live_graphs_and_queued_replays(tmp_path: Path) -> None:
    outcome = with_graphs(f"{FAILING}\n    kept = [ctx, routine]\n    routine()\n", tmp_path)
    assert (outcome.errors, outcome.code) == ("", 0)
    assert left_of(outcome) == NOTHING_LEFT
