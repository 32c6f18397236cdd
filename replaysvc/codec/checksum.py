"""The checksum of all stored bytes: XXH3, 64 bits. The only module that imports xxhash. Finds accidents, not forgeries."""

import xxhash


def checksum(*parts: bytes | memoryview) -> int:
    """Returns the 64-bit XXH3 of the bytes of `parts`, one after the other."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest()
