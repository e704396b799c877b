"""Strings, labels and decision trees. Strings are known when the graph is read."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.formats import format_of
from ocannl_onnx.operators.movement import reshaped
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Array, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

_ML = "ai.onnx.ml"


def _texts(node: Node, value: Value) -> Array:
    if value.format.name != "string":
        node.invalid("The input is a tensor of strings.", str(value.format))
    return node.known(value, "text")


def _as_texts(rows: list[Any], shape: tuple[int, ...]) -> Value:
    cells = np.empty(len(rows), object)
    cells[:] = rows
    return Value.of_array(cells.reshape(shape))


@operator("StringConcat", since=20)
def string_concat(node: Node, a: Value, b: Value) -> Value:
    left, right = np.broadcast_arrays(_texts(node, a), _texts(node, b))
    joined = [x + y for x, y in zip(left.reshape(-1), right.reshape(-1), strict=True)]
    return _as_texts(joined, left.shape)


@operator("StringSplit", since=20)
def string_split(node: Node, x: Value) -> Any:
    cells = _texts(node, x)
    delimiter, most = node.attr("delimiter") or None, node.attr("maxsplit", -1)
    rows = [each.split(delimiter, most) for each in cells.reshape(-1)]
    width = max(map(len, rows), default=0)
    flat = [text for row in rows for text in (*row, *[""] * (width - len(row)))]
    counts = np.array([len(row) for row in rows], np.int64).reshape(cells.shape)
    return _as_texts(flat, (*cells.shape, width)), counts


@operator("RegexFullMatch", since=20)
def regex_full_match(node: Node, x: Value) -> Array:
    try:
        pattern = re.compile(node.attr("pattern", ""))
    except re.error as error:
        node.invalid("A pattern is a regular expression.", str(error))
    cells = _texts(node, x)
    found = [pattern.fullmatch(each) is not None for each in cells.reshape(-1)]
    return np.array(found, bool).reshape(cells.shape)


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join(
        each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each)
    )


@operator("StringNormalizer", since=10)
def string_normalizer(node: Node, x: Value) -> Value:
    cells = _texts(node, x)
    case, exact = node.attr("case_change_action", "NONE"), bool(node.attr("is_case_sensitive", 0))
    cases: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    change = cases.get(case)
    if change is None or cells.ndim not in (1, 2) or (cells.ndim == 2 and cells.shape[0] != 1):
        node.invalid(
            "`StringNormalizer` takes one row, and a change of case.",
            f"{list(cells.shape)}, {case!r}",
        )
    stops = set(node.attr("stopwords", ()))
    lowered = stops if exact else {change(each) for each in stops}

    def normal(text: str) -> str:
        plain = _without_accents(text)
        words = (plain if exact else change(plain)).split(" ")
        kept = " ".join(each for each in words if each not in lowered)
        return change(kept)

    rows = [each for each in map(normal, cells.reshape(-1)) if each] or [""]
    return _as_texts(rows, (len(rows),) if cells.ndim == 1 else (1, len(rows)))


@operator("LabelEncoder", since=2, domain=_ML)
def label_encoder(node: Node, x: Value) -> Any:
    def stated(*names: str) -> Array | None:
        for name in names:
            if (found := node.attr(name)) is not None:
                if isinstance(found, np.ndarray):
                    return found.reshape(-1)
                kind = {"strings": object, "int64s": np.int64, "floats": np.float32}[
                    name.rpartition("_")[2]
                ]
                return np.array(found, kind)
        return None

    keys = stated("keys_tensor", "keys_strings", "keys_int64s", "keys_floats")
    values = stated("values_tensor", "values_strings", "values_int64s", "values_floats")
    if keys is None or values is None or len(keys) != len(values):
        node.invalid("There is a value for each key.", f"{keys} and {values}")
    default: Any = node.attr("default_tensor")
    if default is not None:
        default = default.reshape(-1)[0]
    elif values.dtype == object:
        default = node.attr("default_string", "_Unused")
    elif values.dtype.kind in "iu":
        default = node.attr("default_int64", -1)
    else:
        default = node.attr("default_float", -0.0)
    if x.format.name == "string" or values.dtype == object:
        table = dict(zip(keys.tolist(), values.tolist(), strict=True))
        cells = node.known(x, "labels")
        rows = [table.get(each, default) for each in cells.reshape(-1).tolist()]
        if values.dtype == object:
            return _as_texts(rows, cells.shape)
        return np.array(rows, values.dtype).reshape(cells.shape)
    hit = oc.equal(
        oc.expand_dims(x.tensor, x.rank), oc.tensor(keys.astype(x.format.numpy)), dtype="bool"
    )
    found = format_of(values)
    assert found is not None
    chosen = oc.take(oc.tensor(values, dtype=found.carrier), oc.argmax(hit, axis=-1))
    return Value.of_tensor(
        oc.where(oc.any(hit, axis=-1), chosen, values.dtype.type(default).item()), found
    )


@operator("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(node: Node, x: Value) -> Value:
    """Count n-grams: each is compared with all windows of the input, for each distance of words."""
    pool = node.attr("pool_strings") or node.attr("pool_int64s") or ()
    starts, columns = list(node.attr("ngram_counts", ())), node.attr("ngram_indexes", ())
    least, most, skips = (
        node.attr(name, 0) for name in ("min_gram_length", "max_gram_length", "max_skip_count")
    )
    grams = []
    for size, (start, stop) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        grams += [tuple(pool[at : at + size]) for at in range(start, stop, size)]
    cells = node.known(x, "words")
    rows = cells.reshape(-1, cells.shape[-1]) if cells.ndim else cells.reshape(1, 1)
    width = max(columns, default=-1) + 1
    counts = np.zeros((len(rows), width), np.float32)
    places = dict(zip(grams, columns, strict=True))
    for at, row in enumerate(rows.tolist()):
        for size in range(max(least, 1), most + 1):
            # words of one are the same at any distance
            for distance in range(1, 2 if size == 1 else skips + 2):
                for first in range(len(row) - distance * (size - 1)):
                    gram = tuple(row[first : first + distance * size : distance][:size])
                    if gram in places:
                        counts[at, places[gram]] += 1
    weights = np.array(node.attr("weights", (1.0,) * len(columns)), np.float32)
    by_column = np.ones(width, np.float32)
    by_column[list(columns)] = weights[: len(columns)] if len(weights) == len(columns) else 1.0
    if len(weights) == width:
        by_column = weights
    mode = node.attr("mode")
    result = {"TF": counts, "IDF": (counts > 0) * by_column, "TFIDF": counts * by_column}.get(mode)
    if result is None:
        node.invalid("The weighting is TF, IDF or TFIDF.", repr(mode))
    return Value.of_array(result.astype(np.float32).reshape((*cells.shape[:-1], width)))


@operator("TreeEnsemble", since=5, domain=_ML)
def tree_ensemble(node: Node, x: Value) -> Tensor:
    """Walk all trees at once: a step goes from each node to one of its two successors."""
    roots = np.array(node.attr("tree_roots"), np.int64)
    leaf_weights, targets = (
        node.attr("leaf_weights"),
        np.array(node.attr("leaf_targetids"), np.int64),
    )
    inner, modes = len(node.attr("nodes_modes")), node.attr("nodes_modes").astype(np.int64)
    features, splits = np.array(node.attr("nodes_featureids"), np.int64), node.attr("nodes_splits")
    missing = np.array(node.attr("nodes_missing_value_tracks_true", (0,) * inner), bool)
    if node.attr("post_transform", 0):
        node.refuse("scores are transformed by other nodes, not by `post_transform`")

    def successors(name: str) -> Array:
        ids, is_leaf = (
            np.array(node.attr(f"nodes_{name}nodeids")),
            np.array(node.attr(f"nodes_{name}leafs"), bool),
        )
        # leaves stand behind the inner nodes, and follow themselves
        return np.concatenate(
            [np.where(is_leaf, ids + inner, ids), inner + np.arange(len(targets))]
        ).astype(np.int64)

    after_true, after_false = successors("true"), successors("false")
    depth = _depth(node, roots, after_true, after_false, inner)
    count, width, trees = x.shape[0], x.shape[1], len(roots)
    members = _members(node, modes, inner)
    pad = np.zeros(len(targets), np.int64)
    at: Any = oc.broadcast_to(oc.tensor(roots), count, trees)

    def table(cells: Array, dtype: str) -> Tensor:
        return oc.take(oc.tensor(np.asarray(cells, order="C"), dtype=dtype), at)

    for _ in range(depth):
        feature = table(np.concatenate([features, pad]), "int64")
        cell = oc.take_along(x.tensor, feature, axis=1)
        split = table(np.concatenate([splits, pad]).astype(x.format.numpy), x.format.carrier)
        mode = table(np.concatenate([modes, pad]), "int64")
        tests = [
            oc.less_equal(cell, split, dtype="bool"), oc.less(cell, split, dtype="bool"),
            oc.less_equal(split, cell, dtype="bool"), oc.less(split, cell, dtype="bool"),
            oc.equal(cell, split, dtype="bool"), oc.not_equal(cell, split, dtype="bool"),
        ]  # fmt: skip
        if members is not None:
            row = oc.take(
                oc.tensor(
                    np.concatenate(
                        [members, np.full((len(targets), members.shape[1]), np.nan)]
                    ).astype(x.format.numpy),
                    dtype=x.format.carrier,
                ),
                at,
                axis=0,
            )
            tests.append(
                oc.cast(
                    oc.any(oc.equal(row, oc.expand_dims(cell, 2), dtype="bool"), axis=-1), "bool"
                )
            )
        result: Any = tests[0]
        for number, test in enumerate(tests[1:], 1):
            if number in modes:
                result = oc.where(oc.equal(mode, number, dtype="bool"), test, result)
        if missing.any():
            lost = table(np.concatenate([missing, pad.astype(bool)]), "bool")
            result = result | (oc.cast(oc.isnan(cell), "bool") & lost)
        at = oc.where(result, table(after_true, "int64"), table(after_false, "int64"))
    leaf = at - inner
    outputs = node.attr("n_targets", 1)
    weights = oc.take(oc.tensor(leaf_weights.astype(x.format.numpy), dtype=x.format.carrier), leaf)
    hot = oc.equal(
        oc.expand_dims(oc.take(oc.tensor(targets), leaf), 2),
        oc.tensor(np.arange(outputs, dtype=np.int64)),
        dtype="bool",
    )
    wide = reshaped(weights, [count, trees, 1])
    how = node.attr("aggregate_function", 1)
    del width
    if how in (0, 1):
        total = oc.sum(oc.where(hot, wide, 0.0), axis=1)
        return total / float(trees) if how == 0 else total
    info = np.finfo(x.format.numpy)
    if how == 2:
        return oc.min(oc.where(hot, wide, float(info.max)), axis=1)
    return oc.max(oc.where(hot, wide, float(info.min)), axis=1)


def _members(node: Node, modes: Array, inner: int) -> Array | None:
    """Return the set of each node that tests membership, filled with NaN."""
    values = node.attr("membership_values")
    if values is None:
        return None
    sets: list[list[float]] = [[]]
    for each in values.reshape(-1).tolist():
        if math.isnan(each):
            sets.append([])
        else:
            sets[-1].append(each)
    result = np.full((inner, max(map(len, sets))), np.nan)
    for at, own in zip(np.nonzero(modes == 6)[0], sets, strict=False):
        result[at, : len(own)] = own
    return result


def _depth(node: Node, roots: Array, after_true: Array, after_false: Array, inner: int) -> int:
    """Return the steps from the roots to the last leaf."""
    frontier, depth = set(roots.tolist()), 0
    while frontier := {at for at in frontier if at < inner}:
        depth += 1
        if depth > inner:
            node.invalid("Trees have no cycles.", f"a path of more than {inner} nodes")
        frontier = {int(after[at]) for at in frontier for after in (after_true, after_false)}
    return depth
