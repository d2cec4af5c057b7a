"""Live bytes: what is counted, what is not, and that the allocator agrees."""

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from pa3dfl.engines.footprint import LiveBytes


def test_bytes_of_live_storages_by_hand() -> None:
    given = torch.zeros(1000)
    with LiveBytes() as live:
        view = given.view(10, 100)  # was there before
        a = torch.zeros(100)
        b = a + 1
        assert live.now == 800
        c = b.view(10, 10)
        assert live.now == 800
        del b
        assert live.now == 800  # c still looks at it
        del c, view
        assert live.now == 400
        a.add_(1)
        assert (live.now, live.peak) == (400, 800)


def test_saved_activations_live_until_the_backward_pass() -> None:
    with LiveBytes() as live:
        w = torch.ones(100, requires_grad=True)
        loss = (w * 2).exp().sum()
        # w, exp's result and the sum; the product is not needed any more.
        assert live.now == 400 + 400 + 4
        torch.autograd.grad(loss, w)
        assert live.now == 400 + 4


def test_measured_bytes_agree_with_the_gpus_allocator() -> None:
    x, start = torch.randn(8, 3, 12, 12), torch.randn(16, 3, 5, 5)

    def step() -> None:
        w = start.clone().requires_grad_()
        y = F.relu(F.max_pool2d(F.conv2d(x, w, padding=2), 2))
        torch.autograd.grad(y.square().mean(), w)

    with LiveBytes() as live:
        step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for e in sorted(events, key=lambda e: e.start_ns()):
        now += e.nbytes()
        peak = max(peak, now)
    # The allocator also sees what is alive only inside an operation.
    assert live.peak <= peak <= 1.1 * live.peak
