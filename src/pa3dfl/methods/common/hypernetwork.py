"""The hyper-network: client embeddings in, personal parameters out (paper, equations `eq_gen`, `eq_updatehn`).

Embeddings E (N, d) pass an MLP encoder to E' (N, h); per output l, e_i^(l) = softmax(E'e'_i/τ_l) E'
mixes similar clients, and a linear decoder maps the mix to the (full-size, later pruned) output. All N
embeddings take part in every mix, so that all of them receive gradient, sampled or not. Without attention
e_i^(l) is the encoder's output for client i as it is.

A decoder has h numbers for each generated one: 1.3-1.7 G of them for ResNet-18. Its gradient is a product
of two thin matrices, so that neither the gradient nor the generated parameters of more than one layer
ever exist in full (`pa3dfl.methods.common.decoders`).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.rng import generator
from pa3dfl.core.tree import Tree, leading
from pa3dfl.methods.common.decoders import Decoder, Held, Room, Shape, plain, suited

# Attention weights (outputs × clients × all clients) that may exist: more take longer to write and read than to make
# again, and those of a thousand clients among a million would be 4 GB for each output.
ATTENTION = 2**20


@dataclass(frozen=True)
class Output:
    """One generated tensor: its full shape and the deviation of its entries at the start."""

    shape: Shape
    std: float

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class HyperNetwork:
    """Sizes and rates; the numbers themselves live in a tree, in the server's state."""

    outputs: Mapping[str, Output]
    embedding: int
    hidden: int
    depth: int
    tau: float
    tau_min: float
    rate: float
    encoder_rate: float
    clip_norm: float
    attention: bool = True

    def init(self, clients: int, seed: int) -> Tree:
        def normal(purpose: str, *shape: int, std: float) -> Tensor:
            g = generator(seed, f"hypernetwork:{purpose}")
            return torch.empty(shape).normal_(0, std, generator=g)

        tree = {"embeddings": normal("embeddings", clients, self.embedding, std=1.0)}
        sizes = [self.embedding] + [self.hidden] * self.depth
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            tree[f"encoder.{i}.weight"] = normal(f"encoder.{i}", b, a, std=(2 / a) ** 0.5)
            tree[f"encoder.{i}.bias"] = torch.zeros(b)
        if self.attention:
            tree["tau"] = torch.full((len(self.outputs),), self.tau)
        for name, out in self.outputs.items():
            # The bias is the start common to all clients, the weight makes them differ a little.
            tree[f"decoder.{name}.bias"] = normal(f"{name}.bias", out.numel, std=out.std)
            tree[f"decoder.{name}.weight"] = normal(f"{name}.weight", out.numel, self.hidden, std=out.std / 10)
        return tree

    def mixes(self, tree: Tree, ids: list[int]) -> Tensor:
        """(outputs, clients, h): the aggregated embeddings e_i^(l) of the given clients."""
        encoded = self.encoded(tree, tree["embeddings"])
        if not self.attention:
            return encoded[ids].expand(len(self.outputs), -1, -1)
        few = len(self.outputs) * len(ids) * len(encoded) <= ATTENTION
        return (_attend if few else _attend_in_passing)(encoded, ids, tree["tau"])

    def encoded(self, tree: Tree, embeddings: Tensor) -> Tensor:
        encoded = embeddings
        for i in range(self.depth):
            encoded = F.linear(encoded, tree[f"encoder.{i}.weight"], tree[f"encoder.{i}.bias"])
            if i < self.depth - 1:
                encoded = F.relu(encoded)
        # Length one: the temperature alone then decides how much clients share.
        return F.normalize(encoded, dim=1) if self.attention else encoded

    def history(self, tree: Tree, ids: Sequence[int]) -> Tree:
        """Embeddings of some clients, what the encoder makes of them, and each output's temperature."""
        embeddings = tree["embeddings"][list(ids)]
        with torch.no_grad():
            found = {"embeddings": embeddings, "encoded": self.encoded(tree, embeddings)}
        if self.attention:
            found |= {f"tau/{name}": tau for name, tau in zip(self.outputs, tree["tau"].unbind(), strict=True)}
        return found

    def generate(self, tree: Tree, ids: list[int], shapes: Sequence[Mapping[str, Shape]]) -> list[Tree]:
        """Personal parameters of the given clients, pruned to their leading entries."""
        rooms: list[Held] = [Room([own[k] for k in self.outputs], tree["embeddings"]) for own in shapes]
        with torch.no_grad():
            decoders = self._decoders(tree, self.mixes(tree, ids))
            suited(decoders, rooms).decode(decoders, rooms)
        return [dict(zip(self.outputs, room.tensors, strict=True)) for room in rooms]

    def gradient(self, tree: Tree, ids: list[int], trained: list[Tree]) -> Tree:
        """∂/∂φ of 1/m Σ ½‖generated − trained‖² by autograd: the definition that `update` must equal."""
        params = {k: v.detach().requires_grad_() for k, v in tree.items()}
        loss = params["embeddings"].new_zeros(())
        for (name, out), mix in zip(self.outputs.items(), self.mixes(params, ids), strict=True):
            full = F.linear(mix, *_linear(params, name))
            for generated, target in zip(full, trained, strict=True):
                error = leading(generated.view(out.shape), target[name].shape) - target[name]
                loss = loss + error.square().sum() / (2 * len(ids))
        return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))

    def update(self, tree: Tree, ids: list[int], trained: list[Tree]) -> float:
        """One SGD step on that loss, in place; returns the gradient's norm before clipping.

        `trained` is consumed: its tensors are overwritten with trained − generated.
        """
        m = len(ids)
        # Sorted: a tree from a checkpoint may have another order, which changes the last bits of the norm.
        small = {k: tree[k].detach().requires_grad_() for k in sorted(tree) if not k.startswith("decoder.")}
        mixes = self.mixes(small, ids)
        decoders, pace = self._decoders(tree, mixes.detach()), self.rate / m
        held = [Held([mine[k] for k in self.outputs]) for mine in trained]
        # Decoders step at once, so that each is read and written once: the norm is seldom too large.
        slopes, squares = suited(decoders, held).learn(decoders, held, pace)
        gradients = torch.autograd.grad(mixes, list(small.values()), slopes / -m)
        norms = torch.stack([squares.clamp(min=0).sqrt() / m, *torch._foreach_norm(gradients)])
        norm = float(torch.linalg.vector_norm(norms))
        scale = min(1.0, self.clip_norm / norm) if self.clip_norm and norm > 0 else 1.0
        if scale < 1:
            plain.step(decoders, held, pace * (scale - 1))  # what was too much is taken back
        torch._foreach_add_([tree[k] for k in small], gradients, alpha=-self.encoder_rate * scale)
        if self.attention:
            tree["tau"].clamp_(min=self.tau_min)
        return norm

    def _decoders(self, tree: Tree, mixes: Tensor) -> list[Decoder]:
        named = zip(self.outputs.items(), mixes.unbind(), strict=True)
        return [Decoder(*_linear(tree, name), mix, out.shape) for (name, out), mix in named]


def _linear(tree: Tree, name: str) -> tuple[Tensor, Tensor]:
    return tree[f"decoder.{name}.weight"], tree[f"decoder.{name}.bias"]


def _attend(encoded: Tensor, ids: list[int], tau: Tensor) -> Tensor:
    similarity = encoded[ids] @ encoded.T
    return torch.softmax(similarity / tau[:, None, None], -1) @ encoded


def _attend_in_passing(encoded: Tensor, ids: list[int], tau: Tensor) -> Tensor:
    """The same, with weights that exist a block at a time, in the gradient too: several times as fast among many."""
    queries, everybody = encoded[ids] / tau[:, None, None], encoded.expand(1, len(tau), -1, -1)
    return F.scaled_dot_product_attention(queries[None], everybody, everybody, scale=1.0)[0]
