"""GPT-2 in the published layout against NumPy, and its tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ocannl_core as oc

Example = Callable[[str], ModuleType]
Weights = dict[str, npt.NDArray[np.float32]]
VOCABULARY, POSITIONS, WIDTH, HEADS, LAYERS = 30, 12, 24, 3, 2
SIZES = {
    "vocabulary": VOCABULARY,
    "length": POSITIONS,
    "layers": LAYERS,
    "heads": HEADS,
    "width": WIDTH // HEADS,
}


def random_weights() -> Weights:
    """Return weights with the names and axes of Hugging Face's files."""
    random = np.random.default_rng(0)
    shapes = {"wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (POSITIONS, WIDTH)}
    for n in range(LAYERS):
        for part, inputs, outputs in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ):
            shapes |= {f"h.{n}.{part}.weight": (inputs, outputs), f"h.{n}.{part}.bias": (outputs,)}
        for part in ("ln_1", "ln_2"):
            shapes |= {f"h.{n}.{part}.{kind}": (WIDTH,) for kind in ("weight", "bias")}
    shapes |= {f"ln_f.{kind}": (WIDTH,) for kind in ("weight", "bias")}
    return {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def scores(weights: Weights, ids: list[int]) -> npt.NDArray[np.float64]:
    """Return the scores of the token after each of some, by the formulas of the paper."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}

    def norm(x: Any, name: str) -> Any:
        centered = x - x.mean(axis=-1, keepdims=True)
        scaled = centered / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for n in range(LAYERS):
        q, k, v = (
            part.reshape(len(ids), HEADS, -1).transpose(1, 0, 2)
            for part in np.split(linear(norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn"), 3, axis=-1)
        )
        weight = q @ k.transpose(0, 2, 1) / math.sqrt(WIDTH // HEADS)
        weight = np.where(np.tril(np.ones((len(ids), len(ids)))), weight, -np.inf)
        weight = np.exp(weight - weight.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True)
        heads = (weight @ v).transpose(1, 0, 2).reshape(len(ids), WIDTH)
        x = x + linear(heads, f"h.{n}.attn.c_proj")
        h = linear(norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc")
        h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + linear(h, f"h.{n}.mlp.c_proj")
    return np.asarray(norm(x, "ln_f") @ w["wte.weight"].T)


def write_safetensors(path: Path, arrays: Weights) -> None:
    header, start = {}, 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": "F32",
            "shape": array.shape,
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
    text = json.dumps(header).encode()
    parts = [len(text).to_bytes(8, "little"), text, *(a.tobytes() for a in arrays.values())]
    path.write_bytes(b"".join(parts))


def test_the_published_layout_gives_the_scores_of_the_formulas(
    example: Example, tmp_path: Path
) -> None:
    gpt2 = example("gpt2")
    weights = random_weights()
    file = tmp_path / "model.safetensors"
    write_safetensors(file, {**weights, "h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32)})
    model = gpt2.Model(SIZES, 8, file)
    text = model.generate([5, 2, 9], temperature=0).tolist()
    assert text[:3] == [5, 2, 9]
    expected = scores(weights, text)
    assert text[3:] == expected.argmax(axis=-1)[2:-1].tolist()
    assert model.parameters == sum(each.size for each in weights.values())
    found = model.block(oc.tensor(np.array([text], np.int32), batch_axes=2))
    model.ctx.compile(oc.train.forward(found))()
    np.testing.assert_allclose(model.ctx[found][0], expected, rtol=2e-4, atol=2e-4)


def test_a_file_without_a_layer_is_refused(example: Example, tmp_path: Path) -> None:
    gpt2 = example("gpt2")
    weights = {k: v for k, v in random_weights().items() if not k.startswith("h.1.mlp")}
    write_safetensors(tmp_path / "part.safetensors", weights)
    with pytest.raises(
        oc.CheckpointError, match=r"missing in the file: h\.\{layer\}\.mlp\.c_fc\.weight"
    ):
        gpt2.Model(SIZES, 4, tmp_path / "part.safetensors")


def test_the_model_of_124_million_parameters_has_its_published_size(example: Example) -> None:
    model = oc.nn.gpt(**example("gpt2").SMALL)
    scores = model(oc.tensor([[0]], batch_axes=2, dtype="int32"))
    assert oc.summary(scores).parameters == 124_439_808


def test_a_text_comes_back_from_its_tokens(example: Example, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    text = "hello the hill's 27 naïve… \N{SNOWMAN}\n"
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator([text] * 3, vocab_size=270, show_progress=False)
    trained.save_model(str(tmp_path))
    found = example("gpt2").tokenizer(tmp_path)
    ids = found.encode(text).ids
    assert max(ids) >= 256
    assert len(ids) < len(text.encode())
    assert found.decode(ids) == text
