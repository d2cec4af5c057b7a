"""Parts of decoders on a CPU: cores share them out."""

import torch

from pa3dfl.methods.common.decoders import Decoder, Held, plain


def test_on_a_cpu_results_do_not_depend_on_how_many_cores_share_the_parts() -> None:
    def learnt(cores: int) -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(0)
        weight, bias, mix = (torch.randn(*shape, generator=g) for shape in ((60_000, 8), (60_000,), (2, 8)))
        clients = [Held([torch.randn(n, 1000, generator=g)]) for n in (60, 25)]
        d = Decoder(weight, bias, mix, (60, 1000))
        before = torch.get_num_threads()
        torch.set_num_threads(cores)
        try:
            slopes, squares = plain.learn([d], clients, 0.1)
            assert torch.get_num_threads() == cores
        finally:
            torch.set_num_threads(before)
        return [weight, bias, slopes, squares, *(held.tensors[0] for held in clients)]

    for one, several in zip(learnt(1), learnt(3), strict=True):
        assert torch.equal(one, several)
