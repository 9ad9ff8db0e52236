"""Layouts of pages: tables of fields, and the hardware that looks a word up in such a table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from amaranth.hdl import Cat, Const, Module, Value

WORD_BYTES = 4
WORD_BITS = 8 * WORD_BYTES


@dataclass(frozen=True, eq=False)
class Asked:
    """A word that is the answer to a question: ``value`` while ``signal`` is ``question``."""

    value: Value
    signal: Any
    question: int


@dataclass(frozen=True)
class Field:
    """A line of a layout; `field` and `bits` make one.

    Parameters
    ----------
    name
        As in the specification, or in docs/host-interface.md.
    first, width
        The lowest bit, counted from bit 0 of byte 0 of the layout, and how many bits there are.
    source
        What stands there, little-endian. A number or bytes do not change. A value is looked up when
        the word is needed. A sequence has a value, or something `Asked`, for each word of the
        field. If a source is shorter than the field, zeros follow.
    own
        Says something of one namespace alone. An answer for all namespaces has zeros here.
    """

    name: str
    first: int
    width: int
    source: Any
    own: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.source, int):
            short = 0 <= self.source < 1 << self.width
        elif isinstance(self.source, bytes):
            short = 8 * len(self.source) <= self.width
        elif isinstance(self.source, Sequence):
            short = self.first % WORD_BITS == 0 and WORD_BITS * len(self.source) <= self.width
        else:
            short = len(Value.cast(self.source)) <= self.width
        if not short:
            raise ValueError(f"the source of {self.name} does not fit into its field")

    @property
    def constant(self) -> int | None:
        """The number that stands there, None if it may change."""
        if isinstance(self.source, bytes):
            return int.from_bytes(self.source, "little")
        return self.source if isinstance(self.source, int) else None

    @property
    def words(self) -> range:
        """The words of the layout in which the field has bits."""
        return range(self.first // WORD_BITS, (self.first + self.width - 1) // WORD_BITS + 1)

    def parts(self) -> Iterator[tuple[int, "Part"]]:
        """The source, cut where words end: (word, part). Words that are only zeros are left out."""
        if isinstance(self.source, Sequence) and not isinstance(self.source, bytes):
            for word, content in enumerate(self.source, self.words.start):
                yield word, Part(0, WORD_BITS, content)
            return
        constant = self.constant
        source = Value.cast(self.source if constant is None else Const(constant, self.width))
        end = self.first + self.width
        for word in self.words:
            low, high = max(self.first, WORD_BITS * word), min(end, WORD_BITS * (word + 1))
            content = source[low - self.first : high - self.first]
            if len(content) and (constant is None or constant >> (low - self.first)):
                yield word, Part(low - WORD_BITS * word, high - low, content)


def field(name: str, byte: int, size: int, source, *, own: bool = False) -> Field:
    """A field of ``size`` bytes from ``byte`` on."""
    return Field(name, 8 * byte, 8 * size, source, own)


def bits(name: str, byte: int, bit: int, width: int, source) -> Field:
    """A field of ``width`` bits from bit ``bit`` of ``byte`` on."""
    return Field(name, 8 * byte + bit, width, source)


@dataclass(frozen=True)
class Part:
    """What stands in ``width`` bits of a word from bit ``shift`` on; shorter ``content`` is filled
    up with zeros."""

    shift: int
    width: int
    content: Any

    @property
    def value(self) -> Value:
        """The content itself."""
        return Value.cast(self.content.value if isinstance(self.content, Asked) else self.content)


class Layout:
    """Fields in their order, none over another.

    Parameters
    ----------
    fields
        The table. An entry None is a field that the configuration leaves out.
    size
        In bytes. What no field says is 0.
    """

    def __init__(self, *fields: Field | None, size: int):
        self.fields = tuple(line for line in fields if line is not None)
        self.size = size
        end = 0
        for line in self.fields:
            if line.first < end:
                raise ValueError(f"{line.name} begins before the field before it has ended")
            end = line.first + line.width
        if end > 8 * size:
            raise ValueError(f"{self.fields[-1].name} is not within {size} bytes")

    def image(self) -> bytes:
        """Its constants, and zeros where something else stands."""
        fixed = ((line.constant or 0) << line.first for line in self.fields)
        return sum(fixed).to_bytes(self.size, "little")

    def packed(self) -> Value:
        """All of it as one value, from bit 0 of byte 0 on."""
        value, end = [], 0
        for line in self.fields:
            constant = line.constant
            content = Const(constant, line.width) if constant is not None else line.source
            padding = line.width - len(Value.cast(content))
            value += [Const(0, line.first - end), content, Const(0, padding)]
            end = line.first + line.width
        return Cat(*value, Const(0, 8 * self.size - end))

    def words(self, *, constants: bool = True) -> dict[int, list[Part]]:
        """What stands in each word, perhaps without ``constants``. Words of zeros are left out."""
        words: dict[int, list[Part]] = {}
        for line in self.fields:
            if constants or line.constant is None:
                for word, part in line.parts():
                    words.setdefault(word, []).append(part)
        return words

    def look_up(self, m: Module, index: Value, value: Any, image: Value | None = None) -> None:
        """Drives ``value`` with what stands in word ``index``. Bits without a field stay as they
        are.

        ``image``: that word of `image`, which is shown already. Where it is given, no constant is
        looked up.
        """
        words = self.words(constants=image is None)
        fixed = self.image()
        with m.Switch(index):
            for places in _alike(words):
                first = places[0]
                with m.Case(*patterns(places, len(index))):
                    for part in words[first]:
                        if isinstance(part.content, Asked):
                            m.d.comb += part.content.signal.eq(part.content.question)
                    if image is not None and any(fixed[WORD_BYTES * first :][:WORD_BYTES]):
                        # The image has zeros where these parts are.
                        parts = [Cat(Const(0, part.shift), part.value) for part in words[first]]
                        m.d.comb += value.eq(reduce(or_, parts, image))
                        continue
                    for part in words[first]:
                        m.d.comb += value[part.shift : part.shift + part.width].eq(part.value)


def _alike(words: dict[int, list[Part]]) -> list[list[int]]:
    """All of ``words``, those together that have the same content."""
    found: dict[Any, list[int]] = {}
    for word, parts in words.items():
        content = parts[0].content
        key: Any = word
        if len(parts) == 1 and parts[0].width == WORD_BITS:
            key = content if isinstance(content, Asked) else ("same", id(content))
        found.setdefault(key, []).append(word)
    return list(found.values())


def patterns(words: Iterable[int], width: int) -> list[str]:
    """Patterns of ``width`` bits that match ``words`` and nothing else.

    There is one for each aligned run whose length is a power of two.
    """
    left = set(words)
    found = []
    for word in sorted(left):
        if word not in left:
            continue
        shift = 0
        while word % (2 << shift) == 0 and left.issuperset(range(word, word + (2 << shift))):
            shift += 1
        left -= set(range(word, word + (1 << shift)))
        fixed = f"{word >> shift:0{width - shift}b}" if width > shift else ""
        found.append(fixed + "-" * shift)
    return found
