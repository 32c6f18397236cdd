"""Is a stored chunk the one that was written? What `fsck`, salvage and the scrub ask of every chunk."""

from typing import Any

from replaysvc.codec import checksum_of, read_header
from replaysvc.codec.header import FIXED, MAGIC, PREFIX, VERSION
from replaysvc.errors import ReplayError
from replaysvc.spec import Signature


def check_chunk(chunk: bytes, record: Any, signature: Signature | None) -> str:
    """Returns what is wrong with a chunk, by itself, by its index record (None: there is none) and by its table's signature;
    an empty string if nothing is."""
    if len(chunk) < PREFIX.size + FIXED.size:
        return f"expected at least {PREFIX.size + FIXED.size} bytes, found {len(chunk)}"
    magic, version, _, stated = PREFIX.unpack_from(chunk)
    if checksum_of(chunk) != stated:
        return "its checksum does not match its bytes"
    if (magic, version) != (MAGIC, VERSION):
        return f"expected {MAGIC.decode()} of version {VERSION}, found {magic!r} of version {version}"
    if record is not None:
        _, _, first_step, n_steps, *_ = FIXED.unpack_from(chunk, PREFIX.size)
        found = {"checksum": stated, "stored_bytes": len(chunk), "first_step": first_step, "n_steps": n_steps}
        for name, value in found.items():
            if record[name] != value:
                return f"expected {name} {record[name]} by its index record, found {value}"
    if signature is not None:
        try:
            read_header(chunk, signature)
        except ReplayError as error:
            return str(error)
    return ""
