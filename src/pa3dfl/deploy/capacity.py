"""A node's capacity, given as a share or as a budget, as the share r of the full model."""

import re
from fractions import Fraction

from pa3dfl.core.errors import UserError
from pa3dfl.core.options.capacity import parse_ratio
from pa3dfl.core.options.config import Config
from pa3dfl.engines.cost import cost, widths
from pa3dfl.methods.assembly import known, make_method, make_model

_UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "kmac": 1e3, "mmac": 1e6, "gmac": 1e9}
_BUDGET = re.compile(r"([0-9.]+)\s*([kmg](?:b|mac))", re.IGNORECASE)


def check_capacity(text: str) -> None:
    """Refuse a malformed capacity before the node starts."""
    if not _BUDGET.fullmatch(text.strip()):
        try:
            parse_ratio(text, "capacity")
        except UserError as e:
            raise UserError(f"{e}; or a budget such as 20MB (parameters) or 300Mmac (multiply-adds a batch)") from None


def share_of(text: str, config: Config, shape: tuple[int, ...], classes: int) -> Fraction:
    """A share as given; for a budget, the square of the largest width whose model fits.

    Bytes count trained parameters; multiply-adds count one forward pass of a batch through the encoder, as in the
    columns of `pa3dfl cost`.
    """
    found = _BUDGET.fullmatch(text.strip())
    if found is None:
        return parse_ratio(text, "capacity")
    budget, unit = float(found[1]) * _UNITS[found[2].lower()], found[2].lower()
    method, p_min = make_method(config), config.narrowest()
    model = make_model(known(config.model), method, shape, classes, p_min)
    needs = [
        (Fraction(c["width"]), 4 * c["parameters"] if unit.endswith("b") else c["encoder_multiply_adds"])
        for c in cost(method, model, p_min, config.batch, widths(p_min))
    ]
    fitting = [width for width, need in needs if need <= budget]
    if not fitting:
        raise UserError(f"capacity {text} is below the narrowest model: width {p_min} needs {needs[0][1]:,.0f}")
    return max(fitting) ** 2
