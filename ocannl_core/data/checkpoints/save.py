"""Writing of checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ocannl_core.base.errors import CheckpointError, UsageError
from ocannl_core.base.files.new_files import replacement
from ocannl_core.base.origin import caller_location
from ocannl_core.base.version import __version__
from ocannl_core.data.checkpoints.sources import (
    CHECKSUMS,
    OWN,
    TEXTS_CHECKSUM,
    checksum,
    checksum_of_texts,
)
from ocannl_core.data.checkpoints.subjects import HasState, Named, Resumable, Subject, named_tensors
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.numbers.dtypes import DType, uint4x32, uint32
from ocannl_core.ir.serialization.safetensors import StoredArray, header_bytes, layout
from ocannl_core.tensor.graph.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context

_NO_CHECKSUM = "0" * 8


def save(
    path: str | os.PathLike[str],
    ctx: Context,
    subject: Subject,
    *,
    optimizer: HasState | None = None,
    loader: Resumable | None = None,
    step: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors to a file in the safetensors format.

    The file appears completely or not at all: a failure, or the end of the process at any moment,
    leaves an earlier file of this name as it was. A symbolic link stays one, where other users
    cannot make any; what is no regular file is not replaced.

    Args:
        ctx: The context that stores the tensors.
        subject: A tensor or a block, whose parameters and statistics are saved under their names in
            `loss.params` and `loss.statistics`; tensors by name; or a list of tensors, which are
            saved themselves.
        optimizer: The optimizer; its state is saved under `optimizer/`.
        loader: The source of batches; its position is saved.
        step: The number of steps so far.
        metadata: Further texts by key.

    Raises:
        CheckpointError: if the file cannot be written.
        LinkError: if the context does not store a tensor, or one has no value.
        UsageError: if there are no tensors, or an argument is of the wrong kind.
    """
    target = Path(path)
    _check(target, step, metadata)
    named = named_tensors(subject, optimizer, "save")
    entries = layout((each.name, *_stored_as(each.tensor)) for each in named)
    texts = {**(metadata or {}), **_described(named, optimizer, loader, step)}
    texts[TEXTS_CHECKSUM] = checksum_of_texts(texts)
    texts[CHECKSUMS] = json.dumps({entry.name: _NO_CHECKSUM for entry in entries})
    by_name = {each.name: each.tensor for each in named}
    ctx.synchronize()
    try:
        with replacement(target) as file:
            header = header_bytes(entries, texts)
            file.write(header)
            sums: dict[str, str] = {}
            for entry in entries:
                cells = _cells(ctx, by_name[entry.name], entry)
                sums[entry.name] = checksum(cells)
                file.write(cells)
            texts[CHECKSUMS] = json.dumps(sums)
            file.seek(0)
            final = header_bytes(entries, texts)
            assert len(final) == len(header)
            file.write(final)
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        raise CheckpointError(
            "A checkpoint is written completely, or not at all.",
            found=f"{type(error).__name__}: {error.strerror or error}",
            where=f"{target}; a checkpoint that was there before is unchanged",
            fix=f"create the folder {target.parent}"
            if is_missing
            else "make room on the disk, or choose another folder",
        ) from error


def _stored_as(tensor: Tensor) -> tuple[DType, tuple[int, ...]]:
    """Return the stored format and extents of a tensor: a 128-bit word is an axis of four lanes."""
    dims = tensor.info.dims
    return (uint32, (*dims, 4)) if tensor.dtype is uint4x32 else (tensor.dtype.unpacked, dims)


def _cells(ctx: Context, tensor: Tensor, entry: StoredArray) -> memoryview:
    array: Array = np.ascontiguousarray(ctx[tensor])
    cells = array.reshape(-1).view(np.uint8).data
    if cells.nbytes != entry.end - entry.begin:
        raise UsageError(
            "The tensors of a checkpoint have all their cells.",
            found=f"{list(array.shape)} of {list(entry.shape)}",
            where=f"{tensor.describe()}, saved at {caller_location()}",
            fix="leave out tensors with an extent at run time, or write them in full",
        )
    return cells


def _described(
    named: Sequence[Named], optimizer: HasState | None, loader: Resumable | None, step: int | None
) -> dict[str, str]:
    """Return the metadata of a checkpoint."""
    session = named[0].tensor.session
    found = {
        "version": __version__,
        "seed": str(session.seed),
        "dtype": str(session.default_dtype),
        "shapes": json.dumps({each.name: str(each.tensor.shape) for each in named}),
        "formats": json.dumps({each.name: str(each.tensor.dtype) for each in named}),
        "counts": json.dumps({each.name: True for each in named if each.is_count}),
    }
    if step is not None:
        found["step"] = str(int(step))
    if optimizer is not None:
        found["optimizer"] = json.dumps(_hyperparameters(optimizer))
    if loader is not None:
        epoch, position = loader.state
        place: dict[str, object] = {"epoch": int(epoch), "position": int(position)}
        if isinstance(order := getattr(loader, "order", None), dict):
            place["order"] = order
        found["loader"] = json.dumps(place)
    return {OWN + key: text for key, text in found.items()}


def _hyperparameters(optimizer: HasState) -> dict[str, Any]:
    """Return the class and the hyperparameters of an optimizer, for information. A state of several
    processes has the optimizer as its attribute `optimizer`.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)
    found: dict[str, Any] = {"class": type(optimizer).__name__}
    if is_dataclass(optimizer):
        public = [each.name for each in fields(optimizer) if not each.name.startswith("_")]
        found |= {name: _information(getattr(optimizer, name)) for name in public}
    return found


def _information(value: object) -> Any:
    match value:
        case None | bool() | str():
            return value
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case Mapping():
            return {str(key): _information(each) for key, each in value.items()}
        case list() | tuple():
            return [_information(each) for each in value]
        case _:
            return repr(value)


def _check(path: Path, step: object, metadata: object) -> None:
    if path.suffix == ".npz":
        raise UsageError.at_caller(
            "Checkpoints are written in the safetensors format; .npz files are read only.",
            found=str(path),
            fix=f'"{path.with_suffix(".safetensors")}"',
        )
    is_count = isinstance(step, Integral) and not isinstance(step, bool) and int(step) >= 0
    if step is not None and not is_count:
        raise UsageError.at_caller("step= of a checkpoint is a number of steps.", repr(step))
    if metadata is None:
        return
    is_texts = isinstance(metadata, Mapping) and all(
        isinstance(key, str)
        and isinstance(value, str)
        and not key.startswith(OWN)
        and not any("\ud800" <= each <= "\udfff" for each in key + value)
        for key, value in metadata.items()
    )
    if not is_texts:
        raise UsageError.at_caller(
            f"metadata= of a checkpoint are texts by key, in Unicode; keys {OWN}... are reserved.",
            found=repr(metadata),
            fix='metadata={"note": "first run"}; json.dumps(value) makes a text of other values',
        )
