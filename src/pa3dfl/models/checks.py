"""Checks of a network at one width against the network at full width."""

from collections.abc import Mapping
from fractions import Fraction

from pa3dfl.core.errors import UserError
from pa3dfl.core.words import counted
from pa3dfl.models.blocks import Blocks, Shapes
from pa3dfl.models.stacked import Stacks


def shapes_at(name: str, width: Fraction, shapes: Shapes, full: Shapes) -> None:
    """Every size must be the full network's, or the width times that."""
    if shapes.keys() != full.keys():
        raise UserError(
            f"model {name!r} has other parameters at width {width} than at 1: a width may change "
            "the sizes of layers, not which layers there are"
        )
    for k, shape in shapes.items():
        for d, (n, whole) in enumerate(zip(shape, full[k], strict=True)):
            if n != whole and n != whole * width:
                raise UserError(
                    f"model {name!r}: dimension {d} of {k} is {whole} wide, and {whole} × {width} = "
                    f"{float(whole * width):g} (the factory made {n}); make it a multiple of "
                    f"{width.denominator} or choose a larger p_min"
                )


def heads_at(name: str, width: Fraction, heads: Mapping[str, int], stacks: Stacks, blocks: Blocks) -> None:
    """There must be as many heads as at full width, or at all widths the width times that."""
    for module, n in heads.items():
        whole = stacks.heads[module]
        drop = f"{stacks.layers[module][-1]}.weight" not in blocks.orders
        expected = whole * width if drop else whole
        if n != expected:
            how = "fewer heads of one size" if drop else "as many smaller heads"
            raise UserError(
                f"model {name!r} has {counted(n, 'head')} at {module!r} at width {width}: expected {float(expected):g},"
                f" because other widths have {how}"
            )


def parts(name: str, blocks: Blocks) -> None:
    """The leading inputs of a layer must be the leading channels of every part that it takes."""
    if blocks.unclear:
        raise UserError(
            f"model {name!r} concatenates parts of several sizes before {blocks.unclear!r}, so that a narrow client's "
            "channels are not a wide one's: give all parts one size, or give each a layer of its own and add them"
        )


def own_head(name: str, head: str, shapes: Shapes, needed: bool) -> None:
    """A method that treats the head apart from the encoder needs a head with a weight of its own."""
    if needed and f"{head}.weight" not in shapes:
        raise UserError(
            f"model {name!r} shares the weight of its head {head!r} with another layer: this method keeps heads apart; "
            "give the head a weight of its own"
        )
