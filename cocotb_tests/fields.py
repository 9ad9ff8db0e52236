"""Records of payloads, which note the fields that a test reads.

A test that looks at some fields of a stream only cannot find a bug in the others. So each
simulation keeps the fields that nothing has read, of each stream from which a
`cocotb_tests.streams.StreamSink` has taken anything. It keeps them for each kind of payload, that
is for each value of its enumerations. `cocotb_tests.runner.simulate` fails if there are any.

A field is read as an attribute or by its name in brackets. All are read by a comparison of the
whole and by iteration. A record that is only printed is not read.
"""

import atexit
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

PAYLOAD = "payload"
"""Name of the one field of a payload that is an integer."""

REPORT = "UNREAD_FIELDS"
"""Environment variable of a simulation: the file that its unread fields are written to."""


class Fields(Mapping):
    """Fields of an unpacked layout; ``fields.name`` is the same as ``fields["name"]``."""

    def __init__(self, fields: Mapping[str, Any]):
        self.__dict__ = dict(fields)

    def __getitem__(self, name: str) -> Any:
        if name in self.__dict__:
            return getattr(self, name)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def __len__(self) -> int:
        return len(self.__dict__)

    def __iter__(self) -> Iterator[str]:
        self._read_all()
        return iter(self.__dict__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        self._read_all()
        if isinstance(other, Fields):
            other._read_all()
            return self.__dict__ == other.__dict__
        return self.__dict__ == other

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return repr(self.__dict__)

    def _read_all(self) -> None:
        for one in list(type(self).__dict__.values()):
            if isinstance(one, _Unread):
                one.__get__(self, type(self))


ANY = object()
"""In what a payload is compared with: a field that has no meaning. It is not read."""


def check_fields(
    seen: Fields, wanted: Mapping[str, Any], about: str = "", *, rest: Any = None
) -> None:
    """Compares all fields of a payload with those of ``wanted``.

    A mapping in ``wanted`` is a structure. What is not named there must be 0, or has no meaning if
    ``rest`` is `ANY`.
    """
    fields = seen.__dict__
    unknown = {name for name in wanted.keys() - fields.keys() if not _is_any(wanted[name])}
    assert not unknown, f"{about}: no field {', '.join(sorted(unknown))} in {seen}"
    for name in fields:
        value = wanted.get(name, rest)
        if value is ANY:
            continue
        found = seen[name]
        if isinstance(found, Fields):
            check_fields(found, value or {}, f"{about}.{name}")
        elif value is None:
            zero = found.value if isinstance(found, Enum) else found
            assert not zero, f"{about}.{name} is {found}, not 0, in {seen}"
        else:
            assert found == value, f"{about}.{name} is {found}, not {value}, in {seen}"


def _is_any(value: Any) -> bool:
    return all(map(_is_any, value.values())) if isinstance(value, Mapping) else value is ANY


class _Unread:
    """An attribute of a class of records that has not been read of any of them.

    The first read takes it away, so that later ones cost nothing.
    """

    def __init__(self, name: str, path: str, unread: set[str]):
        self._name, self._path, self._unread = name, path, unread

    def __get__(self, record: Fields, kind: type[Fields]) -> Any:
        self._unread.discard(self._path)
        if kind.__dict__.get(self._name) is self:
            delattr(kind, self._name)
        return record.__dict__[self._name]

    def __set__(self, record: Fields, value: Any) -> None:
        # Only attributes that can be set come before those of the record itself.
        raise AttributeError(f"{self._name} of a payload cannot be set")


def noting(paths: Mapping[str, str], unread: set[str]) -> type[Fields]:
    """A class of records that takes a path out of ``unread`` when its field is read first.

    ``paths`` has the path of each field by its name.
    """
    members = {
        name: _Unread(name, path, unread) for name, path in paths.items() if path in unread
    }
    return type("Fields", (Fields,), members)


_UNREAD: dict[str, dict[str, set[str]]] = {}
"""Of each stream and each kind of payload that was taken from it: the paths of fields that nothing
has read yet."""


class Unread:
    """The fields of a stream that nothing has read in this simulation.

    Parameters
    ----------
    stream
        Its name.
    paths
        Those of all its fields, and whether each has a bit in this configuration.
    ignores
        Why the test need not look at the payload; or why at some fields, by name. A field
        ``FLUSH:block`` is ``block`` in payloads of a kind that has the value ``FLUSH``, and
        ``FLUSH:*`` are all fields of such.
    """

    def __init__(
        self, stream: str, paths: Mapping[str, bool], ignores: Mapping[str, str] | str | None
    ):
        self._stream = stream
        self._paths = {path for path, exists in paths.items() if exists}
        self.whole = self._paths == {PAYLOAD}
        self._ignores: set[tuple[str, str]] = set()
        if isinstance(ignores, str):
            self._ignores = {("", path) for path in self._paths}
            ignores = None
        for name in ignores or ():
            value, _, field = name.rpartition(":")
            found = {
                path for path in paths if field == "*" or f"{path}.".startswith(f"{field}.")
            }
            if not found and not any(field.startswith(f"{path}.") for path in paths):
                raise ValueError(f"{stream} has no field {field!r} to ignore")
            self._ignores |= {(value, path) for path in found}

    def of(self, values: Sequence[str]) -> set[str]:
        """Those of payloads of a kind, one of which has been taken; whoever reads one takes it out.

        ``values`` are those of the enumerations in such a payload.
        """
        kinds = _UNREAD.setdefault(self._stream, {})
        unread = kinds.setdefault(", ".join(values), set(self._paths))
        unread -= {path for value, path in self._ignores if not value or value in values}
        return unread


def reads(callback: Callable[[Any], None]) -> bool:
    """Whether a function looks at its argument, which by its name it may leave alone."""
    try:
        first = next(iter(inspect.signature(callback).parameters), "")
    except ValueError:
        return True
    return not first.startswith("_")


def _report() -> None:
    lines = [
        f"{stream}{kind and f' of {kind}'}: {', '.join(sorted(unread))}"
        for stream, kinds in _UNREAD.items()
        for kind, unread in kinds.items()
        if unread
    ]
    Path(os.environ[REPORT]).write_text("".join(f"{line}\n" for line in sorted(lines)))


if REPORT in os.environ:
    atexit.register(_report)
