#!/usr/bin/python3
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvcc that does what /srv/faults/orders says before it compiles: one order a line, each done once unless it begins with "always".

eat MIB        takes that much memory
fill FOLDER    fills the file system of the folder
wait           waits while /srv/faults/hold exists
"""

import fcntl
import mmap
import os
import sys
import time

ORDERS = "/srv/faults/orders"
NVCC = "/opt/ironwheel/toolkits/cuda-13.0/bin/nvcc"


def take_order() -> str:
    """The first order, which is struck out unless it stands for always."""
    try:
        with open(ORDERS, "r+", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            lines = stream.read().splitlines()
            if lines and not lines[0].startswith("always "):
                stream.seek(0)
                stream.truncate()
                stream.write("".join(f"{line}\n" for line in lines[1:]))
    except FileNotFoundError:
        return ""
    return lines[0].removeprefix("always ") if lines else ""


def obey(order: str) -> None:
    word, _space, rest = order.partition(" ")
    if word == "eat":
        blocks = []
        for _number in range(int(rest)):
            block = mmap.mmap(-1, 1 << 20)
            for place in range(0, 1 << 20, mmap.PAGESIZE):
                block[place] = 1
            blocks.append(block)
    elif word == "fill":
        with open(os.path.join(rest, "filler"), "wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(bytes(1 << 16))
            except OSError:
                pass
    elif word == "wait":
        while os.path.exists("/srv/faults/hold"):
            time.sleep(0.1)


if any(word.endswith(".cu") for word in sys.argv):
    obey(take_order())
os.execv(NVCC, [NVCC, *sys.argv[1:]])
