# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads extension modules and the libraries that they load, with pyelftools: needs, symbols, floors and the GPU code inside.

Symbols are looked up through each library's GNU hash table: torch defines hundreds of thousands, and an extension asks for hundreds.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import struct
import sys

from ansible_collections.ironwheel.gpu.plugins.module_utils import abi
from ansible_collections.ironwheel.gpu.plugins.module_utils.abi import ElfModule
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError

# Layout of an embedded fat binary, checked against nvcc 13.0's output: a header (magic, version, header size, size of what follows), then entries that
# begin with kind, version, header size and payload size; the architecture stands at byte 28 and the flags at byte 40 of an entry.
_FAT_MAGIC = 0xBA55ED50
_FAT_HEADER = struct.Struct("<IHHQ")
_FAT_ENTRY = struct.Struct("<HHIQ")
_KIND_PTX, _KIND_CUBIN = 1, 2
_FLAG_SPECIFIC, _FLAG_FAMILY = 0x100000, 0x200000
# torch is imported before its extensions, so all of its libraries are in the process by then.
TORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so", "libc10_cuda.so", "libtorch_cuda.so")
_SYSTEM_DIRECTORIES = (
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/lib",
    "/usr/local/lib",
)


def use_tools(prefix: str) -> None:
    """Let this process import pyelftools from the tools environment; what the interpreter has of its own comes first."""
    for path in glob.glob(os.path.join(prefix, "tools", "lib", "python*", "site-packages")):
        if path not in sys.path:
            sys.path.append(path)


@contextlib.contextmanager
def _reading(path: str):
    """Turn whatever a damaged file makes pyelftools raise (it has no common base for that) into the one error that names the file."""
    try:
        yield
    except IronwheelError:
        raise
    except ImportError as exc:
        raise IronwheelError(
            "Reading extension modules needs pyelftools in the Python that runs the module.", "ToolMissing", "Run it with the tools environment's Python."
        ) from exc
    except OSError as exc:
        raise IronwheelError(f"'{path}' cannot be read: {exc.strerror or exc}.", "FileUnreadable") from exc
    except Exception as exc:
        raise IronwheelError(
            f"'{path}' is not a readable ELF file: {type(exc).__name__} {exc}.", "NotAnElfFile", "It is damaged or no compiled module: install it again."
        ) from exc


def fat_architectures(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Capabilities of the machine code and of the PTX in the bytes of a ``.nv_fatbin`` section; garbage is passed over."""
    code: set[str] = set()
    ptx: set[str] = set()
    offset = 0
    while offset + _FAT_HEADER.size <= len(data):
        magic, _version, header_size, size = _FAT_HEADER.unpack_from(data, offset)
        if magic != _FAT_MAGIC or header_size < _FAT_HEADER.size:
            offset += 8
            continue
        entry = offset + header_size
        end = min(entry + size, len(data))
        while entry + 48 <= end:
            kind, _entry_version, entry_header, payload = _FAT_ENTRY.unpack_from(data, entry)
            if entry_header < 48:
                break
            (arch,) = struct.unpack_from("<I", data, entry + 28)
            (flags,) = struct.unpack_from("<Q", data, entry + 40)
            if 10 <= arch < 10000:
                suffix = "f" if flags & _FLAG_FAMILY else "a" if flags & _FLAG_SPECIFIC else ""
                (code if kind == _KIND_CUBIN else ptx if kind == _KIND_PTX else set()).add(f"{arch // 10}.{arch % 10}{suffix}")
            entry += entry_header + payload
        offset = max(end, offset + 8)
    return tuple(sorted(code, key=_capability_order)), tuple(sorted(ptx, key=_capability_order))


def _capability_order(name: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(part) for part in re.findall(r"\d+", name)), name


def _floor(names: list[str], prefix: str) -> str | None:
    versions = [name[len(prefix) :] for name in names if re.fullmatch(re.escape(prefix) + r"\d+(\.\d+)*", name)]
    return max(versions, key=lambda text: tuple(int(part) for part in text.split(".")), default=None)


class Library:
    """A shared object that is opened once and asked for symbols many times."""

    def __init__(self, path: str) -> None:
        self.path = path
        with _reading(path):
            from elftools.elf.elffile import ELFFile

            # Open as long as the library is asked for symbols.
            self._elf = ELFFile(open(path, "rb"))  # noqa: SIM115
            dynamic = self._elf.get_section_by_name(".dynamic")
            tags = list(dynamic.iter_tags()) if dynamic is not None else []
            self.needed = tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED")
            self._runpaths = [getattr(tag, "runpath", None) or getattr(tag, "rpath", "") for tag in tags if tag.entry.d_tag in ("DT_RUNPATH", "DT_RPATH")]
            self._hash = self._elf.get_section_by_name(".gnu.hash") or self._elf.get_section_by_name(".hash")
            self._symbols = self._elf.get_section_by_name(".dynsym")

    def defines(self, name: str) -> bool:
        """True when the library exports the symbol."""
        with _reading(self.path):
            if self._hash is not None:
                symbol = self._hash.get_symbol(name)
                return symbol is not None and symbol["st_shndx"] != "SHN_UNDEF"
            if self._symbols is None:
                return False
            return any(symbol["st_shndx"] != "SHN_UNDEF" for symbol in self._symbols.get_symbol_by_name(name) or [])

    def runpaths(self) -> list[str]:
        """The directories that the file itself names, with ``$ORIGIN`` put in."""
        origin = os.path.dirname(os.path.realpath(self.path))
        return [part.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for text in self._runpaths for part in text.split(":") if part]

    def module(self) -> ElfModule:
        """What the file says of itself, for ``abi.judge``."""
        with _reading(self.path):
            undefined = []
            if self._symbols is not None:
                undefined = [
                    symbol.name
                    for symbol in self._symbols.iter_symbols()
                    if symbol.name and symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
                ]
            versions: list[str] = []
            needs = self._elf.get_section_by_name(".gnu.version_r")
            if needs is not None:
                versions = [entry.name for _library, entries in needs.iter_versions() for entry in entries]
            fat = [section.data() for section in self._elf.iter_sections() if section.name in (".nv_fatbin", "__nv_relfatbin")]
        code, ptx = fat_architectures(b"".join(fat))
        return ElfModule(self.path, self.needed, tuple(undefined), _floor(versions, "GLIBC_"), _floor(versions, "GLIBCXX_"), code, ptx)

    def exported_versions(self, prefix: str) -> str | None:
        """The newest symbol version with that prefix that the library defines (``GLIBCXX_`` of libstdc++)."""
        section = self._elf.get_section_by_name(".gnu.version_d")
        if section is None:
            return None
        return _floor([entry.name for _version, entries in section.iter_versions() for entry in entries], prefix)


def library_directories(site_packages: list[str]) -> list[str]:
    """Where an environment keeps the libraries that torch loads, then where the system does."""
    found: list[str] = []
    for site in site_packages:
        for pattern in ("torch/lib", "nvidia/*/lib", "*.libs"):
            found += sorted(glob.glob(os.path.join(site, pattern)))
    return [path for path in [*found, *_SYSTEM_DIRECTORIES] if os.path.isdir(path)]


class LibrarySet:
    """Finds libraries by the names in NEEDED, opens each once, and follows what they need in turn."""

    def __init__(self, directories: list[str]) -> None:
        self._directories = directories
        self._open: dict[str, Library | None] = {}

    def find(self, name: str, extra: list[str]) -> Library | None:
        """The library of that name, from the file's own run paths first, or None."""
        for directory in [*extra, *self._directories]:
            path = os.path.join(directory, name)
            if os.path.exists(path):
                real = os.path.realpath(path)
                if real not in self._open:
                    try:
                        self._open[real] = Library(real)
                    except IronwheelError:
                        self._open[real] = None
                return self._open[real]
        return None

    def closure(self, module: Library) -> tuple[list[Library], list[str]]:
        """All libraries that loading the module brings in, and the names among its own needs that nobody has."""
        found: dict[str, Library] = {}
        missing = []
        queue: list[tuple[str, Library, bool]] = [(name, module, True) for name in module.needed]
        seen = set()
        while queue:
            name, parent, direct = queue.pop(0)
            if name in seen:
                continue
            seen.add(name)
            library = self.find(name, parent.runpaths())
            if library is None:
                if direct:
                    missing.append(name)
                continue
            found[library.path] = library
            queue += [(need, library, False) for need in library.needed]
        return list(found.values()), missing


def missing_symbols(module: ElfModule, libraries: list[Library]) -> list[str]:
    """Undefined names of the module that no library defines; the interpreter's own (``Py…``) are left out, since the executable provides them."""
    wanted = [name for name in module.undefined if not name.startswith(("Py", "_Py"))]
    return [name for name in wanted if not any(library.defines(name) for library in libraries)]


def extension_modules(site: str, names: list[str] | None = None) -> list[str]:
    """Paths of compiled modules in a site-packages directory that depend on torch: all of them, or those of the named distributions or modules.

    torch's own files are left out.
    """
    found = []
    for directory, folders, files in os.walk(site):
        relative = os.path.relpath(directory, site)
        if relative == ".":
            folders[:] = [name for name in folders if name not in ("torch", "nvidia", "triton", "__pycache__") and not name.endswith(".libs")]
        for name in files:
            if name.endswith(".so"):
                path = os.path.join(directory, name)
                top = os.path.relpath(path, site).split(os.sep)[0].split(".")[0]
                if names is None or top in names:
                    found.append(path)
    return sorted(found)


def needs_torch(library: Library) -> bool:
    """True when the module loads torch's libraries or asks for torch's symbols through its C shims."""
    return any(name.startswith(("libtorch", "libc10")) for name in library.needed)


def judge_file(
    path: str, torch: abi.TorchSide, host: abi.HostSide, libraries: LibrarySet, abi_in_name: bool | None = None
) -> tuple[ElfModule, list[abi.Finding]]:
    """Read one extension module, look up what it needs, and judge it."""
    opened = Library(path)
    module = opened.module()
    closure, missing_libraries = libraries.closure(opened)
    own = [library for library in (libraries.find(name, []) for name in TORCH_LIBRARIES) if library is not None and library not in closure]
    findings = abi.judge(module, torch, host, missing_symbols(module, [*closure, *own]), missing_libraries, abi_in_name)
    return module, findings


def host_side(libraries: LibrarySet, glibc: str | None, capabilities: list[str], has_driver: bool) -> abi.HostSide:
    """What the host offers, its libstdc++ looked up in the same places as everything else."""
    libstdcxx = libraries.find("libstdc++.so.6", [])
    return abi.HostSide(glibc, None if libstdcxx is None else libstdcxx.exported_versions("GLIBCXX_"), tuple(sorted(set(capabilities))), has_driver)
