"""A model of the configuration that is a reference: the daemon serves without it, fetches it, and serves it."""

from __future__ import annotations

import numpy as np
import pytest

from edged.client import Client
from edged.shapes import MODEL_PATH
from tests.integration.daemon import Daemon, wait_for
from tests.stand_in import stand_in


def reason(client: Client, name: str) -> str:
    return next(each.reason for each in client.models() if each.name == name)


def test_daemon_serves_while_it_fetches_and_needs_no_network_afterwards() -> None:
    picture = np.zeros((240, 320, 3), np.uint8)
    with stand_in() as server, Daemon(config=f'models.door = "{server.address}/door.onnx"', builds=False) as daemon:
        with daemon.client() as client:
            client.add_model("here", MODEL_PATH)
            daemon.ready("here")
            wait_for("the first attempt failed", lambda: "cannot be fetched" in daemon.log.read_text())
            client.infer("here", picture)
            wait_for("the reason", lambda: "answers HTTP 404; edged tries again" in reason(client, "door"))
            server.pages["/door.onnx"] = MODEL_PATH.read_bytes()
            daemon.ready("door")
            client.infer("door", picture)
        daemon.stop()
        server.pages.clear()
        asked = len(server.asked)
        daemon.start()
        daemon.ready("door")
        assert len(server.asked) == asked


def test_model_of_the_command_line_may_be_a_reference() -> None:
    with stand_in() as server:
        server.pages["/door.onnx"] = MODEL_PATH.read_bytes()
        with Daemon("--model", f"door={server.address}/door.onnx", builds=False) as daemon:
            daemon.ready("door")


def test_reference_that_cannot_be_used_refuses_the_configuration() -> None:
    box = Daemon(config='models.door = "http://host.invalid/door.onnx"', builds=False)
    with pytest.raises(AssertionError, match="can be altered on its way; use https"), box:
        pass
