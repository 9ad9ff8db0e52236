"""What stands in each word of the pages that Identify, Get Log Page and LIST return."""

import struct

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.nvme.pages.facts import Facts
from hdl.nvme.pages.identify import Identity, identify_pages
from hdl.nvme.pages.layout import WORD_BYTES
from hdl.nvme.pages.lists import list_pages
from hdl.nvme.pages.logs import log_pages
from hdl.nvme.pages.page import IMAGE_WORDS, IMAGES, Page


class PageWords(wiring.Component):
    """Looks the word of a page up in the tables `identify_pages`, `log_pages` and `list_pages`.

    Combinational. `PageGenerator` waits until all facts are there.

    Parameters
    ----------
    config
        Sizes.
    identity
        Fixed contents.

    Ports
    -----
    facts
        What is known of the word, and which word it is.
    value
        The word.
    emits
        The page has the word at all. An entry that is left out does not emit.
    """

    def __init__(self, *, config: Config, identity: Identity):
        super().__init__(
            {
                "facts": In(Facts(config)),
                "value": Out(32),
                "emits": Out(1, init=1),
            }
        )
        facts = self.facts
        self.pages: list[Page] = [
            *identify_pages(config, identity, facts),
            *log_pages(config, identity, facts),
            *list_pages(config, facts),
        ]

    def images(self) -> list[int]:
        """Words of the ROM: `IMAGE_WORDS` for each page kind below `IMAGES`."""
        by_kind = {page.kinds[0].value: page for page in self.pages if page.in_rom}
        words: list[int] = []
        for kind in range(IMAGES):
            image = by_kind[kind].layout.image()
            words += struct.unpack_from(f"<{IMAGE_WORDS}I", image)
            if any(image[WORD_BYTES * IMAGE_WORDS :]):
                raise ValueError(f"the image of page kind {kind} is too long")
        return words

    def elaborate(self, platform) -> Module:
        m = Module()
        m.d.comb += self.facts.names.volume.eq(self.facts.number)
        with m.Switch(self.facts.kind):
            for page in self.pages:
                with m.Case(*page.kinds):
                    m.d.comb += self.emits.eq(~self.facts.exists | page.emits)
                    self._show_shared(m, page)
                    self._show(m, page)
        return m

    def _show(self, m: Module, page: Page) -> None:
        """The word of ``page``, or of an entry of it."""
        facts = self.facts
        index = facts.index[: page.entry_shift]
        with m.If(page.shows):
            if page.in_rom:
                with m.If(facts.exists):
                    m.d.comb += self.value.eq(facts.image)
            page.layout.look_up(m, index, self.value, facts.image if page.in_rom else None)

    def _show_shared(self, m: Module, page: Page) -> None:
        """The word of a page that is about all namespaces together: constants."""
        if page.shared is None:
            return
        facts = self.facts
        with m.If(page.shared & facts.exists):
            with m.Switch(facts.index):
                with m.Case(*page.own_words()):
                    pass
                with m.Default():
                    m.d.comb += self.value.eq(facts.image)
