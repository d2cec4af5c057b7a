"""Flower's simulation engine (Ray): its FedAvg strategy, one client at a time on each core, or as many on a GPU."""

import json
import sys
import time

import torch
import torch.nn.functional as F
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.workload import Work, images, network, report

WORK = Work(**json.loads(sys.argv[1])) if len(sys.argv) > 1 else Work()
marks: list[float] = []
cache: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}


class Client(NumPyClient):
    def __init__(self, number: int, work: Work) -> None:
        self.work = work
        if "data" not in cache:  # once in each of Ray's processes
            cache["data"] = tuple(t.to(work.device) for t in images(work))
        self.x, self.y = (t[number] for t in cache["data"])

    def fit(self, parameters, config):
        torch.set_num_threads(1)
        model = network(self.work.width).to(self.work.device)
        model.load_state_dict(dict(zip(model.state_dict(), map(torch.from_numpy, parameters), strict=True)))
        sgd = torch.optim.SGD(model.parameters(), self.work.lr)
        for _ in range(self.work.epochs):
            for rows in torch.randperm(len(self.x)).split(self.work.batch):
                sgd.zero_grad()
                F.cross_entropy(model(self.x[rows]), self.y[rows]).backward()
                sgd.step()
        return [v.cpu().numpy() for v in model.state_dict().values()], len(self.x), {}


class Timed(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        if failures:
            raise RuntimeError(str(failures[0]))
        done = super().aggregate_fit(server_round, results, failures)
        marks.append(time.perf_counter())
        return done


def client_app(work: Work) -> ClientApp:
    def client(context: Context):
        return Client(int(context.node_config["partition-id"]), work).to_client()

    return ClientApp(client_fn=client)


def server(context: Context) -> ServerAppComponents:
    first = ndarrays_to_parameters([v.numpy() for v in network(WORK.width).state_dict().values()])
    strategy = Timed(
        fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=WORK.clients, min_available_clients=WORK.clients,
        initial_parameters=first,
    )  # fmt: skip
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=WORK.rounds + 1))


def main() -> None:
    gpus = 1 if WORK.device == "cuda" else 0
    run_simulation(
        ServerApp(server_fn=server), client_app(WORK), WORK.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": gpus / WORK.threads},
            "init_args": {"num_cpus": WORK.threads, "num_gpus": gpus},
        },
    )  # fmt: skip
    if len(marks) <= WORK.rounds:
        sys.exit("the simulation ended before its rounds were done")
    report(WORK, marks[-1] - marks[0])


if __name__ == "__main__":
    main()
