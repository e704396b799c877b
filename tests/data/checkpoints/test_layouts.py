"""Checkpoints of other programs: layouts, layers, files in several parts, and whole models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn

rng = np.random.default_rng(0)


def write(path: Path, arrays: dict[str, Any]) -> Path:
    """Write a file of the safetensors format, as its specification says."""
    at, header, data = 0, {}, b""
    for name, cells in arrays.items():
        content = np.ascontiguousarray(cells, np.float32).tobytes()
        shape, offsets = list(np.shape(cells)), [at, at + len(content)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        at, data = offsets[1], data + content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_sharded(folder: Path, arrays: dict[str, Any]) -> Path:
    """Write every array to a file of its own, and an index of them."""
    files = {name: f"model-{k}.safetensors" for k, name in enumerate(arrays)}
    for name, file in files.items():
        write(folder / file, {name: arrays[name]})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    return index


def loaded(path: Path, place: oc.Stored, *, layers: int = 0, **rows: Any) -> Any:
    """Load one parameter, with a leading axis of layers if there are some."""
    with oc.Session():
        if layers:
            x = oc.placeholder("x", output=rows.get("input") or rows["output"])
            made = nn.repeat_layers(lambda x: oc.param("w", **rows) @ x, x, layers=layers)
            w = made.params["w"]
            assert w.info
        else:
            w = oc.param("w", **rows)
        ctx = oc.Context("interp")
        oc.load(path, ctx, {"w": w}, names={"w": place}, strict=False)
        return ctx[w]


def test_a_part_of_a_transposed_matrix(tmp_path: Path) -> None:
    cells = rng.normal(size=(4, 6)).astype(np.float32)
    path = write(tmp_path / "m.safetensors", {"qkv": cells})
    place = oc.Stored("qkv", part=(1, 3), axis=1, transpose=(1, 0))
    found = loaded(path, place, output=[2, 1], input=[4])
    assert np.array_equal(found, cells[:, 2:4].T.reshape(2, 1, 4))


def test_every_layer_has_an_array(tmp_path: Path) -> None:
    arrays = {f"h.{k}.w": rng.normal(size=(4, 4)).astype(np.float32) for k in range(3)}
    path = write(tmp_path / "m.safetensors", arrays)
    found = loaded(path, oc.Stored("h.{layer}.w"), layers=3, output=[4], input=[4])
    assert np.array_equal(found, np.stack(list(arrays.values())))


def test_a_dense_layer_after_channels_of_torch(tmp_path: Path) -> None:
    """PyTorch flattens channels first, this library last."""
    cells = rng.normal(size=(5, 2 * 3 * 4)).astype(np.float32)
    path = write(tmp_path / "m.safetensors", {"fc": cells})
    place = oc.Stored("fc", shape=(-1, 2, 3, 4), transpose=(0, 2, 3, 1))
    found = loaded(path, place, output=[5], input=[3, 4, 2])
    assert np.array_equal(found, cells.reshape(5, 2, 3, 4).transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (oc.Stored("a", part=(0, 4), axis=1), "4 parts along axis 1"),
        (oc.Stored("a", shape=(5, 5)), "[4, 6] as [5, 5]"),
        (oc.Stored("a", transpose=(0, 2, 1)), "2 axes in the order (0, 2, 1)"),
        (oc.Stored("a", part=(0, 2)), "12 cells for 24"),
    ],
)
def test_a_layout_that_does_not_fit_is_a_difference(
    tmp_path: Path, place: oc.Stored, message: str
) -> None:
    path = write(tmp_path / "m.safetensors", {"a": np.zeros((4, 6))})
    line = "layout of w (there a): [4, 6] in the file, [8, 3] here (3->8): "
    with pytest.raises(oc.CheckpointError, match=re.escape(line + message)) as caught:
        loaded(path, place, output=[8], input=[3])
    assert "another oc.Stored in names=" in str(caught.value)


def test_the_layout_of_a_layer_is_one_of_its_cells(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {f"h.{k}.w": np.zeros((4, 3)) for k in range(2)})
    line = "(there h.0.w): [4, 3] in the file, [4, 4] for each layer here (2|4->4): 12 cells for 16"
    with pytest.raises(oc.CheckpointError, match=re.escape(line)):
        loaded(path, oc.Stored("h.{layer}.w"), layers=2, output=[4], input=[4])


@pytest.mark.parametrize(
    ("rows", "axes", "line"),
    [
        ({"output": [6], "input": [4]}, (1, 0), None),
        ({"output": [4], "input": [6]}, (1, 0), ", transposed [6, 4], [4, 6] here (6->4)"),
        ({"output": [4], "input": [6]}, (0,), ", transpose= has (0,)"),
        ({}, None, ", [] here (one cell: a tensor that is not used yet needs a stated shape)"),
    ],
)
def test_the_shape_in_the_file_is_the_one_before_axes_are_permuted(
    tmp_path: Path, rows: dict[str, Any], axes: Any, line: str | None
) -> None:
    path = write(tmp_path / "m.safetensors", {"a": np.zeros((4, 6))})
    w, ctx = oc.param("w", **rows), oc.Context("interp")
    changes: dict[str, Any] = {
        "names": {"w": "a"},
        "transpose": {} if axes is None else {"w": axes},
    }
    if line is None:
        oc.load(path, ctx, [w], **changes)
        return
    with pytest.raises(oc.CheckpointError) as caught:
        oc.load(path, ctx, [w], **changes)
    assert f"of w (there a): [4, 6] in the file{line}" in str(caught.value)


def test_a_missing_layer_is_a_difference(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"h.0.w": np.zeros((4, 4))})
    with pytest.raises(oc.CheckpointError, match="fills at least one tensor"):
        loaded(path, oc.Stored("h.{layer}.w"), layers=2, output=[4], input=[4])


def test_a_layout_is_checked_when_it_is_stated() -> None:
    for wrong in ({"part": (3, 3)}, {"transpose": (0, 2)}, {"axis": "x"}, {"name": ""}):
        with pytest.raises(oc.UsageError, match="The layout of an array"):
            oc.Stored(**{"name": "w", **wrong})


def test_a_checkpoint_in_several_files_loads_by_its_index(tmp_path: Path) -> None:
    arrays = {name: rng.normal(size=(2, 3)).astype(np.float32) for name in "ab"}
    index = write_sharded(tmp_path, arrays)
    a, b = (oc.param(name, output=[2], input=[3]) for name in "ab")
    ctx = oc.Context("interp")
    found = oc.load(index, ctx, [a, b])
    assert found.loaded == ("a", "b")
    assert np.array_equal(ctx[a], arrays["a"])
    assert np.array_equal(ctx[b], arrays["b"])


def test_arrays_that_are_not_used_can_be_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"w": np.ones(2), "h.0.attn.bias": np.ones(3)})
    w = oc.param("w", output=[2])
    with pytest.raises(oc.CheckpointError, match=r"unexpected in the file: h\.0\.attn\.bias"):
        oc.load(path, oc.Context("interp"), [w])
    assert oc.load(path, oc.Context("interp"), [w], ignore=["*.attn.bias"]).unexpected == ()


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        '{"weight_map": {}}',
        '{"weight_map": {"a": "../model-0.safetensors"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {"a": "..\\\\x.safetensors"}}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "model-9.safetensors"}}',
        '{"weight_map": {"other": "model-0.safetensors"}}',
        "\x00\xff",
    ],
)
def test_an_index_of_other_files_is_refused(tmp_path: Path, index: str) -> None:
    path = write_sharded(tmp_path, {"a": np.zeros(2)})
    path.write_text(index, encoding="latin-1")
    with pytest.raises(oc.CheckpointError):
        oc.load(path, oc.Context("interp"), [oc.param("a", output=[2])])


def gpt2_arrays(vocabulary: int, length: int, layers: int, width: int) -> dict[str, Any]:
    """Random weights by the names and in the layout of Hugging Face's GPT-2."""
    sizes = {"wte.weight": (vocabulary, width), "wpe.weight": (length, width)}
    for k in range(layers):
        for name, inputs, outputs in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            sizes |= {f"h.{k}.{name}.weight": (inputs, outputs), f"h.{k}.{name}.bias": (outputs,)}
        for name in ("ln_1", "ln_2"):
            sizes |= {f"h.{k}.{name}.weight": (width,), f"h.{k}.{name}.bias": (width,)}
        sizes[f"h.{k}.attn.bias"] = (1, 1, length, length)
    sizes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    return {name: 0.4 * rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}


def gpt2(ids: Any, w: dict[str, Any], layers: int, heads: int) -> Any:
    """GPT-2 for one sequence, from its paper and its names."""

    def norm(x: Any, name: str) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * w[name + ".weight"] + w[name + ".bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for k in range(layers):
        q, key, v = np.split(linear(norm(x, f"h.{k}.ln_1"), f"h.{k}.attn.c_attn"), 3, -1)
        mixed = []
        for one, other, value in zip(*(np.split(e, heads, -1) for e in (q, key, v)), strict=True):
            scores = one @ other.T / np.sqrt(one.shape[1])
            scores[np.triu_indices(len(ids), 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ value)
        x = x + linear(np.concatenate(mixed, -1), f"h.{k}.attn.c_proj")
        y = linear(norm(x, f"h.{k}.ln_2"), f"h.{k}.mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, f"h.{k}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_weights_of_gpt2_give_its_scores(tmp_path: Path, is_sharded: bool, prefix: str) -> None:
    arrays = gpt2_arrays(11, 6, layers=2, width=8)
    named = {prefix + name: cells for name, cells in arrays.items()}
    path = (
        write_sharded(tmp_path, named)
        if is_sharded
        else write(tmp_path / "model.safetensors", named)
    )
    ids = np.array([3, 1, 4, 1, 5])
    with oc.evaluation():
        scores = nn.gpt(
            oc.tensor(ids, batch_axes=1, dtype="int32"),
            vocabulary=11,
            layers=2,
            heads=2,
            width=4,
            length=6,
        )
    ctx = oc.Context("cpu_c")
    oc.load(path, ctx, scores, names=nn.gpt2_names, ignore=["*.attn.bias"])
    ctx.compile(oc.train.forward(scores))()
    expected = gpt2(ids, {k: v.astype(float) for k, v in arrays.items()}, layers=2, heads=2)
    np.testing.assert_allclose(ctx[scores], expected, rtol=1e-4, atol=1e-4)


def test_a_model_of_another_architecture_has_no_places(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"w": np.zeros(2)})
    for names in (nn.gpt2_names, nn.llama_names, nn.resnet_names):
        with pytest.raises(oc.UsageError, match="have places in its checkpoints"):
            oc.load(path, oc.Context("interp"), [oc.param("w", output=[2])], names=names)


def llama_arrays(
    layers: int, width: int, kv: int, hidden: int, *, has_biases: bool = False
) -> dict[str, Any]:
    """Random weights by the names of Hugging Face's Llama."""
    sizes = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (11, width))
    sizes["model.norm.weight"] = (width,)
    for k in range(layers):
        own = f"model.layers.{k}."
        for name, outputs, inputs in (
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", kv, width),
            ("self_attn.v_proj", kv, width),
            ("self_attn.o_proj", width, width),
            ("mlp.gate_proj", hidden, width),
            ("mlp.up_proj", hidden, width),
            ("mlp.down_proj", width, hidden),
        ):
            sizes[f"{own}{name}.weight"] = (outputs, inputs)
            if has_biases and name.startswith("self_attn") and name != "self_attn.o_proj":
                sizes[f"{own}{name}.bias"] = (outputs,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            sizes[f"{own}{name}.weight"] = (width,)
    return {name: 0.4 * rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}


def llama(
    ids: Any,
    w: dict[str, Any],
    layers: int,
    heads: int,
    kv_heads: int,
    *,
    window: int | None = None,
    embedding_scale: float = 1.0,
) -> Any:
    """Llama and its relatives for one sequence, in the conventions of Hugging Face."""

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w[name + ".weight"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def rotate(x: Any) -> Any:
        half = x.shape[1] // 2
        angle = np.outer(np.arange(len(x)), 10000.0 ** (-np.arange(half) / half))
        cos, sin = (np.tile(f(angle), 2) for f in (np.cos, np.sin))
        return x * cos + np.concatenate([-x[:, half:], x[:, :half]], 1) * sin

    x = w["model.embed_tokens.weight"][ids] * embedding_scale
    for k in range(layers):
        own = f"model.layers.{k}."
        y = norm(x, own + "input_layernorm")
        q = np.split(linear(y, own + "self_attn.q_proj"), heads, -1)
        key, v = (np.split(linear(y, f"{own}self_attn.{e}_proj"), kv_heads, -1) for e in ("k", "v"))
        mixed = []
        for head, one in enumerate(q):
            shared = head // (heads // kv_heads)
            scores = rotate(one) @ rotate(key[shared]).T / np.sqrt(one.shape[1])
            scores[np.triu_indices(len(ids), 1)] = -np.inf
            scores[np.tril_indices(len(ids), -(window or len(ids)))] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[shared])
        x = x + linear(np.concatenate(mixed, -1), own + "self_attn.o_proj")
        y = norm(x, own + "post_attention_layernorm")
        gate = linear(y, own + "mlp.gate_proj")
        gate = gate / (1 + np.exp(-gate)) * linear(y, own + "mlp.up_proj")
        x = x + linear(gate, own + "mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


@pytest.mark.parametrize(
    ("bias", "more"),
    [
        (False, {}),
        (False, {"window": 2}),  # Mistral
        ("qkv", {}),  # Qwen 2
        (False, {"embedding_scale": 8**0.5}),  # Gemma
    ],
)
def test_weights_of_llama_give_its_scores(
    tmp_path: Path, bias: bool | Literal["qkv"], more: dict[str, Any]
) -> None:
    arrays = llama_arrays(layers=2, width=8, kv=4, hidden=6, has_biases=bool(bias))
    path = write(tmp_path / "model.safetensors", arrays)
    ids = np.array([3, 1, 4, 1, 5])
    with oc.evaluation():
        scores = nn.gpt(
            oc.tensor(ids, batch_axes=1, dtype="int32"),
            vocabulary=11,
            layers=2,
            heads=4,
            width=2,
            hidden=6,
            kv_heads=2,
            rotary_base=10000.0,
            norm=nn.rms_norm,
            gated=True,
            activation=oc.silu,
            bias=bias,
            tied=False,
            **more,
        )
    ctx = oc.Context("cpu_c")
    oc.load(path, ctx, scores, names=nn.llama_names)
    ctx.compile(oc.train.forward(scores))()
    exact = {k: v.astype(float) for k, v in arrays.items()}
    expected = llama(ids, exact, layers=2, heads=4, kv_heads=2, **more)
    np.testing.assert_allclose(ctx[scores], expected, rtol=1e-4, atol=1e-4)


def test_names_of_residual_networks_are_those_of_torchvision() -> None:
    with oc.Session():
        net = nn.resnet(classes=10)
        scores = net(oc.placeholder("x", batch=[1], output=[64, 64, 3]))
        assert scores.info
        tensors = {**scores.params, **scores.statistics}
        places = {nn.resnet_names(name).name: t.info.dims for name, t in tensors.items()}
    assert len(places) == len(tensors) == 122  # of torchvision.models.resnet18().state_dict()
    assert places["conv1.weight"] == (64, 7, 7, 3)
    assert places["layer2.0.downsample.0.weight"] == (128, 1, 1, 64)
    assert places["layer4.1.bn2.running_var"] == (512,)
    assert places["layer1.0.bn1.num_batches_tracked"] == ()
    assert places["fc.bias"] == (10,)
    assert sum(int(np.prod(t.info.dims)) for t in scores.params) == 11_181_642
