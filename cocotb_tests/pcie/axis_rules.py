"""The rules of a hard block's streams, enforced in every simulation that has one (PG213, PG054).

PG213, "Requester Request Interface" and "Completer Completion Interface": ``tvalid`` stays 1 from
the first beat of a packet to its last (else the block nullifies the TLP), a beat that is not taken
stays as it is, ``tkeep`` is full but in the last beat. What a packet may hold is checked by its
descriptor, or by its header on the 7-series block.
"""

from collections.abc import Callable, Iterator

from cocotb_tests.streams import every_cycle, sample, unpack
from hdl.pcie.phy.sideband import user_shape

WORD_BITS = 32
PAGE_BYTES = 4096
SHORT_TAGS = 32
MEMORY_READ, MEMORY_WRITE = 0, 1
POSTED_KINDS = (1, 12, 13, 14)
"""Request types that want no completion: memory writes and messages."""

COMPLETION = 0b01010
"""Type field of a completion's header."""

DESCRIPTOR_WORDS = 3
"""Words of a completion's descriptor."""

ERROR_WORDS = 5
"""Words about its request that an unsuccessful completion carries."""


class StreamRules:
    """Holds one AXI4-Stream to its rules; ``packet`` is called with each packet's words and tuser.

    Parameters
    ----------
    name
        Prefix of the ports: ``<name>_tvalid`` and so on.
    unbroken
        ``tvalid`` may not fall within a packet; so for everything that the card sends.
    word_keep
        Bits of ``tkeep`` for each 32-bit word.
    packet
        Called at the end of each packet with its words and the ``tuser`` of all its beats.

    Attributes
    ----------
    packets, beats
        How many have been taken.
    words
        Of the packet that has begun.
    reset
        Called for whether the stream is in reset: then nothing is checked. Whoever ends it clears
        ``words``.
    """

    def __init__(
        self,
        dut,
        name: str,
        *,
        unbroken: bool,
        word_keep: int = 1,
        packet: Callable[[list[int], list[int]], None] | None = None,
        reset: Callable[[], bool] | None = None,
    ):
        self.name = name
        self.packets = 0
        self.beats = 0
        self.words: list[int] = []
        self._users: list[int] = []
        self._dut = dut
        self._unbroken = unbroken
        self._packet = packet
        self._reset = reset or (lambda: bool(sample(dut.rst)))
        self._ports = [getattr(dut, f"{name}_{part}") for part in ("tdata", "tkeep", "tuser")]
        self._valid = getattr(dut, f"{name}_tvalid")
        self._ready = getattr(dut, f"{name}_tready")
        self._last = getattr(dut, f"{name}_tlast")
        self._words = len(self._ports[0]) // WORD_BITS
        self._word_keep = word_keep
        self._keeps = {
            (1 << word_keep * count) - 1: count for count in range(1, self._words + 1)
        }
        every_cycle(dut.clk, self._run())

    def _run(self) -> Iterator[None]:
        words, users, valid = self.words, self._users, self._valid
        refused = None
        while True:
            yield
            if not sample(valid) and refused is None and not words and not users:
                continue  # as in most cycles
            if self._reset():
                refused = None
                if sample(self._valid) and sample(self._ready):
                    self._pass()
                users.clear()
                continue
            if not sample(self._valid):
                assert refused is None, f"{self.name}: tvalid fell before tready"
                assert not (words and self._unbroken), (
                    f"{self.name}: tvalid fell within a packet, after {len(words)} words"
                )
                continue
            data, keep, user = (sample(port) for port in self._ports)
            beat = (data, keep, user, sample(self._last))
            assert refused in (None, beat), f"{self.name}: a beat changed before tready"
            if not sample(self._ready):
                refused = beat
                continue
            refused = None
            self.beats += 1
            self._take(*beat)

    def _pass(self) -> None:
        """A beat in reset: only whether a packet has begun is of interest."""
        self.words.append(0)
        if sample(self._last):
            self.words.clear()

    def _take(self, data: int, keep: int, user: int, last: int) -> None:
        """A beat has been taken."""
        words = self.words
        count = self._keeps.get(keep)
        assert count, f"{self.name}: tkeep {keep:#x}"
        assert count == self._words or last, f"{self.name}: a beat with a gap"
        words += [data >> WORD_BITS * place & 0xFFFF_FFFF for place in range(count)]
        self._users.append(user)
        if last:
            self._end()

    def _end(self) -> None:
        """The packet is complete."""
        self.packets += 1
        if self._packet is not None:
            self._packet(self.words, self._users)
        self.words.clear()
        self._users.clear()


class StraddleRules(StreamRules):
    """RC with the straddle option (PG213, "Straddle Option on RC Interface").

    A completion starts at word 0 of a beat, or at the first multiple of 4 words behind the end of
    another one; ``tuser`` says where, and has a byte enable for each byte of payload and no other;
    ``tkeep`` is all ones and ``tlast`` 0. A beat in which something is discontinued starts nothing
    behind it. Blocks that have two completions a beat of 512 bits start at multiples of ``unit``
    8 words.

    ``shared``: beats in which a completion started behind the end of another one.
    """

    def __init__(self, dut, name: str = "rc", *, unit: int = 4, **options):
        super().__init__(dut, name, unbroken=False, **options)
        self.shared = 0
        self._unit = unit

    def _places(self, user) -> tuple[list[int], list[int]]:
        """First words of the completions that start in a beat, and last words of those that end."""
        if self._words == 8:
            count = user.start.bit_count()
            assert user.start != 0b10, f"{self.name}: is_sof_1 without is_sof_0"
            first = 4 if self.words else 0
            starts = [first, 4][:count]
            assert count < 2 or not self.words, f"{self.name}: two starts behind another packet"
            ends = [end.word for end in user.end if end.valid]
            assert user.end[0].valid or not user.end[1].valid, f"{self.name}: is_eof_1 alone"
        else:
            for flags in (user.start, user.end):
                assert not flags & flags + 1, f"{self.name}: is_sop or is_eop {flags:#x}"
            starts = [4 * place for place in user.start_place[: user.start.bit_count()]]
            ends = user.end_word[: user.end.bit_count()]
        assert starts == sorted(set(starts)), f"{self.name}: starts at {starts}"
        assert ends == sorted(set(ends)), f"{self.name}: ends at {ends}"
        return starts, ends

    def _pass(self) -> None:
        user = unpack(user_shape("rc", WORD_BITS * self._words), sample(self._ports[2]))
        starts, ends = self._places(user)
        if len(starts) + bool(self.words) > len(ends):
            self.words.append(0)
        else:
            self.words.clear()

    def _take(self, data: int, keep: int, user: int, last: int) -> None:
        assert keep == (1 << self._words) - 1, f"{self.name}: tkeep {keep:#x}"
        assert not last, f"{self.name}: tlast"
        fields = unpack(user_shape("rc", WORD_BITS * self._words), user)
        starts, ends = self._places(fields)
        enables = 0
        free = 0  # where a packet may start
        ended = False
        for word in range(self._words):
            if not self.words:
                if not starts or starts[0] != word:
                    continue
                assert word == free, f"{self.name}: a start at {word}, not {free}"
                self.shared += ended
                assert not (fields.discontinue and ended), f"{self.name}: a start after discontinue"
                starts.pop(0)
            if len(self.words) >= DESCRIPTOR_WORDS:
                enables |= 0xF << 4 * word
            self.words.append(data >> WORD_BITS * word & 0xFFFF_FFFF)
            if ends and ends[0] == word:
                ends.pop(0)
                count = DESCRIPTOR_WORDS + (self.words[1] & 0x7FF)
                assert len(self.words) == count, (
                    f"{self.name}: {len(self.words)} words where the descriptor says {count}"
                )
                self._users.append(user)
                self._end()
                free = -(-(word + 1) // self._unit) * self._unit
                ended = True
        assert not starts, f"{self.name}: a start at {starts} within a packet"
        assert not ends, f"{self.name}: an end at {ends} without a packet"
        assert ended or self.words, f"{self.name}: an empty beat"
        assert ended or not fields.discontinue, f"{self.name}: discontinue without an end"
        assert fields.byte_enable == enables, f"{self.name}: byte enables {fields.byte_enable:#x}"


def check_request(
    *,
    write: bool,
    address: int,
    dwords: int,
    tag: int,
    first_enable: int,
    last_enable: int,
    max_payload: int,
    max_read_request: int,
    extended_tag: bool,
) -> None:
    """A memory request of the card is one that the base specification allows (2.2.7)."""
    what = f"{'write' if write else 'read'} of {dwords} words at {address:#x}"
    assert 1 <= dwords <= PAGE_BYTES // 4, what
    assert address % PAGE_BYTES + 4 * dwords <= PAGE_BYTES, f"{what} crosses 4 KiB"
    most = max_payload if write else max_read_request
    assert 4 * dwords <= most, f"{what} is longer than {most} bytes"
    if dwords == 1:
        assert not last_enable, f"{what}: last byte enables {last_enable:#x}"
    else:
        assert (first_enable, last_enable) == (0xF, 0xF), f"{what}: byte enables"
    assert first_enable, f"{what}: no byte enabled"
    if not write:
        assert tag < SHORT_TAGS or extended_tag, f"{what}: tag {tag} without extended tags"


class UltrascaleRules:
    """The four streams of an UltraScale+ block, and that each CC packet answers one of CQ.

    ``limits``: called for the maximum payload, the maximum read request (bytes), and whether
    extended tags are enabled. ``straddled``: RC is.
    """

    def __init__(
        self,
        dut,
        *,
        limits: Callable[[], tuple[int, int, bool]],
        straddled: bool = False,
        reset=None,
    ):
        self._limits = limits
        self._width = len(dut.rq_tdata)
        self._asked: list[tuple[int, ...]] = []
        self.rq = StreamRules(dut, "rq", unbroken=True, packet=self._request, reset=reset)
        self.cc = StreamRules(dut, "cc", unbroken=True, packet=self._completion, reset=reset)
        self.cq = StreamRules(dut, "cq", unbroken=False, packet=self._asks, reset=reset)
        self.rc = (
            StraddleRules(dut, reset=reset)
            if straddled
            else StreamRules(dut, "rc", unbroken=False, reset=reset)
        )

    def forget(self) -> None:
        """The link has been reset: nothing is owed any more."""
        self._asked.clear()

    def answers(self) -> int:
        """Completions that have been sent."""
        return self.cc.packets

    def _user(self, bus: str, value: int):
        return unpack(user_shape(bus, self._width), value)

    def _request(self, words: list[int], users: list[int]) -> None:
        low, high, about, identity = words[:4]
        dwords, kind = about & 0x7FF, about >> 11 & 0xF
        assert kind in (MEMORY_READ, MEMORY_WRITE), f"rq: request type {kind}"
        assert not low & 3, "rq: address type"
        assert not about >> 15 & 1, "rq: poisoned"
        # Completer id, its enable, traffic class, no snoop and forced ECRC: none of them is used.
        assert not identity & 0x9FFF_FF00, f"rq: word 3 is {identity:#x}"
        write = kind == MEMORY_WRITE
        assert len(words) == 4 + (dwords if write else 0), f"rq: {len(words)} words of {dwords}"
        user = self._user("rq", users[0])
        assert not any(self._user("rq", value).discontinue for value in users)
        payload, read_request, extended = self._limits()
        check_request(
            write=write,
            address=high << 32 | low,
            dwords=dwords,
            tag=identity & 0xFF,
            first_enable=user.first_enable,
            last_enable=user.last_enable,
            max_payload=payload,
            max_read_request=read_request,
            extended_tag=extended,
        )

    def _asks(self, words: list[int], users: list[int]) -> None:
        about, identity = words[2:4]
        if about >> 11 & 0xF in POSTED_KINDS:
            return
        requester, tag = about >> 16, identity & 0xFF
        function, traffic_class = identity >> 8 & 0xFF, identity >> 25 & 7
        self._asked.append((requester, tag, function, traffic_class, identity >> 28 & 3))

    def _completion(self, words: list[int], users: list[int]) -> None:
        assert not any(self._user("cc", value).discontinue for value in users)
        counts, about, identity = words[:3]
        assert not counts & 0xC000_FC80, f"cc: reserved bits, {counts:#x}"
        assert not counts >> 8 & 3, "cc: address type"
        dwords, status = about & 0x7FF, about >> 11 & 7
        assert not about >> 14 & 3, "cc: poisoned"
        more = dwords if status == 0 else ERROR_WORDS
        assert len(words) == 3 + more, f"cc: {len(words)} words, status {status}"
        assert not (status and dwords), "cc: data with an error"
        assert 1 <= counts >> 16 & 0x1FFF <= PAGE_BYTES, "cc: byte count"
        # PG213, "Completer Completion Descriptor": function in 79:72, bus in 87:80 of all bits.
        function, bus = identity >> 8 & 0xFF, identity >> 16 & 0xFF
        assert not identity >> 24 & 1, "cc: completer id enable"
        assert not bus, f"cc: bus {bus} without completer id enable"
        found = (about >> 16, identity & 0xFF, function, identity >> 25 & 7, identity >> 28 & 3)
        assert found in self._asked, f"cc: {found} answers nothing of {self._asked}"
        self._asked.remove(found)


class Series7Rules:
    """The sending stream of a 7-series block; the block's model reads its packets."""

    def __init__(self, dut, reset=None):
        self._dut = dut
        self._answers = 0
        self.tx = StreamRules(
            dut, "tx", unbroken=True, word_keep=4, packet=self._packet, reset=reset
        )

    def forget(self) -> None:
        """The link has been reset."""
        self.tx.words.clear()

    def answers(self) -> int:
        """Completions that have been sent."""
        return self._answers

    def _packet(self, words: list[int], users: list[int]) -> None:
        self._answers += words[0] >> 24 & 0x1F == COMPLETION
        assert not any(users), "tx: tuser asks for ECRC, poison, streaming or discontinue"
