"""Scans the TLS listeners of a broker with sslyze and testssl.sh (``make campaign NAME=tls-scan``).

AMQP and the management API are scanned, with a certificate of a CA that the scanners are told to trust. sslyze comes from
the package index, into `build/scanners`; testssl.sh must be installed (Debian has it), and `host` or `dig`. A copy elsewhere
may be named with `--testssl`, and its data with TESTSSL_INSTALL_DIR.

Exit code 0: no finding is above LOW but those of `ACCEPTED`. 1: one is, or a protocol, cipher or fault is offered that must
not be. 2: the broker or a scanner did not start.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from conformance.brokers import SetUp, StartError, free_port, start_ours  # noqa: E402
from processes.commands import execute  # noqa: E402
from samples.certificates import Authority  # noqa: E402
from services.programs import installed  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "scanners"
SSLYZE = "sslyze==6.3.1"
SCAN_SECONDS = 1800
COMMANDS = (
    "certificate_info", "ssl_2_0_cipher_suites", "ssl_3_0_cipher_suites", "tls_1_0_cipher_suites",
    "tls_1_1_cipher_suites", "tls_1_2_cipher_suites", "tls_1_3_cipher_suites", "tls_compression", "tls_1_3_early_data",
    "openssl_ccs_injection", "tls_fallback_scsv", "heartbleed", "robot", "session_renegotiation", "session_resumption",
    "elliptic_curves", "tls_extended_master_secret",
)  # fmt: skip
OLD = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1")
WEAK = ("RC4", "3DES", "DES_CBC", "NULL", "EXPORT", "anon", "IDEA", "SEED", "MD5", "RC2")
GOOD = {"OK", "INFO", "LOW", "WARN", "DEBUG"}
"""Severities of testssl.sh that are no findings; WARN and DEBUG are about the scan itself."""
NEEDED = ("TLS1_2", "TLS1_3")
"""Versions that must be found as offered; otherwise the scan has seen nothing."""
ACCEPTED = {
    "cert_revocation": "the CA of the test publishes no revocations",
    "BREACH": "the files of the web page are compressed, which have no secrets; answers of the API are not",
}
"""Findings of testssl.sh above LOW that are none, with their reasons."""


@contextmanager
def broker(folder: Path) -> Iterator[tuple[dict[str, int], Path]]:
    """A broker with listeners for AMQP and the API; yields their ports, and the CA's file."""
    ca = Authority(folder)
    server = ca.server(days=300)
    ports = {"amqp": free_port(), "management": free_port()}
    keys: dict[str, object] = {
        "listeners.ssl.default": f"127.0.0.1:{ports['amqp']}",
        "management.enabled": "true",
        "management.ssl.port": ports["management"],
        "management.ssl.ip": "127.0.0.1",
        "prometheus.enabled": "false",
        "ssl_handshake_rate": "infinity",
        "max_half_open_per_address": 1000,
        "max_half_open": 1000,
    }
    for prefix in ("ssl_options", "management.ssl"):
        keys |= {f"{prefix}.certfile": server.certfile, f"{prefix}.keyfile": server.keyfile}
    running = start_ours(SetUp("scanned", ours=tuple(f"{key}={value}" for key, value in keys.items())))
    try:
        yield ports, ca.file
        log = running.log()
        if "Traceback" in log:
            raise StartError(log[log.index("Traceback") :][:2000])
    finally:
        running.stop()


def by_sslyze(python: Path, port: int, ca: Path, folder: Path) -> tuple[list[str], str]:
    """Return what sslyze finds that must not be, and a line about the rest."""
    out = folder / f"sslyze-{port}.json"
    words = [f"--{each.removesuffix('_cipher_suites')}" for each in COMMANDS]
    flags = [FLAGS.get(word, word) for word in words]
    command = [
        str(python),
        "-m",
        "sslyze",
        *flags,
        f"--certinfo_ca_file={ca}",
        f"--json_out={out}",
        f"localhost:{port}",
    ]
    done = execute(command, timeout=SCAN_SECONDS)
    if not out.exists():
        raise StartError(f"sslyze: {done.stdout[-500:]}{done.stderr[-500:]}")
    (scanned,) = json.loads(out.read_text())["server_scan_results"]
    return judged(scanned["scan_result"])


FLAGS = {
    "--certificate_info": "--certinfo", "--ssl_2_0": "--sslv2", "--ssl_3_0": "--sslv3", "--tls_1_0": "--tlsv1",
    "--tls_1_1": "--tlsv1_1", "--tls_1_2": "--tlsv1_2", "--tls_1_3": "--tlsv1_3", "--tls_compression": "--compression",
    "--tls_1_3_early_data": "--early_data", "--openssl_ccs_injection": "--openssl_ccs", "--tls_fallback_scsv": "--fallback",
    "--session_renegotiation": "--reneg", "--session_resumption": "--resum", "--tls_extended_master_secret": "--ems",
}  # fmt: skip


def judged(found: dict[str, Any]) -> tuple[list[str], str]:
    """Return what must not be in the results of sslyze, and a line about the rest."""
    bad = [
        f"{name}: not scanned: {found[name]['error_reason']}"
        for name in COMMANDS
        if found[name]["status"] != "COMPLETED"
    ]
    results = {name: found[name]["result"] or {} for name in COMMANDS}
    accepted = {
        name.removesuffix("_cipher_suites"): [
            each["cipher_suite"]["name"] for each in result["accepted_cipher_suites"]
        ]
        for name, result in results.items()
        if name.endswith("_cipher_suites")
    }
    bad += [f"{version} is offered" for version in OLD if accepted[version]]
    suites = accepted["tls_1_2"] + accepted["tls_1_3"]
    bad += [f"weak cipher {name}" for name in suites if any(word in name for word in WEAK)]
    if not any("GCM" in name or "POLY1305" in name for name in accepted["tls_1_2"]):
        bad.append("TLS 1.2 has no cipher with authentication (AEAD)")
    if not accepted["tls_1_3"]:
        bad.append("TLS 1.3 is not offered")
    for name, key, wanted in (
        ("tls_compression", "supports_compression", False),
        ("tls_1_3_early_data", "supports_early_data", False),
        ("openssl_ccs_injection", "is_vulnerable_to_ccs_injection", False),
        ("heartbleed", "is_vulnerable_to_heartbleed", False),
        ("session_renegotiation", "is_vulnerable_to_client_renegotiation_dos", False),
        ("session_renegotiation", "supports_secure_renegotiation", True),
        ("tls_fallback_scsv", "supports_fallback_scsv", True),
        ("tls_extended_master_secret", "supports_ems_extension", True),
    ):
        if results[name].get(key) is not wanted:
            bad.append(f"{name}: {key} is {results[name].get(key)}")
    if not str(results["robot"].get("robot_result")).startswith("NOT_VULNERABLE"):
        bad.append(f"robot: {results['robot'].get('robot_result')}")
    deployed = results["certificate_info"]["certificate_deployments"][0]
    if not any(each["verified_certificate_chain"] for each in deployed["path_validation_results"]):
        bad.append("no trust store verifies the certificate")
    return bad, f"TLS 1.2 with {len(accepted['tls_1_2'])} ciphers, TLS 1.3 with {len(accepted['tls_1_3'])}"


def by_testssl(
    program: str, port: int, ca: Path, folder: Path, *, is_fast: bool = False
) -> tuple[list[str], str]:
    """Return the findings of testssl.sh above LOW that are not accepted, and a line about the rest.

    A fast scan leaves out the ciphers of single versions and the handshakes of many clients.
    """
    out = folder / f"testssl-{port}.json"
    command = [program, "--quiet", "--warnings=off", "--nodns=none", "--color=0", f"--add-ca={ca}", "--jsonfile", str(out),
               "--connect-timeout=20", "--openssl-timeout=20", f"127.0.0.1:{port}"]  # fmt: skip
    if is_fast:
        command.insert(1, "--fast")
    done = execute(command, stdin=subprocess.DEVNULL, timeout=SCAN_SECONDS, env=dict(os.environ))
    if not out.exists():
        raise StartError(f"testssl.sh: {done.stdout[-500:]}{done.stderr[-500:]}")
    rows = json.loads(out.read_text())
    seen = {row["id"]: row["finding"] for row in rows}
    if missing := [
        each for each in NEEDED if "not" in (said := seen.get(each, "not scanned")) or "offered" not in said
    ]:
        raise StartError(
            f"testssl.sh has not seen {missing}: {[row['finding'] for row in rows if row['severity'] == 'WARN']}"
        )
    above = [row for row in rows if row["severity"] not in GOOD]
    bad = [f"{row['severity']} {row['id']}: {row['finding']}" for row in above if row["id"] not in ACCEPTED]
    kinds = Counter(row["severity"] for row in rows)
    grade = next((row["finding"] for row in rows if row["id"] == "overall_grade"), "none")
    named = [f"{row['severity']} {row['id']}" for row in above if row["id"] in ACCEPTED]
    limits = [f"{row['id']}: {row['finding']}" for row in rows if row["severity"] == "WARN"]
    text = f"{dict(kinds)}, grade {grade}" + (f", accepted: {', '.join(named)}" if named else "")
    return bad, text + (f", limits of the scan: {'; '.join(limits)}" if limits else "")


def main() -> int:
    """Scan both listeners, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--testssl",
        default=shutil.which("testssl") or shutil.which("testssl.sh"),
        help="the script testssl.sh",
    )
    parser.add_argument("--scanners", default="sslyze,testssl", help="sslyze, testssl or both, with a comma")
    parser.add_argument(
        "--fast", action="store_true", help="with testssl.sh's --fast: a minute instead of many"
    )
    parser.add_argument(
        "--listeners", default="amqp,management", help="amqp, management or both, with a comma"
    )
    given = parser.parse_args()
    scanners = given.scanners.split(",")
    if "testssl" in scanners and given.testssl is None:
        print("testssl.sh is not installed; leave it out with --scanners sslyze", file=sys.stderr)
        return 2
    count = 0
    try:
        python = installed(FOLDER, "sslyze", SSLYZE).with_name("python") if "sslyze" in scanners else None
        with tempfile.TemporaryDirectory() as name, broker(Path(name)) as (ports, ca):
            for listener, port in ports.items():
                if listener not in given.listeners.split(","):
                    continue
                if python is not None:
                    count += told("sslyze", listener, *by_sslyze(python, port, ca, Path(name)))
                if "testssl" in scanners:
                    found = by_testssl(given.testssl, port, ca, Path(name), is_fast=given.fast)
                    count += told("testssl.sh", listener, *found)
    except (StartError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if count else 0


def told(scanner: str, listener: str, bad: list[str], rest: str) -> int:
    """Print the findings of a scanner; returns how many must not be."""
    print(
        f"{scanner}, {listener}: {rest}; {len(bad)} findings that must not be", *bad, sep="\n    ", flush=True
    )
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
