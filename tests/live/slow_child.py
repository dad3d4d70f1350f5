"""Opens slow connections in a process of its own, so that they do not slow the client that is measured.

``python -m tests.live.slow_child PORT N_EACH LIMIT_S`` prints the longest time that one stayed open.
"""

from __future__ import annotations

import asyncio
import sys

from tests.live.load import HOST, slow_connection

HEAD = f"POST /search HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n".encode()


async def longest_open_s(port: int, n_each: int, limit_s: float) -> float:
    """Return the seconds until the last of ``n_each`` slow headers and ``n_each`` slow bodies was closed."""
    headers = [slow_connection(port, HEAD, b"X-a: b\r\n", limit_s=limit_s) for _ in range(n_each)]
    body = HEAD + b"Content-Length: 1000\r\n\r\n"
    bodies = [slow_connection(port, body, b" ", limit_s=limit_s) for _ in range(n_each)]
    return max(await asyncio.gather(*headers, *bodies))


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(longest_open_s(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))}\n")
