# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A compiler that compiles nothing: it follows the program in its source file, one step a line.

    use MIB SECONDS     hold that much memory for that long, then give it back
    hold MIB SECONDS    grow or shrink to that much and wait: what is held stays for the next step
    say TEXT            write to stderr
    kill                die by signal 9
    exit STATUS
    args                write the arguments to SOURCE.args

It writes the file named after -o when it gets to its end. Run as ``python -I -S fake_nvcc.py …``.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time

# Blocks of a quarter MiB that "hold" keeps.
HELD: list[mmap.mmap] = []


def allocate(mib: float) -> mmap.mmap:
    """Memory that is really there: every page is written."""
    size = max(mmap.PAGESIZE, int(mib * 1048576))
    block = mmap.mmap(-1, size)
    block[:: mmap.PAGESIZE] = b"\1" * -(-size // mmap.PAGESIZE)
    return block


def step(source: str, line: str) -> None:
    """Do one line of the program."""
    word, _space, rest = line.partition(" ")
    if word == "use":
        mib, seconds = rest.split()
        block = allocate(float(mib))
        time.sleep(float(seconds))
        block.close()
    elif word == "hold":
        mib, seconds = rest.split()
        wanted = int(float(mib) * 4)
        while len(HELD) > wanted:
            HELD.pop().close()
        while len(HELD) < wanted:
            HELD.append(allocate(0.25))
        time.sleep(float(seconds))
    elif word == "say":
        sys.stderr.write(rest + "\n")
        sys.stderr.flush()
    elif word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "exit":
        os._exit(int(rest))
    elif word == "args":
        with open(source + ".args", "w", encoding="utf-8") as stream:
            stream.write("\n".join(sys.argv[1:]))
    elif word:
        raise SystemExit(f"fake_nvcc: unknown step '{line}'")


def main() -> None:
    """Follow the program of the one source file among the arguments."""
    source = next(word for word in sys.argv[1:] if word.endswith(".cu"))
    with open(source, encoding="utf-8") as stream:
        program = stream.read().splitlines()
    for line in program:
        step(source, line.strip())
    with open(sys.argv[sys.argv.index("-o") + 1], "w", encoding="utf-8") as stream:
        stream.write("object\n")


main()
