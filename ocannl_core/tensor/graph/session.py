"""Sessions: identities, the shape environment, the random seed and the recorder of a program."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import isfunction
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeAlias, TypeVar

from ocannl_core.base import settings
from ocannl_core.base.errors import UsageError
from ocannl_core.base.undo_log import UndoLog
from ocannl_core.ir.numbers.dtypes import DType, dtype_of
from ocannl_core.shape.environment import Environment, Transaction

if TYPE_CHECKING:
    from ocannl_core.tensor.computations.recording import CodeRecorder
    from ocannl_core.tensor.models.network_blocks import BlockApplication, NetworkBlock
    from ocannl_core.tensor.operations.scan import StepRecorder

    Recorder: TypeAlias = CodeRecorder | StepRecorder

P = ParamSpec("P")
R = TypeVar("R")


class Notes:
    """Texts about tensors, held weakly: an entry disappears with its tensor."""

    __slots__ = ("_entries", "_undo_log")

    def __init__(self, undo_log: UndoLog) -> None:
        self._undo_log = undo_log
        self._entries: dict[int, tuple[weakref.ref[Any], str]] = {}

    def __contains__(self, tensor: Any) -> bool:
        found = self._entries.get(tensor.id)
        return found is not None and found[0]() is tensor

    def __getitem__(self, tensor: Any) -> str:
        return self._entries[tensor.id][1]

    def __setitem__(self, tensor: Any, text: str) -> None:
        entries, key = self._entries, tensor.id

        def forget(reference: weakref.ref[Any]) -> None:
            if key in entries and entries[key][0] is reference:
                del entries[key]

        self._undo_log.put(entries, key, (weakref.ref(tensor, forget), text))

    def __len__(self) -> int:
        return len(self._entries)

    def copy(self) -> Notes:
        """Return an independent copy of the notes."""
        made = Notes(self._undo_log)
        for reference, text in self._entries.copy().values():  # a collection removes entries
            if (tensor := reference()) is not None:
                made[tensor] = text
        return made


class Session:
    """A program of tensors. Tensors of different sessions do not mix.

    There is always a current session. `with Session(seed=1):` isolates the code inside, and keeps
    the random numbers of a model independent of earlier code: they are keyed by creation order
    within the session.

    Args:
        seed: Seed of all random numbers; from the settings when not given.
        dtype: The default number format of floats; from the settings when not given.
        param_dtype: The number format in which parameters without a stated one are stored; from the
            settings when not given. It does not decide the formats of their uses: with
            `Session(dtype="bfloat16", param_dtype="float32")` a model computes in bfloat16, and
            small updates of its parameters are not lost.
    """

    def __init__(
        self,
        seed: int | None = None,
        dtype: DType | str | None = None,
        param_dtype: DType | str | None = None,
    ) -> None:
        defaults = settings.current()
        self._seed = 0
        self.seed = defaults.seed if seed is None else seed
        self.default_dtype = _float("dtype", defaults.default_dtype if dtype is None else dtype)
        stored = defaults.param_dtype if param_dtype is None else param_dtype
        self.param_dtype = None if stored is None else _float("param_dtype", stored)
        self.threefry_rounds = defaults.threefry_rounds
        self.undo_log = UndoLog()
        """Changes of the session, its tensors and blocks, while an application is running."""
        self.environment = Environment(self.undo_log)
        self.recorder: Recorder | None = None
        self.loop: Any = None
        """The innermost loop whose body is being traced."""
        self.block: BlockApplication | None = None
        """The innermost running application of a block."""
        self.consumed = Notes(self.undo_log)
        """Tensors whose forward code is contained in a compiled computation, with its name."""
        self.backpropagated = Notes(self.undo_log)
        """Tensors whose backpropagation has been consumed, with the line of the call."""
        self.applications: dict[Any, Any] = {}
        """Constants, the seed, numbers of the session, and applications of user-written operations
        without inputs, shared by keys that are equal for equal ones.
        """
        self.signatures: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = (
            weakref.WeakKeyDictionary()
        )
        """The output types of user-written operations, by input types."""
        self.block_copies: dict[NetworkBlock[Any], NetworkBlock[Any]] | None = None
        """Copies of blocks, in a session that applies them to learn their shapes, or None."""
        self._ids = self.undo_log.supply()
        self._ids_apart = self.undo_log.supply(1 << 40)

    @property
    def seed(self) -> int:
        """The seed of all random numbers, an integer of 64 bits; code compiled later reads it."""
        return self._seed

    @seed.setter
    def seed(self, value: int) -> None:
        if not isinstance(value, Integral) or not -(1 << 63) <= value < 1 << 64:
            raise UsageError.at_caller(
                "The seed of random numbers is an integer of 64 bits.", found=repr(value)
            )
        self._seed = int(value)

    def next_id(self) -> int:
        return self._ids.take()

    def atomic(self) -> Transaction:
        """Return a context manager for an application, which has all its effects or none: shapes,
        number formats, parameters of blocks, labels and ordinals are restored if it raises. Tensors
        made inside do not belong to the session any more.
        """
        return self.environment.atomic()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Number the tensors made inside in a range of their own, so that the random numbers of
        later tensors do not depend on how many there are.
        """
        own, self._ids = self._ids, self._ids_apart
        try:
            yield
        finally:
            self._ids = own

    @contextmanager
    def outside_of_code(self, loop: Any = None) -> Iterator[None]:
        """Make tensors outside of recorded code, and in another loop than the one being traced."""
        recorder, self.recorder = self.recorder, None
        inner, self.loop = self.loop, loop
        try:
            yield
        finally:
            self.recorder, self.loop = recorder, inner

    def __enter__(self) -> Session:
        current()
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _entered.set(_entered.get()[:-1])


@contextmanager
def outside_of_blocks(session: Session) -> Iterator[None]:
    """Make tensors that live as long as the session: a tensor made in a block keeps the block, and
    so a whole model, alive.
    """
    block, session.block = session.block, None
    try:
        yield
    finally:
        session.block = block


def shared(session: Session, key: Any, make: Callable[[], R]) -> R:
    """Return what a session shares under a key, which the first use makes."""
    if key not in session.applications:
        with outside_of_blocks(session):
            session.undo_log.put(session.applications, key, make())
    found: R = session.applications[key]
    return found


class _Retracted:
    """The session of tensors whose application has failed."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise of_failed_application("a tensor")


def of_different_sessions(found: str) -> UsageError:
    """Return the error about tensors of two programs in one operation."""
    return UsageError.at_caller(
        "Tensors of different sessions do not mix.",
        found=found,
        fix="build both inside one `with oc.Session():`, or without any",
    )


def of_failed_application(tensor: str) -> UsageError:
    """Return the error about a tensor that a failed application has made."""
    return UsageError.at_caller(
        "An application that raises has no effect, so the tensors made in it are gone.",
        found=f"{tensor}, made in a block, a loop or `with oc.atomic():` that raised",
        fix="make the tensor again",
    )


RETRACTED: Any = _Retracted()


def atomic() -> Transaction:
    """Return a context manager for code that is to have all its effects on the session or none.

        with oc.atomic():
            hidden = layer(x)
            scores = head(hidden + y)            # a ShapeError retracts hidden, too

    Each operation and each application of a block is atomic by itself. If the code raises, shapes
    and number formats inferred from it are forgotten, and parameters made in it; random numbers
    made later are those of a session without it. Tensors made in it cannot be used any more.

    Memory outlives failures: when a context allocates some for a tensor, the changes so far are
    final.
    """
    return current().atomic()


def make_atomic(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Make the functions of a public module that apply several operations atomic."""
    for name in names:
        value = namespace.get(name)
        if isfunction(value) and value.__module__.startswith(_OF_OPERATIONS):
            namespace[name] = _atomically(value)


_OF_OPERATIONS = ("ocannl_core.tensor.operations.", "ocannl_core.tensor.custom.", "ocannl_core.nn.")


def _atomically(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        session = session_of_first([*args, *kwargs.values()] if kwargs else args)
        with session.atomic():
            if session is current():
                return function(*args, **kwargs)
            with session:  # its helper tensors, such as positions, belong there, too
                return function(*args, **kwargs)

    return call


def session_of_first(args: Sequence[Any]) -> Session:
    """Return the session of the first tensor of arguments, or the current one."""
    for each in args:
        first = each[0] if isinstance(each, (list, tuple)) and each else each
        session = getattr(first, "session", None)
        if isinstance(session, Session):
            return session
    return current()


def _float(keyword: str, value: DType | str) -> DType:
    """Return a default number format, which must be a float."""
    found = dtype_of(value)
    if not found.is_float:
        raise UsageError.at_caller(
            "The default formats of a session are floats.",
            found=f"{keyword}={str(found)!r}",
            fix=f'state the format of single tensors: oc.tensor(..., dtype="{found}")',
        )
    return found


_entered: ContextVar[tuple[Session, ...]] = ContextVar("ocannl_sessions", default=())
"""The sessions that a thread or task is in, the current one last."""


def current() -> Session:
    """Return the session of new tensors."""
    entered = _entered.get()
    if not entered:
        entered = (Session(),)
        _entered.set(entered)
    return entered[-1]


def reset(seed: int | None = None) -> Session:
    """Start a new session in place of the current one, and return it: a rebuilt model gets the same
    random numbers.

    Tensors made before belong to the old session, and do not mix with new ones.

    Args:
        seed: As for `Session`.
    """
    session = Session(seed)
    _entered.set((*_entered.get()[:-1], session))
    return session
