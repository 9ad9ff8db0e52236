"""The extents of a command as the mapper gives them, for tests of what comes after it."""

from cocotb_tests.stripe.stripe_models import ArrayModel


def split(array: ArrayModel, block: int, blocks: int) -> list[dict]:
    """The extents of a command, in order, as the mapper gives them."""
    strip_blocks = 1 << array.strip_shift
    width = array.data // array.copies
    extents = []
    offset = 0
    while blocks:
        strip, within = divmod(block, strip_blocks)
        stripe, index = divmod(strip, width)
        stripe, span = divmod(stripe, array.spans)
        count = min(blocks, strip_blocks - within)
        extents.append(
            {
                "base": span * array.width,
                "shift": -stripe % array.width if array.parities else 0,
                "index": index,
                "ordinal": index,
                "row": stripe * strip_blocks + within,
                "blocks": count - 1,
                "offset": offset,
            }
        )
        block, blocks, offset = block + count, blocks - count, offset + count
    # An extent of which only some rows are touched again is split, so that `final` is exact.
    result: list[dict] = []
    for number, one in enumerate(extents):
        pieces: list[dict] = []
        for step in range(one["blocks"] + 1):
            row = one["row"] + step
            later = [other for other in extents[number + 1 :] if other["base"] == one["base"]]
            final = not any(0 <= row - other["row"] <= other["blocks"] for other in later)
            if pieces and pieces[-1]["final"] == final:
                pieces[-1]["blocks"] += 1
            else:
                pieces.append(
                    one | {"row": row, "blocks": 0, "offset": one["offset"] + step, "final": final}
                )
        result += pieces
    result[-1]["last"] = 1
    return result
