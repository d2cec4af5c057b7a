"""The hyper-network: client embeddings in, personal parameters out (paper, equations `eq_gen`, `eq_updatehn`).

An MLP encoder maps embeddings E (N, d) to E' (N, h). For each output l, e_i^(l) = softmax(E'e'_i/τ_l) E' mixes similar
clients, and a linear decoder maps this mix to the output, which is generated in full and then pruned. All N embeddings
take part in every mix, so that all of them receive gradients, also those of clients that were not sampled. Without
attention, e_i^(l) is the encoder's output for client i.

The entry `absent` of a tree is 1 for clients that have not joined yet: their embeddings are not used. The entry
`newcomer` is the embedding of a client that joins after training; parameters generated from a tree with this entry
are that client's. Both entries exist only where there are newcomers.

A decoder has h weights per generated parameter: 1.3-1.7 G for ResNet-18. Its gradient is a product of two thin
matrices. Neither the gradient nor the generated parameters of more than one layer ever exist in full (`decoders`).
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pa3dfl.core.randomness import generator
from pa3dfl.core.tree import Tree, leading
from pa3dfl.methods.common.decoders import Decoder, Held, Shape, Unfilled, plain, suited

# The largest number of attention weights (outputs × clients × all clients) to store. Beyond it, computing them again is
# faster than storing them; for a thousand clients among a million they would take 4 GB per output.
ATTENTION = 2**20
ABSENT, NEWCOMER = "absent", "newcomer"


@dataclass(frozen=True)
class Output:
    """One generated tensor: its full shape, and the standard deviation of its initial entries."""

    shape: Shape
    std: float

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class HyperNetwork:
    """Sizes and step sizes. The parameters are a tree in the server's state."""

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

    def init(self, clients: int, seed: int, absent: Collection[int] = ()) -> Tree:
        def normal(purpose: str, *shape: int, std: float) -> Tensor:
            g = generator(seed, f"hypernetwork:{purpose}")
            return torch.empty(shape).normal_(0, std, generator=g)

        tree = {"embeddings": normal("embeddings", clients, self.embedding, std=1.0)}
        if absent:
            tree[ABSENT] = torch.zeros(clients).index_fill(0, torch.tensor(sorted(absent)), 1)
        sizes = [self.embedding] + [self.hidden] * self.depth
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            tree[f"encoder.{i}.weight"] = normal(f"encoder.{i}", b, a, std=(2 / a) ** 0.5)
            tree[f"encoder.{i}.bias"] = torch.zeros(b)
        if self.attention:
            tree["tau"] = torch.full((len(self.outputs),), self.tau)
        for name, out in self.outputs.items():
            # The bias is the common start of all clients; the weight adds small differences.
            tree[f"decoder.{name}.bias"] = normal(f"{name}.bias", out.numel, std=out.std)
            tree[f"decoder.{name}.weight"] = normal(f"{name}.weight", out.numel, self.hidden, std=out.std / 10)
        return tree

    def mixes(self, tree: Tree, ids: list[int]) -> Tensor:
        """(outputs, clients, h): the aggregated embeddings e_i^(l) of the given clients."""
        embeddings, ids = _there(tree, ids)
        encoded = self.encoded(tree, embeddings)
        if not self.attention:
            return encoded[ids].expand(len(self.outputs), -1, -1)
        few = len(self.outputs) * len(ids) * len(encoded) <= ATTENTION
        return (_attend if few else _attend_in_blocks)(encoded, ids, tree["tau"])

    def encoded(self, tree: Tree, embeddings: Tensor) -> Tensor:
        """The encoder's output for embeddings."""
        encoded = embeddings
        for i in range(self.depth):
            encoded = F.linear(encoded, tree[f"encoder.{i}.weight"], tree[f"encoder.{i}.bias"])
            if i < self.depth - 1:
                encoded = F.relu(encoded)
        # With attention normalised, so that the temperature alone decides how much clients share.
        return F.normalize(encoded, dim=1) if self.attention else encoded

    def history(self, tree: Tree, ids: Sequence[int]) -> Tree:
        """The embeddings of some clients, the encoder's output for them, and the temperature of each output."""
        embeddings = tree["embeddings"][list(ids)]
        with torch.no_grad():
            found = {"embeddings": embeddings, "encoded": self.encoded(tree, embeddings)}
        if self.attention:
            found |= {f"tau/{name}": tau for name, tau in zip(self.outputs, tree["tau"].unbind(), strict=True)}
        return found

    def generate(self, tree: Tree, ids: list[int], shapes: Sequence[Mapping[str, Shape]]) -> list[Tree]:
        """Personal parameters of the given clients, pruned to their leading entries."""
        held: list[Held] = [Unfilled([own[k] for k in self.outputs], tree["embeddings"]) for own in shapes]
        with torch.no_grad():
            decoders = self._decoders(tree, self.mixes(tree, ids))
            suited(decoders, held).decode(decoders, held)
        return [dict(zip(self.outputs, own.tensors, strict=True)) for own in held]

    def gradient(self, tree: Tree, ids: list[int], trained: list[Tree]) -> Tree:
        """∂/∂φ of 1/m Σ ½‖generated − trained‖² by autograd: the definition of the gradient in `update`."""
        params = {k: v.detach().requires_grad_() for k, v in tree.items()}
        loss = params["embeddings"].new_zeros(())
        for (name, out), mix in zip(self.outputs.items(), self.mixes(params, ids), strict=True):
            full = F.linear(mix, *_linear(params, name))
            for generated, target in zip(full, trained, strict=True):
                error = leading(generated.view(out.shape), target[name].shape) - target[name]
                loss = loss + error.square().sum() / (2 * len(ids))
        return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))

    def update(self, tree: Tree, ids: list[int], trained: list[Tree]) -> float:
        """One step of SGD on the loss of `gradient`, in place; returns the gradient's norm before clipping.

        Overwrites the tensors of `trained` with trained − generated.
        """
        m = len(ids)
        # Sorted: a tree from a checkpoint may have another order, which changes the last bits of the norm.
        small = {k: tree[k].detach().requires_grad_() for k in sorted(tree) if not k.startswith(("decoder.", ABSENT))}
        mixes = self.mixes(tree | small, ids)
        decoders, pace = self._decoders(tree, mixes.detach()), self.rate / m
        held = [Held([mine[k] for k in self.outputs]) for mine in trained]
        # Decoders step before the norm is known, so that each is read and written once. The norm is seldom too large.
        slopes, squares = suited(decoders, held).learn(decoders, held, pace)
        gradients = torch.autograd.grad(mixes, list(small.values()), slopes / -m)
        norms = torch.stack([squares.clamp(min=0).sqrt() / m, *torch._foreach_norm(gradients)])
        norm = float(torch.linalg.vector_norm(norms))
        scale = min(1.0, self.clip_norm / norm) if self.clip_norm and norm > 0 else 1.0
        if scale < 1:
            plain.step(decoders, held, pace * (scale - 1))  # undo the part beyond the clip norm
        torch._foreach_add_([tree[k] for k in small], gradients, alpha=-self.encoder_rate * scale)
        if self.attention:
            tree["tau"].clamp_(min=self.tau_min)
        return norm

    def _decoders(self, tree: Tree, mixes: Tensor) -> list[Decoder]:
        named = zip(self.outputs.items(), mixes.unbind(), strict=True)
        return [Decoder(*_linear(tree, name), mix, out.shape) for (name, out), mix in named]


def _linear(tree: Tree, name: str) -> tuple[Tensor, Tensor]:
    return tree[f"decoder.{name}.weight"], tree[f"decoder.{name}.bias"]


def _there(tree: Tree, ids: list[int]) -> tuple[Tensor, list[int]]:
    """The embeddings of the clients that have joined, and the rows of the given clients among them."""
    embeddings = tree["embeddings"]
    if ABSENT in tree:
        here = tree[ABSENT] == 0
        embeddings, ids = embeddings[here], (here.cumsum(0) - 1)[ids].tolist()
    if NEWCOMER in tree:
        embeddings, ids = torch.cat([embeddings, tree[NEWCOMER][None]]), [len(embeddings)] * len(ids)
    return embeddings, ids


def _attend(encoded: Tensor, ids: list[int], tau: Tensor) -> Tensor:
    similarity = encoded[ids] @ encoded.T
    return torch.softmax(similarity / tau[:, None, None], -1) @ encoded


def _attend_in_blocks(encoded: Tensor, ids: list[int], tau: Tensor) -> Tensor:
    """The same result with attention in blocks, also in the gradient: several times as fast with many clients."""
    queries, keys = encoded[ids] / tau[:, None, None], encoded.expand(1, len(tau), -1, -1)
    return F.scaled_dot_product_attention(queries[None], keys, keys, scale=1.0)[0]
