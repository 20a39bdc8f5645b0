# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What compiling costs: measured units of flash-attn, the shape of a unit's memory over its life, and figures for the other packages.

Measured (``FLASH_ATTN_UNITS``, ``FLASH_ATTN_FOUR_ARCHITECTURES``): 16 cores, 125 GiB of RAM, Ubuntu 24.04, gcc 13.3, nvcc 13.0.88, torch
2.11.0+cu130, flash-attn 2.8.3.post2, 16 static jobs; wall and CPU time in seconds, peak memory of the process tree in MiB sampled every 0.3 s. Measured
(``FLASH_ATTN_SHAPES``): the same on another day, through the gate (docs/flash-attn-build.md). Measured (``SHAPE``): the same nvcc with the headers of torch
2.14.1 on a slower machine with two cores, sampled every 0.25 s.

``CLASSES`` says for each figure whether it was measured or is cited from a public report. ``base_mib`` is what a job needs beside its compiler streams
(nvcc itself, the shell, the host compiler at the end), ``stream_mib`` the peak of one stream (one architecture at one nvcc thread) of the package's
heaviest unit, ``unit_s`` the wall time of a typical unit for one architecture.
"""

from __future__ import annotations

from typing import Any

# (unit, wall_s, cpu_s, peak_mib) for one architecture (9.0) at one nvcc thread, in the order in which ninja starts them.
FLASH_ATTN_UNITS: tuple[tuple[str, float, float, int], ...] = (
    ("flash_bwd_hdim128_bf16_causal_sm80.cu", 154.9, 153.2, 6082),
    ("flash_bwd_hdim128_bf16_sm80.cu", 231.1, 228.2, 6164),
    ("flash_bwd_hdim128_fp16_causal_sm80.cu", 159.5, 157.5, 6079),
    ("flash_bwd_hdim128_fp16_sm80.cu", 230.5, 227.5, 6162),
    ("flash_bwd_hdim192_bf16_causal_sm80.cu", 124.2, 122.6, 4824),
    ("flash_bwd_hdim192_bf16_sm80.cu", 195.3, 192.3, 4911),
    ("flash_bwd_hdim192_fp16_causal_sm80.cu", 123.5, 121.1, 4824),
    ("flash_bwd_hdim192_fp16_sm80.cu", 199.2, 197.0, 4911),
    ("flash_bwd_hdim256_bf16_causal_sm80.cu", 168.3, 165.9, 6602),
    ("flash_bwd_hdim256_bf16_sm80.cu", 259.9, 255.9, 6719),
    ("flash_bwd_hdim256_fp16_causal_sm80.cu", 165.6, 163.5, 6608),
    ("flash_bwd_hdim256_fp16_sm80.cu", 264.6, 261.7, 6719),
    ("flash_bwd_hdim32_bf16_causal_sm80.cu", 120.2, 118.7, 4393),
    ("flash_bwd_hdim32_bf16_sm80.cu", 184.0, 181.1, 4463),
    ("flash_bwd_hdim32_fp16_causal_sm80.cu", 121.7, 119.5, 4394),
    ("flash_bwd_hdim32_fp16_sm80.cu", 182.4, 179.1, 4460),
    ("flash_bwd_hdim64_bf16_causal_sm80.cu", 153.4, 150.9, 5976),
    ("flash_bwd_hdim64_bf16_sm80.cu", 225.9, 222.5, 6059),
    ("flash_bwd_hdim64_fp16_causal_sm80.cu", 157.1, 155.8, 5976),
    ("flash_bwd_hdim64_fp16_sm80.cu", 222.2, 220.5, 6060),
    ("flash_bwd_hdim96_bf16_causal_sm80.cu", 130.6, 128.8, 5491),
    ("flash_bwd_hdim96_bf16_sm80.cu", 193.7, 190.5, 5563),
    ("flash_bwd_hdim96_fp16_causal_sm80.cu", 129.6, 127.6, 5493),
    ("flash_bwd_hdim96_fp16_sm80.cu", 197.4, 193.3, 5566),
    ("flash_fwd_hdim128_bf16_causal_sm80.cu", 144.7, 143.0, 4728),
    ("flash_fwd_hdim128_bf16_sm80.cu", 180.6, 178.8, 4229),
    ("flash_fwd_hdim128_fp16_causal_sm80.cu", 143.5, 141.4, 4730),
    ("flash_fwd_hdim128_fp16_sm80.cu", 177.7, 175.0, 4227),
    ("flash_fwd_hdim192_bf16_causal_sm80.cu", 89.2, 88.5, 4354),
    ("flash_fwd_hdim192_bf16_sm80.cu", 131.0, 129.9, 4395),
    ("flash_fwd_hdim192_fp16_causal_sm80.cu", 91.7, 90.6, 4354),
    ("flash_fwd_hdim192_fp16_sm80.cu", 132.0, 130.4, 4394),
    ("flash_fwd_hdim256_bf16_causal_sm80.cu", 136.7, 134.4, 4342),
    ("flash_fwd_hdim256_bf16_sm80.cu", 218.0, 215.8, 4407),
    ("flash_fwd_hdim256_fp16_causal_sm80.cu", 134.8, 133.2, 4343),
    ("flash_fwd_hdim256_fp16_sm80.cu", 222.3, 220.4, 4407),
    ("flash_fwd_hdim32_bf16_causal_sm80.cu", 85.3, 84.8, 3320),
    ("flash_fwd_hdim32_bf16_sm80.cu", 129.8, 127.9, 3346),
    ("flash_fwd_hdim32_fp16_causal_sm80.cu", 84.2, 83.4, 3318),
    ("flash_fwd_hdim32_fp16_sm80.cu", 127.3, 126.4, 3351),
    ("flash_fwd_hdim64_bf16_causal_sm80.cu", 108.2, 106.0, 3659),
    ("flash_fwd_hdim64_bf16_sm80.cu", 156.5, 154.5, 3703),
    ("flash_fwd_hdim64_fp16_causal_sm80.cu", 106.3, 104.7, 3660),
    ("flash_fwd_hdim64_fp16_sm80.cu", 156.9, 154.5, 3699),
    ("flash_fwd_hdim96_bf16_causal_sm80.cu", 139.7, 137.9, 4303),
    ("flash_fwd_hdim96_bf16_sm80.cu", 132.4, 130.6, 3684),
    ("flash_fwd_hdim96_fp16_causal_sm80.cu", 140.2, 138.7, 4303),
    ("flash_fwd_hdim96_fp16_sm80.cu", 131.2, 130.5, 3685),
    ("flash_fwd_split_hdim128_bf16_causal_sm80.cu", 180.0, 176.8, 3862),
    ("flash_fwd_split_hdim128_bf16_sm80.cu", 287.9, 282.8, 3935),
    ("flash_fwd_split_hdim128_fp16_causal_sm80.cu", 181.1, 179.6, 3859),
    ("flash_fwd_split_hdim128_fp16_sm80.cu", 303.0, 299.6, 3935),
    ("flash_fwd_split_hdim192_bf16_causal_sm80.cu", 155.9, 153.8, 3707),
    ("flash_fwd_split_hdim192_bf16_sm80.cu", 244.7, 241.4, 3784),
    ("flash_fwd_split_hdim192_fp16_causal_sm80.cu", 161.7, 159.7, 3707),
    ("flash_fwd_split_hdim192_fp16_sm80.cu", 260.1, 257.5, 3785),
    ("flash_fwd_split_hdim256_bf16_causal_sm80.cu", 174.6, 170.9, 3720),
    ("flash_fwd_split_hdim256_bf16_sm80.cu", 288.2, 285.3, 3797),
    ("flash_fwd_split_hdim256_fp16_causal_sm80.cu", 181.6, 179.5, 3717),
    ("flash_fwd_split_hdim256_fp16_sm80.cu", 303.6, 300.0, 3795),
    ("flash_fwd_split_hdim32_bf16_causal_sm80.cu", 146.4, 143.8, 3654),
    ("flash_fwd_split_hdim32_bf16_sm80.cu", 244.5, 242.1, 3731),
    ("flash_fwd_split_hdim32_fp16_causal_sm80.cu", 148.8, 147.8, 3655),
    ("flash_fwd_split_hdim32_fp16_sm80.cu", 246.8, 243.5, 3732),
    ("flash_fwd_split_hdim64_bf16_causal_sm80.cu", 192.4, 191.4, 3613),
    ("flash_fwd_split_hdim64_bf16_sm80.cu", 316.6, 315.4, 3693),
    ("flash_fwd_split_hdim64_fp16_causal_sm80.cu", 198.1, 197.4, 3613),
    ("flash_fwd_split_hdim64_fp16_sm80.cu", 330.7, 329.8, 3690),
    ("flash_fwd_split_hdim96_bf16_causal_sm80.cu", 153.0, 152.5, 3944),
    ("flash_fwd_split_hdim96_bf16_sm80.cu", 249.8, 248.9, 4017),
    ("flash_fwd_split_hdim96_fp16_causal_sm80.cu", 164.7, 163.6, 3943),
    ("flash_fwd_split_hdim96_fp16_sm80.cu", 271.0, 270.5, 4015),
)

# The same for upstream's four architectures (8.0, 9.0, 10.0, 12.0) at four nvcc threads, six units at once.
FLASH_ATTN_FOUR_ARCHITECTURES: tuple[tuple[str, float, float, int], ...] = (
    ("flash_fwd_hdim32_fp16_causal_sm80.cu", 143.0, 314.0, 12524),
    ("flash_bwd_hdim128_bf16_causal_sm80.cu", 222.7, 515.5, 23873),
    ("flash_fwd_split_hdim256_bf16_causal_sm80.cu", 237.3, 597.7, 14000),
    ("flash_fwd_hdim128_bf16_sm80.cu", 255.4, 645.5, 14902),
    ("flash_bwd_hdim256_fp16_sm80.cu", 336.1, 825.1, 24241),
    ("flash_fwd_split_hdim64_fp16_sm80.cu", 374.6, 1087.3, 14218),
)

# The host-compiled unit beside them: flash_api.cpp took 34.4 s in the measured build.
FLASH_ATTN_HOST_UNIT_S = 34.4

# Memory over a unit's life as a share of its peak, in 50 equal steps: flash_fwd_split_hdim64_fp16_sm80.cu, 412.7 s, peak 3752 MiB. Stands for every unit
# without a measured shape, because of all measured ones it keeps most after its peak.
# fmt: off
SHAPE: tuple[float, ...] = (
    0.24, 0.45, 0.78, 0.96, 1.0, 0.37, 0.55, 0.56, 0.55, 0.55,
    0.54, 0.54, 0.54, 0.54, 0.54, 0.54, 0.52, 0.5, 0.48, 0.47,
    0.46, 0.45, 0.44, 0.42, 0.41, 0.4, 0.38, 0.37, 0.36, 0.35,
    0.33, 0.32, 0.3, 0.29, 0.28, 0.28, 0.3, 0.29, 0.19, 0.2,
    0.2, 0.21, 0.21, 0.21, 0.21, 0.22, 0.22, 0.21, 0.22, 0.22,
)
# fmt: on

# The same in 20 equal steps and in percent, for each unit of flash-attn: the highest look in each step. The highest of all is set to 100, since the peak itself
# mostly lay between two looks.
FLASH_ATTN_SHAPES: dict[str, str] = {
    "flash_bwd_hdim128_bf16_causal_sm80.cu": "14 21 44 66 84 94 100 11 25 24 24 24 23 23 23 23 21 13 13 3",
    "flash_bwd_hdim128_bf16_sm80.cu": "14 41 65 83 100 26 34 37 37 36 36 36 35 35 34 34 31 15 3 4",
    "flash_bwd_hdim128_fp16_causal_sm80.cu": "14 28 48 65 84 100 27 19 25 24 24 24 24 23 23 23 21 13 3 3",
    "flash_bwd_hdim128_fp16_sm80.cu": "14 37 66 90 100 22 37 37 37 36 36 35 35 35 35 33 25 16 3 6",
    "flash_bwd_hdim192_bf16_causal_sm80.cu": "15 23 43 64 81 95 100 10 20 24 23 23 23 22 22 22 22 16 2 10",
    "flash_bwd_hdim192_bf16_sm80.cu": "17 56 84 100 27 29 39 39 39 38 38 37 37 36 35 30 19 15 4 9",
    "flash_bwd_hdim192_fp16_causal_sm80.cu": "17 27 51 69 83 100 25 17 24 23 23 23 23 22 22 22 21 13 13 1",
    "flash_bwd_hdim192_fp16_sm80.cu": "20 47 82 100 27 37 39 39 39 38 38 38 37 37 36 34 28 19 4 4",
    "flash_bwd_hdim256_bf16_causal_sm80.cu": "13 28 47 64 81 94 100 10 23 23 22 22 22 22 22 21 17 12 3 8",
    "flash_bwd_hdim256_bf16_sm80.cu": "14 47 73 94 100 19 38 38 37 37 37 36 36 35 35 30 23 14 4 4",
    "flash_bwd_hdim256_fp16_causal_sm80.cu": "13 21 39 60 75 89 100 11 18 23 23 23 22 22 22 21 19 12 12 3",
    "flash_bwd_hdim256_fp16_sm80.cu": "13 40 65 84 100 31 38 38 37 37 37 36 36 35 35 28 24 18 4 8",
    "flash_bwd_hdim32_bf16_causal_sm80.cu": "19 32 59 81 93 100 27 23 27 27 26 26 26 26 25 25 25 15 3 11",
    "flash_bwd_hdim32_bf16_sm80.cu": "19 44 83 100 28 40 42 41 41 40 40 39 39 39 38 36 25 3 4 11",
    "flash_bwd_hdim32_fp16_causal_sm80.cu": "19 32 58 84 100 28 26 27 27 26 26 26 26 25 25 23 23 14 3 11",
    "flash_bwd_hdim32_fp16_sm80.cu": "19 47 77 100 27 33 42 41 41 40 40 39 39 38 37 32 20 4 4 8",
    "flash_bwd_hdim64_bf16_causal_sm80.cu": "14 29 56 78 91 100 26 23 25 24 24 24 24 23 24 24 21 13 3 3",
    "flash_bwd_hdim64_bf16_sm80.cu": "14 40 63 84 100 12 33 38 37 37 37 36 36 35 36 34 28 17 4 2",
    "flash_bwd_hdim64_fp16_causal_sm80.cu": "14 32 47 64 84 100 26 17 25 25 24 24 24 24 23 24 21 13 3 3",
    "flash_bwd_hdim64_fp16_sm80.cu": "15 54 82 100 25 27 38 37 37 37 36 36 36 35 35 34 30 15 4 2",
    "flash_bwd_hdim96_bf16_causal_sm80.cu": "15 19 42 65 85 100 25 22 23 23 23 22 22 22 22 21 15 15 3 6",
    "flash_bwd_hdim96_bf16_sm80.cu": "20 58 83 100 26 33 35 34 34 34 33 33 33 32 31 22 15 3 4 8",
    "flash_bwd_hdim96_fp16_causal_sm80.cu": "15 16 36 53 69 85 100 25 20 23 23 23 22 22 22 22 18 12 12 3",
    "flash_bwd_hdim96_fp16_sm80.cu": "22 57 84 100 26 23 35 34 34 34 33 33 33 32 31 30 23 15 3 4",
    "flash_fwd_hdim128_bf16_causal_sm80.cu": "18 36 61 84 100 22 24 24 23 23 23 22 17 14 14 13 7 6 7 7",
    "flash_fwd_hdim128_bf16_sm80.cu": "20 55 84 100 25 35 34 33 33 32 31 28 23 19 15 5 9 9 9 9",
    "flash_fwd_hdim128_fp16_causal_sm80.cu": "18 36 65 92 100 24 24 24 24 23 23 22 18 14 4 4 6 6 6 8",
    "flash_fwd_hdim128_fp16_sm80.cu": "20 45 76 100 27 35 34 34 33 33 32 31 26 20 15 8 10 8 9 12",
    "flash_fwd_hdim192_bf16_causal_sm80.cu": "14 20 28 48 64 84 100 27 27 17 17 17 16 16 14 12 12 4 2 2",
    "flash_fwd_hdim192_bf16_sm80.cu": "20 34 63 85 100 27 19 27 26 26 26 25 25 21 21 16 13 6 6 6",
    "flash_fwd_hdim192_fp16_causal_sm80.cu": "13 20 39 60 77 94 100 14 14 17 17 17 16 16 14 14 12 12 5 11",
    "flash_fwd_hdim192_fp16_sm80.cu": "20 27 46 70 90 100 23 27 26 26 26 25 25 23 19 14 14 5 6 11",
    "flash_fwd_hdim256_bf16_causal_sm80.cu": "20 36 67 89 100 27 22 22 21 21 21 19 16 14 13 6 8 8 8 6",
    "flash_fwd_hdim256_bf16_sm80.cu": "30 74 100 26 36 36 36 35 35 33 30 26 22 18 16 10 9 9 11 12",
    "flash_fwd_hdim256_fp16_causal_sm80.cu": "18 23 54 84 100 26 22 22 22 21 20 18 18 15 13 6 6 8 8 9",
    "flash_fwd_hdim256_fp16_sm80.cu": "26 68 94 100 36 36 35 35 34 33 32 28 25 18 16 1 10 11 11 7",
    "flash_fwd_hdim32_bf16_causal_sm80.cu": "22 26 43 69 86 100 28 20 20 19 19 18 14 14 5 6 6 8 4 4",
    "flash_fwd_hdim32_bf16_sm80.cu": "25 42 75 100 28 29 29 28 28 28 27 25 20 16 6 8 8 9 12 15",
    "flash_fwd_hdim32_fp16_causal_sm80.cu": "16 26 37 63 85 100 29 21 20 19 19 19 18 15 5 5 6 9 9 14",
    "flash_fwd_hdim32_fp16_sm80.cu": "26 39 68 89 100 25 29 28 28 28 26 26 22 16 7 8 8 9 12 12",
    "flash_fwd_hdim64_bf16_causal_sm80.cu": "23 31 56 77 100 27 29 22 21 21 21 20 18 18 14 5 5 8 8 8",
    "flash_fwd_hdim64_bf16_sm80.cu": "23 43 72 100 28 29 33 32 31 31 30 26 26 20 16 8 10 10 10 4",
    "flash_fwd_hdim64_fp16_causal_sm80.cu": "23 24 47 69 86 100 29 21 21 21 21 18 18 15 12 7 7 6 6 7",
    "flash_fwd_hdim64_fp16_sm80.cu": "23 41 76 100 29 33 32 32 31 31 30 28 22 16 16 7 9 10 10 10",
    "flash_fwd_hdim96_bf16_causal_sm80.cu": "20 40 66 85 100 28 27 27 26 26 25 24 24 21 17 14 6 6 7 3",
    "flash_fwd_hdim96_bf16_sm80.cu": "23 48 79 100 28 27 28 27 27 26 26 23 23 19 15 6 6 7 9 13",
    "flash_fwd_hdim96_fp16_causal_sm80.cu": "20 30 60 83 100 27 17 27 27 27 26 26 25 23 18 18 14 5 8 11",
    "flash_fwd_hdim96_fp16_sm80.cu": "22 30 64 88 100 29 28 28 27 27 26 26 23 16 16 1 7 8 8 9",
    "flash_fwd_split_hdim128_bf16_causal_sm80.cu": "22 44 82 100 30 31 31 30 30 29 27 23 19 17 17 10 12 12 12 10",
    "flash_fwd_split_hdim128_bf16_sm80.cu": "29 80 100 41 50 49 49 48 48 45 42 36 31 24 24 15 18 18 18 19",
    "flash_fwd_split_hdim128_fp16_causal_sm80.cu": "22 46 82 100 24 34 33 33 33 32 29 26 23 20 20 20 13 10 13 14",
    "flash_fwd_split_hdim128_fp16_sm80.cu": "30 73 100 41 55 55 54 54 53 51 48 41 37 29 28 17 18 18 19 19",
    "flash_fwd_split_hdim192_bf16_causal_sm80.cu": "23 31 56 83 100 30 30 30 29 29 28 27 22 18 17 17 9 8 11 13",
    "flash_fwd_split_hdim192_bf16_sm80.cu": "29 76 100 40 49 49 48 48 47 47 44 41 37 29 24 23 12 14 15 0",
    "flash_fwd_split_hdim192_fp16_causal_sm80.cu": "23 49 89 100 23 32 33 32 32 32 32 30 27 22 19 19 6 9 10 13",
    "flash_fwd_split_hdim192_fp16_sm80.cu": "23 79 100 44 55 55 54 54 53 53 51 48 41 37 28 27 13 12 15 15",
    "flash_fwd_split_hdim256_bf16_causal_sm80.cu": "23 52 88 100 28 30 29 29 29 28 25 23 19 17 18 11 11 13 13 14",
    "flash_fwd_split_hdim256_bf16_sm80.cu": "32 79 100 49 49 48 48 47 47 42 39 34 26 24 25 16 18 18 18 19",
    "flash_fwd_split_hdim256_fp16_causal_sm80.cu": "26 72 100 29 33 32 32 32 31 29 26 23 21 20 6 13 13 14 14 10",
    "flash_fwd_split_hdim256_fp16_sm80.cu": "33 83 100 55 55 54 53 53 52 49 47 40 33 30 30 16 19 19 19 20",
    "flash_fwd_split_hdim32_bf16_causal_sm80.cu": "23 52 85 100 27 31 31 31 30 30 29 26 26 22 17 8 8 9 10 9",
    "flash_fwd_split_hdim32_bf16_sm80.cu": "23 62 100 29 50 50 49 49 48 48 46 42 37 29 20 11 14 14 14 14",
    "flash_fwd_split_hdim32_fp16_causal_sm80.cu": "23 30 59 85 100 27 34 34 34 33 33 31 31 26 19 18 9 9 10 4",
    "flash_fwd_split_hdim32_fp16_sm80.cu": "27 73 100 28 56 56 56 55 55 54 53 51 43 36 28 26 13 14 14 10",
    "flash_fwd_split_hdim64_bf16_causal_sm80.cu": "26 75 100 29 31 31 31 31 30 26 22 18 17 7 11 12 14 15 15 14",
    "flash_fwd_split_hdim64_bf16_sm80.cu": "31 94 100 51 50 50 49 48 46 41 32 28 24 25 19 21 20 21 22 23",
    "flash_fwd_split_hdim64_fp16_causal_sm80.cu": "34 85 100 35 34 34 34 32 30 28 25 23 20 21 12 13 13 15 15 16",
    "flash_fwd_split_hdim64_fp16_sm80.cu": "38 85 100 57 56 56 55 55 52 50 45 38 31 29 29 21 21 21 23 23",
    "flash_fwd_split_hdim96_bf16_causal_sm80.cu": "22 41 75 100 29 29 30 30 30 29 30 28 24 18 16 16 8 10 10 11",
    "flash_fwd_split_hdim96_bf16_sm80.cu": "21 70 100 28 48 49 48 48 47 47 46 44 36 30 25 21 12 14 14 15",
    "flash_fwd_split_hdim96_fp16_causal_sm80.cu": "22 41 71 94 100 27 33 33 33 33 32 32 29 25 20 18 8 10 10 11",
    "flash_fwd_split_hdim96_fp16_sm80.cu": "36 94 100 55 54 54 54 53 53 51 49 41 36 32 26 26 13 14 15 7",
}

CLASSES: dict[str, dict[str, Any]] = {
    "flash-attn-2": {
        "base_mib": 256,
        "stream_mib": 6719,
        "unit_s": 178.0,
        "source": "measured: heaviest of the 72 units, flash_bwd_hdim256, nvcc 13.0; 24,241 MiB for four architectures at four threads",
    },
    "flash-attn-3": {
        "base_mib": 512,
        "stream_mib": 17920,
        "unit_s": 300.0,
        "source": "cited: 17 to 18 GB a job, https://github.com/vllm-project/vllm/pull/12477",
    },
    "causal-conv1d": {
        "base_mib": 256,
        "stream_mib": 2560,
        "unit_s": 120.0,
        "source": "measured time: 1.7.0 for one architecture took 341 s on two cores (nvcc 13.0, torch 2.14.1); memory: our upper bound",
    },
    "mamba-ssm": {
        "base_mib": 256,
        "stream_mib": 3072,
        "unit_s": 150.0,
        "source": "our upper bound: selective scan units include torch's headers and few instances; replaced by the first build's own figures",
    },
    "xformers": {
        "base_mib": 256,
        "stream_mib": 7168,
        "unit_s": 120.0,
        "source": "cited: 96 GB without swap crash at 32 jobs and hold at few, https://github.com/facebookresearch/xformers/issues/822",
    },
    "vllm": {
        "base_mib": 256,
        "stream_mib": 5888,
        "unit_s": 90.0,
        "source": "cited: 64 jobs run out of 128 GB, https://github.com/vllm-project/vllm/issues/8878; FA3 units are a class of their own (flash-attn-3)",
    },
    "flashinfer-jit": {
        "base_mib": 256,
        "stream_mib": 7936,
        "unit_s": 60.0,
        "source": "cited: 16 compilers took 91.5 GiB, two engines 187 GiB, https://github.com/vllm-project/vllm/issues/54237; up to 8 GiB for one",
    },
    "transformer-engine": {
        "base_mib": 256,
        "stream_mib": 5120,
        "unit_s": 120.0,
        "source": "our upper bound, https://github.com/NVIDIA/TransformerEngine/pull/1092 (threads halve the time and oversubscribe hosts)",
    },
    "apex": {
        "base_mib": 256,
        "stream_mib": 3072,
        "unit_s": 60.0,
        "source": "cited: 24 GiB one by one, 58 GiB with 16 extensions at once, 91 GiB with 8 nvcc threads, https://github.com/NVIDIA/apex/pull/1882",
    },
    "torch-source": {
        "base_mib": 256,
        "stream_mib": 4096,
        "unit_s": 60.0,
        "source": "cited: 2 jobs pass in 16 GB, 20 jobs fail in 58 GB and RAM / 4 GB passes, https://github.com/pytorch/pytorch/issues/108174",
    },
    "onnxruntime": {
        "base_mib": 256,
        "stream_mib": 6144,
        "unit_s": 60.0,
        "source": "cited: 4 GB a thread on average, 6 GB at the peak, https://github.com/microsoft/onnxruntime/pull/17419",
    },
    "generic": {
        "base_mib": 256,
        "stream_mib": 3072,
        "unit_s": 100.0,
        "source": "measured lower bound: a .cu that includes torch/extension.h, nvcc 13.0, 98 s on a slow core; memory rounded up",
    },
    "small": {
        "base_mib": 128,
        "stream_mib": 1024,
        "unit_s": 15.0,
        "source": "measured lower bound: a plain CUDA .cu without torch's headers, 13 s on a slow core; memory rounded up",
    },
}
