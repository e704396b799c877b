"""The state that a program of tensors shares: identities, the shape environment, the random seed,
what is recorded.
"""

from __future__ import annotations

from contextvars import ContextVar
from itertools import count
from types import TracebackType
from typing import Any, Protocol

from ocannl_core import settings
from ocannl_core.dtypes import DType, dtype_of
from ocannl_core.ops import BinaryOp
from ocannl_core.shape.environment import Environment
from ocannl_core.shape.logic import Logic


class Recorder(Protocol):
    """What a recording of code takes note of."""

    def made(self, tensor: Any, *, is_named: bool) -> None:
        """Notes that an operator made a tensor here."""
        ...

    def unreduced(self, operation: Any, operands: tuple[Any, ...], logic: Logic) -> Any:
        """Returns a primitive with a logic of its own, for an assignment to absorb."""
        ...

    def assign(self, target: Any, value: Any, combine: BinaryOp, *, reset: bool) -> None:
        """Notes an assignment to a tensor."""
        ...


class Session:
    """A program of tensors. Tensors of different sessions do not mix.

    There is always a current session. `with Session(seed=1):` isolates what happens inside, and
    keeps the random numbers of a model independent of what was built before: they are keyed by
    creation order within the session.

    Args:
        seed: Seed of all random numbers; from the settings when not given.
        dtype: The number format of floats that do not state one; from the settings when not given.
    """

    def __init__(self, seed: int | None = None, dtype: DType | str | None = None) -> None:
        defaults = settings.current()
        self.seed = defaults.seed if seed is None else seed
        self.default_dtype = dtype_of(defaults.default_dtype if dtype is None else dtype)
        self.environment = Environment()
        self.recorder: Recorder | None = None
        self.block: Any = None
        """The innermost application of a block that is running."""
        self.consumed: set[Any] = set()
        """Tensors whose forward code some compiled computation contains."""
        self.applications: dict[Any, Any] = {}
        """Applications of user-written operations, by operation and inputs: equal ones are one."""
        self._ids = count()
        self._outer: list[Session] = []

    def next_id(self) -> int:
        return next(self._ids)

    def __enter__(self) -> Session:
        self._outer.append(current())
        _current.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _current.set(self._outer.pop())


_current: ContextVar[Session | None] = ContextVar("ocannl_session", default=None)


def current() -> Session:
    """Returns the session in which new tensors are made."""
    session = _current.get()
    if session is None:
        session = Session()
        _current.set(session)
    return session


def reset(seed: int | None = None) -> Session:
    """Starts the current session afresh, so that a rebuilt model gets the same identities and
    random numbers.
    """
    session = Session(seed)
    _current.set(session)
    return session
