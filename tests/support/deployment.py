"""A Flower deployment on loopback: SuperLink, SuperNodes and runs as real processes, all of which end with the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-quickstart"
BIN = Path(sys.executable).parent
PATIENCE = 420.0
"""Seconds that any one step may take; the machine may be busy."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"waited {patience:.0f} s in vain: {what}"
        time.sleep(0.5)


def descendants(pid: int) -> list[int]:
    """Every process that `pid` started, or that those started."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def running() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def environment_of(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    return []


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


class Deployment:
    def __init__(self, folder: Path, secure: bool) -> None:
        self.folder = folder
        self.secure = secure
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.home = folder / "home"
        self.home.mkdir()
        trust = f'root-certificates = "{folder / "ca.crt"}"' if secure else "insecure = true"
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "dep"\n\n[superlink.dep]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        if secure:
            make_certificates(folder)

    # --- processes ----------------------------------------------------------------------------------------------

    def launch(self, name: str, program: str, *arguments: object) -> subprocess.Popen[bytes]:
        quiet = {
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / program), *map(str, arguments)],
                env={**os.environ, **quiet},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self, name: str) -> None:
        """Kill -9, with all that the process started."""
        process = self.processes.pop(name)
        kill(process.pid, *descendants(process.pid))
        process.wait()

    def close(self) -> None:
        for name in list(self.processes):
            self.stop(name)
        # What was left behind by a process that ended before.
        kill(*(pid for pid in running() if f"FLWR_HOME={self.home}" in environment_of(pid)))

    # --- parts --------------------------------------------------------------------------------------------------

    def superlink(self, database: str | None = None) -> None:
        at = ("--host", "127.0.0.1", "--port", self.port, "--database", database or self.folder / "state.db")
        how: tuple[object, ...] = ("--insecure",)
        if self.secure:
            how = (
                "--enable-supernode-auth",
                *("--ssl-ca-certfile", self.folder / "ca.crt"),
                *("--ssl-certfile", self.folder / "server.pem"),
                *("--ssl-keyfile", self.folder / "server.key"),
            )
        self.launch("superlink", "flower-superlink", *at, *how)
        until(self.healthy, "the SuperLink is ready")

    def healthy(self) -> bool:
        assert self.processes["superlink"].poll() is None, self.log("superlink")
        trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt")) if self.secure else None
        scheme = "https" if self.secure else "http"
        try:
            with urllib.request.urlopen(
                f"{scheme}://127.0.0.1:{self.port}/health", context=trust, timeout=5
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def key(self, name: str, register: bool = True) -> Path:
        """A node's key, registered under its name."""
        secret = ec.generate_private_key(ec.SECP384R1())
        path = self.folder / name
        openssh = serialization.PrivateFormat.OpenSSH
        path.write_bytes(
            secret.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption())
        )
        path.chmod(0o600)
        public = secret.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        path.with_suffix(".pub").write_bytes(public)
        if register:
            process = self.launch(
                f"register-{name}",
                "flwr",
                "supernode",
                "register",
                path.with_suffix(".pub"),
                "dep",
                "--name",
                name,
            )
            assert process.wait(PATIENCE) == 0, self.log(f"register-{name}")
        return path

    def supernode(
        self, name: str, partition: int, partitions: int, key: Path | None = None, **more: str
    ) -> subprocess.Popen[bytes]:
        settings = {"partition-id": partition, "num-partitions": partitions}
        config = " ".join(
            [*(f"{k}={v}" for k, v in settings.items()), *(f'{k}="{v}"' for k, v in more.items())]
        )
        how: tuple[object, ...] = ("--insecure",)
        if self.secure:
            how = ("--root-certificates", self.folder / "ca.crt")
        if key is not None:
            how = (*how, "--auth-supernode-private-key", key)
        place = ("--superlink", f"127.0.0.1:{self.port}", "--port", free_port())
        return self.launch(name, "flower-supernode", *how, *place, "--node-config", config)

    def app(self, **files: str) -> Path:
        """A copy of the example, with some of its files replaced."""
        copy = self.folder / "app"
        shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in files.items():
            (copy / "quickstart" / f"{name}.py").write_text(text)
        return copy

    def run(self, name: str, app: Path, **config: object) -> subprocess.Popen[bytes]:
        def shown(value: object) -> str:
            return f'"{value}"' if isinstance(value, str | Path) else str(value)

        said = " ".join(f"{key}={shown(value)}" for key, value in config.items())
        return self.launch(name, "flwr", "run", app, "dep", "--stream", "-c", said)

    def serverapp(self) -> int:
        """The process that runs the ServerApp now."""
        found: list[int] = []

        def look() -> bool:
            children = descendants(self.processes["superlink"].pid)
            found[:] = [pid for pid in children if "flwr-serverapp" in command_of(pid)]
            return bool(found)

        until(look, "a ServerApp runs")
        return found[0]


@contextlib.contextmanager
def deployment(folder: Path, secure: bool = False) -> Iterator[Deployment]:
    made = Deployment(folder, secure)
    try:
        yield made
    finally:
        made.close()


def make_certificates(folder: Path) -> None:
    """An authority of our own, and a certificate for loopback that it signs."""
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        made = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(key.public_key())
        )
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))

    signing = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    authority = builder(ca_name, ca_key).add_extension(x509.BasicConstraints(True, None), True)
    authority = authority.add_extension(signing, True)
    authority = authority.add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False)
    hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    server = builder(name, server_key).add_extension(hosts, False)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    server = server.add_extension(issuer, False)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(authority.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    (folder / "server.pem").write_bytes(server.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    (folder / "server.key").write_bytes(
        server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
