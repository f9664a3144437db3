"""All that is remembered between calls: bounded in bytes together, listed and cleared by one call.

A plan, a mask or a table of positions is made once and used by every layer and step. Whatever is
kept so is kept here, by the decorator ``remembered``; nothing else in the library keeps results
in a process.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from functools import wraps
from itertools import count
from threading import RLock
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdRef

from eyeline.budgets import budgets
from eyeline.errors import InvalidArgument

P = ParamSpec("P")
T = TypeVar("T")


class Remembered(NamedTuple):
    """The results of one function: how many there are, and the bytes of them and their keys."""

    name: str
    entries: int
    bytes: int


class Usage(NamedTuple):
    """What is remembered now. bytes: of all together; memory that several share counts once."""

    kept: tuple[Remembered, ...]
    bytes: int
    limit: int

    def __str__(self) -> str:
        lines = [f"{row.bytes:>14,}  {row.entries:>5}  {row.name}" for row in self.kept]
        total = f"{self.bytes:>14,}  {sum(row.entries for row in self.kept):>5}  together"
        return "\n".join([*lines, f"{total}, of at most {self.limit:,} bytes"])


def report() -> Usage:
    """What is remembered, function by function, the largest first."""
    return _memory.report()


def clear() -> None:
    """Forget everything. The next calls compute it anew; no answer changes."""
    _memory.clear()


def limit(size: int | None = None) -> int:
    """The most bytes that are remembered, after setting it to ``size`` if given.

    What was used longest ago goes first, at once; 0 remembers nothing. A result that is larger
    than the limit is not kept. Raises InvalidArgument for a size that is no whole number from 0.
    """
    if size is not None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InvalidArgument(f"limit={size!r}: bytes, a whole number from 0")
        _memory.shrink(size)
    return _memory.limit


# Whether torch records, or computes with tensors that hold no numbers.

_INFRA = tuple(
    getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL")
)
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_included = torch._C._dispatch_tls_is_dispatch_key_included
_modes, _mode = torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_mode
_recording = torch._C._get_tracing_state
_flags, _in_dynamo = torch.compiler, torch.compiler.is_dynamo_compiling
_compiler = torch._C._dynamo.eval_frame


def _inlined(function: Callable[P, T]) -> Callable[P, T]:
    """torch.compile traces the function where it is called in what it traces, never by itself.

    After a graph break it would compile it alone, with ``is_compiling`` true for ever. This is
    ``torch._dynamo.skip``, whose import takes a second.
    """
    return _by_itself(function, _compiler._FrameAction.DEFAULT)


def _eager(function: Callable[P, T]) -> Callable[P, T]:
    """As ``_inlined``, and all that it calls runs as it is: what is kept is no part of a graph."""
    return _by_itself(function, _compiler._FrameAction.SKIP)


def _by_itself(function: Callable[P, T], inside: Any) -> Callable[P, T]:
    alone = _compiler._FrameExecStrategy(_compiler._FrameAction.SKIP, inside)
    _compiler.set_code_exec_strategy(function.__code__, alone)
    return function


@_inlined
def traced() -> bool:
    """Whether a call is compiled, exported, traced by make_fx, or runs on fake tensors.

    Then what depends on numbers in tokens cannot be asked, and nothing is remembered.
    """
    if _in_dynamo() or _flags._is_compiling_flag:  # is_compiling(), in half of its time
        return True
    return _included(_PRE_DISPATCH) or (_modes() > 0 and any(_mode(key) for key in _INFRA))


# Results, the least recently used of a function going first, then those of all functions.

# What Python holds around an entry: the key, its place in the table, the entry itself.
_AROUND = 512
_clock = count()


@final
class _Entry:
    __slots__ = ("held", "result", "used")

    def __init__(self, result: Any, held: dict[int, int]) -> None:
        self.result, self.held, self.used = result, held, next(_clock)


@final
class _Table:
    """The results of one function, by its arguments."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self.entries: dict[Any, _Entry] = {}

    @property
    def kept(self) -> Remembered:
        held: dict[int, int] = {}
        for entry in tuple(self.entries.values()):
            held |= entry.held
        return Remembered(self.name, len(self.entries), sum(held.values()))


@final
class _Memory:
    """All tables and what they hold. Results are computed outside of its lock."""

    def __init__(self) -> None:
        self.tables: list[_Table] = []
        self.limit = budgets.remembered
        self.bytes = 0
        self.times_cleared = 0
        # References in keys whose tensor has died; filled by the garbage collector at any moment.
        self.dead: deque[tuple[_Table, object]] = deque()
        self._lock = RLock()
        # Storages and objects: how many entries hold each.
        self._holders: dict[int, int] = {}

    def keep(self, table: _Table, key: Any, result: T, cleared: int) -> T:
        """Take in a result; return the one that another thread may have put there before."""
        held = _held(key, result)
        with self._lock:
            self._bury()
            before = table.entries.get(key)
            if before is not None:
                return before.result  # type: ignore[no-any-return]
            if held is None or sum(held.values()) > self.limit or cleared != self.times_cleared:
                return result
            if len(table.entries) >= table.most:
                self._drop(table, min(table.entries, key=lambda k: table.entries[k].used))
            table.entries[key] = _Entry(result, held)
            for place, size in held.items():
                holders = self._holders.get(place, 0)
                self._holders[place] = holders + 1
                self.bytes += 0 if holders else size
            self._fit()
        return result

    def report(self) -> Usage:
        with self._lock:
            self._bury()
            rows = [table.kept for table in self.tables if table.entries]
            rows.sort(key=lambda row: -row.bytes)
            return Usage(tuple(rows), self.bytes, self.limit)

    def clear(self) -> None:
        with self._lock:
            for table in self.tables:
                table.entries.clear()
            self._holders.clear()
            self.dead.clear()
            self.bytes = 0
            self.times_cleared += 1

    def shrink(self, limit: int) -> None:
        with self._lock:
            self.limit = limit
            self._fit()

    def _fit(self) -> None:
        if self.bytes <= self.limit:
            return
        aged = [(entry.used, table, key) for table in self.tables
                for key, entry in table.entries.items()]  # fmt: skip
        for _, table, key in sorted(aged, key=lambda each: each[0]):
            self._drop(table, key)
            if self.bytes <= self.limit:
                return

    def _bury(self) -> None:
        while self.dead:
            table, reference = self.dead.popleft()
            for key in [key for key in table.entries if key[0] is reference]:
                self._drop(table, key)

    def _drop(self, table: _Table, key: Any) -> None:
        for place, size in table.entries.pop(key).held.items():
            self._holders[place] -= 1
            if not self._holders[place]:
                del self._holders[place]
                self.bytes -= size


_memory = _Memory()


def remembered(
    most: int, *, unless: Callable[[Any], object] | None = None, weak: bool = False
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: keep the function's last ``most`` results, by its arguments.

    unless: of the first argument, whether nothing is to be kept. weak: the first argument is a
    tensor, known by itself and the version of its content; what was found of it is forgotten when
    it dies. All else in the arguments is hashable, and held as long as the result.

    Nothing is read or kept while ``traced`` or recorded by torch.jit, nor where a size is a
    symbol, nor of results that hold wrapped tensors (of torch.func, or fake). Modes that watch
    operators, such as those that count or checkpoint, do not see what is computed to be kept.

    Raises InvalidArgument for arguments that cannot be hashed.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        name = f"{function.__module__}.{function.__qualname__}".removeprefix("eyeline.")
        table = _Table(name, most)
        _memory.tables.append(table)
        find = table.entries.get
        skip: Callable[[Any], object] | None = (
            Tensor.is_inference if weak else unless
        )  # such a tensor has no version

        @wraps(function)
        @_inlined
        def call(*args: P.args, **named: P.kwargs) -> T:
            # A decode step comes here three times: most questions are asked of a miss only.
            if (_in_dynamo() or _flags._is_compiling_flag or _modes()) and traced():
                return function(*args, **named)
            if skip is not None and skip(args[0]):
                return function(*args, **named)
            key: Any = args if not named else (*args, *named.items())
            if weak:
                key = _weak_key(table, *key)
            try:
                entry = find(key)
            except TypeError as error:
                if _has_symbol(key):
                    return function(*args, **named)
                raise _unhashable(key, error) from None
            if entry is None:
                return _computed(table, key, lambda: function(*args, **named))
            entry.used = next(_clock)
            return entry.result  # type: ignore[no-any-return]

        return call

    return decorate


@_eager
def _computed(table: _Table, key: Any, compute: Callable[[], T]) -> T:
    if traced() or _recording() is not None:
        return compute()
    cleared = _memory.times_cleared
    if not _modes():
        return _memory.keep(table, key, compute(), cleared)
    with _disable_current_modes():
        return _memory.keep(table, key, compute(), cleared)


def _weak_key(table: _Table, tensor: Tensor, *rest: Any) -> tuple[Any, ...]:
    def died(reference: object) -> None:
        _memory.dead.append((table, reference))

    return (WeakIdRef(tensor, died), tensor._version, *rest)


def _has_symbol(key: Any) -> bool:
    if isinstance(key, tuple):
        return any(map(_has_symbol, key))
    return isinstance(key, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _unhashable(key: tuple[Any, ...], error: TypeError) -> InvalidArgument | TypeError:
    for argument in key:
        try:
            hash(argument)
        except TypeError:
            return InvalidArgument(
                f"{type(argument).__name__} cannot be hashed ({error}): a pattern is a frozen "
                "dataclass whose fields are hashable, or names itself in ``bound``"
            )
    return error


@final
class remembered_property(Generic[T]):  # noqa: N801, used like functools.cached_property
    """A property that is computed once, as ``functools.cached_property``, but not while traced."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.func, self._name = function, function.__name__
        self.__doc__ = function.__doc__

    @_eager
    def __get__(self, owner: Any, kind: type | None = None) -> T:
        if owner is None:
            return self  # type: ignore[return-value]
        if traced():
            return self.func(owner)
        known: dict[str, Any] = owner.__dict__
        if self._name in known:
            return known[self._name]  # type: ignore[no-any-return]
        result = self.func(owner)
        if _held(result) is not None:
            known[self._name] = result
        return result

    def __set__(self, owner: Any, value: T) -> None:
        raise AttributeError(f"{self._name} is computed")


# How many bytes a result holds.

# Where the classes and functions come from whose insides are looked through, beside dataclasses.
_KNOWN = ("eyeline.", "torch.nn.")


def _held(*values: Any) -> dict[int, int] | None:
    """The bytes of each storage and object in some values; None if a tensor is not a plain one."""
    held: dict[int, int] = {}
    held[id(held)] = _AROUND
    waiting, seen = deque(values), set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or value is None:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if not _is_plain(value):
                return None
            storage = value.untyped_storage()
            held[storage._cdata] = storage.nbytes()
        else:
            held[id(value)] = sys.getsizeof(value)
            waiting.extend(_inside(value))
    return held


def _is_plain(tensor: Tensor) -> bool:
    kind = type(tensor)
    known = kind is Tensor or kind is torch.nn.Parameter
    return known and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, (tuple, list, set, frozenset)):
        return value
    if isinstance(value, dict):
        return value.values()
    ours = (value.__module__ or "") if hasattr(value, "__module__") else ""
    if isinstance(value, type) or not (is_dataclass(value) or ours.startswith(_KNOWN)):
        return ()
    closure = getattr(value, "__closure__", None) or ()
    return [*(cell.cell_contents for cell in closure), *getattr(value, "__dict__", {}).values()]
