"""The row sequencer as the row walker sees it: rows with faults, stale drives, results."""

from collections.abc import Iterable, Mapping

from cocotb.triggers import ClockCycles

from cocotb_tests.streams import StreamSink, TableServer, cycles_pass, wait_until
from cocotb_tests.stripe.sequencer_bench import ARRAY, PATIENCE, Bench, Row
from cocotb_tests.stripe.stripe_models import BLOCK
from hdl.config import ERA_BITS, MAX_DRIVES
from hdl.flow.geometry import Rotation
from hdl.flow.recovery import tried_bits
from hdl.flow.row import RowKind
from hdl.flow.walk import WalkKind, WalkResult, walked
from sim.golden.walks import Walk, outcome


class WalkBench(Bench):
    """A `Bench` that walks rows. Until its row is rebuilt, a stale drive's block is in
    ``drives.distrusted`` and must not be read."""

    def __init__(self, dut, config, array, *, seed: int, active: float):
        super().__init__(dut, config, array, seed=seed, active=active)
        self.boundary = 0
        self.results: dict[int, tuple[WalkResult, frozenset[int]]] = {}
        self.walking: dict[int, Row] = {}
        self.era = 0
        dut.arrays__eras.value = dut.drives__undecided.value = 0
        for port in range(config.ports):
            getattr(dut, f"restarts__{port}").value = 0
        dut.drives__stale.value = 0
        self.drives.needs_no_mark = self._catches_up
        TableServer(dut, "reads__boundary", lambda array: self.boundary if array == 1 else 0)
        self.sinks["walked"] = StreamSink(
            dut, "walked", layout=walked(config), active=active, seed=seed, callback=self._walked
        )

    def _catches_up(self, slot: int, port: int) -> bool:
        """What a walk writes to a stale drive is marked already, or there already."""
        return port in self.stale and bool(self.slots[slot].walk)

    def _walked(self, event) -> None:
        row = self.walking.pop(event.tag)
        roles = frozenset(role for role in range(MAX_DRIVES) if event.roles >> role & 1)
        assert any(row is other for other in self.slots.values()), "walked after retired"
        self.results[event.tag] = event.result, roles

    def role_places(self, row: int, strip: int = 0) -> list[tuple[int, int]]:
        """Where the roles of a row are, or without parity the copies of its ``strip``."""
        if not self.array.parities:
            return self.strip_places(row, strip)
        places = [
            place for index in range(self.array.data) for place in self.strip_places(row, index)
        ]
        parities = self.parity_places(row)
        return places + [parities[parity] for parity in self._parities()]

    def _parities(self) -> list[int]:
        """The parities (0 being P) in the order of their roles."""
        order = list(range(self.array.parities))
        return order[::-1] if self.array.rotation == Rotation.DDF_N_CONTINUE else order

    def truth(self, row: int, strip: int = 0) -> list[bytes]:
        """What belongs at `role_places`."""
        contents = self.rows.get(row, {})
        if not self.array.parities:
            return [contents.get(strip, bytes(BLOCK))] * self.array.copies
        known = {role: contents.get(role, bytes(BLOCK)) for role in range(self.array.data)}
        sums = self.array.sums(known, shift=self.place(row)[1])
        return [*known.values(), *(sums[parity] for parity in self._parities())]

    def contents(self, row: int, strip: int = 0) -> list[tuple[tuple[int, int], bytes]]:
        """`role_places`, each with what belongs there."""
        return list(zip(self.role_places(row, strip), self.truth(row, strip), strict=True))

    def walked_strips(self, row: int) -> range:
        """The strips of a row that take a walk each: without parity all."""
        return range(1 if self.array.parities else self.strips(row))

    def places_of(self, rows: Iterable[int]) -> set[tuple[int, int]]:
        """All places of ``rows``."""
        return {
            place
            for row in rows
            for strip in self.walked_strips(row)
            for place in self.role_places(row, strip)
        }

    async def restart(self, contents: Mapping[tuple[int, int], bytes]) -> None:
        """All drives begin anew, and are kept; these blocks are what they were before, and can be
        read."""
        dut = self.dut
        for port in self.array.ports:
            self.drives.restarts[port] += 1
            count = self.drives.restarts[port] % (1 << tried_bits(self.config))
            self.drives.restarts[port] = count
            getattr(dut, f"restarts__{port}").value = count
        dut.drives__undecided.value = 1
        self.drives.blocks |= contents
        self.drives.unreadable -= contents.keys()
        await ClockCycles(dut.clk, self.random.randint(1, 100))
        self.era = (self.era + 1) % (1 << ERA_BITS)
        dut.arrays__eras.value = self.era << (ERA_BITS * ARRAY)
        dut.drives__undecided.value = 0

    def stale_at(self, row: int) -> set[int]:
        return self.stale if row >= self.boundary else set()

    def distrust(self, rows: Iterable[int]) -> None:
        """Nobody may read what stale drives have of ``rows``."""
        self.drives.distrusted |= {one for one in self.places_of(rows) if one[0] in self.stale}

    def trust(self) -> None:
        """Every drive is as it should be."""
        for port in self.stale:
            self.drives.store(port)
        self.stale.clear()
        self.drives.distrusted.clear()
        self.dut.drives__stale.value = 0

    async def walk(
        self, row: int, kind: WalkKind, *, strip: int = 0, source: int = 0, age: int = 0
    ) -> int:
        """Launches a walk once a row slot is free and nobody is at the row; its tag. ``age``: that
        many eras ago ``source`` was named."""

        def possible() -> bool:
            busy = any(one.row == row for one in self.slots.values())
            return len(self.slots) < self.config.rows and not busy

        await wait_until(self.dut, possible, cycles=PATIENCE, what="room for a walk")
        tags = [tag for tag in range(256) if tag not in self.walking and tag not in self.results]
        base, shift = self.place(row)
        if not self.array.parities:
            shift = (shift + strip * self.array.copies) % self.array.width
        more = self.wishes.random() < 0.3
        entry = Row(kind=RowKind.WRITE, base=base, shift=shift, row=row, joined=[], more=more)
        tag = self.random.choice(tags)
        era = (self.era - age) % (1 << ERA_BITS)
        entry.walk = {"any": 1, "kind": kind, "tag": tag, "source": source, "era": era}
        self.walking[tag] = entry
        slot = self.random.choice([n for n in range(self.config.rows) if n not in self.slots])
        self.slots[slot] = entry
        self.launch.send(slot)
        return tag

    async def end_of(self, tag: int):
        """Result and roles of a walk."""
        await wait_until(
            self.dut, lambda: tag in self.results, cycles=PATIENCE, what=f"the end of walk {tag}"
        )
        return self.results.pop(tag)

    def golden(self, row: int, strip: int, kind: WalkKind) -> Walk:
        """The walk as the golden model sees it, with the faults that there are now."""
        places = self.role_places(row, strip)

        def roles(test) -> frozenset[int]:
            return frozenset(role for role, place in enumerate(places) if test(place))

        beyond = row >= self.boundary
        blocks = [self.drives.blocks.get(place, bytes(BLOCK)) for place in places]
        right = self.truth(row, strip)
        if self.array.mirrored:
            live = [one for one, place in zip(blocks, places, strict=True)
                    if place[0] not in self.failed]  # fmt: skip
            right = live[:1] * len(places)
        wrong = frozenset(
            role
            for role, place in enumerate(places)
            if place[0] not in self.failed and blocks[role] != right[role]
        )
        return Walk(
            kind=kind.name,
            data=self.array.data if self.array.parities else 1,
            parities=self.array.parities,
            copies=self.array.copies,
            dead=roles(lambda place: place[0] in self.failed),
            stale=roles(lambda place: beyond and place[0] in self.stale),
            unreadable=roles(lambda place: place in self.drives.unreadable),
            wrong=wrong,
        )

    async def check_walk(self, row: int, kind: WalkKind, *, strip: int = 0) -> WalkResult:
        """Walks a row; result, roles and every block must be those of the golden model."""
        walk = self.golden(row, strip, kind)
        wanted = outcome(walk)
        places = self.role_places(row, strip)
        contents = self.truth(row, strip)
        before = [self.drives.blocks.get(place, bytes(BLOCK)) for place in places]
        unreadable = [place in self.drives.unreadable for place in places]
        if kind == WalkKind.ZERO:
            contents = [bytes(BLOCK)] * len(places)
            self.rows[row] = (
                {one: block for one, block in self.rows.get(row, {}).items() if one != strip}
                if not self.array.parities
                else {}
            )
        if wanted.result == "MISMATCH":
            contents = self._repaired(row, places, before, wanted.roles)
        result, roles = await self.end_of(await self.walk(row, kind, strip=strip))
        what = f"{kind.name} of row {row} strip {strip}"
        assert (result.name, roles) == (wanted.result, wanted.roles), (
            f"{what}: {result.name} {sorted(roles)}, not {wanted} of {walk}"
        )
        for role, place in enumerate(places):
            found = self.drives.blocks.get(place, bytes(BLOCK))
            if role in wanted.written:
                assert found == contents[role], f"{what}: role {role} is {found!r}"
                assert place not in self.drives.unreadable, f"{what}: role {role} is unreadable"
            else:
                assert found == before[role], f"{what}: role {role} was written"
                spoilt = role in wanted.spoilt
                assert (place in self.drives.unreadable) == unreadable[role] | spoilt, f"{what}"
        return result

    def _repaired(self, row: int, places, blocks: list[bytes], wrong) -> list[bytes]:
        """What REPAIR makes of a row whose blocks do not agree."""
        if self.array.mirrored:
            source = min(r for r in range(len(blocks)) if places[r][0] not in self.failed)
            return [blocks[source]] * len(blocks)
        if wrong:
            return self.truth(row)
        data = dict(enumerate(blocks[: self.array.data]))
        sums = self.array.sums(data, shift=self.place(row)[1])
        return [*data.values(), *(sums[parity] for parity in self._parities())]

    async def pause(self, cycles: int) -> None:
        await cycles_pass(self.dut.clk, cycles)

