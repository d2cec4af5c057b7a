"""Draw a package's rooms (its top folders and modules) and the imports between them.

    python tools/rooms.py pa3dfl docs/images/rooms.svg
    PYTHONPATH=/path/to/fedjax python tools/rooms.py fedjax docs/images/rooms-fedjax.svg

A room stands above the rooms that it imports. Its box says how many lines it has and how long its longest file is.
Arrows that point upwards (red) are imports against the order: the rooms that they join cannot be read one by one.
"""

import sys
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import grimp
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, LINE, AGAINST, FILL = "#333333", "#9aa5b1", "#D55E00", "#eaf1f8"


def rooms(package: str) -> tuple[dict[str, list[int]], dict[tuple[str, str], int]]:
    """Lines of each file by room, and how many imports lead from one room to another. Tests are left out."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"package {package!r} is not found: put its folder into PYTHONPATH")
    root = Path(next(iter(spec.submodule_search_locations)))
    lines: dict[str, list[int]] = {}
    for file in sorted(root.rglob("*.py")):
        inner = file.relative_to(root).parts
        if "test" not in file.stem and len(inner) + (inner[0] != "__init__.py") > 1:
            lines.setdefault(inner[0].removesuffix(".py"), []).append(len(file.read_text().splitlines()))
    graph, imports = grimp.build_graph(package), {}
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            pair = tuple([*m.split("."), ""][1] for m in (module, other))
            if pair[0] != pair[1] and set(pair) <= lines.keys():
                imports[pair] = imports.get(pair, 0) + 1
    return lines, imports


def order(names: list[str], imports: dict[tuple[str, str], int]) -> list[str]:
    """From the room that imports most to the one that imports nothing; the fewest imports are cut where they circle."""
    kept = dict(imports)
    while True:
        below = {n: sorted(b for a, b in kept if a == n) for n in sorted(names)}
        try:
            return list(reversed(list(TopologicalSorter(below).static_order())))
        except CycleError as e:
            circle = e.args[1][::-1]
            del kept[min((p for p in pairwise(circle) if p in kept), key=lambda p: kept[p])]


def draw(package: str, out: Path) -> None:
    lines, imports = rooms(package)
    names = order(list(lines), imports)
    at = {name: -i for i, name in enumerate(names)}
    fig = Figure(figsize=(6.4, 0.62 * len(names) + 0.8), layout="constrained")
    ax = fig.add_subplot()
    for name, y in at.items():
        ax.add_patch(
            FancyBboxPatch((0, y - 0.3), 3.4, 0.6, boxstyle="round,pad=0,rounding_size=0.08", fc=FILL, ec=LINE)
        )
        ax.text(0.12, y, name, va="center", fontsize=11, color=INK, fontweight="bold")
        size = f"{sum(lines[name]):,} lines, longest file {max(lines[name])}"
        ax.text(3.28, y, size, va="center", ha="right", fontsize=8, color=INK)
    for (a, b), n in sorted(imports.items()):
        against, far = at[b] > at[a], abs(at[a] - at[b])
        side, bend = 0.0 if against else 3.4, min(0.25 + 0.1 * far, 0.9) / far**0.3
        look = {"color": AGAINST if against else LINE, "linewidth": 0.6 + min(n, 20) / 12, "mutation_scale": 9}
        ends = {"arrowstyle": "-|>", "connectionstyle": f"arc3,rad={-bend}", "shrinkA": 0, "shrinkB": 0}
        ax.add_patch(FancyArrowPatch((side, at[a]), (side, at[b]), **look, **ends))
    against = sum(n for (a, b), n in imports.items() if at[b] > at[a])
    files = sum(map(len, lines.values()))
    ax.set_title(
        f"{package}: {len(names)} rooms, {files} files, {sum(map(sum, lines.values())):,} lines, "
        f"{sum(imports.values())} imports between rooms, {against} against the order",
        fontsize=9, color=INK, loc="left",
    )  # fmt: skip
    ax.set(xlim=(-1.6, 5.6), ylim=(-len(names) + 0.4, 0.6))
    ax.axis("off")
    fig.savefig(out, metadata={"Date": None})
    print(f"{out}: {len(names)} rooms, {sum(imports.values())} imports between them, {against} against the order")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(sys.argv[1], Path(sys.argv[2]))
