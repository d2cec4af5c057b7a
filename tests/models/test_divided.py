"""Attention and gates from linear layers of a stranger: each piece of a layer's outputs shrinks by itself."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from networks import HALF, ONE, refused
from torch import Tensor, nn

from pa3dfl.core.errors import UserError
from pa3dfl.core.tree import Tree
from pa3dfl.methods.common.slicing import cut, leading_places
from pa3dfl.models import Model, factory_of
from pa3dfl.models.alone import network
from pa3dfl.models.channels import channels

LENGTH, HEADS, DIM = 6, 4, 32


class Attention(nn.Module):
    """q, k and v from three layers or from one; `heads` says how many there are at this width."""

    def __init__(self, dim: int, heads: int, fused: bool, how: str = "split") -> None:
        super().__init__()
        self.heads, self.how = heads, how
        self.qkv = nn.ModuleList([nn.Linear(dim, 3 * dim)] if fused else [nn.Linear(dim, dim) for _ in range(3)])
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, dim = x.shape
        if len(self.qkv) == 1 and self.how == "view":
            parts = self.qkv[0](x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            parts = self.qkv[0](x).split(dim, 2) if len(self.qkv) == 1 else [layer(x) for layer in self.qkv]
            parts = [t.view(rows, length, self.heads, -1).transpose(1, 2) for t in parts]
        y = F.scaled_dot_product_attention(*parts)
        return self.out(y.transpose(1, 2).reshape(rows, length, dim))


class Stranger(nn.Module):
    def __init__(self, dim: int, attention: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.attention = nn.Linear(1, dim), nn.LayerNorm(dim), attention
        self.head = nn.Linear(dim, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.unsqueeze(-1))
        return self.head((x + self.attention(self.norm(x))).mean(1))


class GLU(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(6, 2 * dim), nn.Linear(dim, dim), nn.Linear(dim, 4)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.up(x).chunk(2, -1)
        return self.head(F.relu(self.down(value * gate.sigmoid())))


def stranger(fused: bool, how: str = "split", drop: bool = False) -> Callable[..., nn.Module]:
    def make(width: float) -> nn.Module:
        dim, heads = int(DIM * width), int(HEADS * width) if drop else HEADS
        return Stranger(dim, Attention(dim, heads, fused, how))

    return make


def both(factory: Callable[..., nn.Module]) -> tuple[Model, nn.Module, nn.Module]:
    """The model, its full network, and that of half the width with the leading entries of the same parameters."""
    model = Model(factory, "mine:make", (LENGTH,), 4)
    full: Tree = model.init(ONE, 3)
    narrow = cut(full, leading_places(model, HALF))
    return model, network(model, full, ONE), network(model, narrow, HALF)


@pytest.mark.parametrize(("fused", "how"), [(False, "split"), (True, "split"), (True, "view")])
def test_every_head_keeps_its_leading_dimensions(fused: bool, how: str) -> None:
    model, full, narrow = both(stranger(fused, how))
    size = DIM // HEADS
    for wide, own in zip(full.attention.qkv, narrow.attention.qkv, strict=True):
        kept = wide.weight.view(-1, HEADS, size, DIM)[:, :, : size // 2, : DIM // 2]
        assert torch.equal(own.weight, kept.reshape(own.weight.shape))
        assert torch.equal(own.bias, wide.bias.view(-1, HEADS, size)[:, :, : size // 2].flatten())
    kept = full.attention.out.weight.view(DIM, HEADS, size)[: DIM // 2, :, : size // 2]
    assert torch.equal(narrow.attention.out.weight, kept.reshape(DIM // 2, DIM // 2))
    layer = "attention.qkv.0"
    assert channels(model).units[layer] == HEADS * (3 if fused else 1)  # one dimension of every head, chosen together


@pytest.mark.parametrize("fused", [False, True])
def test_whole_heads_are_dropped(fused: bool) -> None:
    model, full, narrow = both(stranger(fused, drop=True))
    for wide, own in zip(full.attention.qkv, narrow.attention.qkv, strict=True):
        kept = wide.weight.view(-1, DIM, DIM)[:, : DIM // 2, : DIM // 2]
        assert torch.equal(own.weight, kept.reshape(own.weight.shape))
    assert torch.equal(narrow.attention.out.weight, full.attention.out.weight[: DIM // 2, : DIM // 2])
    assert channels(model).units["attention.qkv.0"] == (3 if fused else 1) * DIM // HEADS


def test_a_gate_shrinks_beside_what_it_gates() -> None:
    _, full, narrow = both(lambda width: GLU(int(16 * width)))
    assert torch.equal(narrow.up.weight.view(2, 8, 6), full.up.weight.view(2, 16, 6)[:, :8])
    assert torch.equal(narrow.down.weight, full.down.weight[:8, :8])


def test_pieces_of_several_sizes_are_refused() -> None:
    class Uneven(GLU):
        def forward(self, x: Tensor) -> Tensor:
            n = self.down.in_features
            a, b = self.up(x).split([n // 2, 2 * n - n // 2], -1)
            return self.head(F.relu(self.down(torch.cat([a, b[..., : n - n // 2]], -1))))

    refused(
        lambda width: Uneven(int(16 * width)), "divides the outputs of 'up' unevenly or in several ways: use one la"
    )


def test_a_tied_head_is_refused_by_methods_that_keep_heads_apart() -> None:
    """Tied weights are one parameter; methods that keep the head apart refuse such a model."""

    class Tied(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.table, self.rnn, self.head = nn.Embedding(12, dim), nn.GRU(dim, dim), nn.Linear(dim, 12, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(self.table(x.T))[0][-1])

    def make(width: float) -> nn.Module:
        return Tied(int(16 * width))

    assert "head.weight" not in Model(make, "mine:make", (5,), 12).shapes(HALF)
    with pytest.raises(UserError, match="shares the weight of its head 'head' with another layer"):
        Model(make, "mine:make", (5,), 12, full_features=True)


def test_a_model_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of the standard library, and a neighbour that it imports."""
    monkeypatch.setattr("sys.path", ["."])
    (tmp_path / "beside_it.py").write_text("SIZE = 16\n")
    code = "from torch import nn\nfrom beside_it import SIZE\n\ndef make(w):\n    return nn.Linear(4, int(SIZE * w))\n"
    (tmp_path / "types.py").write_text(code)
    assert factory_of(f"{tmp_path}/types.py:make")(0.5).out_features == 8
    for wrong, reason in (("no.py:make", "FileNotFoundError"), ("types.py:other", "AttributeError")):
        with pytest.raises(UserError, match=rf"could not be imported \({reason}: .*or file\.py:name"):
            factory_of(f"{tmp_path}/{wrong}")
