"""Background work: rebuild, check, repair."""

from dataclasses import dataclass

from hdl.config.checks import power_of_two
from hdl.config.sizes import MOST_STORED_CHUNKS, bits_for_count

MOST_KEPT_US = 60_000_000


@dataclass(frozen=True, kw_only=True)
class Background:
    """Part of `hdl.config.Config`.

    Parameters
    ----------
    background
        Rows are initialised, rebuilt, checked and mended in the background (`hdl.background`), and
        blocks that a drive cannot read are written anew. Without it none of this exists.
    walk_window
        Rows that are walked at once, a power of two up to 128.
    intent_chunks
        Bits of the write-intent bitmap of each array (`hdl.background.intent`), a power of two of
        32 and up. With the bitmap the rebuild of a drive that comes back covers only the writes
        that it missed. It needs ``background``. With 0 there is no bitmap, and such a drive is
        rebuilt from the first row to the last.
    marks_kept_us
        How long a mark stays in the bitmap on the drives after it has been dropped, with
        ``metadata``.
    marks_idle_us
        An array that is not written any more is flushed so that its marks can be dropped, with
        ``metadata``: after this time, or up to twice that.
    checkpoint_us
        How long marks of rows that have been rebuilt are kept at least, with ``metadata``. Then the
        drives are flushed, and the rebuild goes on from there if power goes.
    metadata
        Arrays live on their drives (`hdl.metadata`). It needs ``background``, and there may be 64
        volumes at most. Without it, which is the default, the controller forgets its arrays when
        power goes.
    """

    background: bool = True
    walk_window: int = 128
    intent_chunks: int = 0
    marks_kept_us: int = 5_000_000
    marks_idle_us: int = 2_000_000
    checkpoint_us: int = 30_000_000
    metadata: bool = False

    def check_background(self) -> None:
        """Raises `ValueError` if the bitmap cannot be built."""
        power_of_two("walk_window", self.walk_window, 2, 128)
        chunks = self.intent_chunks
        if chunks and (chunks & (chunks - 1) or not 32 <= chunks <= 1 << 15):
            raise ValueError(
                f"intent_chunks must be 0 or a power of two in 32..32768, not {chunks}"
            )
        if chunks and not self.background:
            raise ValueError("intent_chunks needs background, which rebuilds")
        if self.metadata and not self.background:
            raise ValueError("metadata needs background, which makes rows consistent")
        for name in ("marks_kept_us", "marks_idle_us", "checkpoint_us"):
            if not 1 <= getattr(self, name) <= MOST_KEPT_US:
                raise ValueError(
                    f"{name} must be 1..{MOST_KEPT_US}, not {getattr(self, name)}"
                )
        if self.metadata and chunks > MOST_STORED_CHUNKS:
            raise ValueError(
                f"metadata has room for {MOST_STORED_CHUNKS} intent_chunks, not for {chunks}"
            )

    @property
    def durable_marks(self) -> bool:
        """The write-intent bitmap lives on the drives."""
        return self.metadata and self.intent_chunks > 0

    @property
    def chunk_bits(self) -> int:
        """Width of a chunk number of the write-intent bitmap."""
        return bits_for_count(self.intent_chunks)
