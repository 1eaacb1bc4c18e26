"""What to do about a certificate that is not trusted: the same words wherever one is met."""

from __future__ import annotations

_SIGNS = ("certificate verify failed", "certificate_verify_failed")


def is_untrusted(error: BaseException) -> bool:
    """Whether a connection failed because of the server's certificate, by whatever library says so."""
    return any(sign in str(error).lower() for sign in _SIGNS)


def advice(error: BaseException, otherwise: str) -> str:
    """What to do: about the certificate, or `otherwise`."""
    if not is_untrusted(error):
        return otherwise
    return (
        "Trust its certificate: name a local namespace by its name or ready file, as in --secondary contoso-standby, "
        "or give the file of its authority (ca.pem in its folder) with PAIRBUS_CA_FILE, ca-file or connection_verify."
    )
