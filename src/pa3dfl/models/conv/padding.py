"""Kernel positions (taps) that read only padding: they are left out. A 3×3 kernel on one pixel is its centre."""

from typing import NamedTuple

Window = tuple[slice, ...]
"""For each side of the kernel, the taps that read pixels."""


class Trimmed(NamedTuple):
    """One side of a convolution, without the taps that read only padding."""

    window: slice
    taps: int
    reach: int
    """How many positions the window covers, with dilation."""
    left: int
    right: int
    """Padding that the window still needs; if negative, how many pixels are never read."""
    results: int


def trim(n: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int) -> Trimmed:
    """A side of n pixels."""
    a, b = pads
    results = (n + a + b - dilation * (kernel - 1) - 1) // stride + 1
    used = [j for j in range(kernel) if any(0 <= o * stride - a + j * dilation < n for o in range(results))]
    first, last = (used[0], used[-1]) if used else (0, kernel - 1)
    reach = (last - first) * dilation + 1
    left = a - first * dilation
    right = (results - 1) * stride + reach - n - left
    return Trimmed(slice(first, last + 1), last + 1 - first, reach, left, right, results)


def both_sides(padding: str | tuple[int, ...], reach: list[int]) -> list[tuple[int, int]]:
    """The padding on the left and the right of each side; `reach` is that of the whole kernel."""
    if padding == "same":
        return [((r - 1) // 2, r // 2) for r in reach]
    if padding == "valid":
        return [(0, 0)] * len(reach)
    assert not isinstance(padding, str)
    return [(p, p) for p in padding]
