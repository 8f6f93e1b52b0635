"""What the on-call account may do as root: what an operator of the service needs, on the service's own things.

Rules of sudoers(5) with regular expressions (since sudo 1.9.10): the words of a command are joined by blanks and
matched as a whole. The last rule that matches decides. What the lab itself put on a node is left out: its agent
and what that keeps and logs, BPF, device-mapper tables.

An account that may edit what root's services read is not held by this for ever; what else it changes is seen by
the oracle of scope.
"""

from __future__ import annotations

ACCOUNTS = "postgres, booking, etcd, valkey, www-data, dnsmasq, prometheus"
"""Whose commands the account may run without limits."""

_UNIT = "[A-Za-z_][A-Za-z0-9@_:-]*([.](service|timer|socket))?"
_OWN_UNITS = (
    "(nginx|booking-api|booking-worker|valkey-server|etcd|dnsmasq|postgresql@17-main"
    "|prometheus-node-exporter|cron)"
)
_NAME = "[A-Za-z0-9_@+-][A-Za-z0-9_.@+-]*"  # neither ".." nor hidden
_BELOW = f"(/{_NAME})*"
_PATH = (
    "(/etc/(postgresql|nginx|booking|valkey|dnsmasq[.]d|default|cron[.]d|sysctl[.]d|security/limits[.]d"
    f"|systemd/system/{_OWN_UNITS}[.]service([.]d)?){_BELOW}|/etc/(resolv[.]conf|hosts|crontab)"
    f"|/var/lib/(postgresql|etcd|valkey){_BELOW}|/srv/data{_BELOW})"
)
_MINE = f"((/tmp|/home/oncall){_BELOW}|{_PATH})"
_DISK = "(/dev/mapper/data|/dev/sd[a-z])"
_PLAIN = "[-A-Za-z0-9=_,.:@ ]*"
_FLAGS = "(-[-A-Za-z0-9=,]+ )*"

ALLOWED: tuple[tuple[str, str], ...] = (
    ("/usr/bin/systemctl", "(start|stop|restart|reload|try-restart|reload-or-restart|status|show|cat|enable"
     "|disable|is-active|is-enabled|is-failed|reset-failed|kill|mask|unmask)"
     rf"( (--[a-z-]+(=[A-Za-z0-9_,-]+)?|-[a-z]+( [0-9]+)?|{_UNIT}))+"),
    ("/usr/bin/systemctl", "(daemon-reload|reset-failed|reboot|--failed|list-units.*|list-timers.*|list-jobs)"),
    ("/usr/sbin/reboot", ""),
    ("/usr/bin/journalctl", ".*"),
    ("/usr/bin/dmesg", _PLAIN),
    # disks and file systems
    ("/usr/sbin/smartctl", f"{_PLAIN}/dev/sd[a-z]"),
    ("/usr/bin/mount", "(-o [a-z0-9,=]+ )?((-t ext4 )?/dev/mapper/data )?/srv/data"),
    ("/usr/bin/mount", "-o remount,[a-z0-9,=]+ /srv/data"),
    ("/usr/bin/umount", "(-[lfv]+ )?(/srv/data|/dev/mapper/data)"),
    *((f"/usr/sbin/{tool}", "[-A-Za-z0-9=_,.:<>() ]*/dev/mapper/data") for tool in (
        "fsck", "fsck.ext4", "e2fsck", "mkfs", "mkfs.ext4", "mke2fs", "tune2fs", "dumpe2fs", "debugfs",
        "resize2fs", "blkid")),
    ("/usr/sbin/badblocks", f"[-A-Za-z0-9 ]*{_DISK}( [0-9]+)*"),
    ("/usr/sbin/blockdev", f"--(getro|getsize64|getss|getbsz|flushbufs|report|setrw|setro)( {_DISK})?"),
    ("/usr/bin/dd", f"(if=(/dev/zero|{_DISK}|{_PATH}) )?of=(/dev/null|/dev/mapper/data|{_PATH})"
     "( (bs|count|skip|seek|conv|iflag|oflag|status)=[A-Za-z0-9,]+)*"),
    ("/usr/bin/dd", f"if=({_DISK}|{_PATH})( (of=/dev/null|(bs|count|skip|iflag|conv|status)=[A-Za-z0-9,]+))*"),
    ("/usr/sbin/filefrag", f"{_FLAGS}{_PATH}"),
    ("/usr/bin/fuser", f"{_FLAGS}{_PATH}"),
    ("/usr/bin/lsof", f"[-A-Za-z0-9:+@ ]*|{_FLAGS}{_PATH}"),
    # files of the service
    *((f"/usr/bin/{tool}", f"{_FLAGS}{_PATH}( {_PATH})*") for tool in (
        "ls", "cat", "head", "tail", "du", "stat", "sha256sum", "rm", "rmdir", "mkdir", "touch", "truncate")),
    ("/usr/bin/tee", f"(-a )?{_PATH}"),
    *((f"/usr/bin/{tool}", f"(-[-A-Za-z0-9=]+ |-[ogm] [a-z0-9]+ )*({_MINE} )*{_PATH}") for tool in (
        "cp", "mv", "install")),
    ("/usr/bin/chown", f"{_FLAGS}[a-z-]*(:[a-z-]*)? {_PATH}( {_PATH})*"),
    ("/usr/bin/chmod", f"(-R )?[0-7ugoa+=rwxX,-]+ {_PATH}( {_PATH})*"),
    ("/usr/bin/crontab", "(-u [a-z-]+ )?-[lr]"),
    # network
    ("/usr/bin/ss", "[-A-Za-z0-9:.*=()<> ]*"),
    ("/usr/bin/ping", "[-A-Za-z0-9. ]+"),
    ("/usr/bin/tcpdump", "(-[nvqeAXtlpS]+ |-[nvqeAXtlpS]*[ics] ?[a-z0-9]+ )*([a-z0-9(!][][a-z0-9 .:!()=<>&]*)?"),
    ("/usr/sbin/ip", "link set (dev )?lan (up|down|mtu [0-9]+)"),
    ("/usr/sbin/ip", "neigh flush dev lan"),
    ("/usr/sbin/tc", "(-[a-z]+ )*(qdisc|class|filter) (show|list|ls)[-a-z0-9: ]*"),
    ("/usr/sbin/ethtool", "(-[aikgSlcr] )?lan"),
    ("/usr/sbin/nft", "(-[a-z]+ )*list [a-z0-9_ ]+"),
    # processes, kernel settings, clock
    ("/usr/bin/pkill", "(-[A-Z0-9]+ )?-x [A-Za-z0-9_-]+"),
    ("/usr/bin/renice", "[-a-z0-9 ]+"),
    ("/usr/sbin/sysctl", "(-w )?((net|vm|fs)[.][a-z0-9_./-]+|kernel[.](pid_max|threads-max))=[-0-9 ]+"),
    ("/usr/sbin/sysctl", "(-a|-p|--system)"),
    ("/usr/bin/date", "(-u |--utc )?(-s |--set[ =])[-A-Za-z0-9@:.+ ]+"),
    ("/usr/bin/timedatectl", "(set-time|set-ntp) [-0-9a-z: ]+"),
    ("/usr/sbin/hwclock", "[-a-z ]*"),
    # the database's clusters as Debian has them
    ("/usr/bin/pg_ctlcluster", "[-a-z ]*17 main [-a-z ]+"),
    ("/usr/bin/pg_createcluster", "[-A-Za-z0-9=_./ ]*17 main[-A-Za-z0-9=_./ ]*"),
    ("/usr/bin/pg_dropcluster", "(--stop )?17 main"),
    ("/usr/bin/pg_lsclusters", _PLAIN),
)  # fmt: skip
"""(command, regular expression of its words); no words at all for "" alone."""

DENIED: tuple[tuple[str, str], ...] = (
    ("/usr/bin/systemctl", "(.* )?(groundfault.*|node-agent.*|systemd-.*|dbus.*|sshd?([.@ ].*)?"
     "|--(ro|im|ho|ma|us|gl).*|-[a-z]*[HM].*)"),
    # other journals than the service's, and what removes lines
    ("/usr/bin/journalctl", "(.* )?(-[A-Za-z]*[DMmi].*|--(na|dir|fil|ro|im|m|cursor-f|va|set|up|sy|sm|fl|rel).*"
     "|.*groundfault.*|.*node-agent.*)"),
    ("/usr/bin/dmesg", ".*(-[a-zA-Z]*[CDEFn]|--(cl|console|file)).*"),
    ("/usr/bin/pkill", ".*(node-agent|python3|systemd[-a-z]*|dbus-daemon|sshd[-a-z]*)"),
)  # fmt: skip


def sudoers() -> str:
    """The file /etc/sudoers.d/oncall."""
    lines = ["# Made for the service's operators: see the sudoers(5) manual for regular expressions."]
    lines += ["Defaults:oncall !requiretty", f"oncall ALL=({ACCOUNTS}) NOPASSWD: ALL"]
    lines += [f"oncall ALL=(root) NOPASSWD: {command} {_words(regex)}" for command, regex in ALLOWED]
    lines += [f"oncall ALL=(root) !{command} {_words(regex)}" for command, regex in DENIED]
    return "\n".join(lines) + "\n"


def _words(regex: str) -> str:
    return f"^{regex}$" if regex else '""'
