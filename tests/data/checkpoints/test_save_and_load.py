"""Checkpoints: everything that is saved comes back, and a load changes all tensors or none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.cli import main
from ocannl_core.ir.numbers.dtypes import ALL
from ocannl_core.ir.target import Target


def model() -> tuple[Any, Any]:
    """Return a small network and its loss."""
    x = oc.tensor(np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5), batch_axes=1)
    net = oc.nn.mlp(hidden=[3])
    error = net(x) - oc.tensor([[0.5, -0.5]], batch_axes=1)
    return net, oc.einsum("...|...->... => 0", error * error)


def context(loss: Any) -> oc.Context:
    ctx = oc.Context("interp")
    ctx.init_params(loss)
    return ctx


def cells(ctx: oc.Context, tensors: Any) -> dict[str, bytes]:
    return {name: ctx[tensor].tobytes() for name, tensor in tensors.items()}


def complaint(*args: Any, **keywords: Any) -> str:
    with pytest.raises(oc.CheckpointError) as error:
        oc.load(*args, **keywords)
    return str(error.value)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_bit_of_every_format_comes_back(target: Target, tmp_path: Path, dtype: Any) -> None:
    bits = np.random.default_rng(0).integers(0, 256, 6 * dtype.nbytes, dtype=np.uint8)
    with oc.Session():
        t = oc.declare("t", output=[2, 3], dtype=dtype)
        ctx = oc.Context(str(target))
        with oc.settings.overrides(allow_nan=True):
            ctx[t] = bits.view(dtype.numpy).reshape(2, 3)
        oc.save(tmp_path / "m.safetensors", ctx, [t])
        fresh = oc.Context(str(target))
        found = oc.load(tmp_path / "m.safetensors", fresh, [t])
        assert found.loaded == ("t",)
        assert fresh[t].tobytes() == ctx[t].tobytes() == bits.tobytes()


def test_a_tensor_and_its_network_save_the_same_parameters(tmp_path: Path) -> None:
    net, loss = model()
    ctx = context(loss)
    oc.save(tmp_path / "loss.safetensors", ctx, loss)
    oc.save(tmp_path / "net.safetensors", ctx, net)
    assert (tmp_path / "loss.safetensors").read_bytes() == (
        tmp_path / "net.safetensors"
    ).read_bytes()
    before = cells(ctx, loss.params)
    ctx.init_params(loss, reinitialize=True)
    for p in loss.params:
        ctx[p] = 0.0
    assert set(oc.load(tmp_path / "net.safetensors", ctx, net).loaded) == set(loss.params.keys())
    assert cells(ctx, loss.params) == before


def test_metadata_step_and_seed_come_back(tmp_path: Path) -> None:
    with oc.Session(seed=5):
        _, loss = model()
        ctx = context(loss)
        oc.save(tmp_path / "m.safetensors", ctx, loss, step=12, metadata={"note": "über"})
        found = oc.load(tmp_path / "m.safetensors", ctx, loss)
    assert (found.step, found.seed, found.metadata["note"]) == (12, 5, "über")
    assert '"mlp.dense.weight": "5->3"' in found.metadata["ocannl.shapes"]


def test_a_checkpoint_of_training_loads_without_its_optimizer(tmp_path: Path) -> None:
    _, loss = model()
    ctx = context(loss)
    opt = oc.train.Adam(learning_rate=0.1)
    ctx.compile(oc.train.grad_update(loss) + opt.update(loss))()
    oc.save(tmp_path / "m.safetensors", ctx, loss, optimizer=opt)
    assert oc.load(tmp_path / "m.safetensors", ctx, loss).unexpected == ()
    oc.save(tmp_path / "w.safetensors", ctx, loss)
    message = complaint(tmp_path / "w.safetensors", ctx, loss, optimizer=opt)
    assert "missing in the file: optimizer/updates" in message


def test_a_strict_load_lists_every_difference_and_changes_nothing(tmp_path: Path) -> None:
    ctx = oc.Context("interp")
    a, b, c = oc.declare("a", output=[2]), oc.declare("b", output=[2]), oc.declare("c", output=[2])
    for t in (a, b, c):
        ctx[t] = 1.0
    oc.save(tmp_path / "m.safetensors", ctx, {"a": a, "b": b, "c": c})
    wide = oc.declare("b", output=[3])
    half = oc.declare("c", output=[2], dtype="float16")
    ctx.assign({a: 2.0, wide: 2.0, half: 2.0})
    subject = {"b": wide, "c": half, "d": a}
    before = cells(ctx, subject)
    message = complaint(tmp_path / "m.safetensors", ctx, subject)
    for line in (
        "missing in the file: d",
        "unexpected in the file: a",
        "shape of b: [2] in the file, [3] here (3)",
        "format of c: float32 in the file, float16 here",
    ):
        assert line in message
    assert cells(ctx, subject) == before


def test_a_partial_load_reports_the_rest(tmp_path: Path) -> None:
    ctx = oc.Context("interp")
    a, b, c = (oc.declare(name, output=[2]) for name in "abc")
    ctx.assign({a: 1.0, b: 1.0})
    oc.save(tmp_path / "m.safetensors", ctx, [a, b])
    ctx.assign({b: 3.0, c: 3.0})
    found = oc.load(tmp_path / "m.safetensors", ctx, [b, c], strict=False)
    assert (found.loaded, found.missing, found.unexpected) == (("b",), ("c",), ("a",))
    assert ctx[b].tolist() == [1.0, 1.0]
    assert ctx[c].tolist() == [3.0, 3.0]
    assert "at least one tensor" in complaint(tmp_path / "m.safetensors", ctx, [c], strict=False)
    wide = oc.declare("a", output=[3])
    assert "shape of a" in complaint(tmp_path / "m.safetensors", ctx, [wide], strict=False)


def test_formats_convert_on_request_only(tmp_path: Path) -> None:
    ctx = oc.Context("interp")
    w = oc.declare("w", output=[2])
    ctx[w] = np.array([1.0 + 2**-20, 3e38], np.float32)
    oc.save(tmp_path / "m.safetensors", ctx, [w])
    double = oc.declare("w", output=[2], dtype="float64")
    assert "cast=True" in complaint(tmp_path / "m.safetensors", ctx, [double])
    oc.load(tmp_path / "m.safetensors", ctx, [double], cast=True)
    assert ctx[double].tolist() == ctx[w].tolist()
    half = oc.declare("w", output=[2], dtype="float16")
    message = complaint(tmp_path / "m.safetensors", ctx, [half], cast=True)
    assert "entry 'w' of" in message
    assert half not in ctx
    whole = oc.declare("w", output=[2], dtype="int32")
    assert "fractions" in complaint(tmp_path / "m.safetensors", ctx, [whole], cast=True)


def test_nothing_is_written_when_the_last_tensor_does_not_fit(tmp_path: Path) -> None:
    ctx = oc.Context("interp")
    first, last = oc.declare("first", output=[2]), oc.declare("last", output=[2])
    ctx.assign({first: 1.0, last: 3e38})
    oc.save(tmp_path / "m.safetensors", ctx, [first, last])
    ctx[first] = 5.0
    half = oc.declare("last", output=[2], dtype="float16")
    complaint(tmp_path / "m.safetensors", ctx, {"first": first, "last": half}, cast=True)
    assert ctx[first].tolist() == [5.0, 5.0]
    assert half not in ctx


def test_a_flipped_bit_of_a_cell_is_found(tmp_path: Path) -> None:
    ctx = oc.Context("interp")
    v, w = oc.declare("v", output=[2]), oc.declare("w", output=[2])
    ctx.assign({v: 1.0, w: 1.0})
    path = tmp_path / "m.safetensors"
    oc.save(path, ctx, [v, w])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    ctx.assign({v: 2.0, w: 2.0})
    message = complaint(path, ctx, [v, w])
    assert "checksum" in message
    assert f"entry 'w' of {path}" in message
    assert ctx[v].tolist() == ctx[w].tolist() == [2.0, 2.0]


def test_a_flipped_bit_changes_no_text_that_a_checkpoint_has_of_itself(tmp_path: Path) -> None:
    ctx = oc.Context("interp")
    w = oc.declare("w", output=[2])
    ctx[w] = 1.0
    path, loader = tmp_path / "m.safetensors", oc.data.Loader(np.zeros((4, 1)), batch=2)
    oc.save(path, ctx, [w], loader=loader, step=3, metadata={"note": "a"})
    whole, expected = path.read_bytes(), oc.load(path, ctx, [w], loader=loader)
    own = {key: text for key, text in expected.metadata.items() if key.startswith("ocannl.")}
    refused = 0
    for bit in range(8 * 8, 8 * whole.index(b"}}")):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            found = oc.load(path, ctx, [w], loader=loader)
        except oc.CheckpointError:
            refused += 1
            continue
        assert (found.step, found.seed, loader.state) == (3, expected.seed, (0, 0))
        changed = {key for key, text in own.items() if found.metadata.get(key) != text}
        assert changed <= {"ocannl.crc32", "ocannl.texts_crc32"}
    assert refused > 1000


def test_a_truncated_checkpoint_changes_nothing(tmp_path: Path) -> None:
    ctx = oc.Context("interp")
    w = oc.declare("w", output=[2])
    ctx[w] = 1.0
    path = tmp_path / "m.safetensors"
    oc.save(path, ctx, [w])
    content = path.read_bytes()
    ctx[w] = 2.0
    for size in range(len(content)):
        path.write_bytes(content[:size])
        complaint(path, ctx, [w])
    assert ctx[w].tolist() == [2.0, 2.0]


def test_checkpoints_of_an_open_shape_and_of_unset_tensors_are_errors(tmp_path: Path) -> None:
    ctx = oc.Context("interp")
    with pytest.raises(oc.LinkError) as caught:
        oc.save(tmp_path / "m.safetensors", ctx, [oc.declare("w", output=[2])])
    assert re.fullmatch(
        r"tensor w \(test_save_and_load.py:\d+: .*\), read at test_save_and_load.py:\d+: oc.save.*",
        caught.value.where,
    )
    with pytest.raises(oc.ShapeError):
        oc.save(tmp_path / "m.safetensors", ctx, [oc.declare("w")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((3,), {}, "takes a tensor, a block"),
        (({"w": 3},), {}, "takes a tensor, a block"),
        (([3],), {}, "takes a tensor, a block"),
        (({},), {}, "A checkpoint has tensors"),
        ((oc.nn.mlp(hidden=[3]),), {}, "exist once it has been applied"),
        (([],), {"step": -1}, "number of steps"),
        (([],), {"step": True}, "number of steps"),
        (([],), {"metadata": {"ocannl.step": "3"}}, "reserved"),
        (([],), {"metadata": {"a": 3}}, "texts by key"),
    ],
)
def test_wrong_arguments_are_errors(
    tmp_path: Path, arguments: Any, keywords: Any, message: str
) -> None:
    with pytest.raises(oc.UsageError, match=message):
        oc.save(tmp_path / "m.safetensors", oc.Context("interp"), *arguments, **keywords)


def test_a_block_is_saved_with_blocks_from_outside_that_its_body_uses(tmp_path: Path) -> None:
    path, ctx = tmp_path / "m.safetensors", oc.Context("interp")
    encoder, scale = oc.nn.dense(output=[3]), oc.param("scale", output=[3], input=[])
    net = oc.op(lambda x: oc.nn.dense(scale * encoder(x), output=[2]))()
    y = net(oc.tensor([1.0, 2.0]))
    ctx.init_params(y)
    oc.save(path, ctx, net)
    assert set(oc.load(path, ctx, y).loaded) == set(y.params.keys())


def test_the_state_of_a_second_optimizer_is_part_of_the_subject(tmp_path: Path) -> None:
    path, ctx = tmp_path / "m.safetensors", oc.Context("interp")
    loss = oc.sum(oc.param("w", output=[2]) * oc.tensor([1.0, 2.0]))
    first, second = (oc.train.Adam(learning_rate=0.1) for _ in range(2))
    step = ctx.compile(first.minimize(loss) + second.minimize(loss))
    ctx.init_params(loss)
    step()
    with pytest.raises(oc.UsageError, match="is an optimizer") as error:
        oc.save(path, ctx, loss, optimizer=[first, second])  # type: ignore[arg-type]
    assert "part of the subject" in error.value.fix
    subject = {**loss.params, **{f"second/{n}": t for n, t in second.state.items()}}
    oc.save(path, ctx, subject, optimizer=first)
    moments = [ctx[opt.state["w.first_moment"]] for opt in (first, second)]
    step()
    oc.load(path, ctx, subject, optimizer=first)
    for opt, cells in zip((first, second), moments, strict=True):
        assert np.array_equal(ctx[opt.state["w.first_moment"]], cells)


def test_reserved_names_and_optimizers_without_code_are_errors(tmp_path: Path) -> None:
    path, ctx = tmp_path / "m.safetensors", oc.Context("interp")
    w = oc.declare("w", output=[1])
    for name in ("__metadata__", "optimizer/w", ""):
        with pytest.raises(oc.UsageError, match="reserved"):
            oc.save(path, ctx, {name: w})
    with pytest.raises(oc.UsageError, match=r"compile opt\.update"):
        oc.save(path, ctx, [w], optimizer=oc.train.Adam(learning_rate=0.1))
    with pytest.raises(oc.UsageError, match="which has a `state`"):
        oc.save(path, ctx, [w], optimizer=0.1)  # type: ignore[arg-type]


def test_tensors_with_fewer_cells_than_their_extent_are_errors(tmp_path: Path) -> None:
    ctx = oc.Context("interp")
    x = oc.placeholder("x", batch=[oc.static_extent("n", max=4)], output=[1])
    ctx[x] = np.ones((2, 1))
    with pytest.raises(oc.UsageError, match="have all their cells"):
        oc.save(tmp_path / "m.safetensors", ctx, [x])
    assert list(tmp_path.iterdir()) == []


def test_wrong_names_and_axes_are_errors(tmp_path: Path) -> None:
    path, ctx = tmp_path / "m.safetensors", oc.Context("interp")
    w = oc.declare("w", output=[1, 2])
    ctx[w] = 1.0
    oc.save(path, ctx, [w])
    with pytest.raises(oc.UsageError, match="no tensor for 'v'"):
        oc.load(path, ctx, [w], names={"v": "w"})
    with pytest.raises(oc.UsageError, match="none for 'v'"):
        oc.load(path, ctx, [w], transpose={"v": (1, 0)})
    assert "transpose= has (0, 0)" in complaint(path, ctx, [w], transpose={"w": (0, 0)})
    assert "tensor's extents" in complaint(path, ctx, [w], transpose={"w": np.ravel})
    assert "can be read" in complaint(tmp_path / "none.safetensors", ctx, [w])


def test_the_command_shows_a_checkpoint_and_reports_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ctx = oc.Context("interp")
    w = oc.declare("w", output=[2], input=[3])
    ctx[w] = 1.0
    path = tmp_path / "m.safetensors"
    oc.save(path, ctx, {"w\x1b[31m": w}, step=7)
    assert main(["checkpoint", "show", "--verify", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "w\\x1b[31m  float32  3->2      24" in shown
    assert "step: 7" in shown
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main(["checkpoint", "show", str(path)]) == 0
    assert main(["checkpoint", "show", "--verify", str(path)]) == 1
    assert "checksum" in capsys.readouterr().err


def test_assigning_several_tensors_changes_all_or_none() -> None:
    ctx = oc.Context("interp")
    a, b = oc.declare("a", output=[2]), oc.declare("b", output=[2])
    ctx.assign({a: 1.0, b: [2.0, 3.0]})
    assert ctx[a].tolist() + ctx[b].tolist() == [1.0, 1.0, 2.0, 3.0]
    with pytest.raises(oc.ShapeError):
        ctx.assign({a: 5.0, b: [1.0, 2.0, 3.0]})
    assert ctx[a].tolist() == [1.0, 1.0]
