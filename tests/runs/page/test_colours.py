"""Colours that a chart of the page uses together stay apart for people with any colour-blindness.

Simulated by the matrices of Machado, Oliveira and Fernandes (2009) at full severity; distances are those of
OKLab × 100, in which 2 is the least difference that is seen side by side.
"""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from pa3dfl.runs import page, pictures

pytest.importorskip("bokeh", reason="Bokeh is not installed: pip install 'pa3dfl[page]'")

VISIONS = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
CONES = [[0.41222, 0.53633, 0.05145], [0.2119, 0.68068, 0.1074], [0.0883, 0.28172, 0.62998]]
LAB = [[0.21045, 0.79362, -0.00407], [1.978, -2.42859, 0.45059], [0.0259, 0.78277, -0.80868]]
CARDS = {"light": "#FFFFFF", "dark": "#1B2129"}
CODE = (Path(page.__file__).parent / "page.js").read_text("utf-8")


def lab(colour: str, vision: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISIONS[vision]) @ linear, 0, 1)
    found: np.ndarray = 100 * np.array(LAB) @ np.cbrt(np.array(CONES) @ seen)
    return found


def distance(a: str, b: str, vision: str) -> float:
    return float(np.linalg.norm(lab(a, vision) - lab(b, vision)))


def palette(name: str, scheme: str) -> list[str]:
    [body] = re.findall(rf"const {name} = \{{(.*?)\}};", CODE, re.DOTALL)
    [listed] = re.findall(rf"{scheme}: \[(.*?)\]", body, re.DOTALL)
    return re.findall(r"#\w{6}", listed)


def marks(name: str) -> list[str]:
    [listed] = re.findall(rf"{name} = \[([^\[\]]*)\]", CODE)
    return re.findall(r'"(\w+)"', listed)


def test_the_simulation_by_hand() -> None:
    """White stays white, and a red and a green of equal lightness meet for those who lack the middle cones."""
    assert np.abs(lab("#FFFFFF", "tritanopia") - [100, 0, 0]).max() < 0.2
    assert distance("#C24E00", "#9A6B00", "deuteranopia") < 2 < 9 < distance("#C24E00", "#9A6B00", "usual")
    assert distance("#0000FF", "#FFFF00", "deuteranopia") > 50


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", CARDS)
def test_lines_are_told_apart(scheme: str, vision: str) -> None:
    """Methods and layers: by colour; from the eighth on, by dash."""
    colours = palette("LINES", scheme)
    assert len(colours) == 7
    assert min(distance(a, b, vision) for a, b in combinations(colours, 2)) > 10
    assert min(distance(c, CARDS[scheme], vision) for c in colours) > 25
    assert len(set(marks("DASHED"))) == 3


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", CARDS)
def test_labels_are_told_apart(scheme: str, vision: str) -> None:
    """Ten colours are too many for three kinds of sight: labels with near colours differ in shape and hatching."""
    colours, shapes = palette("LABELS", scheme), marks("SHAPES")
    assert (len(colours), len(set(shapes))) == (10, 3)
    for (i, a), (j, b) in combinations(enumerate(colours), 2):
        assert distance(a, b, vision) > (10 if i % 3 == j % 3 else 5), (i, j)
    assert min(distance(c, CARDS[scheme], vision) for c in colours) > 25


@pytest.mark.parametrize("vision", VISIONS)
def test_the_heat_map_only_grows_brighter(vision: str) -> None:
    from pa3dfl.runs.page.figures import Cividis256

    lightness = [lab(c, vision)[0] for c in Cividis256[::5]]
    assert np.diff(lightness).min() > 0
    assert lightness[-1] - lightness[0] > 50


@pytest.mark.parametrize("vision", VISIONS)
def test_pictures_are_told_apart_too(vision: str) -> None:
    """Lines by colour or marker; ten labels in one picture have nothing but their colours."""
    colours, markers, _ = zip(*pictures.STYLES[:7], strict=True)
    assert len(set(markers)) == 7
    assert min(distance(a, b, vision) for a, b in combinations(colours, 2)) > 7
    assert min(distance(a, b, vision) for a, b in combinations(pictures._TOL, 2)) > 5
