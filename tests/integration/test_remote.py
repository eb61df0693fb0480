"""An inventory of two real daemons and one unreachable box: every command, load of the fleet, access over TLS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edged.client.client import Client
from edged.client.credentials import Credentials
from edged.errors import EdgedError
from tests import models, programs
from tests.certificates import Authority
from tests.integration.asking import infer
from tests.integration.daemon import Daemon, wait_for

pytestmark = pytest.mark.timeout(180)


class Fleet:
    """Daemons and the inventory file that names them."""

    def __init__(self, folder: Path, *daemons: Daemon) -> None:
        self.daemons = daemons
        self.inventory = folder / "boxes.toml"
        targets = {"one": daemons[0].unix, "two": daemons[1].tcp, "away": f"unix:{folder}/nobody"}
        entries = (f'[boxes.{name}]\ntarget = "{target}"\ngroups = ["all"]\n' for name, target in targets.items())
        self.inventory.write_text("".join(entries).replace("all", "here", 2))
        self.model = models.save(models.conv(), folder / "m.onnx")

    def run(self, *line: str, group: str = "here") -> tuple[int, str, str]:
        chosen = ["--group", group] if group else []
        done = edged(*line, "--inventory", str(self.inventory), *chosen)
        return done.returncode, done.stdout, done.stderr

    def json(self, *line: str, group: str = "here") -> dict[str, Any]:
        _, reported, _ = self.run(*line, "--json", group=group)
        lines = map(json.loads, reported.splitlines())
        return {each["box"]: each for each in lines if "ok" in each}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Daemon(builds=False) as one, Daemon(builds=False) as two:
        fleet = Fleet(tmp_path_factory.mktemp("fleet"), one, two)
        status, reported, why = fleet.run("models", "add", "m", str(fleet.model), "--set", "backends=tensorrt")
        assert status == 0, reported + why  # with that setting the reference serves and nothing is built
        for daemon in fleet.daemons:
            daemon.ready("m")
        yield fleet


def test_fleet_command_runs_on_every_box_and_reports_the_unreachable(fleet: Fleet) -> None:
    _, reported, _ = fleet.run("engines", "rebuild", "m", "--force", "--follow", "--json", group="")
    lines = [json.loads(line) for line in reported.splitlines()]
    assert {line["box"] for line in lines if "update" in line} == {"one", "two"}
    ends = {line["box"]: line for line in lines if "ok" in line}
    assert {name: each["ok"] for name, each in ends.items()} == {"one": True, "two": True, "away": False}
    assert all(engine["succeeded"] for name in ("one", "two") for engine in ends[name]["result"])
    assert "no edged daemon answers" in ends["away"]["error"]
    status, reported, why = fleet.run("engines", "pin", "--all", group="")
    assert (status, len(reported.splitlines())) == (1, 2)
    assert why.splitlines()[0] == "2 of 3 boxes done"


def test_fleet_device_and_reload_run_on_each_box(fleet: Fleet) -> None:
    refreshed = fleet.json("device", "refresh")
    assert [refreshed[name]["result"] for name in ("one", "two")] == [{"changes": []}, {"changes": []}]
    reloaded = fleet.json("reload")  # both daemons run without a file
    assert sorted(reloaded) == ["one", "two"]
    assert all("configuration" in each["error"] and not each["ok"] for each in reloaded.values())


def test_load_counts_each_models_requests(fleet: Fleet) -> None:
    address, zeros = fleet.daemons[0].unix, np.zeros((1, 3, 8, 8), np.float32)
    with fleet.daemons[0].client() as client, grpc.insecure_channel(address) as channel:
        for _ in range(20):
            infer(channel, "m", "x", "FP32", zeros)
        wait_for("the baseline is known", lambda: client.load().models[0].baseline_ms)
        before = client.load()
        infer(channel, "m", "x", "FP32", zeros)
        after = client.load()
    (earlier,), (later,) = before.models, after.models
    assert later.answered == earlier.answered + 1
    assert (later.state, later.backend, later.device) == ("ready", "onnxruntime", "cpu")
    assert (later.infer_ms or 0) > 0
    assert (later.baseline_ms or 0) > 0
    assert after.mono_s > before.mono_s
    assert {host.pid for host in after.hosts} == set(fleet.daemons[0].hosts())
    assert all(host.resident_bytes > 1 << 20 for host in after.hosts)
    assert after.device.daemon_bytes > 1 << 20
    status, reported, _ = fleet.run("top", "--once", group="")
    assert status == 1
    assert [line.split()[:2] for line in reported.splitlines()[:4]] == [
        ["BOX", "ANSWER"],
        ["one", "here"],
        ["two", "here"],
        ["away", "silent"],
    ]


def test_load_counts_lost_hosts(fleet: Fleet) -> None:
    daemon = fleet.daemons[1]
    with daemon.client() as client:
        lost = sum(host.losses for host in client.load().hosts)
        os.kill(daemon.hosts()[0], signal.SIGKILL)
        wait_for("the loss is counted", lambda: sum(host.losses for host in client.load().hosts) == lost + 1)
        wait_for("the host has restarted", lambda: all(host.pid for host in client.load().hosts))
        daemon.ready("m")


def test_fleet_models_remove_runs_on_every_box(fleet: Fleet) -> None:
    """Must run last: the other tests need the model."""
    assert fleet.run("models", "remove", "m")[0] == 0
    assert all(each["result"] == {"models": []} for each in fleet.json("models", "list").values())


# --- over TLS -------------------------------------------------------------------------------------------------------


def test_tls_token_grants_exactly_its_role(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("box", "DNS:localhost", "IP:127.0.0.1")
    config = tmp_path / "edged.toml"
    config.write_text(f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n')
    with Daemon("--config", str(config), builds=False) as daemon:
        assert daemon.tcp.startswith("tls:")
        known = {"nobody": Credentials(ca=str(authority.ca))}
        for role in ("operate", "read"):
            made = edged("tokens", "new", role, "--role", role, "--state", str(daemon.state), "--json")
            known[role] = Credentials(ca=str(authority.ca), token=json.loads(made.stdout)["token"])

        def may(who: str, ask: Callable[[Client], object]) -> bool:
            with Client(daemon.tcp, credentials=known[who]) as client:
                try:
                    ask(client)
                except EdgedError:
                    return False
            return True

        wait_for("the tokens are known", lambda: may("read", Client.status))
        assert [may(who, Client.load) for who in ("operate", "read", "nobody")] == [True, True, False]
        assert [may(who, Client.refresh_device) for who in ("operate", "read", "nobody")] == [True, False, False]
        secret = tmp_path / "token"
        secret.write_text(known["operate"].token)
        secret.chmod(0o600)
        inventory = tmp_path / "boxes.toml"
        inventory.write_text(f'[boxes.far]\ntarget = "{daemon.tcp}"\nca = "{authority.ca}"\ntoken_file = "token"\n')
        done = edged("device", "refresh", "--inventory", str(inventory))
        assert (done.returncode, done.stdout) == (0, "far: nothing changed\n"), done.stderr
        environment = {"EDGED_CA": str(authority.ca), "EDGED_TOKEN_FILE": str(secret)}
        assert edged("status", "--target", daemon.tcp, **environment).returncode == 0
        del environment["EDGED_CA"]
        without = edged("status", "--target", daemon.tcp, **environment)
        assert (without.returncode, without.stdout) == (1, "")
        assert "is not trusted here; give its CA: EDGED_CA" in without.stderr


def edged(*line: str, **more: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EDGED_")}
    return programs.edged(*line, environment=inherited | more)
