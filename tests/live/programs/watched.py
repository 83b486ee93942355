"""An asyncio server whose callbacks block or run until they are ordered to return.

A line ``block`` or ``run`` on standard input begins one; the next line ends it.
"""

import asyncio
import os
import sys


def block_in_callback() -> None:
    os.read(0, 100)


def run_in_callback() -> None:
    os.set_blocking(0, False)
    while True:
        try:
            if os.read(0, 100):
                break
        except BlockingIOError:
            pass
    os.set_blocking(0, True)


def command() -> None:
    word = os.read(0, 100).decode().strip()
    {"block": block_in_callback, "run": run_in_callback}[word]()


async def main() -> None:
    asyncio.get_running_loop().add_reader(0, command)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
