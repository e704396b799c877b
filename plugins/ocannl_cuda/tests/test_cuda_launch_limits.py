"""Launches within limits that are planted in the emulated driver: folded grids, and refusals."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from plugins.ocannl_cuda.tests.emulated import NOTHING_LEFT, left_of, needs_emulation, run

pytestmark = needs_emulation

PROGRAM = """
import numpy as np
import ocannl_core as oc

random = np.random.default_rng(0)
x = oc.tensor(random.normal(size=(70, 24)).astype("float32"), batch_axes=1)
w = oc.tensor(random.normal(size=(90, 24)).astype("float32"), input_axes=1)
product = w @ x
rows = oc.softmax(product)
loss = oc.einsum("...|a => 0", oc.tanh(rows) * product)
results = [product, rows, loss]

def values(backend):
    ctx = oc.Context(backend)
    routine = ctx.compile(oc.train.forward(loss), keep=results)
    routine()
    return routine, [np.asarray(ctx[each]) for each in results]
"""
GRID_X, GRID_Y, THREADS, BLOCK_X, SHARED_BYTES, OPT_IN_BYTES = 5, 6, 1, 2, 8, 97


def limits(**values: int) -> str:
    return ",".join(f"{globals()[name]}:{value}" for name, value in values.items())


@pytest.mark.parametrize(("blocks", "graphs"), [(1, "0"), (2, "1"), (7, "0"), (16, "1")])
def test_a_grid_of_more_blocks_than_an_axis_has_is_folded(
    blocks: int, graphs: str, tmp_path: Path
) -> None:
    program = f"""
        import re
        routine, found = values("cuda")
        for each, other in zip(found, values("interp")[1]):
            np.testing.assert_allclose(each, other, rtol=2e-5, atol=1e-6)
        grids = [each.split(" x ") for each in re.findall("<<<([^,>]*),", routine.source)]
        assert all(int(each[0]) <= {blocks} for each in grids), grids
        assert any(len(each) == 2 for each in grids), grids
        print(len(grids))
        """
    variables = {"CUDA_EMULATOR_LIMITS": limits(GRID_X=blocks), "OCANNL_CUDA__GRAPHS": graphs}
    outcome = run(PROGRAM + dedent(program), tmp_path, sanitize=blocks == 7, **variables)
    assert (outcome.code, outcome.errors) == (0, ""), outcome.errors
    assert left_of(outcome) == NOTHING_LEFT


@pytest.mark.parametrize(
    "planted",
    [
        {"THREADS": 64},
        {"BLOCK_X": 32},
        {"THREADS": 128, "SHARED_BYTES": 4096, "OPT_IN_BYTES": 4096, "GRID_X": 5},
    ],
    ids=str,
)
def test_schedules_choose_launches_within_the_limits(
    planted: dict[str, int], tmp_path: Path
) -> None:
    program = """
        for each, other in zip(values("cuda")[1], values("interp")[1]):
            np.testing.assert_allclose(each, other, rtol=2e-5, atol=1e-6)
        """
    variables = {"CUDA_EMULATOR_LIMITS": limits(**planted)}
    outcome = run(PROGRAM + dedent(program), tmp_path, **variables)
    assert (outcome.code, outcome.errors) == (0, ""), outcome.errors


REFUSED = """
    try:
        values("cuda")
    except oc.LaunchLimitError as error:
        for part in (error.rule, error.found, error.where, error.fix):
            assert part, str(error)
        print(error.found)
        print(error.where)
"""


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"CUDA_EMULATOR_LIMITS": limits(GRID_X=2, GRID_Y=2)}, "blocks along axis y of the grid"),
        ({"CUDA_EMULATOR_REGISTERS": "0:4000"}, "registers of a block"),
        ({"CUDA_EMULATOR_LIMITS": "97:8"}, "bytes of shared memory of a block"),
    ],
    ids=["grid", "registers", "shared memory"],
)
def test_a_launch_beyond_a_limit_is_refused_before_the_driver_is_called(
    variables: dict[str, str], found: str, tmp_path: Path
) -> None:
    outcome = run(PROGRAM + dedent(REFUSED), tmp_path, **variables)
    assert (outcome.code, outcome.errors) == (0, ""), outcome.errors
    assert found in outcome.output
    assert "of which cuda:0 has at most" in outcome.output
    assert "kernel k_" in outcome.output
    assert "<string>:" in outcome.output  # the user's line
    assert outcome.left["launches"] == 0


def test_a_launch_that_an_operation_states_is_refused_with_the_users_line(tmp_path: Path) -> None:
    program = """
        import numpy as np
        import ocannl_core as oc
        from ocannl_core.tensor.custom import Apply, Op, TensorType, as_variable


        class Twice(Op):
            input_names, output_names = ("x",), ("y",)

            def make_node(self, x):
                return Apply(self, [as_variable(x)], [TensorType.of(as_variable(x))])

            def perform(self, node, inputs, outputs):
                outputs[0][0] = 2 * inputs[0]

            def cuda_code(self, node):
                return "y[threadIdx.x] = 2.0f * x[threadIdx.x];"

            def cuda_launch(self, node):
                return (1, 65536), (2048,)


        y = Twice()(oc.tensor(np.ones(4, "float32")))
        try:
            oc.Context("cuda").compile(oc.train.forward(y))
        except oc.LaunchLimitError as error:
            print(error)
        """
    outcome = run(dedent(program), tmp_path)
    assert (outcome.code, outcome.errors) == (0, ""), outcome.errors
    assert "2048 threads of a block, of which cuda:0 has at most 1024" in outcome.output
    assert (
        "65536 blocks along axis y of the grid, of which cuda:0 has at most 65535" in outcome.output
    )
    assert "Twice" in outcome.output
    assert "<string>:23" in outcome.output


def test_doctor_prints_the_limits_that_the_driver_states(tmp_path: Path) -> None:
    program = """
        from ocannl_core.cli import main

        main(["doctor", "cuda"])
        """
    outcome = run(dedent(program), tmp_path, CUDA_EMULATOR_LIMITS=limits(GRID_X=77, THREADS=512))
    found = (
        "OK    cuda:0, launches: at most 512 threads in a block (1024 x 1024 x 64), "
        "77 x 65535 x 65535 blocks, 232448 bytes of shared memory in a block (49152 declared), "
        "65536 registers"
    )
    assert found in outcome.output.splitlines(), outcome
