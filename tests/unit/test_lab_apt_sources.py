"""Finding the machine's own Debian mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.lab import apt_sources
from labctl.lab.apt_sources import MIRROR_VARIABLE, Mirror, Source, choose, mirror, parse_deb822, parse_list

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: trixie
Components: main

Types: deb
URIs: http://other.example/x
Suites: stable
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
"""


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)


def apt(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / "apt" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return tmp_path / "apt"


def test_deb822() -> None:
    found = list(parse_deb822(DEB822))
    assert [s.uri for s in found] == [
        "http://mirror.example/debian",
        "http://mirror.example/debian-security",
        "http://other.example/x",
    ]
    assert found[0].suites == ("trixie", "trixie-updates")
    assert found[0].signed_by.endswith("debian-archive-keyring.gpg")
    assert found[2].signed_by == ""


def test_one_line_style_with_and_without_options() -> None:
    text = """
# deb http://commented.example/debian trixie main
deb [ arch=amd64 signed-by=/k.gpg ] http://a.example/debian bookworm main non-free # why
deb http://b.example/debian bookworm main
deb-src http://c.example/debian bookworm main
deb broken
"""
    assert list(parse_list(text)) == [
        Source("http://a.example/debian", ("bookworm",), ("main", "non-free"), "/k.gpg"),
        Source("http://b.example/debian", ("bookworm",), ("main",)),
    ]


def test_debians_own_key_wins_over_strangers_with_debian_suites() -> None:
    stranger = Source("http://docker.example", ("trixie",), ("main",), "/etc/apt/keyrings/docker.asc")
    unsigned = Source("http://b.example/debian", ("trixie",), ("main",))
    debian = Source("http://d.example", ("trixie",), ("main",), "/usr/share/keyrings/debian-archive-keyring.gpg")
    assert choose([stranger, unsigned, debian]) == debian
    assert choose([stranger, unsigned]) == unsigned
    assert choose([stranger]) is None


def test_mirror_is_read_from_the_machine(tmp_path: Path) -> None:
    keyring = tmp_path / "debian-archive-keyring.gpg"
    keyring.touch()
    root = apt(tmp_path, "sources.list.d/debian.sources", DEB822)
    assert mirror(root, keyring).uri == "http://mirror.example/debian"


def test_on_another_distribution_mmdebstrap_takes_its_own_mirror(tmp_path: Path) -> None:
    keyring = tmp_path / "keys.gpg"
    keyring.touch()
    root = apt(tmp_path, "sources.list", "deb http://u.example/ubuntu noble main universe\n")
    assert mirror(root, keyring) == Mirror("", keyring)


def test_variable_wins_and_keyring_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR_VARIABLE, "http://mine.example/debian")
    keyring = tmp_path / "keys.gpg"
    with pytest.raises(LabError, match="keys are missing"):
        mirror(tmp_path, keyring)
    keyring.touch()
    assert mirror(tmp_path, keyring) == Mirror("http://mine.example/debian", keyring)


def test_an_apt_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sources too, where they are asked for; nothing of this machine's apt is read or written."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(apt_sources, "run", lambda argv, what, **how: asked.append(tuple(argv)))
    monkeypatch.setattr(apt_sources, "mirror", lambda: Mirror("http://mirror.example/debian", Path("/keys.gpg")))
    apt = apt_sources.own_apt("bookworm", tmp_path / "own", ("deb", "deb-src"))
    assert (tmp_path / "own" / "etc" / "sources.list").read_text().splitlines() == [
        f"{kind} [signed-by=/keys.gpg] http://mirror.example/debian bookworm main" for kind in ("deb", "deb-src")
    ]
    assert apt[:3] == ("env", f"--chdir={tmp_path}/own", "apt-get") and asked == [(*apt, "update")]
    for key in ("Dir::State::lists", "Dir::State::status", "Dir::Cache", "Dir::Etc::sourcelist"):
        assert any(word.startswith(f"{key}={tmp_path}/own/") for word in apt)


def test_no_mirror_to_download_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apt_sources, "mirror", lambda: Mirror("", Path("/keys.gpg")))
    with pytest.raises(LabError, match="no Debian mirror") as refused:
        apt_sources.own_apt("bookworm", tmp_path)
    assert MIRROR_VARIABLE in refused.value.hint
