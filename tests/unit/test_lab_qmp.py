"""The QMP client against a peer that plays QEMU."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labctl.lab import golden
from labctl.lab.qmp import Qmp, QmpError

Answer = Callable[[str, dict[str, Any]], "list[dict[str, Any]] | None"]


@pytest.fixture
def qemu(tmp_path: Path) -> Iterator[Callable[[Answer], Path]]:
    """Serves one client with `answer(command, arguments)`: messages to send, or None to hang up."""
    path = tmp_path / "qmp"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    threads: list[threading.Thread] = []

    def serve(answer: Answer) -> None:
        client, _ = server.accept()
        with client, client.makefile("rwb") as stream:
            stream.write(b'{"QMP": {"version": {}, "capabilities": []}}\r\n')
            stream.flush()
            for line in stream:
                request = json.loads(line)
                if request["execute"] == "qmp_capabilities":
                    messages: list[dict[str, Any]] | None = [{"return": {}}]
                else:
                    messages = answer(request["execute"], request["arguments"])
                if messages is None:
                    return
                for message in messages:
                    stream.write(json.dumps(message).encode() + b"\r\n")
                stream.flush()

    def begin(answer: Answer) -> Path:
        threads.append(threading.Thread(target=serve, args=(answer,)))
        threads[-1].start()
        return path

    yield begin
    for thread in threads:
        thread.join(timeout=10)
    server.close()


def test_answers_events_and_errors(qemu: Callable[[Answer], Path]) -> None:
    def answer(command: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        if command == "stop":
            return [{"event": "STOP"}, {"return": {}}]
        if command == "human-monitor-command":
            return [{"return": arguments["command-line"].upper()}]
        return [{"error": {"class": "GenericError", "desc": "no such thing"}}]

    with Qmp(qemu(answer)) as qmp:
        assert qmp.execute("stop") == {}
        assert [event["event"] for event in qmp.events] == ["STOP"]
        assert qmp.monitor("info status") == "INFO STATUS"
        with pytest.raises(QmpError, match="eject: no such thing"):
            qmp.execute("eject")


def test_a_job_that_fails_is_an_error(qemu: Callable[[Answer], Path]) -> None:
    states = iter(["running", "concluded"])
    seen: dict[str, Any] = {}

    def answer(command: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        if command == "snapshot-load":
            seen.update(arguments)
        if command == "query-jobs":
            return [{"return": [{"id": seen["job-id"], "status": next(states), "error": "no such snapshot"}]}]
        return [{"return": {}}]

    with Qmp(qemu(answer)) as qmp, pytest.raises(QmpError, match="no such snapshot"):
        golden.load(qmp)
    assert seen["vmstate"] == "root0"
    assert seen["devices"] == ["root0", "data0"]


def test_hang_up_and_silence_are_bounded(qemu: Callable[[Answer], Path], tmp_path: Path) -> None:
    with pytest.raises(QmpError, match="does not answer"):
        Qmp(tmp_path / "nobody")
    with Qmp(qemu(lambda *_: None)) as qmp, pytest.raises(QmpError, match="query-status"):
        qmp.execute("query-status")
    with Qmp(qemu(lambda *_: []), timeout=0.3) as qmp, pytest.raises(QmpError, match="query-status"):
        qmp.execute("query-status")


def test_an_event_is_waited_for_also_one_that_came_before(qemu: Callable[[Answer], Path]) -> None:
    def answer(command: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        gone = {"event": "DEVICE_DELETED", "data": {"path": "/x/virtio-backend"}}
        return [gone, {"return": {}}, {"event": "DEVICE_DELETED", "data": {"device": "lan", "path": "/x"}}]

    with Qmp(qemu(answer)) as qmp:
        qmp.execute("device_del", id="lan")
        assert qmp.wait_event("DEVICE_DELETED", 5, device="lan")
        assert qmp.wait_event("DEVICE_DELETED", 5, path="/x/virtio-backend")
        assert not qmp.wait_event("DEVICE_DELETED", 0.05, device="mgmt")


def test_names_with_underscores_are_sent_as_they_are(qemu: Callable[[Answer], Path]) -> None:
    def answer(command: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"return": arguments}]

    with Qmp(qemu(answer)) as qmp:
        assert qmp.send("block_set_io_throttle", {"bps_rd": 1}) == {"bps_rd": 1}
        assert qmp.execute("x", bps_rd=1) == {"bps-rd": 1}
