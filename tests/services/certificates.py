"""Certificates for tests: a CA made on the spot, and what it signs. Needs the program openssl."""
import subprocess
from pathlib import Path

DAYS = "30"


def openssl(*words):
    result = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, timeout=60)
    if result.returncode:
        raise RuntimeError(f"openssl {' '.join(map(str, words))}: {result.stderr}")


def make_authority(folder, name):
    """FOLDER/ca.pem and ca.key; gives the path without the ending."""
    base = Path(folder) / "ca"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", DAYS, "-subj", f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
            "-keyout", f"{base}.key", "-out", f"{base}.pem")
    return base


def make_certificate(authority, base, names, addresses=(), days=DAYS, client=False):
    """BASE.pem and BASE.key for the DNS names and addresses, signed by the authority; days may be negative: expired."""
    base = Path(base)
    extensions = base.with_suffix(".ext")
    alternatives = [f"DNS:{name}" for name in names] + [f"IP:{address}" for address in addresses]
    extensions.write_text(f"subjectAltName={','.join(alternatives)}\nextendedKeyUsage={'clientAuth' if client else 'serverAuth'}\n"
                          "basicConstraints=CA:FALSE\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={names[0]}",
            "-keyout", base.with_suffix(".key"), "-out", base.with_suffix(".csr"))
    openssl("x509", "-req", "-in", base.with_suffix(".csr"), "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial",
            "-days", days, "-extfile", extensions, "-out", base.with_suffix(".pem"))
    return base
