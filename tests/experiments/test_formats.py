"""Networks written as programs and graphs: for any number of rows, or refused."""

from fractions import Fraction
from pathlib import Path

import pytest
import torch

from pa3dfl.core.errors import UserError
from pa3dfl.models import Model, factory_of
from pa3dfl.models.alone import network
from pa3dfl.runs import formats


@pytest.mark.parametrize(("name", "shape"), [("lstm-text", (6,)), ("transformer-text", (6,)), ("cnn-sensor", (2, 16)),
                                             ("transformer-sensor", (2, 16))])  # fmt: skip
def test_programs_of_padded_networks_take_any_number_of_rows(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Writing compares 1, 2 and 7 rows, each of another length."""
    model = Model(factory_of(name), name, shape, 4)
    alone = network(model, model.init(Fraction(1, 16), 0), Fraction(1, 16))
    rows = torch.randint(1, 9, (7, *shape)) * (torch.arange(shape[-1]) <= torch.arange(7).view(7, *[1] * len(shape)))
    formats.write(tmp_path / "model.pt2", "torch", alone, rows if model.whole_numbers else rows.float())


class Stranger(torch.nn.Module):
    """A user's network in ordinary Python."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.hidden, self.head = torch.nn.Linear(6, round(8 * width)), torch.nn.Linear(round(8 * width), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(x).relu().reshape(len(x), -1)) + torch.zeros(len(x), 1)


class RowByRow(Stranger):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.head(self.hidden(row)) for row in x])


class LooksAtTheRows(Stranger):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.hidden(x))
        return y if float(x.sum()) > 0 else -y


@pytest.mark.parametrize("form", ["torch", "onnx"])
def test_a_network_may_ask_for_the_length_of_its_batch(form: str, tmp_path: Path) -> None:
    """Writing compares 1, 2 and 7 rows."""
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="ONNX is not installed: pip install 'pa3dfl[onnx]'")
        pytest.importorskip("onnxscript", reason="ONNX is not installed: pip install 'pa3dfl[onnx]'")
    formats.write(tmp_path / "model.pt2", form, Stranger(1.0).eval(), torch.randn(9, 6))


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (RowByRow, "its forward works for one number of rows only: take it from x.shape[0], and do not loop over rows"),
        (LooksAtTheRows, "GuardOnDataDependentSymNode: Could not guard on data-dependent expression"),
    ],
)
def test_a_network_that_cannot_be_written_is_refused_in_one_line(
    network: type[Stranger], reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as e:
        formats.write(tmp_path / "model.pt2", "torch", network(1.0).eval(), torch.randn(9, 6))
    assert str(e.value).startswith(f"this network cannot be written as torch: {reason}")
    assert str(e.value).endswith("use --format safetensors")
    assert "\n" not in str(e.value)
    assert capfd.readouterr() == ("", "")  # the exporter prints graphs
