"""The certificate: what the pairs of an alignment establish (DESIGN section 6)."""

from opguard.certify.certifier import certify

__all__ = ["certify"]
