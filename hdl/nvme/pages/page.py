"""What a page is: a layout, how often it repeats, and when it is shown."""

from dataclasses import dataclass
from enum import Enum, auto

from amaranth.hdl import Value

from hdl.nvme.pages.layout import WORD_BYTES, Layout
from hdl.nvme.records import PageKind

IMAGE_WORDS = 256
"""Words of an image in the ROM; what follows in a page is 0."""

IMAGES = 5
"""Page kinds with an image in the ROM: those below this number."""


class Numbered(Enum):
    """What the number of an entry is."""

    NAMESPACE = auto()
    """The page is of the namespace that is asked about. It has one entry."""

    WORD = auto()
    """That of the word, as the capacity of all arrays and volumes is added up on the way. The page
    has one entry."""

    NONE = auto()
    """Entries are not numbered."""

    FROM_ZERO = auto()
    """The first entry is number 0."""

    FROM_START = auto()
    """The host says which entry is the first."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page, or two whose words are the same.

    Parameters
    ----------
    kinds
        Its codes.
    layout
        Of an entry. It repeats until the page ends.
    numbered
        What an entry's number is.
    entries
        How many entries there are. Zeros follow.
    shows
        1 while the entry's layout is shown, and 0 if the entry is zeros.
    shared
        1 while the page is about all namespaces together. It has the constants then, but not in
        words of fields that are a namespace's own. None: it never is.
    emits
        0 if an entry that exists is left out, so that the next one is in its place.
    """

    kinds: tuple[PageKind, ...]
    layout: Layout
    numbered: Numbered = Numbered.NAMESPACE
    entries: int = 1
    shows: Value | int = 1
    shared: Value | None = None
    emits: Value | int = 1

    @property
    def in_rom(self) -> bool:
        """Its constants are in the ROM, else they are looked up as all the rest."""
        return self.kinds[0].value < IMAGES

    @property
    def entry_words(self) -> int:
        """Words of an entry, a power of two."""
        return self.layout.size // WORD_BYTES

    @property
    def entry_shift(self) -> int:
        """log2 of them."""
        return self.entry_words.bit_length() - 1

    @property
    def words(self) -> int:
        """Words that all entries have together; of a page without a list those of its image."""
        return IMAGE_WORDS if self.numbered in _SINGLE else self.entries * self.entry_words

    def own_words(self) -> list[int]:
        """Words with fields that are a namespace's own."""
        return sorted({word for line in self.layout.fields if line.own for word in line.words})


_SINGLE = (Numbered.NAMESPACE, Numbered.WORD)
