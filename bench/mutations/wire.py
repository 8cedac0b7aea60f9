"""Bytes of the file, changed without regard to what they mean."""

from __future__ import annotations

from mutations.draw import Draft, mutation


def _spot(draft: Draft) -> tuple[bytearray, int]:
    content = bytearray(draft.bytes)
    return content, draft.random.randrange(len(content) + 1)


@mutation("bytes")
def flip(draft: Draft) -> str:
    content, _ = _spot(draft)
    places = [draft.random.randrange(len(content)) for _ in range(draft.random.choice((1, 1, 2, 8)))]
    for place in places if content else []:
        content[place] ^= 1 << draft.random.randrange(8)
    draft.wire = bytes(content)
    return f"at {places}"


@mutation("bytes")
def overwrite(draft: Draft) -> str:
    content, place = _spot(draft)
    new = draft.one((b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff\x0f", b"\x08\x96\x01"))
    content[place : place + len(new)] = new
    draft.wire = bytes(content)
    return f"{new!r} at {place}"


@mutation("bytes")
def cut(draft: Draft) -> str:
    content, place = _spot(draft)
    length = draft.random.choice((1, 2, 5, 20, len(content)))
    del content[place : place + length]
    draft.wire = bytes(content) or b"\0"
    return f"{length} at {place}"


@mutation("bytes")
def insert(draft: Draft) -> str:
    content, place = _spot(draft)
    new = draft.random.randbytes(draft.random.choice((1, 2, 5, 20)))
    content[place:place] = new
    draft.wire = bytes(content)
    return f"{len(new)} at {place}"


@mutation("bytes")
def duplicate(draft: Draft) -> str:
    content, place = _spot(draft)
    length = draft.random.choice((2, 10, 40, 200))
    times = draft.random.choice((1, 1, 3, 50))
    content[place:place] = content[place : place + length] * times
    draft.wire = bytes(content)
    return f"{length} bytes at {place} {times} times"


@mutation("bytes")
def letter(draft: Draft) -> str:
    """Names stay names: another letter in one of them."""
    content, _ = _spot(draft)
    place = draft.one(k for k, byte in enumerate(content) if chr(byte).isalnum())
    content[place] = draft.random.choice(b"abxyzABXYZ019_")
    draft.wire = bytes(content)
    return f"at {place}"
