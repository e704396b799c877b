"""Resumed training has the bits of uninterrupted training, in another process, on any threads."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.target import Target

TRAINING = Path(__file__).with_name("training.py")


def run(action: str, folder: Path, threads: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(TRAINING), action, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OCANNL_THREADS": str(threads)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[str]:
    """The digests of uninterrupted training, on one thread."""
    return run("whole", folder, 1)


@pytest.mark.slow
def test_resumed_on_two_threads_has_the_bits_of_uninterrupted_on_one(
    folder: Path, whole: list[str]
) -> None:
    first = run("first", folder, 2)
    assert len(whole) == 5
    assert not set(first) & set(whole)
    assert run("second", folder, 2) == whole


OPTIMIZERS = [
    name
    for name in oc.train.__all__
    if isinstance(value := getattr(oc.train, name), type)
    and issubclass(value, oc.train.Optimizer)
    and value is not oc.train.Optimizer
]
SMALL: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "dampening": 0.5},
    "Adam": {"amsgrad": True, "clip_norm": 0.1},
    "NAdam": {"skip_nonfinite": True},
    "Lion": {"accumulate": 2, "average": 0.9},
    "RMSprop": {"centered": True, "momentum": 0.9},
}
"""Settings under which optimizers keep more state; those of the others are the defaults."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_resumes_with_the_bits_of_an_uninterrupted_run(
    name: str, tmp_path: Path
) -> None:
    """Batches are shuffled, hidden units dropped; all state is read from the file."""
    path = tmp_path / "m.safetensors"

    def bits(*, is_resumed: bool) -> tuple[dict[str, bytes], ...]:
        with oc.Session(seed=4):
            rng = np.random.default_rng(0)
            data = rng.standard_normal((6, 3)).astype(np.float32)
            loader = oc.data.Loader(data, batch=2, shuffle=True, seed=7)
            x = oc.placeholder("x", batch=[2], output=[3])
            hidden = oc.nn.dropout(oc.nn.dense(x, output=[4]), rate=0.5)
            y = oc.nn.dense(hidden, output=[2])
            loss = oc.mean((y - 1.0) ** 2)
            opt = getattr(oc.train, name)(
                learning_rate=oc.train.cosine(0.01, steps=9), **SMALL.get(name, {})
            )
            ctx = oc.Context("interp")
            step = ctx.compile(oc.train.grad_update(loss) + opt.update(loss))
            if is_resumed:
                assert oc.load(path, ctx, loss, optimizer=opt, loader=loader).step == 4
            else:
                ctx.init_params(loss)
            kept = {**loss.params, **loss.statistics, **opt.state, **opt.averages}
            found = []
            batches = itertools.chain.from_iterable(itertools.repeat(loader))
            for count, (batch,) in enumerate(itertools.islice(batches, 4 if is_resumed else 8), 1):
                ctx[x] = batch
                step()
                if count == 4:
                    found.append({key: ctx[tensor].tobytes() for key, tensor in kept.items()})
                    if not is_resumed:
                        oc.save(path, ctx, loss, optimizer=opt, loader=loader, step=4)
            return *found, {key: ctx[tensor].tobytes() for key, tensor in kept.items()}

    half, whole = bits(is_resumed=False)
    assert len(whole) > 4
    assert half != whole
    assert bits(is_resumed=True)[-1] == whole


@oc.op
def regularized(x: oc.Tensor) -> oc.Tensor:
    """Return the output of a network with batch normalization and dropout."""
    hidden = oc.param("w", output=[6]) @ oc.nn.batch_norm(x)
    return oc.param("v", output=[1]) @ oc.nn.dropout(oc.relu(hidden), rate=0.5)


def steps(target: Target, path: Path, *, load: bool, save: bool, count: int) -> dict[str, bytes]:
    """Train; return the bits of all parameters and statistics."""
    with oc.Session(seed=2):
        x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
        y = regularized()(oc.tensor(x, batch_axes=1))
        loss = oc.einsum("...|...->... => 0", y * y)
        opt = oc.train.AdamW(learning_rate=0.01)
        ctx = oc.Context(str(target))
        step = ctx.compile(oc.train.grad_update(loss) + opt.update(loss))
        if load:
            oc.load(path, ctx, loss, optimizer=opt)
        else:
            ctx.init_params(loss)
        for _ in range(count):
            step()
        if save:
            oc.save(path, ctx, loss, optimizer=opt)
        named = {**loss.params, **loss.statistics}
        return {name: ctx[tensor].tobytes() for name, tensor in named.items()}


def test_running_statistics_and_the_draws_of_dropout_resume(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    whole = steps(target, path, load=False, save=False, count=4)
    half = steps(target, path, load=False, save=True, count=2)
    assert len(whole) > 4
    assert whole != half
    assert steps(target, path, load=True, save=False, count=2) == whole


def test_a_block_with_dropout_is_saved_and_resumed_without_its_loss(tmp_path: Path) -> None:
    """Its checkpoint has the step of dropout; one for evaluation loads without it."""
    images = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)

    def run(steps: int, begin: Path | None = None, end: Path | None = None) -> object:
        with oc.Session(seed=1):
            net = oc.op(lambda x: oc.nn.dense(oc.nn.dropout(x, rate=0.5), output=[2]))()
            y = net(oc.tensor(images, batch_axes=1))
            loss = oc.mean(y * y)
            ctx = oc.Context("cpu_c")
            ctx.init_params(loss)
            update = oc.train.sgd_update(loss, learning_rate=0.1)
            step = ctx.compile(oc.train.grad_update(loss) + update)
            if begin is not None:
                assert "dropout_step" in oc.load(begin, ctx, net).loaded
            for _ in range(steps):
                step()
            if end is not None:
                oc.save(end, ctx, net)
            return [ctx[p].tolist() for p in loss.params]

    file = tmp_path / "m.safetensors"
    run(2, end=file)
    assert run(2, begin=file) == run(4)
    with oc.Session(), oc.evaluation():
        net = oc.op(lambda x: oc.nn.dense(oc.nn.dropout(x, rate=0.5), output=[2]))()
        net(oc.tensor(images, batch_axes=1))
        found = oc.load(file, oc.Context("cpu_c"), net)
        assert (
            found.loaded == ("lambda.dense.weight", "lambda.dense.bias") or len(found.loaded) == 2
        )


def test_a_model_for_evaluation_loads_a_checkpoint_of_training(tmp_path: Path) -> None:
    """It has neither the step of dropout nor the count of batches, and its file lacks them."""
    path, later = tmp_path / "m.safetensors", tmp_path / "later.safetensors"
    steps(Target("cpu_c"), path, load=False, save=True, count=2)
    with oc.Session(), oc.evaluation():
        y = regularized()(oc.tensor(np.ones((8, 3), np.float32), batch_axes=1))
        ctx = oc.Context("cpu_c")
        ctx.compile(oc.train.forward(y))
        found = oc.load(path, ctx, y)
        assert len(found.loaded) == len(y.params) + 2
        assert found.unexpected == ()
        oc.save(later, ctx, y)
    with oc.Session():
        loss = oc.sum(regularized()(oc.tensor(np.ones((8, 3), np.float32), batch_axes=1)))
        ctx = oc.Context("cpu_c")
        assert oc.load(later, ctx, loss).missing == ()


def test_files_that_state_no_counts_load_without_their_single_integers(tmp_path: Path) -> None:
    """Such as files of earlier versions, and PyTorch's with `num_batches_tracked`."""
    path, other = tmp_path / "m.safetensors", tmp_path / "other.npz"
    steps(Target("cpu_c"), path, load=False, save=True, count=2)
    with oc.Session(), oc.evaluation():
        y = regularized()(oc.tensor(np.ones((8, 3), np.float32), batch_axes=1))
        ctx = oc.Context("cpu_c")
        ctx.compile(oc.train.forward(y))
        oc.load(path, ctx, y)
        arrays = {name: ctx[each] for name, each in {**y.params, **y.statistics}.items()}
        np.savez(other, **arrays, steps=np.int64(2), batches=np.int32(2))
        assert oc.load(other, ctx, y).unexpected == ()
        np.savez(other, **arrays, steps=np.array([2]))
        with pytest.raises(oc.CheckpointError, match="unexpected in the file: steps"):
            oc.load(other, ctx, y)
        np.savez(other, **arrays, rate=np.float32(2))
        with pytest.raises(oc.CheckpointError, match="unexpected in the file: rate"):
            oc.load(other, ctx, y)


@pytest.mark.parametrize(
    "changed", [{"batch": 4}, {"seed": 1}, {"shuffle": False}, {"rows": 10}], ids=str
)
def test_a_position_among_other_batches_is_refused_inside_of_an_epoch(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    def loader(*, rows: int = 8, **options: Any) -> oc.data.Loader:
        return oc.data.Loader(np.arange(rows), **{"batch": 2, "shuffle": True, **options})

    path = tmp_path / "m.safetensors"
    with oc.Session():
        w, ctx = oc.param("w", output=[2]), oc.Context("cpu_c")
        ctx[w] = np.ones(2, np.float32)
        first = loader()
        for epochs, is_whole in ((0, True), (1, False)):
            first.restore((epochs, 0 if is_whole else 3))
            oc.save(path, ctx, [w], loader=first)
            oc.load(path, ctx, [w], loader=(same := loader()))
            assert same.state == first.state
            other = loader(**changed)
            if is_whole:
                oc.load(path, ctx, [w], loader=other)
                assert other.state == first.state
                continue
            with pytest.raises(oc.CheckpointError, match="counts batches of the same examples"):
                oc.load(path, ctx, [w], loader=other)
            assert other.state == (0, 0)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: oc.train.Adam(learning_rate=0.1, betas=(0.0, 0.9)),
        lambda: oc.train.RMSprop(learning_rate=0.1, alpha=0.0),
        lambda: oc.train.SGD(learning_rate=0.1, average=0.0),
    ],
    ids=["Adam", "RMSprop", "average"],
)
def test_state_with_a_decay_of_0_is_saved_and_loaded(
    tmp_path: Path, optimizer: Callable[[], oc.train.Optimizer]
) -> None:
    found = []
    for part in range(2):
        with oc.Session():
            w = oc.param("w", init=[1.0, 2.0])
            loss = oc.sum((w - 3.0) ** 2)
            opt, ctx = optimizer(), oc.Context("interp")
            step = ctx.compile(opt.minimize(loss))
            ctx.init_params(loss)
            if part:
                oc.load(tmp_path / "w.safetensors", ctx, loss, optimizer=opt)
            else:
                step()
                oc.save(tmp_path / "w.safetensors", ctx, loss, optimizer=opt)
            step()
            found.append({name: ctx[each].tolist() for name, each in opt.state.items()})
    assert found[0] == found[1]
