"""Finds the Debian mirror that this machine already uses, so that none is written down in the project.

Formats: sources.list(5), both the one-line style and deb822.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import LabError
from labctl.lab.tools import run

MIRROR_VARIABLE = "GROUNDFAULT_DEBIAN_MIRROR"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SUITES = ("bullseye", "bookworm", "trixie", "forky", "duke", "sid", "unstable", "testing", "stable", "oldstable")


@dataclass(frozen=True)
class Source:
    """One repository that apt knows. `signed_by` is a path, or empty."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


@dataclass(frozen=True)
class Mirror:
    """Where Debian packages come from (empty: mmdebstrap's own default), and the keyring that vouches for them."""

    uri: str
    keyring: Path


def parse_list(text: str) -> Iterator[Source]:
    """Sources of a one-line style file."""
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if not words or words[0] != "deb":
            continue
        options: list[str] = []
        rest = words[1:]
        if rest and rest[0].startswith("["):
            while rest:
                word = rest.pop(0)
                options.append(word.strip("[]"))
                if word.endswith("]"):
                    break
        signed = next((o.split("=", 1)[1] for o in options if o.lower().startswith("signed-by=")), "")
        if len(rest) >= 2:
            yield Source(rest[0], (rest[1],), tuple(rest[2:]), signed)


def parse_deb822(text: str) -> Iterator[Source]:
    """Sources of a deb822 style file; disabled stanzas and source packages are left out."""
    for stanza in _stanzas(text):
        if "deb" not in stanza.get("types", "").split() or stanza.get("enabled", "yes").lower() == "no":
            continue
        signed = stanza.get("signed-by", "")
        for uri in stanza.get("uris", "").split():
            yield Source(
                uri,
                tuple(stanza.get("suites", "").split()),
                tuple(stanza.get("components", "").split()),
                signed if signed.startswith("/") else "",
            )


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    last = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line[0] in " \t" and last:
            fields[last] += " " + line.strip()
        elif ":" in line:
            name, value = line.split(":", 1)
            last = name.strip().lower()
            fields[last] = value.strip()


def choose(sources: Iterable[Source]) -> Source | None:
    """The source that is Debian's main archive: by its keyring first, else by a Debian suite of no other's key."""
    main = [s for s in sources if "main" in s.components and any(suite in _SUITES for suite in s.suites)]
    for source in main:
        if "debian-archive" in source.signed_by:
            return source
    return next((s for s in main if not s.signed_by), None)


def read_sources(root: Path = Path("/etc/apt")) -> list[Source]:
    """All sources that apt on this machine has."""
    found: list[Source] = []
    parts = sorted((root / "sources.list.d").glob("*")) if (root / "sources.list.d").is_dir() else []
    for path in [root / "sources.list", *parts]:
        if path.suffix == ".list" and path.is_file():
            found += parse_list(path.read_text(errors="replace"))
        elif path.suffix == ".sources" and path.is_file():
            found += parse_deb822(path.read_text(errors="replace"))
    return found


def mirror(root: Path = Path("/etc/apt"), keyring: Path = KEYRING) -> Mirror:
    """The mirror to build images from.

    The environment's GROUNDFAULT_DEBIAN_MIRROR first, then the source apt has; on another distribution, such as
    Ubuntu, apt has none, and mmdebstrap takes the mirror it was built with. Raises LabError where Debian's keyring
    is missing.
    """
    uri = os.environ.get(MIRROR_VARIABLE, "")
    signed_by = ""
    if not uri:
        source = choose(read_sources(root))
        uri, signed_by = (source.uri, source.signed_by) if source else ("", "")
    for candidate in (Path(signed_by), keyring):  # an empty path is the current directory, no file
        if candidate.is_file():
            return Mirror(uri, candidate)
    raise LabError("Debian's archive keys are missing on this machine", "apt-get install debian-archive-keyring")


def download(package: str, suite: str, directory: Path) -> Path:
    """The newest .deb of a package of a Debian suite, downloaded into `directory` and vouched for by apt.

    Raises LabError where the machine names no Debian mirror, or apt cannot get the package.
    """
    apt = own_apt(suite, directory)
    run((*apt, "download", package), f"downloading {package}", timeout=1800)
    return next(directory.glob(f"{package}_*.deb"))


def own_apt(suite: str, directory: Path, kinds: Iterable[str] = ("deb",)) -> tuple[str, ...]:
    """The first words of apt-get commands that know the newest packages of a Debian suite and work in `directory`.

    This machine's own apt is left alone: lists, cache and sources are directories below `directory`. Of `kinds`
    deb-src are source packages. Raises LabError where the machine names no Debian mirror.
    """
    source = mirror()
    if not source.uri:
        raise LabError("no Debian mirror to download from: apt on this machine has none", f"set {MIRROR_VARIABLE}")
    for name in ("lists/partial", "cache/archives/partial", "etc"):
        (directory / name).mkdir(parents=True)
    (directory / "etc" / "sources.list").write_text(
        "".join(f"{kind} [signed-by={source.keyring}] {source.uri} {suite} main\n" for kind in kinds)
    )
    (directory / "status").touch()
    settings = {
        "Dir::State::lists": directory / "lists",
        "Dir::State::status": directory / "status",
        "Dir::Cache": directory / "cache",
        "Dir::Etc::sourcelist": directory / "etc" / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",  # apt's own user could not write below our directory
        "Acquire::Languages": "none",
    }
    # apt-get writes what it downloads into the working directory, which is not ours to change.
    inside = ("env", f"--chdir={directory}", "apt-get", "--quiet")
    apt = (*inside, *(word for key, value in settings.items() for word in ("-o", f"{key}={value}")))
    run((*apt, "update"), f"reading the package list of Debian {suite}", timeout=300)
    return apt
