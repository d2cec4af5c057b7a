"""FLGo: its FedAvg with as many threads as there are cores, the fastest of its ways on a CPU; on a GPU one at a time.

Local data is served as one tensor in memory; evaluation is switched off.
"""

import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.workload import asked, report

CONFIG = """
import json, os, torch
from benchmarks.workload import Work, images, network
work = Work(**json.loads(os.environ["BENCH_WORK"]))
x, y = images(work)
train_data = torch.utils.data.TensorDataset(x.flatten(0, 1), y.flatten())
test_data = torch.utils.data.TensorDataset(x[0, :10], y[0, :10])
def get_model():
    return network(work.width)
"""


def main() -> None:
    work = asked()
    os.environ["BENCH_WORK"] = sys.argv[1]
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    sys.path.insert(0, folder)
    Path("config_of_bench.py").write_text(CONFIG)
    import flgo
    import flgo.algorithm.fedavg as fedavg
    import flgo.benchmark.toolkits.cv.classification as images
    from flgo.experiment.logger import BasicLogger

    # Recent versions of PyTorch ask every subset for this.
    images.FromDatasetPipe.TaskDataset.__getitems__ = lambda self, rows: [self[i] for i in rows]
    marks = []

    class Server(fedavg.Server):
        def iterate(self):
            done = super().iterate()
            marks.append(time.perf_counter())
            return done

    class Silent(BasicLogger):
        def log_once(self, *args, **kwargs):
            pass

    class Algorithm:
        Client = fedavg.Client

    Algorithm.Server = Server
    name = flgo.gen_benchmark_from_file("bench", "config_of_bench.py", target_path=".")
    # Its picture of the partition would take minutes.
    importlib.import_module(name).visualize = lambda *_: None
    config = {"benchmark": name, "partitioner": {"name": "IIDPartitioner", "para": {"num_clients": work.clients}}}
    flgo.gen_task(config, task_path="task")
    where = {"gpu": [0], "num_parallels": 1} if work.device == "cuda" else {"num_parallels": work.threads}
    options = {
        "num_rounds": work.rounds + 1, "num_epochs": work.epochs, "batch_size": work.batch, "proportion": 1.0,
        "learning_rate": work.lr, "train_holdout": 0.0, "eval_interval": 10**6,
        "parallel_type": "t", "torch_num_threads": 1, "sample": "full", "aggregate": "weighted_com",
        "no_log_console": True, **where,
    }  # fmt: skip
    flgo.init("task", Algorithm, options, Logger=Silent).run()
    report(work, marks[-1] - marks[0])


if __name__ == "__main__":
    main()
