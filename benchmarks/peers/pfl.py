"""pfl-research (Apple): FederatedAveraging on its simulated backend, one worker process for each core or GPU."""

import os
import subprocess
import sys
import time

from benchmarks.workload import asked, images, network, report


def worker() -> None:
    work = asked()
    import numpy as np
    import torch
    import torch.nn.functional as F
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    model, marks = network(work.width), []
    model.to(work.device)
    x, y = (t.to(work.device) for t in images(work))

    def loss(inputs: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return F.cross_entropy(model(inputs), labels)

    model.loss, model.metrics = loss, lambda *_: {}

    class Marks(TrainingProcessCallback):
        def after_central_iteration(self, *args, **kwargs):
            marks.append(time.perf_counter())
            return False, Metrics()

    users = iter(range(10**9))
    data = FederatedDataset(
        lambda i: Dataset(raw_data=[x[i % work.clients], y[i % work.clients]]), lambda: next(users) % work.clients
    )
    wrapped = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0))
    params = NNAlgorithmParams(
        central_num_iterations=work.rounds + 1, evaluation_frequency=10**6, train_cohort_size=work.clients,
        val_cohort_size=0,
    )  # fmt: skip
    local = NNTrainHyperParams(local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch)
    np.random.seed(0)
    FederatedAveraging().run(
        params, SimulatedBackend(training_data=data, val_data=data), wrapped, local,
        NNEvalHyperParams(local_batch_size=work.batch), callbacks=[Marks()], send_metrics_to_platform=False,
    )  # fmt: skip
    if os.environ.get("RANK", "0") == "0":
        report(work, marks[-1] - marks[0])


def main() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        worker()
        return
    work = asked()
    count = str(work.threads if work.device == "cpu" else 1)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, "-m", "benchmarks.peers.pfl"]
    environment = os.environ | {"PFL_PYTORCH_DEVICE": work.device, "OMP_NUM_THREADS": "1"}
    sys.exit(subprocess.run([sys.executable, *command, sys.argv[1]], env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
