"""What the processor gives at best: one plain model, batch 500 (1000 on a GPU), channels last, as many samples.

`python -m benchmarks.limit JSON PRECISION`
"""

import sys

import torch
import torch.nn.functional as F

from benchmarks.workload import asked, images, network, timed

BATCH = {"cpu": 500, "cuda": 1000}


def main() -> None:
    work, bf16 = asked(), sys.argv[2] == "bf16"
    torch.set_num_threads(work.threads)
    torch.set_float32_matmul_precision("high")  # TF32, where there is such a thing
    model = network(work.width).to(work.device, memory_format=torch.channels_last)
    x, y = (t.to(work.device) for t in images(work))
    x, y = x.flatten(0, 1).contiguous(memory_format=torch.channels_last), y.flatten()
    sgd = torch.optim.SGD(model.parameters(), work.lr, fused=True)

    def play_round(_: int) -> None:
        for _ in range(work.epochs):
            for rows in torch.randperm(len(x), device=work.device).split(BATCH[work.device]):
                batch = x[rows].clone(memory_format=torch.channels_last)
                with torch.autocast(work.device, torch.bfloat16, enabled=bf16):
                    loss = F.cross_entropy(model(batch), y[rows])
                sgd.zero_grad()
                loss.backward()
                sgd.step()

    timed(work, play_round)


if __name__ == "__main__":
    main()
