"""What shaping needs of the kernel, tried on an IFB of its own.

By argv, although pyroute2 could make the IFB: importing it takes 28 MB and seconds on a small machine, and probes
run at every start of the agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from node_agent.host import CommandError, Host
from node_agent.probe import Lacking, capability

_IFB, _ALIAS, _TABLE = "gf-probe", "groundfault-probe", "groundfault-probe"
_MODULES = "load module {0}: on Debian and Ubuntu it is in linux-modules-extra or the kernel's own package"


@capability("net.ifb")
def ifb(host: Host) -> None:
    """Devices that give packets back: shaping sends what is selected through them."""
    with _ifb(host):
        pass


@capability("net.netem")
def netem(host: Host) -> None:
    """Packets that are lost, late, twice or wrong, below and above a token bucket."""
    with _ifb(host):
        _try(host, "sch_tbf", "root", "handle", "1:", "tbf", "rate", "8gbit", "burst", "1600", "limit", "100000")
        _try(
            host,
            "sch_netem",
            "parent",
            "1:1",
            "handle",
            "2:",
            "netem",
            "limit",
            "100",
            "delay",
            "1ms",
            "loss",
            "1%",
        )
        _try(host, "sch_tbf", "parent", "2:1", "handle", "3:", "tbf", "rate", "1mbit", "burst", "1600",
             "limit", "10000")  # fmt: skip


@capability("net.csum")
def csum(host: Host) -> None:
    """Checksums made anew, so that packets that are corrupted on their way in are found out by the stack."""
    with _ifb(host):
        _try(host, "sch_ingress", "clsact")
        matched = ("filter", "add", "dev", _IFB, "egress", "matchall", "action", "csum", "ip4h", "and", "tcp")
        try:
            host.run(("tc", *matched))
        except CommandError as error:
            why = f"the kernel cannot make checksums anew: {_first_line(error)}"
            raise Lacking(why, _MODULES.format("act_csum")) from error


@capability("net.nft_fwd")
def nft_fwd(host: Host) -> None:
    """Netfilter rules at the egress and the ingress of an interface that hand packets to another one."""
    with _ifb(host):
        lines = [f"add table netdev {_TABLE}"]
        for hook in ("egress", "ingress"):
            head = f'type filter hook {hook} device "{_IFB}" priority 500;'
            lines += [f"add chain netdev {_TABLE} {hook} {{ {head} }}",
                      f'add rule netdev {_TABLE} {hook} fwd to "{_IFB}"']  # fmt: skip
        try:
            # One transaction: nothing of it is ever seen by a packet.
            host.network.load_rules("\n".join((*lines, f"delete table netdev {_TABLE}", "")))
        except FileNotFoundError as error:
            raise Lacking("there is no nft", "install nftables") from error
        except CommandError as error:
            raise Lacking(
                f"netfilter has no egress hook or no fwd: {_first_line(error)}",
                "Linux 5.16 or newer, with nf_tables",
            ) from error


@contextmanager
def _ifb(host: Host) -> Iterator[None]:
    host.query(("ip", "link", "delete", _IFB))
    if not host.exists("/sys/module/ifb"):
        # One that the kernel loads by itself makes two devices nobody asked for.
        host.query(("modprobe", "ifb", "numifbs=0"))
    try:
        host.run(("ip", "link", "add", _IFB, "type", "ifb"))
    except CommandError as error:
        raise Lacking(f"the kernel has no ifb: {_first_line(error)}", _MODULES.format("ifb")) from error
    try:
        host.run(("ip", "link", "set", "dev", _IFB, "alias", _ALIAS))
        yield
    finally:
        host.query(("ip", "link", "delete", _IFB))


def _try(host: Host, module: str, *words: str) -> None:
    try:
        host.run(("tc", "qdisc", "add", "dev", _IFB, *words))
    except CommandError as error:
        kind = module.removeprefix("sch_")
        raise Lacking(f"the kernel has no {kind}: {_first_line(error)}", _MODULES.format(module)) from error


def _first_line(error: CommandError) -> str:
    lines = [line for line in error.stderr.splitlines() if line.strip()]
    return lines[0].strip() if lines else "no message"
