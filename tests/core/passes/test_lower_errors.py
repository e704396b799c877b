"""Refusals of lowering, and their messages."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot

from ocannl_core.base.errors import LoweringError
from ocannl_core.base.origin import Location, Origin
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    Constant,
    ConstantBits,
    ConstantFill,
    Fetch,
    Merge,
    NodeOperand,
    SetVector,
)
from ocannl_core.ir.indexing import ConcatIndex, IndexMap, Projections, VarIndex, affine, fresh_var
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, int32, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, UnaryOp
from ocannl_core.passes.lower import lower

ORIGIN = Origin("demo", Location("their_model.py", 7))
X, C, WORDS, TABLE, PADDED, WHOLE, UNKNOWN = (
    TensorNode(number, (name,))
    for number, name in enumerate(["x", "c", "words", "table", "padded", "whole", "unknown"])
)
NODES = {
    X: NodeInfo(float32, (3,)),
    C: NodeInfo(float32, (3,)),
    WORDS: NodeInfo(uint4x32, (3,)),
    TABLE: NodeInfo(float32, (3, 3)),
    PADDED: NodeInfo(float32, (12,), (Margin(1, 0),)),
    WHOLE: NodeInfo(int32, (3,), (Margin(1, 0),)),
}
i, j, k, m = (fresh_var(name) for name in "ijkm")
AT: IndexMap = (VarIndex(i),)


def over(*maps: IndexMap) -> Projections:
    return Projections(((i, 3), (j, 3), (k, 3), (m, 3)), maps[0], maps[1:], (), ())


def assign(
    target: TensorNode,
    op: Op,
    *args: TensorNode,
    combine: BinaryOp = BinaryOp.SECOND,
    projections: Projections | None = None,
) -> Accumulate:
    found = over(AT, *[AT] * len(args)) if projections is None else projections
    operands = tuple(map(NodeOperand, args))
    return Accumulate(target, combine, False, op, operands, found, ORIGIN)


def refusal(assignment: Assignment) -> str:
    with pytest.raises(LoweringError) as caught:
        lower(AssignProgram((assignment,), NODES))
    assert caught.value.where == "demo, at their_model.py:7"
    return f"{caught.value.rule} | {caught.value.found} | {caught.value.fix}"


def test_every_refusal_has_rule_finding_and_place() -> None:
    first = (ConcatIndex((i, j)),)
    refused: dict[str, Assignment] = {
        "long fill": Fetch(C, ConstantFill((1.0,) * 17), ORIGIN),
        "empty fill": Fetch(C, ConstantFill(()), ORIGIN),
        "bits of a float": Fetch(C, ConstantBits(1), ORIGIN),
        "word of a fraction": Fetch(WORDS, Constant(0.5), ORIGIN),
        "number from a word": assign(C, UnaryOp.EXP, WORDS),
        "word from a number": assign(WORDS, UnaryOp.IDENTITY, X),
        "sum of words": assign(WORDS, UnaryOp.IDENTITY, WORDS, combine=BinaryOp.ADD),
        "hash of numbers": assign(WORDS, BinaryOp.THREEFRY4X32, X, X),
        "exponential as a word": assign(WORDS, UnaryOp.EXP, X),
        "uniform of a number": assign(C, UnaryOp.UNIFORM, X),
        "not an accumulation": assign(C, UnaryOp.EXP, X, combine=BinaryOp.MOD),
        "rank": assign(C, UnaryOp.EXP, TABLE),
        "arity": assign(C, BinaryOp.ADD, X),
        "unknown node": assign(C, UnaryOp.EXP, UNKNOWN),
        "vector of numbers": SetVector(C, NodeOperand(X), over(AT, AT), ORIGIN),
        "vector into margins": SetVector(PADDED, NodeOperand(WORDS), over(AT, AT), ORIGIN),
        "merge buffer": Accumulate(
            C,
            BinaryOp.ADD,
            False,
            UnaryOp.IDENTITY,
            (Merge(PADDED),),
            over(AT, (affine([(1, i)], -1),)),
            ORIGIN,
        ),
        "no infinity": assign(
            C,
            UnaryOp.NEG,
            WHOLE,
            combine=BinaryOp.MAX,
            projections=over(AT, (affine([(1, i)], -1),)),
        ),
        "no infinity in the result": assign(
            WHOLE,
            UnaryOp.IDENTITY,
            PADDED,
            combine=BinaryOp.MAX,
            projections=over(AT, (affine([(1, i)], -1),)),
        ),
        "no component": assign(
            TABLE, UnaryOp.EXP, X, projections=over((VarIndex(i), VarIndex(j)), first)
        ),
    }
    assert {name: refusal(each) for name, each in refused.items()} == snapshot(
        {
            "long fill": "A fill lists 1 to 16 values. | 17 values for c | make a tensor from an array instead",
            "empty fill": "A fill lists 1 to 16 values. | 0 values for c | make a tensor from an array instead",
            "bits of a float": "A bit pattern fills integers or random words. | c: float32 | ",
            "word of a fraction": "A random word is made of a natural number. | 0.5 | ",
            "number from a word": "Numbers and random words do not convert into each other. | uint4x32 where float32 is needed | use `uniform` to make a number of a word, and threefry4x32 to make words",
            "word from a number": "Numbers and random words do not convert into each other. | float32 where uint4x32 is needed | use `uniform` to make a number of a word, and threefry4x32 to make words",
            "sum of words": "Random words can be assigned, not accumulated. | add | ",
            "hash of numbers": "The primitive threefry4x32 works on random words. | float32 | oc.random.word(x) makes words of the bits of numbers, oc.random.words() random ones",
            "exponential as a word": "The primitive exp works on numbers. | uint4x32 | oc.random.uniform_of(words) makes numbers of random words",
            "uniform of a number": "The primitive uniform works on random words. | float32 | oc.random.word(x) makes words of the bits of numbers, oc.random.words() random ones",
            "not an accumulation": "An assignment combines with a primitive that accumulates. | mod | assign the result to a tensor of its own first",
            "rank": "An index map has one index for each axis of its node. | 1 indices for the 2 axes of table | ",
            "arity": "add takes 2 operands. | 1 operands | ",
            "unknown node": "Every node of a program has a shape. | none is known for unknown | ",
            "vector of numbers": "A vector is written from random words. | operand of float32 | ",
            "vector into margins": "Vectors are written to nodes without margins. | padded | ",
            "merge buffer": "A merge buffer is read inside the axes of its node: margins are not transferred. | windows over padded that leave them | assign the merge buffer to a declared tensor, and read that",
            "no infinity": 'Arithmetic on margins needs a format with infinities. | whole: int32, where -inf is needed | convert the tensor to a format with infinities first: oc.cast(x, "float32")',
            "no infinity in the result": 'Arithmetic on margins needs a format with infinities. | whole: int32, where -inf is needed | convert the result in place of the cells: oc.cast(y, "int32")',
            "no component": "Some component of a concatenated axis determines every operand. | none does | ",
        }
    )


def test_a_routine_reads_the_merge_buffer_of_one_tensor() -> None:
    def merge(source: TensorNode) -> Accumulate:
        args = (Merge(source),)
        return Accumulate(C, BinaryOp.ADD, False, UnaryOp.IDENTITY, args, over(AT, AT), ORIGIN)

    lower(AssignProgram((merge(X), merge(X)), NODES))
    with pytest.raises(LoweringError) as caught:
        lower(AssignProgram((merge(X), merge(C)), NODES))
    assert str(caught.value) == snapshot("""\
A routine reads the merge buffer of one tensor, because a device has one buffer.
  found  x.merge and c.merge
  where  demo, at their_model.py:7
  try    compile the code for each tensor on its own, and run it after its transfer\
""")
