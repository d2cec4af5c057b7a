"""What a run is: presets under file under flags."""

from pathlib import Path
from typing import Any

import pytest

from pa3dfl import api, methods
from pa3dfl.assembly import flat
from pa3dfl.config import Config, preset, read_yaml, resolve
from pa3dfl.data import NAMES

PA3DFL = api.option_fields(methods.find("pa3dfl"))


@pytest.mark.parametrize(
    ("data", "model", "partition", "rounds", "lr", "classes", "augment"),
    [
        ("fashion-mnist-10k", "cnn-fashion", "iid", 40, 0.1, 2, False),
        ("fashion-mnist", "cnn-fashion", "iid", 500, 0.1, 2, False),
        ("cifar10", "resnet18-gn", "dirichlet", 1000, 0.1, 2, True),
        ("cifar100", "cnn-cifar100", "classes", 2000, 0.1, 20, True),
        ("my/own.npz", "cnn-fashion", None, 100, 0.1, 2, False),
    ],
)
def test_the_data_brings_its_presets(
    data: str, model: str, partition: str | None, rounds: int, lr: float, classes: int, augment: bool
) -> None:
    c = resolve({"data": data}, PA3DFL)
    assert (c.model, c.partition, c.rounds, c.lr) == (model, partition, rounds, lr)
    assert (c.classes_per_client, c.augment, c.dirichlet_alpha) == (classes, augment, 1.0)
    assert (c.epochs, c.batch, c.per_round, c.lr_decay, c.weight_decay, c.clip_norm) == (5, 50, 20, 0.998, 5e-4, 10.0)


def test_method_over_data_setting_over_method_file_over_setting_flags_over_file(tmp_path: Path) -> None:
    """Each layer wins over those before it: data < method < setting < file < flags."""
    file = tmp_path / "run.yaml"
    file.write_text("lr: 0.3\nrounds: 7\n")
    fashion, cifar10 = {"data": "fashion-mnist"}, {"data": "cifar10"}
    assert resolve(cifar10, {}).lr == 0.1
    assert resolve(cifar10 | {"method": "local-only"}, {}).lr == 0.005
    assert resolve(fashion | {"method": "fedavg", "setting": "ideal"}, {}).lr == 0.1
    for setting in ("hetero", "uniform", "levels:1,1/4", "r.csv"):
        assert resolve(fashion | {"method": "fedavg", "setting": setting}, {}).lr == 0.05
    assert resolve(fashion | {"method": "fedavg"}, {}).lr == 0.05  # hetero is the default
    from_file = resolve(fashion | {"method": "fedavg"} | read_yaml(file), {})
    assert (from_file.lr, from_file.rounds, from_file.model) == (0.3, 7, "cnn-fashion")
    flags = {"lr": "0.4"}
    both = resolve(fashion | {"method": "fedavg"} | read_yaml(file) | flags, {})
    assert (both.lr, both.rounds) == (0.4, 7)


def test_a_setting_of_a_method_wins_over_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "default": {"lr": 1.0, "rounds": 1, "batch": 1, "epochs": 1, "seed": 1},
        "cifar10": {"like": "base", "rounds": 3, "methods": {"fedavg": {"epochs": 3, "seed": 3, "ideal": {"seed": 4}}}},
        "base": {"rounds": 2, "batch": 2},
    }
    monkeypatch.setattr("pa3dfl.config._preset_file", lambda name: dict(files[name]))
    assert preset("cifar10", "fedavg", "ideal") == {"lr": 1.0, "rounds": 3, "batch": 2, "epochs": 3, "seed": 4}
    assert preset("cifar10", "fedavg", "hetero")["seed"] == 3
    assert preset("cifar10", "ditto", "ideal") == {"lr": 1.0, "rounds": 3, "batch": 2, "epochs": 1, "seed": 1}


def test_presets_of_another_method_are_not_options_of_this_one() -> None:
    assert resolve({"data": "cifar100"}, PA3DFL).options == {"embedding": 16, "hidden": 128}
    fedavg = api.option_fields(methods.find("fedavg"))
    assert resolve({"data": "cifar100", "method": "fedavg"}, fedavg).options == {}


@pytest.mark.parametrize("data", NAMES)
@pytest.mark.parametrize("method", methods.registry())
def test_every_preset_is_a_config(data: str, method: str) -> None:
    for setting in ("ideal", "hetero"):
        c = api.configure({"data": data, "method": method, "setting": setting, "device": "cpu"})
        assert None not in (c.model, c.rounds, c.lr, c.augment, c.dirichlet_alpha, c.classes_per_client, c.p_min)


def test_configure_leaves_nothing_open() -> None:
    c = api.configure({"device": "auto", "embedding": "8"})
    assert c.p_min == "1/16"
    assert c.device in ("cpu", "cuda")
    assert c.threads >= 1
    assert c.out == "runs/fashion-mnist-10k-hetero-pa3dfl-0"
    assert (c.options["embedding"], c.options["hidden"], c.options["tau"]) == (8, 64, 0.2)
    assert api.configure({"setting": "ideal"}).p_min == "1/8"


@pytest.mark.parametrize(
    ("setting", "slug"),
    [("ideal", "ideal"), ("levels:1,1/4", "levels-1-1-4"), ("list:0.5,1", "list-0-5-1"), ("a/my r.csv", "my-r"),
     ("list:" + "1," * 99 + "1", ("list-" + "1-" * 99)[:60])],
)  # fmt: skip
def test_the_default_folder_names_the_run(setting: str, slug: str) -> None:
    c = api.configure({"data": "a/b.npz", "setting": setting, "method": "fedavg", "seed": 3})
    assert c.out == f"runs/b-{slug}-fedavg-3"


def test_configure_twice_changes_nothing() -> None:
    once = api.configure({"data": "cifar100", "method": "fedavg", "setting": "ideal"})
    assert api.configure(flat(once)) == once


# --- None is not given ---


def test_none_leaves_the_preset() -> None:
    given = {"data": "cifar100", "rounds": None, "model": None, "lr": None, "epochs": None, "embedding": None}
    c = resolve(given, PA3DFL)
    assert (c.rounds, c.model, c.lr, c.epochs, c.options["embedding"]) == (2000, "cnn-cifar100", 0.1, 5, 16)
    assert resolve({"data": None, "setting": None, "method": None}, PA3DFL).data == "fashion-mnist-10k"


def test_api_run_takes_presets_for_what_a_config_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run(Config(…))` is stopped at its first use of the resolved config."""
    seen: list[Config] = []

    class Stop(Exception):
        pass

    def directory(path: Path) -> None:
        raise Stop

    def configure(given: dict[str, Any]) -> Config:
        seen.append(real(given))
        return seen[-1]

    real = api.configure
    monkeypatch.setattr(api, "configure", configure)
    monkeypatch.setattr(api, "RunDirectory", directory)
    for config, more in (
        (Config(data="cifar100", rounds=3), {}),
        (Config(data="cifar100", options={"hidden": 5}), {"rounds": 4, "lr": None}),
        (None, {"data": "fashion-mnist", "method": "fedavg"}),
        (Config(data="fashion-mnist", method="fedavg", lr=0.2), {}),
    ):
        with pytest.raises(Stop):
            api.run(config, **more)
    a, b, c, d = seen
    assert (a.model, a.partition, a.classes_per_client, a.augment, a.rounds) == ("cnn-cifar100", "classes", 20, True, 3)
    assert (a.options["embedding"], a.options["hidden"]) == (16, 128)
    assert (b.options["embedding"], b.options["hidden"], b.rounds, b.lr) == (16, 5, 4, 0.1)
    assert (c.lr, d.lr) == (0.05, 0.2)
