"""Heartbeats to a server that fails for a while."""

import threading
import time

import httpx
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'pa3dfl[flower]'")

from pa3dfl.deploy.heartbeat import PatientHeartbeat


@pytest.mark.parametrize(("status", "goes_on"), [(500, True), (503, True), (403, False)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_it_goes_on_after_an_error_of_the_server(status: int, goes_on: bool) -> None:
    answers, arrived = iter([status, 200]), threading.Event()

    def server(request: httpx.Request) -> httpx.Response:
        return httpx.Response(next(answers))

    client = httpx.Client(transport=httpx.MockTransport(server))

    def beat() -> bool:
        client.post("https://server/heartbeat").raise_for_status()
        arrived.set()
        return True

    heart = PatientHeartbeat(beat)
    heart.start()
    try:
        assert arrived.wait(10 if goes_on else 0.5) == goes_on
        time.sleep(0.1)
        assert heart.is_running == goes_on
    finally:
        if heart.is_running:
            heart.stop()
