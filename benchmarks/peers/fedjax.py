"""FedJAX (Google): its federated averaging, jitted; the network is written in stax, images channels last."""

import os
import time

from benchmarks.workload import asked, images, report


def main() -> None:
    work = asked()
    # JAX has one CPU device; its operations use all cores that the process may.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: work.threads])
    import jax

    found = jax.default_backend()
    if found != {"cpu": "cpu", "cuda": "gpu"}[work.device]:
        raise SystemExit(f"JAX computes on {found} here")
    jax.tree_map = jax.tree_util.tree_map  # its old name, which FedJAX still uses
    import fedjax
    import jax.numpy as jnp
    from jax.example_libraries import stax

    c1, c2, h1, h2 = (int(n * work.width) for n in (32, 64, 512, 128))

    def pool():
        return stax.MaxPool((2, 2), strides=(2, 2))

    init, apply = stax.serial(
        stax.Conv(c1, (5, 5), padding="SAME"), pool(), stax.Relu, stax.Conv(c2, (5, 5), padding="SAME"), pool(),
        stax.Relu, stax.Flatten, stax.Dense(h1), stax.Relu, stax.Dense(h2), stax.Relu, stax.Dense(10),
    )  # fmt: skip

    def loss(params, batch, rng):
        logits = jax.nn.log_softmax(apply(params, batch["x"]))
        return -jnp.mean(jnp.take_along_axis(logits, batch["y"][:, None], 1))

    x, y = images(work)
    x = x.permute(0, 1, 3, 4, 2).numpy()
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(work.lr), fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=work.epochs),
    )  # fmt: skip
    _, params = init(jax.random.PRNGKey(0), (work.batch, 28, 28, 1))
    state, marks = algorithm.init(params), []
    keys = jax.random.split(jax.random.PRNGKey(1), work.clients)
    clients = [(bytes([i]), fedjax.ClientDataset({"x": x[i], "y": y[i].numpy()}), keys[i]) for i in range(work.clients)]
    for _ in range(work.rounds + 1):
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        marks.append(time.perf_counter())
    report(work, marks[-1] - marks[0])


if __name__ == "__main__":
    main()
