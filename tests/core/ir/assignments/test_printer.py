"""Assignments as text, and walks over them."""

from __future__ import annotations

from inline_snapshot import snapshot

from ocannl_core.base.origin import Location, Origin
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    AssignSequence,
    Constant,
    ConstantBits,
    ConstantFill,
    EmbedIndex,
    Fetch,
    Merge,
    NodeOperand,
    Operand,
    RangeOverOffsets,
    Scalar,
    Section,
    SetVector,
)
from ocannl_core.ir.assignments.printer import to_text
from ocannl_core.ir.assignments.traverse import leaves, merge_reads, nodes_of, reads, static_indices
from ocannl_core.ir.indexing import (
    AxisIndex,
    ConcatIndex,
    FixedIndex,
    IndexMap,
    LoopVar,
    Projections,
    StaticIndex,
    VarIndex,
    affine,
)
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp

W, W2, X, C, S, R = (
    TensorNode(n, (name,)) for n, name in enumerate(["w", "w", "x", "c", "s", "r"])
)
NODES = {
    W: NodeInfo(float32, (8, 32)),
    W2: NodeInfo(float32, (4,)),
    X: NodeInfo(float32, (64, 32), (Margin(), Margin(1, 2))),
    C: NodeInfo(float32, (64, 8)),
    S: NodeInfo(float32, ()),
    R: NodeInfo(uint4x32, (4,)),
}
B, O, I = LoopVar(-1, "b"), LoopVar(-2, "o"), LoopVar(-3, "i")  # noqa: E741
STEP = StaticIndex("step", 10)


def at(*places: LoopVar | StaticIndex | AxisIndex) -> IndexMap:
    return tuple(VarIndex(p) if isinstance(p, LoopVar | StaticIndex) else p for p in places)


def accumulate(
    target: TensorNode,
    combine: BinaryOp,
    op: Op,
    args: tuple[Operand, ...],
    domain: dict[LoopVar, int],
    *maps: IndexMap,
    reset: bool = False,
    origin: Origin | None = None,
) -> Accumulate:
    projections = Projections(tuple(domain.items()), maps[0], maps[1:], (), ())
    return Accumulate(target, combine, reset, op, args, projections, origin)


MATMUL = accumulate(
    C,
    BinaryOp.ADD,
    BinaryOp.MUL,
    (NodeOperand(W), NodeOperand(X)),
    {B: 64, O: 8, I: 32},
    at(B, O),
    at(O, I),
    at(B, I),
    reset=True,
    origin=Origin("matmul", Location("model.py", 12)),
)
PROGRAM = AssignProgram(
    (
        MATMUL,
        Section(
            "update",
            (
                AssignSequence((Fetch(S, Constant(0.5), Origin("number")),)),
                accumulate(S, BinaryOp.MAX, UnaryOp.NEG, (Merge(S),), {}, (), (), reset=True),
                Section(
                    "inner",
                    (
                        accumulate(
                            W2,
                            BinaryOp.SECOND,
                            TernaryOp.WHERE,
                            (NodeOperand(W2), Scalar(1.0), NodeOperand(S)),
                            {I: 4},
                            at(I),
                            at(affine([(-1, I)], 3)),
                            (),
                            (),
                        ),
                    ),
                ),
                accumulate(
                    W2,
                    BinaryOp.OR,
                    BinaryOp.SUB,
                    (NodeOperand(X), NodeOperand(W2)),
                    {I: 2, O: 2},
                    at(ConcatIndex((I, O))),
                    at(STEP, affine([(2, I), (1, O)], -1)),
                    at(I),
                ),
            ),
        ),
        Fetch(R, ConstantBits(42)),
        Fetch(W2, ConstantFill((1.0, 2.0))),
        Fetch(W2, RangeOverOffsets()),
        Fetch(S, EmbedIndex(affine([(2, STEP)], 1))),
        SetVector(
            C,
            NodeOperand(R),
            Projections(((I, 4),), at(FixedIndex(0), affine([(4, I)])), (at(I),), (), ()),
        ),
    ),
    NODES,
    embedded=frozenset({C, S}),
    fresh=frozenset({S}),
    results=frozenset({C}),
    name="step",
)


def test_every_assignment_is_one_line() -> None:
    assert to_text(PROGRAM) == snapshot("""\
step:
  w: float32[8, 32]  # input
  w1: float32[4]  # input
  x: float32[64, 32] +0/0 +1/2  # input
  c: float32[64, 8]  # result
  s: float32[]  # kept
  r: uint4x32[4]  # input
  # model.py:12
  c[neutral][b, o] += w[o, i] * x[b, i]   # over b<64, o<8, i<32
  section "update":
    s[:] = 0.5
    s[neutral] max= -s.merge
    section "inner":
      w1[i] = where(w1[-i + 3], 1.0, s)   # over i<4
    w1[i^o] |= x[step, 2*i + o - 1] - w1[i]   # over i<2, o<2
  r[:] = bits(0x2a)
  w1[:] = repeat(1.0, 2.0)
  w1[:] = offsets()
  s[:] = 2*step + 1
  c[0, 4*i]... = lanes(r[i])   # over i<4\
""")


def test_sequences_nested_to_any_depth_are_walked() -> None:
    body: Assignment = Fetch(S, Constant(0.0))
    for _ in range(3000):
        body = AssignSequence((body,))
    program = AssignProgram((body,), NODES)
    assert len(list(leaves(program.body))) == 1
    assert to_text(program).endswith("s[:] = 0.0")


def test_leaves_come_in_program_order() -> None:
    kinds = [type(each).__name__ for each in leaves(PROGRAM.body)]
    assert kinds == ["Accumulate", "Fetch", *["Accumulate"] * 3, *["Fetch"] * 4, "SetVector"]


def test_an_accumulation_reads_its_target_unless_it_resets_or_assigns() -> None:
    domain, maps = {I: 4}, (at(I), at(I))
    keeping = accumulate(W2, BinaryOp.ADD, UnaryOp.EXP, (NodeOperand(S),), domain, *maps)
    resetting = accumulate(
        W2, BinaryOp.ADD, UnaryOp.EXP, (NodeOperand(S),), domain, *maps, reset=True
    )
    assigning = accumulate(W2, BinaryOp.SECOND, UnaryOp.EXP, (NodeOperand(S),), domain, *maps)
    assert reads(keeping) == (S, W2)
    assert reads(resetting) == reads(assigning) == (S,)
    assert nodes_of(assigning) == (S, W2)


def test_merge_buffers_are_no_cells_of_their_node() -> None:
    assignment = accumulate(S, BinaryOp.SECOND, UnaryOp.EXP, (Merge(W2),), {}, (), (), reset=True)
    assert reads(assignment) == ()
    assert merge_reads(assignment) == (W2,)


def test_static_indices_come_in_order_of_first_appearance() -> None:
    assert static_indices(PROGRAM) == (STEP,)
