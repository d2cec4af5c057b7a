"""What a run is: presets under file under flags."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from pa3dfl import methods
from pa3dfl.core.errors import UserError
from pa3dfl.core.options.config import Config, preset, read_yaml, resolve
from pa3dfl.data import NAMES
from pa3dfl.experiments import api
from pa3dfl.methods import assembly
from pa3dfl.methods.assembly import flat

PA3DFL = assembly.option_fields(methods.find("pa3dfl"))


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
    c = resolve({"data": data, "preset": "paper"}, PA3DFL)
    assert (c.model, c.partition, c.rounds, c.lr) == (model, partition, rounds, lr)
    assert (c.classes_per_client, c.augment, c.dirichlet_alpha) == (classes, augment, 1.0)
    assert (c.epochs, c.batch, c.per_round, c.lr_decay, c.weight_decay, c.clip_norm) == (5, 50, 20, 0.998, 5e-4, 10.0)


def test_order_of_precedence_of_presets_file_and_flags(tmp_path: Path) -> None:
    """Each layer wins over those before it: data < method < setting < file < flags."""
    file = tmp_path / "run.yaml"
    file.write_text("lr: 0.3\nrounds: 7\n")
    fashion, cifar10 = ({"data": data, "preset": "paper"} for data in ("fashion-mnist", "cifar10"))
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
        "cifar10": {"like": "base", "rounds": 3},
        "base": {"rounds": 2, "batch": 2},
        "tuned/base": {"fedavg": {"epochs": 9}, "ditto": {"epochs": 2}},
        "tuned/cifar10": {"fedavg": {"epochs": 3, "seed": 3, "ideal": {"seed": 4}}},
        "paper/base": {"fedavg": {"epochs": 5}},
        "paper/cifar10": {},
    }
    monkeypatch.setattr("pa3dfl.core.options.config._preset_file", lambda name: dict(files[name]))
    assert preset("cifar10", "fedavg", "ideal") == {"lr": 1.0, "rounds": 3, "batch": 2, "epochs": 3, "seed": 4}
    assert preset("cifar10", "fedavg", "hetero")["seed"] == 3
    assert preset("cifar10", "ditto", "ideal") == {"lr": 1.0, "rounds": 3, "batch": 2, "epochs": 2, "seed": 1}
    assert preset("cifar10", "fedavg", "ideal", "paper")["epochs"] == 5
    assert preset("own.npz", "fedavg", "ideal", "paper") == files["default"]


def test_presets_of_another_method_are_not_options_of_this_one() -> None:
    chosen = {"embedding": 16, "hidden": 128, "hn_lr": 1.0, "keep": "personal"}
    assert resolve({"data": "cifar100"}, PA3DFL).options == chosen
    fedavg = assembly.option_fields(methods.find("fedavg"))
    assert resolve({"data": "cifar100", "method": "fedavg"}, fedavg).options == {}


@pytest.mark.parametrize("data", NAMES)
@pytest.mark.parametrize("method", methods.registry())
def test_every_preset_is_a_config(data: str, method: str) -> None:
    for setting, kind in itertools.product(("ideal", "hetero"), ("tuned", "paper")):
        c = assembly.configure({"data": data, "method": method, "setting": setting, "preset": kind, "device": "cpu"})
        assembly.make_method(c)
        assert None not in (c.model, c.rounds, c.lr, c.augment, c.dirichlet_alpha, c.classes_per_client, c.p_min)


# Step size and algorithmic options, Ideal and then Hetero., as the paper prints them.
PAPER = {
    "cifar10": """
        FedAvg    | 0.1   | -                   | 0.1   | -
        Ditto     | 0.1   | 0.1                 | 0.05  | 1.0
        pFedHN    | 0.1   | [5, 100, 2]         | 0.1   | [5, 100, 2]
        FLANC     | 0.1   | 0.01                | 0.1   | 0.01
        Fjord     | 0.1   | -                   | 0.1   | -
        HeteroFL  | 0.1   | -                   | 0.1   | -
        FedRolex  | 0.1   | -                   | 0.1   | -
        LocalOnly | 0.005 | -                   | 0.005 | -
        LG-FedAvg | 0.005 | -                   | 0.1   | -
        TailorFL  | 0.1   | 0.1, 0.05           | 0.1   | 0.5, 0.05
        pFedGate  | 0.1   | 0.005               | 0.1   | 0.1
        Pa3dFL    | 0.1   | 0.1,0.001,[64,64,4] | 0.1   | 0.1,0.001,[64,64,3]""",
    "cifar100": """
        FedAvg    | 0.1  | -                    | 0.1  | -
        Ditto     | 0.1  | 0.1                  | 0.05 | 1.0
        pFedHN    | 0.05 | [5, 100, 2]          | 0.1  | [5, 100, 2]
        FLANC     | 0.1  | 1.0                  | 0.1  | 0.01
        Fjord     | 0.1  | -                    | 0.1  | -
        HeteroFL  | 0.05 | -                    | 0.05 | -
        FedRolex  | 0.1  | -                    | 0.1  | -
        LocalOnly | 0.1  | -                    | 0.1  | -
        LG-FedAvg | 0.1  | -                    | 0.1  | -
        TailorFL  | 0.1  | 0.5, 0.2             | 0.01 | 0.5, 0.2
        pFedGate  | 0.1  | 0.05                 | 0.1  | 0.05
        Pa3dFL    | 0.1  | 0.001,1.0,[16,128,2] | 0.1  | 0.01,0.1,[16,128,3]""",
    "fashion-mnist": """
        FedAvg    | 0.1  | -                    | 0.05 | -
        Ditto     | 0.05 | 1.0                  | 0.05 | 1.0
        pFedHN    | 0.1  | -                    | 0.1  | -
        FLANC     | 0.1  | 1.0                  | 0.1  | 1.0
        Fjord     | 0.1  | -                    | 0.1  | -
        HeteroFL  | 0.05 | -                    | 0.1  | -
        FedRolex  | 0.1  | -                    | 0.1  | -
        LocalOnly | 0.1  | -                    | 0.1  | -
        LG-FedAvg | 0.1  | -                    | 0.1  | -
        TailorFL  | 0.1  | 0.1, 0.2             | 0.01 | 0.05, 0.2
        pFedGate  | 0.1  | 0.1                  | 0.1  | 0.05
        Pa3dFL    | 0.1  | 0.01,0.1,[64,64,3]   | 0.1  | 0.001,1.0,[64,64,4]""",
}
NAMED = {
    "ditto": ("mu",), "pfedhn": ("embedding", "hidden", "layers"), "flanc": ("lam",), "tailorfl": ("lam", "alpha"),
    "pfedgate": ("gate_lr",), "pa3dfl": ("lam", "hn_lr", "embedding", "hidden", "depth"),
}  # fmt: skip


@pytest.mark.parametrize("data", PAPER)
def test_the_papers_preset_is_the_papers_table(data: str) -> None:
    rows = [[cell.strip() for cell in line.split("|")] for line in PAPER[data].strip().splitlines()]
    names = {name.lower().replace("localonly", "local-only") for name, *_ in rows}
    assert names == set(methods.registry())
    for name, *cells in rows:
        method = name.lower().replace("localonly", "local-only")
        for setting, lr, algorithmic in (("ideal", *cells[:2]), ("hetero", *cells[2:])):
            c = assembly.configure({"data": data, "method": method, "setting": setting, "preset": "paper"})
            assert c.lr == float(lr), (method, setting)
            numbers = [float(n) for n in re.findall(r"[0-9.]+", algorithmic)]
            printed = dict(zip(NAMED.get(method, ()), numbers, strict=bool(numbers)))
            assert {k: c.options[k] for k in printed} == printed, (method, setting)
            if method == "pa3dfl":
                assert c.options["hn_encoder_lr"] == c.options["hn_lr"], "the paper has one"
                for ablation in methods.registry(methods.ABLATIONS):
                    like = assembly.configure({"data": data, "method": ablation, "setting": setting, "preset": "paper"})
                    assert like.options == c.options
            chosen = set(preset(data, method, setting, "paper")) - set(preset(data, "none", setting, "paper"))
            assert chosen <= {*NAMED.get(method, ()), "hn_encoder_lr"}, "nothing that the table does not have"


def test_data_without_a_table_takes_the_papers_values_of_similar_data() -> None:
    given = {"method": "pa3dfl", "preset": "paper"}
    small, large = (assembly.configure(given | {"data": data}) for data in ("fashion-mnist-10k", "fashion-mnist"))
    assert small.options == large.options
    assert (small.rounds, large.rounds, small.options["depth"]) == (40, 500, 4)


def test_one_rule_chooses_a_clients_model_in_every_preset() -> None:
    for data, method, kind in itertools.product(NAMES, methods.registry(), ("tuned", "paper")):
        assert assembly.configure({"data": data, "method": method, "preset": kind}).select == "accuracy"


def test_a_preset_is_known_and_its_name_changes_no_number() -> None:
    with pytest.raises(UserError, match=r"^preset is 'best': expected one of tuned, paper$"):
        assembly.configure({"preset": "best"})
    paper = assembly.configure({"preset": "paper", "data": "cifar10", "method": "fedavg"})
    assert paper.hash() == assembly.configure(flat(paper) | {"preset": "tuned"}).hash()


def test_configure_fills_every_option() -> None:
    c = assembly.configure({"device": "auto", "embedding": "8"})
    assert c.p_min == "1/16"
    assert c.device in ("cpu", "cuda")
    assert c.threads >= 1
    assert c.out == "runs/fashion-mnist-10k-hetero-pa3dfl-0"
    assert (c.options["embedding"], c.options["hidden"], c.options["tau"]) == (8, 64, 0.2)
    assert assembly.configure({"setting": "ideal"}).p_min == "1/8"


@pytest.mark.parametrize(
    ("setting", "slug"),
    [("ideal", "ideal"), ("levels:1,1/4", "levels-1-1-4"), ("list:0.5,1", "list-0-5-1"), ("a/my r.csv", "my-r"),
     ("list:" + "1," * 99 + "1", ("list-" + "1-" * 99)[:60])],
)  # fmt: skip
def test_the_default_folder_names_the_run(setting: str, slug: str) -> None:
    c = assembly.configure({"data": "a/b.npz", "setting": setting, "method": "fedavg", "seed": 3})
    assert c.out == f"runs/b-{slug}-fedavg-3"


def test_configure_twice_changes_nothing() -> None:
    once = assembly.configure({"data": "cifar100", "method": "fedavg", "setting": "ideal"})
    assert assembly.configure(flat(once)) == once


# --- None is not given ---


def test_none_counts_as_not_given() -> None:
    given = {"data": "cifar100", "rounds": None, "model": None, "lr": None, "epochs": None, "embedding": None}
    c = resolve(given, PA3DFL)
    assert (c.rounds, c.model, c.lr, c.epochs, c.options["embedding"]) == (2000, "cnn-cifar100", 0.1, 5, 16)
    assert resolve({"data": None, "setting": None, "method": None}, PA3DFL).data == "fashion-mnist-10k"


def test_api_run_takes_presets_for_missing_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run(Config(…))` is stopped at its first use of the resolved config."""
    seen: list[Config] = []

    class Stop(Exception):
        pass

    def directory(path: Path) -> None:
        raise Stop

    def configure(given: dict[str, Any]) -> Config:
        seen.append(real(given))
        return seen[-1]

    real = assembly.configure
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
    assert (c.lr, d.lr) == (preset("fashion-mnist", "fedavg", "hetero")["lr"], 0.2)
