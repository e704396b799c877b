"""Wrong arguments of public callables."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Literal

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.tensor.messages.annotations import annotation_of, fits, in_words

from ...fuzz.junk import Bench, doors

X: Any = "junk"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: oc.NetworkBlock(X, x, x), "function"),
        (lambda x: oc.require_shape(np.ones(3), "3"), "tensor"),
        (lambda x: oc.topk(x, X), "k"),
        (lambda x: x.topk(X), "k"),
        (lambda x: oc.arange(2**70), "start"),
        (lambda x: oc.arange(-(2**63), stop=1), "start"),
        (lambda x: oc.hardswish(X), "x"),
        (lambda x: oc.nn.avg_pool(x, axes=10**30), "axes"),
        (lambda x: oc.nn.max_pool(x, axes=1, padded="valid"), "padded"),
        (lambda x: oc.einmax("i=+k => i", x, values={"k": 3}, padded=2), "padded"),
        (lambda x: x.sum(keepdims="no"), "keepdims"),
        (lambda x: oc.nn.causal_mask(X), "length"),
        (lambda x: oc.nn.causal_mask(True), "length"),
        (lambda x: oc.nn.resize(x, [2**40]), "sizes"),
        (lambda x: oc.train.AdamW(lr=0.1), "learning_rate"),
        (lambda x: oc.train.SGD(learning_rate=0.1, skip_outliers=X), "skip_outliers"),
        (lambda x: oc.train.Adam(learning_rate=0.1, groups=[X]), "groups"),
        (lambda x: oc.data.windows(X, 2), "ids"),
        (lambda x: oc.data.Batch(3, 2), "arrays"),
        (lambda x: oc.data.Loader(np.ones(3), batch=2, slots=X), "slots"),
        (lambda x: oc.Context("interp").assign(X), "values"),
        (lambda x: oc.Context("interp").compile_all([None]), "computations"),
        (lambda x: oc.settings.other_arguments(X and 3), "arguments"),
        (lambda x: oc.Tensor(X), "session"),
        (lambda x: oc.custom.Broadcast(X), "scalar"),
        (lambda x: oc.save("a\0.safetensors", oc.Context("interp"), [x]), "path"),
        (lambda x: oc.load("\ud800.safetensors", oc.Context("interp"), [x]), "path"),
        (lambda x: oc.save("a", oc.Context("interp"), metadata={"a": "\udc80"}), "metadata"),
        (lambda x: oc.graph(x).save("\0.svg"), "embedded null"),
    ],
)
def test_the_error_names_the_argument(call: Callable[[oc.Tensor], Any], name: str) -> None:
    with pytest.raises(oc.UsageError) as caught:
        call(oc.tensor(np.ones((3, 4))))
    assert name in str(caught.value)
    assert "test_call_errors.py" in caught.value.where


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        (lambda x: oc.train.Adam(learning_rate=0.1, epsilon=1e-5), "write eps= for epsilon="),
        (lambda x: oc.train.Adam(learning_rate=0.1, beta_1=0.8), "write betas=(0.9, 0.999) for"),
        (lambda x: oc.nn.mlp(x, hidden=[2], output=[2], activation="gelu"), "activation=oc.gelu"),
    ],
)
def test_the_advice_is_the_spelling_here(call: Callable[[oc.Tensor], Any], fix: str) -> None:
    with pytest.raises(oc.UsageError) as caught:
        call(oc.tensor(np.ones((3, 4))))
    assert fix in caught.value.fix


@pytest.mark.parametrize("arguments", [{"inplace": True}, {"padded": "valid"}])
def test_the_error_about_an_argument_names_the_operation(arguments: dict[str, Any]) -> None:
    with pytest.raises(oc.UsageError) as caught:
        oc.relu(oc.tensor([1.0]), **arguments)
    assert caught.value.rule.startswith("oc.relu takes ")
    assert next(iter(arguments)) in caught.value.found


def test_methods_of_objects_that_calls_return_name_their_arguments() -> None:
    program = """
import numpy as np
import ocannl_core as oc

ctx = oc.Context("interp")
routine = ctx.compile(oc.train.forward(oc.tensor(np.ones(3)) * 2.0))
try:
    routine.profile("a")
except oc.UsageError as error:
    print(error.rule)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "Routine.profile takes a number as seconds.\n", done.stderr


def test_the_error_describes_the_parameter_as_its_docstring_does() -> None:
    with pytest.raises(oc.UsageError) as caught:
        oc.train.AdamW(learning_rate=0.1, clip_norm=X)
    assert "AdamW takes a number or None as clip_norm." in str(caught.value)
    assert caught.value.fix.startswith("clip_norm: The largest norm of all gradients together;")


def test_errors_of_functions_of_the_user_stay_as_they_are() -> None:
    def activation(x: oc.Tensor) -> oc.Tensor:
        return [][3]

    with pytest.raises(IndexError):
        oc.nn.mlp(oc.tensor(np.ones(3)), hidden=2, output=X, activation=activation)


def test_differences_are_taken_at_most_as_often_as_there_are_cells() -> None:
    x = oc.tensor(np.ones((3, 4)))
    for n in (-1, 5, 2**31):
        with pytest.raises(oc.UsageError, match="at most as often"):
            x.diff(n)
    assert x.diff(3).shape.output == oc.tensor(np.ones((3, 1))).shape.output


def test_annotations_of_public_callables_are_understood_when_a_program_runs() -> None:
    unknown = []
    for door in doors():
        function: Any = door.get(Bench())
        owner = function if isinstance(function, type) else None
        function = inspect.unwrap(function.__init__ if owner else function)
        function = getattr(function, "_function", function)
        unknown += [
            f"{door.title}: {each}"
            for each in door.parameters
            if inspect.isfunction(function)
            and each.annotation not in ("Any", "Number", each.empty, Any)
            and annotation_of(each, function, owner) is Any
        ]
    assert not unknown


@pytest.mark.parametrize(
    ("note", "good", "bad", "text"),
    [
        (int, (1, np.int64(2), True), (1.0, "1", None, 2**63), "an integer of 64 bits"),
        (bool, (True, np.True_, 0), (2, "no", None), "True or False"),
        (float, (1, 1.5, np.float32(1)), ("1", None, 1j), "a number"),
        (int | None, (None, 1), ("a",), "an integer of 64 bits or None"),
        (Literal["a", "b"], ("a",), ("c", 0), "'a' or 'b'"),
        (Sequence[int], ([1], (), np.ones(2, int), range(3)), (["a"], "a", 1, {1}), "a sequence (each an integer of 64 bits)"),
        (Iterable[str], ("ab", ["a"], iter("a")), ([1], 1), "an iterable (each a string)"),
        (tuple[int, int], ((1, 2), [1, 2]), ((1,), (1, "a")), "a tuple of 2: an integer of 64 bits, an integer of 64 bits"),
        (Mapping[str, int], ({"a": 1}, {}), ({1: 1}, [1]), "a mapping (each a string and an integer of 64 bits)"),
        (Set[int], ({1}, frozenset()), ("a", [1], {"a"}), "a set (each an integer of 64 bits)"),
        (Callable[..., int], (len, int), (1, "len"), "a function"),
        (Callable[[int], int], (len, abs, int, lambda x, y=1: x, lambda *x: x), (1, lambda: 1, divmod), "a function of 1 argument"),
        (oc.Tensor, (), (1, "x"), "a Tensor"),
        (Any, (1, None, object), (), "Any"),
    ],
)  # fmt: skip
def test_values_fit_annotations(
    note: Any, good: tuple[Any, ...], bad: tuple[Any, ...], text: str
) -> None:
    assert all(fits(each, note) for each in good)
    assert not any(fits(each, note) for each in bad)
    assert in_words(note) == text


def pictures() -> oc.Tensor:
    return oc.placeholder("x", batch=[2], output=[8, 8, 3])


@oc.op
def small(x: oc.Tensor) -> oc.Tensor:
    return oc.nn.dense(x, output=[4])


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: oc.nn.conv2d(pictures(), kernel_size=3, channels=8), "kernel= for kernel_size="),
        (lambda: oc.nn.dense(pictures(), activation="relu"), r"oc\.relu\(oc\.nn\.dense\("),
        (
            lambda: oc.nn.dense(pictures(), in_features=3, out_features=8),
            r"write output=\[\.\.\.\] for out_features=; sizes of inputs are inferred",
        ),
        (lambda: oc.nn.gru(pictures(), hidden_size=8, num_layers=2), "layers= for num_layers="),
        (lambda: oc.nn.gpt(vocab_size=8, n_layer=2), "write vocabulary= for vocab_size="),
        (lambda: oc.zeros((2,), device="cpu"), "a context is a device"),  # type: ignore[call-arg]
        (lambda: oc.param("w", init="xavier"), r"init=oc\.xavier\(\)"),
        (
            lambda: oc.param("w", batch=[4], output=[10], input=[8]),  # type: ignore[call-arg]
            r"try    oc\.param\(.*makes a batch axis",
        ),
        (
            lambda: oc.nn.conv2d(pictures(), channels=8, padding=1),
            "padded=True or False for padding=",
        ),
        (lambda: oc.nn.max_pool2d(pictures(), kernel_size=2), "window= for kernel_size="),  # type: ignore[call-arg]
        (lambda: oc.nn.dense(pictures(), 64), r"oc\.nn\.dense\(x, output=\[64\]\)"),
        (lambda: oc.zeros(2, 3), r"oc\.zeros\(\(2, 3\)\)"),  # type: ignore[misc]
        (lambda: oc.train.Adam(1e-3), r"learning_rate=0\.001"),  # type: ignore[misc, call-arg]
        (lambda: oc.var(pictures(), unbiased=True), "ddof=0 or 1 for unbiased="),  # type: ignore[call-arg]
        (
            lambda: oc.data.Loader([1.0], batch_size=1),  # type: ignore[call-arg]
            "batch= for batch_size=",
        ),
        (
            lambda: oc.train.forward(pictures(), pictures()),  # type: ignore[arg-type]
            r"oc\.train\.forward\(a\) \+ oc\.train\.forward\(b\)",
        ),
        (lambda: oc.summary(small), r"oc\.summary\(net\(x\)\)"),  # type: ignore[arg-type]
        (lambda: oc.gradients(pictures(), small(pictures()).params), r"list\(loss\.params\)"),
    ],
)
def test_habits_of_other_libraries_have_advice(call: Callable[[], object], advice: str) -> None:
    with pytest.raises(oc.UsageError, match=advice):
        call()


@pytest.mark.parametrize("name", ["parameters", "fit", "summary", "eval"])
def test_blocks_advise_on_attributes_of_models(name: str) -> None:
    with pytest.raises(AttributeError, match="no attribute params"):
        _ = small.params
    for block in (small, small()):
        with pytest.raises(AttributeError, match=f"no attribute {name}"):
            getattr(block, name)
        assert not hasattr(block, "nonsense")


@pytest.mark.parametrize(
    "name",
    [
        "PReLU", "interpolate", "AdaptiveAvgPool2d", "L1Loss", "HuberLoss", "NLLLoss",
        "BCEWithLogitsLoss", "CosineSimilarity",
    ],
)  # fmt: skip
def test_advice_on_modules_elsewhere_is_an_expression_that_computes(name: str) -> None:
    images = oc.tensor(np.ones((2, 4, 4, 3)), batch_axes=1)
    rows = oc.tensor(np.arange(6.0).reshape(2, 3), batch_axes=1)
    with pytest.raises(oc.UsageError) as error:
        getattr(oc.nn, name)
    is_of_images = name in ("interpolate", "AdaptiveAvgPool2d")
    names = {
        "oc": oc,
        "x": images if is_of_images else rows,
        "y": rows + 1.0,
        **dict.fromkeys(("prediction", "target", "scores", "truths"), rows),
        "log_probabilities": oc.log_softmax(rows, axis=-1),
        "class_ids": oc.tensor([1, 2], batch_axes=1, dtype="int32"),
    }
    result = eval(error.value.fix, names)
    ctx = oc.Context("interp")
    ctx.init_params(result)
    ctx.compile(oc.train.forward(result))()
    assert np.isfinite(ctx[result]).all()
