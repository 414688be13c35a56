"""What a preview must not show: its output is public where the repository is."""

import re
from ipaddress import IPv4Network, IPv6Address

from infra.addresses import PRIVATE_RANGES

_ARN = re.compile(r"\b(arn:aws[a-z-]*:[a-z0-9-]+:)[^\s\"',\])}]+")
_ACCOUNT = re.compile(r"(?<!\d)\d{12}(?!\d)")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+")
_IPV4 = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3})(?:/\d{1,2})?(?!\.?\d)")  # a sentence may end with it
# What may be one: times of day and fingerprints have colons too.
_IPV6 = re.compile(r"(?<![\w:])([0-9a-f]*:[0-9a-f]*:[0-9a-f:]*)(?:/\d{1,3})?(?![\w:])", re.IGNORECASE)


def redact(text: str) -> str:
    """The text without accounts, ARNs, mail addresses, and IP addresses other than those inside of private networks."""
    text = _MAIL.sub("(mail)", _ARN.sub(r"\1***", text))
    return _IPV6.sub(_mask_ipv6, _IPV4.sub(_mask_public, _ACCOUNT.sub("(account)", text)))


def _mask_public(match: re.Match[str]) -> str:
    try:
        inside = any(IPv4Network(match[1]).subnet_of(each) for each in PRIVATE_RANGES)
    except ValueError:
        return match[0]
    # The route of everything, which no one has as an address.
    return match[0] if inside or match[1] == "0.0.0.0" else "(address)"


def _mask_ipv6(match: re.Match[str]) -> str:
    address = match[1] if match[1].endswith("::") else match[1].removesuffix(":")  # as in `2001:db8::1: refused`
    try:
        everything = not int(IPv6Address(address))
    except ValueError:
        return match[0]
    return match[0] if everything else "(address)" + match[1].removeprefix(address)
