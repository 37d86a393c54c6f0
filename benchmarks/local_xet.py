"""Xet's storage, as a local hub offers it: reconstruction of a file and the chunks that it is made of.

Protocol: https://huggingface.co/docs/xet. Each MiB of a file is one xorb of uncompressed chunks; hashes are made up, as
the client verifies none of them.
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import Any

BLOCK, CHUNK = 1 << 20, 1 << 16  # bytes of a file in one xorb, and in one chunk


def xorb(data: bytes) -> bytes:
    """Chunks, each behind its header: version, size (3 bytes), compression (none), size again."""
    chunks = [data[place : place + CHUNK] for place in range(0, len(data), CHUNK)]
    sizes = [len(chunk).to_bytes(3, "little") for chunk in chunks]
    return b"".join(b"\0" + size + b"\0" + size + chunk for size, chunk in zip(sizes, chunks, strict=True))


def token_headers(endpoint: str) -> dict[str, str]:
    """Where the storage is, and what it is asked with."""
    expires = str(int(time.time()) + 3600)
    return {"X-Xet-Cas-Url": endpoint, "X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": expires}


def reconstruction(data: bytes, wanted: str, url: str) -> dict[str, Any] | None:
    """What blocks hold the bytes of the `Range` header `wanted`; None where it begins behind the end."""
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
    start, end = (int(found[1]), min(int(found[2]), len(data) - 1)) if found else (0, len(data) - 1)
    if start >= len(data):
        return None
    terms, fetch = [], {}
    for number in range(start // BLOCK, end // BLOCK + 1):
        block = data[number * BLOCK : (number + 1) * BLOCK]
        name = hashlib.sha256(b"%d " % number + block).hexdigest()
        chunks = {"start": 0, "end": -(-len(block) // CHUNK)}
        terms.append({"hash": name, "unpacked_length": len(block), "range": chunks})
        whole = {"start": 0, "end": len(xorb(block)) - 1}
        fetch[name] = [{"range": chunks, "url": f"{url}/{number}", "url_range": whole}]
    return {"offset_into_first_range": start % BLOCK, "terms": terms, "fetch_info": fetch}
