"""The lab's certificate authority: names, dates, purposes, and files that only their owner reads."""

from __future__ import annotations

import datetime as dt
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from labctl.errors import LabError
from labctl.pki import SERVICE_NAME, LabAuthority, describe_issuer, names_in, node_id


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LabAuthority:
    return LabAuthority.create(tmp_path_factory.mktemp("lab") / "tls", "demo")


def _usages(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_all_files_are_private_and_appear_at_once(authority: LabAuthority) -> None:
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in authority.directory.iterdir()}
    assert modes == dict.fromkeys(("ca.pem", "ca.key", "client.pem", "client.key"), 0o600)
    assert stat.S_IMODE(authority.directory.stat().st_mode) == 0o700
    assert [p.name for p in authority.directory.parent.iterdir()] == ["tls"]


def test_load_gives_the_same_authority(authority: LabAuthority) -> None:
    again = LabAuthority.load(authority.directory)
    assert (again.lab, again.lab_id) == (authority.lab, authority.lab_id) and again.lab == "demo"
    assert again.client_files() == authority.client_files()


def test_create_never_replaces_an_authority(authority: LabAuthority) -> None:
    before = authority.client_files()
    with pytest.raises(LabError, match="cannot write the lab's certificates"):
        LabAuthority.create(authority.directory, "demo")
    assert authority.client_files() == before
    assert [p.name for p in authority.directory.parent.iterdir()] == ["tls"]
    assert LabAuthority.ensure(authority.directory, "demo").lab_id == authority.lab_id


def test_who_has_no_key_of_the_authority_may_command_and_not_issue(tmp_path: Path) -> None:
    LabAuthority.create(tmp_path / "tls", "demo")
    (tmp_path / "tls" / "ca.key").unlink()
    guest = LabAuthority.load(tmp_path / "tls")
    assert not guest.may_issue and guest.client_files()["client.pem"]
    with pytest.raises(LabError, match="may command lab demo, and not make certificates"):
        guest.node_files("w1")


@pytest.mark.parametrize("lost", ["ca.pem", "client.pem", "client.key"])
def test_a_lost_file_is_named(tmp_path: Path, lost: str) -> None:
    LabAuthority.create(tmp_path / "tls", "demo")
    (tmp_path / "tls" / lost).unlink()
    with pytest.raises(LabError, match=f"{lost} is missing"):
        LabAuthority.load(tmp_path / "tls")


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    LabAuthority.create(tmp_path / "tls", "demo")
    (tmp_path / "tls" / "ca.key").write_text("nonsense")
    with pytest.raises(LabError, match="cannot read the lab's certificates"):
        LabAuthority.load(tmp_path / "tls")


def test_a_node_certificate_names_the_node_and_the_service(authority: LabAuthority) -> None:
    files = authority.node_files("w1")
    certificate = x509.load_pem_x509_certificate(files["node.pem"])
    assert set(files) == {"ca.pem", "node.pem", "node.key"}
    assert names_in(certificate) == (node_id("w1", "demo"), SERVICE_NAME) and "w1.demo" in node_id("w1", "demo")
    assert _usages(certificate) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert describe_issuer(certificate) == f"lab demo ({authority.lab_id})"
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(files["ca.pem"]))
    assert authority.node_files("w1")["node.key"] != files["node.key"]


def test_the_client_certificate_is_only_a_clients(authority: LabAuthority) -> None:
    certificate = x509.load_pem_x509_certificate(authority.client_files()["client.pem"])
    assert _usages(certificate) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert names_in(certificate) == ("labctl",)


def test_certificates_begin_in_the_past_and_last(authority: LabAuthority) -> None:
    now = dt.datetime.now(dt.UTC)
    files = authority.node_files("w1") | authority.client_files()
    for name in ("ca.pem", "node.pem", "client.pem"):
        certificate = x509.load_pem_x509_certificate(files[name])
        assert certificate.not_valid_before_utc <= now - dt.timedelta(days=1, hours=23)
        assert certificate.not_valid_after_utc >= now + dt.timedelta(days=3650)


def test_dates_can_be_chosen(authority: LabAuthority) -> None:
    first, last = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 2, 1, tzinfo=dt.UTC)
    certificate = x509.load_pem_x509_certificate(authority.node_files("w1", first, last)["node.pem"])
    assert (certificate.not_valid_before_utc, certificate.not_valid_after_utc) == (first, last)


def test_labs_of_one_name_are_told_apart(authority: LabAuthority, tmp_path: Path) -> None:
    other = LabAuthority.create(tmp_path / "tls", "demo")
    assert other.lab_id != authority.lab_id


def test_longest_names_fit(tmp_path: Path) -> None:
    authority = LabAuthority.create(tmp_path / "tls", "l" * 31)
    certificate = x509.load_pem_x509_certificate(authority.node_files("n" * 31)["node.pem"])
    assert node_id("n" * 31, "l" * 31) in names_in(certificate)
