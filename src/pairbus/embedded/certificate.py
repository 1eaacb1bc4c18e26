"""The certificate a namespace shows to HTTPS clients: signed by an authority of its own, made once per data
folder.

`ca.pem` is public and is what clients trust (`connection_verify=ca_file`). `server.pem` holds the server's
certificate and key and is private. The authority's key is never written: nobody, not even this program, can
sign anything else that a client who trusts `ca.pem` would believe. Both are valid for twenty years, longer
than a local folder lives, so nothing is renewed.
"""

import ipaddress
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

VALID_DAYS = 20 * 365
# The wildcard is for programs that insist on a name per namespace: `contoso.servicebus.localhost`.
HOST_NAMES = ("localhost", "*.servicebus.localhost")
ADDRESSES = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    ca_file: Path
    server_file: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.server_file)
        context.set_alpn_protocols(["http/1.1"])
        return context


def ensure_certificate(folder: Path) -> ServerCertificate:
    """The folder's certificate, made when it is missing. A half-written pair is made anew."""
    certificate = ServerCertificate(folder / "ca.pem", folder / "server.pem")
    if not (certificate.ca_file.exists() and certificate.server_file.exists()):
        ca_pem, server_pem = _make()
        # The public half last: while it is missing, the pair counts as missing.
        certificate.ca_file.unlink(missing_ok=True)
        write_private(certificate.server_file, server_pem)
        write_private(certificate.ca_file, ca_pem, mode=0o644)
    return certificate


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file as a whole: no reader sees half of it, and it is never readable by others meanwhile."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _make() -> tuple[bytes, bytes]:
    """PEM texts of the authority and of the server (certificate and key)."""
    # Imported here: a folder that has its certificate starts without loading the library.
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs_certificates,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            encipher_only=False,
            decipher_only=False,
        )

    ca_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    # A day of slack: a client whose clock is a little behind still finds the certificate valid.
    begins = datetime.now(UTC) - timedelta(days=1)
    ends = begins + timedelta(days=VALID_DAYS)
    ca_name = name("pairbus embedded namespace authority")
    ca_identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_identifier), critical=False
            )
        )

    ca = (
        builder(ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    server = (
        builder(name("localhost"), server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName(
                [
                    *(x509.DNSName(host) for host in HOST_NAMES),
                    *(x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES),
                ]
            ),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key_pem = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return ca.public_bytes(pem), server.public_bytes(pem) + key_pem
