"""Decimal numbers of AMQP 1.0: IEEE 754-2008 in its binary integer form, most significant byte first.

The codec carries them as raw bytes. Here they become numbers to compute with, and the results become decimal128 again.
"""

from decimal import Decimal

from pairbus.amqp.types import Decimal32, Decimal64, Decimal128

_EXPONENT_BITS = {4: 8, 8: 10, 16: 14}
_DIGITS = {4: 7, 8: 16, 16: 34}
_BIAS = {4: 101, 8: 398, 16: 6176}
_LARGEST_EXPONENT = 6111


def decode_decimal(raw: Decimal32 | Decimal64 | Decimal128) -> Decimal | float:
    """The number, or the float that stands for an infinity or no number at all."""
    size = len(raw)
    width = size * 8
    bits = int.from_bytes(raw, "big")
    negative = bits >> (width - 1)
    special = (bits >> (width - 6)) & 0b11111
    if special == 0b11111:
        return float("nan")
    if special == 0b11110:
        return float("-inf") if negative else float("inf")
    exponent_bits = _EXPONENT_BITS[size]
    if special >> 3 == 0b11:
        # The coefficient is so large that its three leading bits (100) are implied and the exponent moves right.
        shift = width - 3 - exponent_bits
        coefficient = (0b100 << shift) | (bits & ((1 << shift) - 1))
    else:
        shift = width - 1 - exponent_bits
        coefficient = bits & ((1 << shift) - 1)
    exponent = (bits >> shift) & ((1 << exponent_bits) - 1)
    if coefficient >= 10 ** _DIGITS[size]:
        coefficient = 0  # not canonical: the standard reads it as zero
    return Decimal((negative, tuple(map(int, str(coefficient))), exponent - _BIAS[size]))


def encode_decimal(value: Decimal) -> Decimal128:
    """A finite number of at most 34 digits as decimal128."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or len(digits) > 34 or not -6176 <= exponent <= _LARGEST_EXPONENT:
        raise ValueError(f"{value} does not fit a decimal128")
    coefficient = int("".join(map(str, digits)))
    bits = (sign << 127) | ((exponent + 6176) << 113) | coefficient
    return Decimal128(bits.to_bytes(16, "big"))
