"""What a table's index knows of each chunk and episode, and how it lies in memory."""

STORED = (
    "chunk_id", "position", "episode_id", "first_step", "n_steps", "policy_version", "committed_at_s", "checksum",
    "stored_bytes", "fallbacks", "flags",
)  # fmt: skip
"""Fields of a chunk that its index record on the disk has, too."""

ALONE = {
    "chunk_id": "i8", "position": "i8", "checksum": "u8", "stored_bytes": "u4", "fallbacks": "u4", "flags": "u1",
    "jump_row": "i8", "depth": "i4",
}  # fmt: skip
"""Fields of a chunk that are searched, or summed over many chunks, or seldom wanted."""

TOGETHER = {
    "episode_id": "i8", "first_step": "i8", "policy_version": "i8", "committed_at_s": "f8", "location": "i8",
    "next_row": "i8", "prev_row": "i8", "n_steps": "i4", "slot": "i4",
}  # fmt: skip
"""Fields that are looked up of each chunk of a batch: 64 bytes, as much as a processor reads at once."""

EPISODE_FIELDS = {
    "first_row": "i8", "last_row": "i8", "length": "i8", "return_": "f8", "policy_version": "i8", "started_at_s": "f8",
    "actor": "i4", "flags": "u1",
}  # fmt: skip
