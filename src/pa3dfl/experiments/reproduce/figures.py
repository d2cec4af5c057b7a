"""The page's figures: pictures beside the page, and the Markdown that shows them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pa3dfl.experiments.reproduce import convergence, curves, embeddings, partitions, ratio
from pa3dfl.experiments.reproduce.groups import Column


def section(columns: Sequence[Column], results: Path, docs: Path) -> str:
    """Draws all figures for which there are results, and removes those of earlier pages."""
    folder = docs / "images" / "reproduction"
    parts = []
    shown: set[Path] = set()

    def show(title: str, path: Path | None) -> None:
        if path is not None:
            parts.append(f"![{title}]({path.relative_to(docs).as_posix()})")
            shown.add(path)

    for title, path in partitions.pictures(results, folder):
        show(f"Partition: {title}", path)
    names: Counter[str] = Counter()
    for column in columns:
        name = "-".join("".join(c if c.isalnum() else "-" for c in str(w)) for w in
                        (Path(column.data).stem, column.model, column.setting, column.rounds))  # fmt: skip
        names[name] += 1
        if names[name] > 1:  # the same length on other terms
            name += f"-{names[name]}"
        for rule in column.rules()[:2]:
            show(
                f"Learning curves: {column.title}, {rule}", curves.learning(column, rule, folder / f"{name}-{rule}.png")
            )
            by_capacity = curves.capacity(column, rule, folder / f"{name}-{rule}-capacity.png")
            show(f"Accuracy by capacity: {column.title}, {rule}", by_capacity)
        show(f"The α chosen for each client: {column.title}", curves.alpha(column, folder / f"{name}-alpha.png"))
    for title, path in embeddings.pictures(results, folder):
        show(f"Encoded embeddings of clients, and their similarity: {title}", path)
    for path in curves.sweeps(list(columns), folder):
        show(f"Accuracy against {path.stem}", path)
    if theorem := convergence.picture(results, folder / "convergence.png"):
        show(*theorem)
    parts.append(
        "Appendix A's reduction ratio, with the printed rule for R2. Dotted: the bound p²/(k²·p_min) + p_min, where it "
        "applies; grey: p²."
    )
    show("Reduction ratio", ratio.picture(folder / "reduction.png"))
    for old in set(folder.glob("*.png")) - shown:
        old.unlink(missing_ok=True)  # another process may render, too
    return "\n\n".join(parts)
