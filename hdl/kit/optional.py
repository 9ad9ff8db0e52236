"""Fields that a configuration may leave out."""

from amaranth.lib import data


def optional(exists, fields: dict) -> dict:
    """``fields`` of a layout or signature if ``exists``, else the same ones without a bit.

    What has no bit reads as 0, and takes whatever is assigned to it. So those that use a field need
    not ask whether it exists, and the netlist has no trace of it.
    """
    return fields if exists else {name: _without_bits(shape) for name, shape in fields.items()}


def _without_bits(shape):
    if isinstance(shape, data.StructLayout):
        return data.StructLayout({name: _without_bits(field.shape) for name, field in shape})
    if isinstance(shape, data.ArrayLayout):
        return data.ArrayLayout(_without_bits(shape.elem_shape), shape.length)
    return 0
