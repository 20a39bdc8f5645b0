# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A small torch CUDA extension for the tests: two CUDA units without torch headers (they would take a minute each) and one C++ unit with them.

Environment: IRONWHEEL_PROBE_BREAK makes its CUDA units not compile, IRONWHEEL_PROBE_SMALL leaves torch's headers out, so that a build takes seconds.
"""

import os

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

FLAGS = ["-std=c++20", *(f"-D{name}" for name in ("IRONWHEEL_PROBE_BREAK", "IRONWHEEL_PROBE_SMALL") if os.environ.get(name))]

setup(
    name="ironwheel-probe",
    version="1.0.0",
    ext_modules=[
        CUDAExtension(
            "ironwheel_probe_cuda",
            ["ironwheel_probe/binding.cpp", "ironwheel_probe/double.cu", "ironwheel_probe/triple.cu"],
            extra_compile_args={"cxx": FLAGS, "nvcc": FLAGS},
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
