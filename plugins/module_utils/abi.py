# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judges whether a compiled extension can work beside a torch, from what its ELF file says.

Pure: it takes what ``elf_modules.py`` read and returns findings. Symbols can refute an extension, never prove it; the only proof is its provenance and a run.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field

# Libraries whose soname carries the major of the CUDA release. cuFFT, cuRAND, cuSOLVER and cuSPARSE count on their own.
_CUDA_MAJOR_LIBRARY = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink|cupti)\.so\.(\d+)")
# Comes with the driver, so its absence on a host without one says nothing about the extension.
DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_TORCH_CUDA_LIBRARIES = ("libc10_cuda.so", "libtorch_cuda.so", "libtorch_cuda_linalg.so")
# Itanium mangling: names in at::, c10:: and torch::, which torch's libraries define, and its C shims.
_TORCH_SYMBOL = re.compile(r"_Z(?:T[ISV])?N[KVrRO]*(?:2at|3c10|5torch)|aoti_torch_|torch_")
_NEW_STRING = "__cxx11"
# std::string of the old ABI is the substitution Ss, which ends a name or stands among the parameters.
_OLD_STRING = re.compile(r"(?:E|RK|R|P)Ss(?![a-z])")


@dataclass(frozen=True)
class ElfModule:
    """What one shared object says of itself.

    ``architectures`` are capabilities of its machine code ("9.0", "9.0a", "12.0f"), ``ptx`` those of its PTX. Floors are version strings or None.
    """

    path: str
    needed: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    glibc: str | None = None
    glibcxx: str | None = None
    architectures: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()


@dataclass(frozen=True)
class TorchSide:
    """The torch that the extension shall work with. ``cuda`` and ``cxx11_abi`` are None when unknown; ``cpu_build`` says that it has no CUDA."""

    version: str
    cuda: str | None = None
    cpu_build: bool = False
    cxx11_abi: bool | None = None


@dataclass(frozen=True)
class HostSide:
    """What the host offers. ``capabilities`` are those of its GPUs; empty when it has none."""

    glibc: str | None = None
    glibcxx: str | None = None
    capabilities: tuple[str, ...] = ()
    has_driver: bool = False


@dataclass(frozen=True)
class Finding:
    """One verdict: ``ok``, ``failed`` or ``not_run``. ``error`` names the fault, ``reason`` is a sentence with the values."""

    check: str
    verdict: str
    reason: str
    error: str | None = None
    detail: dict = field(default_factory=dict)

    def as_dict(self) -> dict:
        """JSON-able form."""
        return asdict(self)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def cuda_major(module: ElfModule) -> int | None:
    """The CUDA major that the libraries of an extension carry in their names, or None when it needs none of them."""
    for name in module.needed:
        match = _CUDA_MAJOR_LIBRARY.match(name)
        if match:
            return int(match.group(1))
    return None


def cxx11_abi_of(undefined: tuple[str, ...]) -> bool | None:
    """The C++ ABI that undefined torch symbols were compiled with: True new, False old, None when no name carries a string."""
    torch_names = [name for name in undefined if _TORCH_SYMBOL.match(name)]
    if any(_NEW_STRING in name for name in torch_names):
        return True
    if any(_OLD_STRING.search(name) for name in torch_names):
        return False
    return None


def is_torch_symbol(name: str) -> bool:
    """True for names that only torch's libraries can define."""
    return _TORCH_SYMBOL.match(name) is not None


def check_cuda_major(module: ElfModule, torch: TorchSide) -> Finding:
    """An extension and its torch share one CUDA runtime, so the majors must be equal."""
    needs_cuda = cuda_major(module)
    needs_torch_cuda = [name for name in module.needed if name in _TORCH_CUDA_LIBRARIES]
    if torch.cpu_build and (needs_cuda is not None or needs_torch_cuda):
        what = ", ".join(needs_torch_cuda) or f"libcudart.so.{needs_cuda}"
        reason = f"it needs {what}, and torch {torch.version} is a build without CUDA"
        return Finding("cuda_major", "failed", reason, "TorchWithoutCuda", {"so": needs_cuda, "torch": None})
    if needs_cuda is None:
        return Finding("cuda_major", "ok", "it needs no CUDA library of a certain major")
    if torch.cuda is None:
        return Finding("cuda_major", "not_run", "the CUDA release of torch is not known")
    has = _numbers(torch.cuda)[0]
    if has != needs_cuda:
        return Finding(
            "cuda_major",
            "failed",
            f"it was built with CUDA {needs_cuda}, torch {torch.version} with CUDA {torch.cuda}",
            "CudaMajorMismatch",
            {"so": needs_cuda, "torch": has},
        )
    return Finding("cuda_major", "ok", f"CUDA {has} on both sides")


def check_cxx11_abi(module: ElfModule, torch: TorchSide, name_says: bool | None = None) -> Finding:
    """The C++ ABI is read from the symbols; what a wheel's name says is only reported."""
    has = cxx11_abi_of(module.undefined)
    if has is None:
        return Finding("cxx11_abi", "ok", "no symbol carries a C++ string")
    if torch.cxx11_abi is None:
        return Finding("cxx11_abi", "not_run", "the C++ ABI of torch is not known")
    detail = {"wheel_abi_from_name": name_says, "wheel_abi_from_symbols": has}
    if has != torch.cxx11_abi:
        words = {True: "the new", False: "the old"}
        lie = "" if name_says in (None, has) else "; the name of its wheel says otherwise"
        return Finding(
            "cxx11_abi", "failed", f"it was built with {words[has]} C++ ABI, torch {torch.version} with {words[torch.cxx11_abi]}{lie}", "AbiMismatch", detail
        )
    return Finding("cxx11_abi", "ok", f"C++11 ABI {'on' if has else 'off'} on both sides", detail=detail)


def check_symbols(missing: list[str], torch: TorchSide) -> Finding:
    """``missing`` are undefined, not weak, not Python's, and found in no library that the extension loads.

    Names of torch that are missing mean another torch; other names are reported as what they are.
    """
    if not missing:
        return Finding("symbols", "ok", "every undefined symbol is defined by torch or by a library that it loads")
    from_torch = [name for name in missing if is_torch_symbol(name)]
    shown = ", ".join((from_torch or missing)[:3]) + (f" and {len(from_torch or missing) - 3} more" if len(from_torch or missing) > 3 else "")
    if from_torch:
        return Finding("symbols", "failed", f"built for another torch than {torch.version}: it needs {shown}", "AbiMismatch", {"missing": missing[:50]})
    return Finding("symbols", "failed", f"no library defines {shown}", "SymbolMissing", {"missing": missing[:50]})


def check_libraries(missing: list[str], host: HostSide) -> Finding:
    """``missing`` are NEEDED names that neither the environment nor the system has."""
    without_driver = [name for name in missing if name not in DRIVER_LIBRARIES or host.has_driver]
    if without_driver:
        return Finding("libraries", "failed", f"not found: {', '.join(without_driver)}", "LibraryMissing", {"missing": without_driver})
    if missing:
        return Finding("libraries", "ok", f"all found but {', '.join(missing)}, which comes with the driver that this host does not have")
    return Finding("libraries", "ok", "every needed library is there")


def check_floor(check: str, needs: str | None, has: str | None, error: str, what: str) -> Finding:
    """A library of the host must not be older than the newest symbol version that the extension needs."""
    if needs is None:
        return Finding(check, "ok", f"it needs no version of {what}")
    if has is None:
        return Finding(check, "not_run", f"it needs {what} {needs}; the host's is not known")
    if _numbers(needs) > _numbers(has):
        return Finding(check, "failed", f"it needs {what} {needs}, the host has {has}", error, {"needs": needs, "has": has})
    return Finding(check, "ok", f"it needs {what} {needs}, the host has {has}")


def covers(code: str, capability: str) -> bool:
    """True when machine code for ``code`` ("9.0", "9.0a", "12.0f") runs on a GPU of ``capability`` ("9.0").

    Plain code runs on the same major from its own minor on; family code ("f") likewise; architecture-specific code ("a") on exactly its own.
    """
    wanted, own = _numbers(capability)[:2], _numbers(code)[:2]
    if code.endswith("a"):
        return own == wanted
    return own[0] == wanted[0] and own[1] <= wanted[1]


def check_architectures(module: ElfModule, capabilities: tuple[str, ...]) -> Finding:
    """Each GPU of the host needs machine code; PTX serves too, but only a driver as new as the toolkit loads it."""
    if not capabilities:
        return Finding("architectures", "not_run", "the host has no GPU", detail={"architectures": list(module.architectures), "ptx": list(module.ptx)})
    if not module.architectures and not module.ptx:
        return Finding("architectures", "ok", "it holds no GPU code")
    detail = {"architectures": list(module.architectures), "ptx": list(module.ptx)}
    bare = [capability for capability in capabilities if not any(covers(code, capability) for code in module.architectures)]
    if not bare:
        return Finding("architectures", "ok", f"machine code for {', '.join(capabilities)}", detail=detail)
    without = [capability for capability in bare if not any(_numbers(code)[:2] <= _numbers(capability)[:2] for code in module.ptx if code[-1].isdigit())]
    if without:
        return Finding(
            "architectures",
            "failed",
            f"no code for capability {', '.join(without)}; it holds {', '.join(module.architectures) or 'no machine code'}",
            "ArchNotInBinary",
            {**detail, "cc": without[0]},
        )
    reason = f"only PTX for capability {', '.join(bare)}: it loads when the driver is as new as the toolkit that made it"
    return Finding("architectures", "ok", reason, detail={**detail, "ptx_only": bare})


def judge(
    module: ElfModule,
    torch: TorchSide,
    host: HostSide,
    missing_symbols: list[str],
    missing_libraries: list[str],
    abi_in_name: bool | None = None,
) -> list[Finding]:
    """All findings for one extension module, in the order in which a person would want to read them."""
    return [
        check_cuda_major(module, torch),
        check_cxx11_abi(module, torch, abi_in_name),
        check_libraries(missing_libraries, host),
        check_symbols(missing_symbols, torch),
        check_floor("glibc", module.glibc, host.glibc, "GlibcTooOld", "glibc"),
        check_floor("libstdcxx", module.glibcxx, host.glibcxx, "LibstdcxxTooOld", "GLIBCXX"),
        check_architectures(module, host.capabilities),
    ]
