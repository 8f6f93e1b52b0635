"""The names of Linux error numbers, so that `EIO` means the same on the control side and on every node.

The table is Linux's own (include/uapi/asm-generic/errno-base.h and errno.h, which x86, arm64 and riscv share) and
not that of the Python that happens to run: labctl may run on another system.
"""

from __future__ import annotations

import difflib
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

LARGEST = 4095
"""MAX_ERRNO of include/linux/err.h: the kernel takes only answers from -4095 to -1 for errors."""

_IN_ORDER = (
    "EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY "
    "EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK "
    "EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP - ENOMSG EIDRM ECHRNG EL2NSYNC "
    "EL3HLT EL3RST ELNRNG EUNATCH ENOCSI EL2HLT EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT - EBFONT ENOSTR "
    "ENODATA ETIME ENOSR ENONET ENOPKG EREMOTE ENOLINK EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG "
    "EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE "
    "EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP "
    "EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET "
    "ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY "
    "EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY "
    "EKEYEXPIRED EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON"
)
"""From 1 on; 41 and 58 have no name."""

NAMES = MappingProxyType({n: name for n, name in enumerate(_IN_ORDER.split(), 1) if name != "-"})
"""The name of each number that has one."""

NUMBERS = MappingProxyType(
    {name: n for n, name in NAMES.items()} | {"EWOULDBLOCK": 11, "EDEADLOCK": 35, "ENOTSUP": 95}
)
"""The number of each name, with the second names that some numbers have."""


def number(text: str) -> int:
    """The number of an errno, from its name in any case or from the number as text, 1 to 4095.

    Raises ValueError naming the nearest names.
    """
    word = text.strip().upper()
    if word in NUMBERS:
        return NUMBERS[word]
    if word.isascii() and word.isdigit() and 1 <= int(word[:5]) <= LARGEST and len(word) <= 5:
        return int(word)
    near = difflib.get_close_matches(word, NUMBERS, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"a name such as EIO, or a number from 1 to {LARGEST}"
    raise ValueError(f"{text!r} is not an errno; {hint}")


def name(value: int) -> str:
    """The name of an error number; the number as text where it has none. Raises ValueError outside 1 to 4095."""
    if not 1 <= value <= LARGEST:
        raise ValueError(f"{value} is not an errno; allowed: 1 to {LARGEST}")
    return NAMES.get(value, str(value))


def _canonical(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return value
    return name(number(str(value)))


ErrnoName = Annotated[
    str,
    BeforeValidator(_canonical),
    WithJsonSchema(
        {"type": "string", "description": f"name of a Linux errno such as EIO, or a number from 1 to {LARGEST}"}
    ),
]
"""A pydantic field type: takes a name or a number, gives the name."""
