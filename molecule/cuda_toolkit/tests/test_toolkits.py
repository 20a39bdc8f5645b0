# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real CUDA 13 toolkits from PyPI side by side: each compiles, links and disassembles; the one that was there is as it was."""

from __future__ import annotations

import json

import pytest

FOLDER = "/opt/ironwheel/toolkits"
VERSIONS = ("13.2", "13.3")

PROGRAM = r"""
#include <cstdio>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <curand_kernel.h>
#include <cusolverDn.h>
#include <cusparse.h>
#include <nvrtc.h>
#include <thrust/tuple.h>
__global__ void axpy(float a, const __nv_bfloat16* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaf(a, __bfloat162float(x[i]), y[i]);
}
int main() {
  int version = 0, major = 0, minor = 0;
  if (cudaRuntimeGetVersion(&version) != cudaSuccess) return 1;
  nvrtcVersion(&major, &minor);
  if (cublasGetCudartVersion() / 1000 != 13) return 2;
  std::printf("%d %d.%d", version, major, minor);
  axpy<<<1, 1>>>(thrust::get<0>(thrust::make_tuple(1.0f)), nullptr, nullptr, 0);
  return 0;
}
"""


@pytest.fixture(scope="module", params=VERSIONS)
def toolkit(host, request):
    """A program compiled with one toolkit: ``(version, home, folder with the program)``."""
    version, home = request.param, f"{FOLDER}/cuda-{request.param}"
    folder = f"/root/program-{version}"
    host.run_expect([0], "mkdir -p %s", folder)
    host.run_expect([0], "printf %%s %s > %s/axpy.cu", PROGRAM, folder)
    flags = "-gencode arch=compute_90,code=sm_90 -gencode arch=compute_120,code=sm_120 --cudart=shared -lcublas -lnvrtc"
    built = host.run(f"cd {folder} && env -i PATH=/usr/bin:/bin CUDA_HOME={home} {home}/bin/nvcc {flags} -o axpy axpy.cu -Xlinker -rpath,{home}/lib64")
    assert built.rc == 0, built.stderr
    return version, home, folder


def test_the_program_links_against_its_own_toolkit_and_runs(host, toolkit):
    version, home, folder = toolkit
    libraries = host.check_output(f"ldd {folder}/axpy")
    for library in ("libcudart.so.13", "libcublas.so.13", "libnvrtc.so.13"):
        assert f"{library} => {home}/lib64/{library}" in libraries
    # No GPU is needed to ask the runtime and nvrtc which release they are.
    major, minor = version.split(".")
    assert host.check_output(f"{folder}/axpy") == f"{major}0{minor}0 {version}"


def test_the_program_holds_machine_code_for_both_gpus(host, toolkit):
    _version, home, folder = toolkit
    listed = host.check_output(f"{home}/bin/cuobjdump --list-elf {folder}/axpy")
    assert "sm_90.cubin" in listed and "sm_120.cubin" in listed
    code = host.check_output(f"{home}/bin/cuobjdump -sass -arch sm_120 {folder}/axpy")
    assert "Function : _Z4axpy" in code and "FFMA" in code and "EXIT" in code


def test_nvdisasm_reads_a_cubin(host, toolkit):
    _version, home, folder = toolkit
    host.run_expect([0], f"cd {folder} && {home}/bin/nvcc -cubin -arch=sm_90 -o axpy.cubin axpy.cu")
    assert "FFMA" in host.check_output(f"{home}/bin/nvdisasm {folder}/axpy.cubin")


@pytest.mark.parametrize("version", VERSIONS)
def test_it_looks_like_a_toolkit(host, version):
    home = f"{FOLDER}/cuda-{version}"
    assert f"release {version}," in host.check_output(f"{home}/bin/nvcc --version")
    assert host.file(f"{home}/lib").linked_to == f"{home}/lib64"
    document = json.loads(host.file(f"{home}/version.json").content_string)
    assert document["cuda"]["version"].startswith(version) and document["cuda_nvcc"]["version"].startswith(version)
    marker = json.loads(host.file(f"{home}/ironwheel.json").content_string)
    assert (marker["version"], marker["source"]) == (version, "wheels")
    lock = host.file(f"{home}/ironwheel.lock").content_string
    assert lock.count("--hash=sha256:") >= lock.count("==") > 10
    assert host.check_output(f"find {home} -xtype l") == ""
    assert host.check_output(f"find {home} ! -perm -a=r ! -type l") == ""


def test_the_toolkit_that_was_there_is_untouched(host):
    host.run_expect([0], f"cd {FOLDER}/cuda-13.2 && sha256sum --check --quiet --strict /root/cuda-13.2.sums")
    assert host.run(f"cd {FOLDER}/cuda-13.2 && find . -printf '%p %l %m %T@ %i\\n' | sort | cmp - /root/cuda-13.2.files").rc == 0


def test_nothing_global_has_changed(host):
    assert host.file("/usr/local/cuda").linked_to == f"{FOLDER}/cuda-13.2"
    assert host.run("command -v nvcc").rc != 0
    assert host.run("grep -rIl -i cuda /etc/profile /etc/profile.d /etc/environment /etc/ld.so.conf.d").stdout == ""
    assert host.check_output("dpkg-query -W -f '${Package}\\n' | grep -ciE 'nvidia|cuda' || true") == "0"
    assert sorted(host.check_output(f"ls -A {FOLDER}").split()) == [".lock", *(f"cuda-{version}" for version in VERSIONS)]
