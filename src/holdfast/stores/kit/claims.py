"""Named leases, for stores that decide about one in Python, inside a transaction of their own."""

from __future__ import annotations

from holdfast.stores.contract import Claim


def claimed(held: Claim | None, name: str, owner: str, ttl_ms: int, now: int) -> Claim | None:
    """The claim to write; None while another owner's holds."""
    if held is None:
        return Claim(name, owner, 1, now + ttl_ms)
    lasts = held.expires_at > now
    if held.owner != owner and lasts:
        return None
    epoch = held.epoch if held.owner == owner and lasts else held.epoch + 1
    return Claim(name, owner, epoch, now + ttl_ms)


def owns(claim: Claim | None, owner: str, epoch: int, now: int) -> bool:
    """Whether a partition's claim is this owner's, at this epoch, and has not run out."""
    if claim is None:
        return False
    lasts = claim.expires_at > now
    return (claim.owner, claim.epoch) == (owner, epoch) and lasts
