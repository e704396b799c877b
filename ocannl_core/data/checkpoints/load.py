"""Reading of checkpoints into a context: all tensors, or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ocannl_core.base import settings
from ocannl_core.base.errors import CheckpointError, ShapeError, TransferError, UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.data.checkpoints import subjects
from ocannl_core.data.checkpoints.sources import OWN, ArrayFile, Listed, json_object, opened
from ocannl_core.data.checkpoints.stored import Stored
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.numbers.dtypes import uint4x32

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context

Place = str | Stored
"""The name of the array of a file with the cells of a tensor, or also the layout of the array."""

Names = Mapping[str, Place] | Callable[[str], Place]
"""The places in a file, by the names in the program."""

Axes = Sequence[int] | Callable[[Array], Array]
"""The order of a file's axes in a tensor, as for `np.transpose`, or a function of the array."""

_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of loading a checkpoint."""

    path: str
    step: int | None
    """The number of steps when it was saved; None if the file does not state it."""
    seed: int | None
    """The seed of the session that saved it; None if the file does not state it."""
    metadata: Mapping[str, str]
    """All texts of the file by key."""
    loaded: tuple[str, ...]
    """The names of the tensors that have got values, as in the program."""
    missing: tuple[str, ...]
    """The names of the tensors that the file lacks; empty for a strict load."""
    unexpected: tuple[str, ...]
    """The names of the file's arrays that were not used; empty for a strict load. The state of an
    optimizer is not counted when `load` is called without one.
    """


@dataclass(frozen=True, slots=True)
class _Match:
    """A tensor and the arrays that are loaded into it: one, or one for each layer."""

    named: subjects.Named
    place: Place
    listed: tuple[Listed, ...]
    axes: Axes | None


def load(
    path: str | os.PathLike[str],
    ctx: Context,
    subject: subjects.Subject,
    *,
    optimizer: subjects.HasState | None = None,
    loader: subjects.Resumable | None = None,
    strict: bool = True,
    cast: bool = False,
    names: Names | None = None,
    transpose: Mapping[str, Axes] | None = None,
    ignore: Sequence[str] = (),
) -> Loaded:
    """Read tensors from a file in the safetensors format, the index of one in several parts
    (`model.safetensors.index.json`), or an `.npz` file of NumPy.

    Everything is checked before the first tensor changes: a load that fails changes nothing.

    Args:
        ctx: The context that gets the values.
        subject: The tensors, as for `save`.
        optimizer: The optimizer to restore the state of; its update is recorded already.
        loader: The source of batches to move to the saved position, which inside of an epoch is one
            of the same batches.
        strict: False to leave out tensors that the file lacks, and arrays that the program lacks.
            Shapes and formats agree nevertheless.
        cast: True to convert between number formats; integers do not become fractions' places.
        names: The name in the file for each name in the program that differs, or a function from
            the one to the other. `oc.Stored` in place of a name states the layout as well: a part
            of an array, its axes, an array for each layer. An optimizer's state keeps its names.
        transpose: The order of the file's axes, by patterns of names in the program (`*` and `?` as
            in file names), or a function of the file's array: `{"*.weight": (1, 0)}`.
        ignore: Patterns of names in the file that are not used.

    Raises:
        CheckpointError: if the file is damaged or does not fit; the message lists differences.
        UsageError: if an argument is of the wrong kind.
    """
    named = subjects.named_tensors(subject, optimizer, "load")
    with opened(path) as source:
        wanted = [
            (place.in_file(source.arrays) if isinstance(place, Stored) else place, each)
            for place, each in _wanted(named, names)
        ]
        matches, differences, missing = _matched(wanted, source, transpose or {}, cast)
        used = {array.name for each in matches for array in each.listed}
        for place, each in wanted:
            if each.name not in missing:
                used.update(_arrays_of(place, each))
        counts = _counts(source)
        unexpected = tuple(
            name
            for name in source.arrays
            if name not in used
            and name not in counts
            and (optimizer is not None or not name.startswith(subjects.STATE))
            and not any(fnmatchcase(name, pattern) for pattern in ignore)
        )
        if strict:
            differences = [
                *(f"missing in the file: {_file_name(each, wanted)}" for each in missing),
                *(f"unexpected in the file: {name}" for name in unexpected),
                *differences,
            ]
        if differences:
            raise _mismatch(source.path, differences, strict)
        if not matches:
            raise CheckpointError(
                "A load fills at least one tensor.",
                found=f"no array of the file is named like one of {len(named)} tensors",
                where=source.path,
                fix=f"the file has {_some(list(source.arrays))}; "
                "state other names with names={'w': 'model.w'}",
            )
        resumed = None if loader is None else _position(source, loader)
        result = Loaded(
            path=source.path,
            step=_integer(source, "step", 0),
            seed=_integer(source, "seed", -(1 << 63)),
            metadata=dict(source.metadata),
            loaded=tuple(each.named.name for each in matches),
            missing=missing,
            unexpected=unexpected,
        )
        _fill(ctx, matches, source)
    if loader is not None and resumed is not None:
        loader.restore(resumed)
    return result


def _arrays_of(place: Place, named: subjects.Named) -> tuple[str, ...]:
    if isinstance(place, str):
        return (place,)
    dims = named.tensor.info.dims
    return place.names(dims[0] if dims else 0)


def _counts(source: ArrayFile) -> Iterable[str]:
    """Return the names of the numbers that training counts up: those that a file states, or else
    each integer, as PyTorch's numbers of batches are.
    """
    if OWN + "counts" in source.metadata:
        return json_object(source.metadata[OWN + "counts"]) or ()
    integers = "int", "uint"
    return [a.name for a in source.arrays.values() if not a.shape and a.title.startswith(integers)]


def _wanted(
    named: Sequence[subjects.Named], names: Names | None
) -> list[tuple[Place, subjects.Named]]:
    """Return the tensors with their places in the file."""
    table = names if isinstance(names, Mapping) else {}
    own = [each.name for each in named if not each.keeps_name]
    if unknown := sorted(set(table) - set(own)):
        raise UsageError.at_caller(
            "names= has the names of tensors in the program as keys.",
            found=f"no tensor for {', '.join(map(repr, unknown))}",
            fix="the names are " + _some(own),
        )
    if names is not None and not isinstance(names, Mapping) and not callable(names):
        raise UsageError.at_caller(
            "names= is a mapping from names in the program to names in the file, or a function.",
            found=repr(names),
        )
    place_of = names if callable(names) else lambda name: table.get(name, name)
    return [(each.name if each.keeps_name else place_of(each.name), each) for each in named]


def _matched(
    wanted: Sequence[tuple[Place, subjects.Named]],
    source: ArrayFile,
    transpose: Mapping[str, Axes],
    cast: bool,
) -> tuple[list[_Match], list[str], tuple[str, ...]]:
    """Return the arrays for tensors, differences as lines, and the names of missing tensors."""
    matches: list[_Match] = []
    differences: list[str] = []
    missing: list[str] = []
    for pattern in transpose:
        if not any(fnmatchcase(each.name, pattern) for _, each in wanted):
            raise UsageError.at_caller(
                "A pattern of transpose= fits the name of a tensor.",
                found=f"none for {pattern!r}",
                fix="the names are " + _some([each.name for _, each in wanted]),
            )
    for place, each in wanted:
        found = [source.arrays.get(name) for name in _arrays_of(place, each)]
        listed = tuple(array for array in found if array is not None)
        if len(listed) < len(found) or not found:
            if not each.is_count:
                missing.append(each.name)
            continue
        axes = next((a for p, a in transpose.items() if fnmatchcase(each.name, p)), None)
        if problem := _difference(each, place, listed, axes, cast):
            differences.append(problem)
        else:
            matches.append(_Match(each, place, listed, axes))
    return matches, differences, tuple(missing)


def _difference(
    named: subjects.Named, place: Place, arrays: Sequence[Listed], axes: Axes | None, cast: bool
) -> str:
    """Return a line about the first difference between a tensor and its arrays, or nothing."""
    tensor = named.tensor
    dims = tensor.info.dims
    format_here = "uint32" if tensor.dtype is uint4x32 else tensor.dtype.unpacked.name
    needed = (*dims, 4) if tensor.dtype is uint4x32 else dims
    is_layered = isinstance(place, Stored) and place.is_layered
    cells = needed[1:] if is_layered else needed
    here = f"{list(cells)}{' for each layer' * is_layered} here"
    unused = "one cell: a tensor that is not used yet needs a stated shape"
    here += f" ({tensor.shape if dims else unused})"
    for listed in arrays:
        title = named.name if named.name == listed.name else f"{named.name} (there {listed.name})"
        found = f"{title}: {list(listed.shape)} in the file"
        if isinstance(place, Stored):
            if problem := place.problem(listed.shape, cells):
                return f"layout of {found}, {here}: {problem}"
        elif not callable(axes):
            if axes is not None and sorted(axes) != list(range(len(listed.shape))):
                return f"axes of {found}, transpose= has {tuple(axes)}"
            ordered = listed.shape if axes is None else tuple(listed.shape[axis] for axis in axes)
            if ordered != cells:
                moved = "" if axes is None else f", transposed {list(ordered)}"
                return f"shape of {found}{moved}, {here}"
        # narrow floats in files of NumPy are bytes there
        is_untyped = listed.title.startswith(("|V", "void"))
        if listed.title != format_here and not cast and not is_untyped:
            return f"format of {title}: {listed.title} in the file, {format_here} here"
    return ""


def _fill(ctx: Context, matches: Sequence[_Match], source: ArrayFile) -> None:
    """Read all arrays, then write all tensors."""
    values = {each.named.tensor: _array(each, source) for each in matches}
    tensors = {each.named.tensor: each for each in matches}
    try:
        with settings.overrides(allow_nan=True):  # a saved state is restored as it was
            ctx.assign(values)
    except (TransferError, ShapeError) as error:
        wrong = next((e for t, e in tensors.items() if t.describe() == error.where), None)
        raise CheckpointError(
            "The numbers of a file fit the tensors that they are loaded into.",
            found=f"{error.rule} {error.found}",
            where=(f"entry {wrong.listed[0].name!r} of " if wrong else "") + source.path,
            fix=error.fix,
        ) from error


def _array(match: _Match, source: ArrayFile) -> Array:
    """Return the cells of a tensor, in its extents, from the arrays of a file."""
    dims, place = match.named.tensor.info.dims, match.place
    if isinstance(place, Stored):
        needed = (*dims, 4) if match.named.tensor.dtype is uint4x32 else dims
        if not place.is_layered:
            return place.read(source.read(match.listed[0].name), needed)
        layers = [source.read(each.name) for each in match.listed]
        cells = np.empty(needed, layers[0].dtype)
        for layer, array in zip(cells, layers, strict=True):
            layer[...] = place.read(array, needed[1:])
        return cells
    name = match.listed[0].name
    array = source.read(name)
    if callable(match.axes):
        array = np.asarray(match.axes(array))
        if array.shape != dims:
            raise CheckpointError(
                "A function of transpose= returns an array of the tensor's extents.",
                found=f"{list(array.shape)} in place of {list(dims)} for {match.named.name}",
                where=f"entry {name!r} of {source.path}",
            )
    elif match.axes is not None:
        array = array.transpose(tuple(match.axes))
    return array


def saved_shapes(source: ArrayFile) -> Mapping[str, str]:
    """Return the shapes of tensors that a file states, as `batch|input->output`."""
    found = json_object(source.metadata.get(OWN + "shapes", "{}")) or {}
    return {name: text for name, text in found.items() if isinstance(text, str)}


def _integer(source: ArrayFile, key: str, least: int) -> int | None:
    """Return a number of the metadata, or None if the file does not state it."""
    text = source.metadata.get(OWN + key)
    if text is None:
        return None
    is_integer = text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 20
    if not is_integer or int(text) < least:
        raise _wrong_metadata(source, key, text)
    return int(text)


def _position(source: ArrayFile, loader: subjects.Resumable) -> tuple[int, int]:
    """Return the epoch and the position of a source of batches in the metadata."""
    text = source.metadata.get(OWN + "loader", "")
    found = json_object(text) or {}
    place: tuple[Any, Any] = found.get("epoch"), found.get("position")
    if not all(type(number) is int and number >= 0 for number in place):
        raise _wrong_metadata(source, "loader", text)
    saved, own = found.get("order"), getattr(loader, "order", None)
    if place[1] and isinstance(saved, dict) and isinstance(own, dict) and saved != own:
        raise CheckpointError(
            "A position inside of an epoch counts batches of the same examples in the same order.",
            found=f"{place[1]} batches of {_listed(saved)} in the file, {_listed(own)} here",
            where=f"metadata of {source.path}",
            fix="a loader of the same data, batch= and seed=; or load without loader=, and "
            f"loader.restore(({place[0] + 1}, 0)) leaves out the rest of the epoch",
        )
    return place


def _listed(order: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in order.items())


def _wrong_metadata(source: ArrayFile, key: str, text: str) -> CheckpointError:
    return CheckpointError(
        "The state of training in a checkpoint is made of counts.",
        found=f"{OWN}{key} = {text[:80]!r}" if text else f"no {OWN}{key}",
        where=f"metadata of {source.path}",
        fix=f"save it with oc.save(..., {key}=...)" if not text else "",
    )


def _mismatch(path: str, differences: Sequence[str], strict: bool) -> CheckpointError:
    fixes = []
    if any(each.startswith(("missing", "unexpected")) for each in differences):
        fixes.append("names= for other names, strict=False to load what both have")
    if any(each.startswith("shape") for each in differences):
        fixes.append("transpose= for another order of axes, names= with oc.Stored for a layout")
    if any(each.startswith("layout") for each in differences):
        fixes.append("another oc.Stored in names=")
    if any(each.startswith("format") for each in differences):
        fixes.append("cast=True to convert formats")
    rule = "The tensors and the arrays of a file have the same names, shapes and formats."
    if not strict:
        rule = "Tensors and arrays of one name have the same shapes and formats."
    return CheckpointError(rule, found="\n".join(differences), where=path, fix="; ".join(fixes))


def _file_name(name: str, wanted: Sequence[tuple[Place, subjects.Named]]) -> str:
    place = next(there for there, each in wanted if each.name == name)
    stored = place if isinstance(place, str) else place.name
    return name if stored == name else f"{stored} (for {name})"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_LISTED]) or "no arrays"
    return shown if len(names) <= _MOST_LISTED else shown + f" and {len(names) - _MOST_LISTED} more"
