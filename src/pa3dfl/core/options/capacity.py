"""Capacities: the share r of the full model that each client can afford, and the width p that follows from it.

A model of width p costs about p² of the full model. So p is the largest multiple of 1/16 with p² ≤ r, but at
least p_min. The rule `strict` counts parameters instead, see `methods.sizes.strict_widths`.
"""

import csv
import math
from fractions import Fraction
from pathlib import Path

from pa3dfl.core.errors import UserError
from pa3dfl.core.words import counted

STEP = Fraction(1, 16)
RULES = ("width", "strict")


def parse_ratio(text: str | float | int | Fraction, what: str) -> Fraction:
    """Parse a number in (0, 1], written as 0.25, 1/4 or 25%."""
    try:
        s = str(text).strip()
        share = s.removesuffix("%")
        # Fraction("1e-999999999") would take forever; such a number is treated as 0.
        tame = "/" in share or not math.isfinite(float(share)) or 1e-9 < abs(float(share)) < 1e9
        r = (Fraction(share) if tame else Fraction(0)) / (100 if s.endswith("%") else 1)
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{what} {text!r} is not a number: expected a share such as 1/16, 0.25 or 25%") from None
    if not 0 < r <= 1:
        raise UserError(f"{what} {text} is outside (0, 1]: expected a share such as 1/16")
    return r


def width_of(r: Fraction, p_min: Fraction) -> Fraction:
    """The largest multiple of 1/16 whose square is at most r, but not below p_min."""
    # isqrt on integers: a float square root of r = p² could fall just short of p.
    steps = math.isqrt(math.floor(r / STEP**2))
    return max(steps * STEP, p_min)


def candidate_widths(p_min: Fraction) -> list[Fraction]:
    """Every width that `width_of` can give."""
    return sorted({max(i * STEP, p_min) for i in range(1, 17)})


def default_p_min(setting: str) -> Fraction:
    # The paper's efficiency table at r = 1 only fits 1/8.
    return Fraction(1, 8) if setting == "ideal" else STEP


def capacities(setting: str, clients: int, seed: int) -> list[Fraction]:
    """One r per client.

    `ideal`: 1 for all. `hetero` (or `uniform`): a seeded permutation of evenly spaced shares from 1% to
    100% (independent samples would miss the weakest device in a third of the seeds). `levels:1,1/4,…`:
    each level for equally many clients, shuffled. `list:…`: one value per client. `FILE.csv`: columns client, r.
    """
    kind, _, rest = setting.partition(":")
    if setting == "ideal":
        return [Fraction(1)] * clients
    if setting in ("hetero", "uniform"):
        low, gaps = Fraction(1, 100), max(clients - 1, 1)
        return _shuffled([1 - (1 - low) * i / gaps for i in range(clients)], seed)
    if kind in ("levels", "list"):
        values = [parse_ratio(v, "capacity") for v in rest.split(",")]
        if kind == "levels":
            return _shuffled([values[i % len(values)] for i in range(clients)], seed)
        return _one_each(values, clients, "the list of capacities")
    if setting.endswith(".csv"):
        return _one_each(_read(Path(setting)), clients, setting)
    raise UserError(
        f"unknown setting {setting!r}: expected ideal, hetero, levels:1,1/4,1/16, list:0.5,1,… or a file.csv "
        "with columns client and r"
    )


def _shuffled(values: list[Fraction], seed: int) -> list[Fraction]:
    from pa3dfl.core.randomness import numpy_generator  # imports PyTorch; --help must not wait for it

    order = numpy_generator(seed, "capacity").permutation(len(values))
    return [values[i] for i in order]


def _one_each(values: list[Fraction], clients: int, where: str) -> list[Fraction]:
    if len(values) != clients:
        raise UserError(
            f"{where} has {counted(len(values), 'capacity', 'capacities')} for {counted(clients, 'client')}: "
            "expected one each"
        )
    return values


def _read(path: Path) -> list[Fraction]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as f:
            rows = list(csv.DictReader(f))
        by_client = {int(row["client"]): parse_ratio(row["r"], f"{path}: capacity") for row in rows}
    except OSError as e:
        raise UserError(f"capacities {path} cannot be read: {e.strerror}") from None
    except (KeyError, TypeError, UnicodeDecodeError, csv.Error):
        raise UserError(f"capacities {path} must have the columns client and r") from None
    except UserError:
        raise
    except ValueError:
        raise UserError(f"capacities {path}: client must be a whole number from 0") from None
    if sorted(by_client) != list(range(len(rows))):
        raise UserError(f"capacities {path} must name each client 0..{len(rows) - 1} once")
    return [by_client[i] for i in range(len(rows))]
