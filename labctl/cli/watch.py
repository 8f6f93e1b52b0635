"""`labctl watch ID`: the counters of an injection as they move, until it ends."""

from __future__ import annotations

import datetime as dt
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.fleet import with_node
from labctl.cli.injection import require_injection
from labctl.cli.options import injection_argument
from labctl.cli.session import Session
from labctl.errors import ExitCode, LabctlError
from labctl.lab.model import Node
from labctl.report.hits import HitLog, hit_lines, only_new
from labctl.report.injections import watch_line, watch_table
from node_agent.injection import InjectionView


@dataclass(frozen=True)
class _End:
    """A node's stream is over; `error` says why where it broke."""

    node: str
    error: BaseException | None = None


Event = InjectionView | _End


@click.command("watch", cls=LabCommand)
@injection_argument()
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
@pass_session
def watch(session: Session, injection_id: str, interval: float) -> int:
    """Watch an injection's counters and hits until it ends.

    Each hit of which the node kept a sample is told once, with seconds since the node booted. Ctrl-C leaves the
    injection as it is. Ends with 75 where it is stuck.
    """
    holders = require_injection(session, injection_id)
    events = merged(holders, lambda node: session.injections(node).watch(injection_id, interval))
    told = HitLog()
    if session.json:
        return follow(events, lambda latest, one: click.echo(only_new(one, told.new(one)[0]).model_dump_json()))
    if not sys.stdout.isatty():
        return follow(events, lambda latest, one: _tell(one, told))
    with Live(console=Console(highlight=False, markup=False), auto_refresh=False) as live:
        return follow(events, lambda latest, one: _draw(live, latest, one, told))


def _tell(one: InjectionView, told: HitLog) -> None:
    """A line of counters and below it the hits since the last."""
    click.echo(watch_line(one, dt.datetime.now()))
    for line in hit_lines(one.node, *told.new(one)):
        click.echo(line)


def _draw(live: Live, latest: Sequence[InjectionView], one: InjectionView, told: HitLog) -> None:
    """The counters stay in place, and new hits scroll by above them, so that they can be read again."""
    for line in hit_lines(one.node, *told.new(one)):
        live.console.print(Text(line))
    live.update(watch_table(latest, dt.datetime.now()), refresh=True)


def merged(nodes: Sequence[Node], stream: Callable[[Node], Iterator[InjectionView]]) -> Iterator[Event]:
    """The streams of several nodes as one, in the order things arrive, with an end for each."""
    arrived: queue.Queue[Event] = queue.Queue()

    def pump(node: Node) -> None:
        try:
            for one in stream(node):
                arrived.put(one)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that reads, and raised there
            arrived.put(_End(node.name, error))
        else:
            arrived.put(_End(node.name))

    for node in nodes:
        threading.Thread(target=pump, args=(node,), name=f"watch-{node.name}", daemon=True).start()
    for _ in nodes:
        event = arrived.get()
        while not isinstance(event, _End):
            yield event
            event = arrived.get()
        yield event


def follow(events: Iterator[Event], show: Callable[[Sequence[InjectionView], InjectionView], None]) -> int:
    """Show every look; when all streams are over, the exit code: 75 stuck, 70 where a node was lost."""
    latest: dict[str, InjectionView] = {}
    code = ExitCode.PASS
    for event in events:
        if not isinstance(event, _End):
            latest[event.node] = event
            show(tuple(latest.values()), event)
        elif isinstance(event.error, LabctlError):
            click.echo(f"warning: {with_node(event.node, event.error)}; no longer watched", err=True)
            code = ExitCode.LAB_BROKE
        elif event.error is not None:
            raise event.error
    stuck = any(one.state == "stuck" for one in latest.values())
    return ExitCode.NODE_DIRTY if stuck else code


COMMANDS = (watch,)
