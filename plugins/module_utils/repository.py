# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which NVIDIA repository a host gets, and what its package sources say about it.

Pure functions over file contents. apt refuses to work at all when one repository is named twice with different ``Signed-By`` values, so the entries of every
file are read, and those that stand in the way are disabled in the same step that writes ours.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.tables import nvidia_repository as tables

RHEL_RELATIVES = ("rhel", "rocky", "almalinux", "ol", "centos")
DISABLED_NOTE = "# disabled by ironwheel.gpu, "


def distribution(os_id: str, os_version: str) -> str:
    """Name of the repository folder of a host: ``ubuntu2404``, ``debian13``, ``rhel9``.

    Raises:
        IronwheelError: NVIDIA has no repository for it, or this collection does not serve it. Another distribution's repository is never a substitute.
    """
    number = os_version.strip()
    if os_id == "ubuntu":
        name = "ubuntu" + number.replace(".", "")
    elif os_id == "debian":
        name = "debian" + number.split(".")[0]
    elif os_id in RHEL_RELATIVES:
        name = "rhel" + number.split(".")[0]
    else:
        name = f"{os_id}{number}"
    if name not in tables.KEYS:
        raise IronwheelError(
            f"Host fact os is '{os_id} {os_version}', and NVIDIA's repository for it is not known; known are {', '.join(sorted(tables.KEYS))}.",
            "UnsupportedDistribution",
            "Use one of these, nvidia_driver_source=distribution, or name a mirror in nvidia_repository_url together with its key.",
        )
    return name


def architecture(machine: str) -> str:
    """Folder of the machine type: ``x86_64`` or ``sbsa``.

    Raises:
        IronwheelError: a machine that NVIDIA publishes nothing for.
    """
    if machine not in tables.ARCHITECTURES:
        raise IronwheelError(
            f"Host fact os.arch is '{machine}', and NVIDIA's repositories hold {', '.join(sorted(set(tables.ARCHITECTURES.values())))} only.",
            "UnsupportedArchitecture",
        )
    return tables.ARCHITECTURES[machine]


@dataclass(frozen=True)
class Repository:
    """What the host's sources should say: ``url`` ends with a slash, ``suite`` is ``/`` for a flat repository."""

    name: str
    url: str
    suite: str
    components: str
    key_url: str
    fingerprints: tuple[str, ...]
    manager: str


def wanted(os: dict, settings: dict) -> Repository:
    """The repository of a host.

    Args:
        os: the ``os`` part of the host facts (``id``, ``version``, ``arch``).
        settings: ``base_url``, ``distribution``, ``url``, ``suite``, ``components``, ``key_url``, ``fingerprints``, ``name``; empty means the default.

    Raises:
        IronwheelError: unsupported host, or another distribution's repository is asked for.
    """
    manager = "dnf" if os["id"] in RHEL_RELATIVES else "apt"
    url = settings.get("url") or ""
    key_url = settings.get("key_url") or ""
    fingerprints = [normal_fingerprint(item) for item in settings.get("fingerprints") or []]
    if not url:
        host_name = distribution(os["id"], os["version"])
        name = settings.get("distribution") or host_name
        if name != host_name:
            raise IronwheelError(
                f"nvidia_repository_distribution is '{name}', but the host needs '{host_name}': packages of another distribution's repository do not fit "
                "and its key may be refused.",
                "WrongRepository",
                "Leave nvidia_repository_distribution empty, or name a mirror in nvidia_repository_url.",
            )
        url = f"{(settings.get('base_url') or tables.BASE_URL).rstrip('/')}/{name}/{architecture(os['arch'])}/"
        key_name, fingerprint = tables.KEYS[name]
        # A key of one's own comes with fingerprints of one's own.
        if not key_url and not settings.get("key"):
            key_url = url + key_name
            fingerprints = fingerprints or ([fingerprint] if fingerprint else [])
    url = url.rstrip("/") + "/"
    return Repository(
        name=settings.get("name") or "ironwheel-nvidia",
        url=url,
        suite=settings.get("suite") or "/",
        components=settings.get("components") or "",
        key_url=key_url,
        fingerprints=tuple(fingerprints),
        manager=manager,
    )


# --- keys ---------------------------------------------------------------------------------------------------------------------------------------------------


def normal_fingerprint(text: str) -> str:
    """Upper case hexadecimal digits without blanks: ``EB69 3B30 …`` becomes ``EB693B30…``.

    Raises:
        IronwheelError: not 8 to 64 hexadecimal digits.
    """
    digits = re.sub(r"[\s:]", "", text).upper().removeprefix("0X")
    if re.fullmatch(r"[0-9A-F]{8,64}", digits) is None:
        raise IronwheelError(f"nvidia_repository_key_fingerprints holds '{text}': not 8 to 64 hexadecimal digits.", "InvalidFingerprint")
    return digits


def dearmor(data: bytes) -> bytes:
    """The binary form of an OpenPGP key, armoured or not.

    Raises:
        IronwheelError: the armour is broken.
    """
    if b"-----BEGIN PGP PUBLIC KEY BLOCK-----" not in data:
        return data
    blocks = re.findall(rb"-----BEGIN PGP PUBLIC KEY BLOCK-----(.*?)-----END PGP PUBLIC KEY BLOCK-----", data.replace(b"\r\n", b"\n"), re.DOTALL)
    if not blocks:
        raise IronwheelError("The repository key is cut off: its armour has no end line.", "InvalidKey")
    result = b""
    for block in blocks:
        lines = block.strip(b"\n").split(b"\n")
        # Headers end at the first empty line; a block without headers may lack that line.
        start = next((index + 1 for index, line in enumerate(lines) if not line.strip()), 0)
        body = b"".join(line.strip() for line in lines[start:] if not line.startswith(b"="))
        try:
            result += base64.b64decode(body, validate=True)
        except binascii.Error as exc:
            raise IronwheelError(f"The repository key's armour does not decode: {exc}.", "InvalidKey") from exc
    return result


def _packets(data: bytes):
    """Yield ``(tag, body)`` of the packets in an OpenPGP stream (RFC 4880, section 4.2)."""
    at = 0
    while at < len(data):
        head = data[at]
        at += 1
        if not head & 0x80:
            raise ValueError("no packet header")
        if head & 0x40:
            tag, first = head & 0x3F, data[at]
            at += 1
            if first < 192:
                length = first
            elif first < 224:
                length = ((first - 192) << 8) + data[at] + 192
                at += 1
            elif first == 255:
                length = int.from_bytes(data[at : at + 4], "big")
                at += 4
            else:
                raise ValueError("partial length")
        else:
            tag, size = (head >> 2) & 0x0F, head & 0x03
            if size == 3:
                raise ValueError("indeterminate length")
            length = int.from_bytes(data[at : at + (1 << size)], "big")
            at += 1 << size
        if at + length > len(data):
            raise ValueError("cut off")
        yield tag, data[at : at + length]
        at += length


def key_fingerprints(data: bytes) -> list[str]:
    """Fingerprints of the primary keys in a key file, armoured or binary.

    Raises:
        IronwheelError: this is no OpenPGP public key.
    """
    found = []
    try:
        for tag, body in _packets(dearmor(data)):
            if tag != 6 or not body:
                continue
            if body[0] == 4:
                found.append(hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper())
            elif body[0] == 6:
                found.append(hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper())
    except (ValueError, IndexError) as exc:
        if isinstance(exc, IronwheelError):
            raise
        raise IronwheelError(f"The repository key is not an OpenPGP public key ({exc}).", "InvalidKey") from exc
    if not found:
        raise IronwheelError("The repository key is not an OpenPGP public key: it holds no key packet.", "InvalidKey")
    return found


def key_fits(present: list[str], fingerprints: tuple[str, ...]) -> bool:
    """True when one of the wanted fingerprints is there; a short id matches the end of a fingerprint. Nothing wanted: any key fits."""
    return not fingerprints or any(have.endswith(want) for have in present for want in fingerprints)


# --- package sources ----------------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One repository in one file.

    ``place`` is the index of the line (one-line style), of the paragraph (deb822) or of the section (dnf).
    """

    path: str
    style: str
    place: int
    uri: str
    suite: str
    signed_by: str
    enabled: bool


def normal_uri(uri: str) -> str:
    """A repository's address without what does not tell two apart: scheme http or https, trailing slashes and dots."""
    text = re.sub(r"^https?://", "//", uri.strip(), flags=re.IGNORECASE)
    return re.sub(r"(/\.?)+$", "", text)


def local_path(signed_by: str) -> str:
    """The keyring file that an entry names, or nothing: apt gives a path, dnf a file URL; a fingerprint or a key given inline is neither."""
    path = signed_by.removeprefix("file://")
    return path if path.startswith("/") else ""


_OPTIONS = re.compile(r"(\S+?)\s*=\s*(\S+)")
_ONE_LINE = re.compile(r"^\s*deb(?P<src>-src)?\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)")


def read_list(path: str, text: str) -> list[Entry]:
    """Entries of a one-line style file; commented lines are not entries."""
    entries = []
    for number, line in enumerate(text.splitlines()):
        match = _ONE_LINE.match(line)
        if match is None:
            continue
        options = {key.lower(): value for key, value in _OPTIONS.findall(match.group("options") or "")}
        entries.append(Entry(path, "list", number, match.group("uri"), match.group("suite"), options.get("signed-by", ""), True))
    return entries


def _paragraphs(text: str) -> list[list[str]]:
    """Paragraphs of a deb822 file as lists of lines; separating blank lines are paragraphs' ends, kept by :func:`disable`."""
    return [block.split("\n") for block in re.split(r"\n[ \t]*\n", text)]


def _fields(lines: list[str]) -> dict[str, str]:
    """Fields of a paragraph, lower case names; comments are left out and continuation lines joined by blanks."""
    fields: dict[str, str] = {}
    last = ""
    for line in lines:
        if line.startswith("#") or not line.strip():
            continue
        if line[0] in " \t":
            if last:
                fields[last] = f"{fields[last]} {line.strip()}".strip()
            continue
        name, separator, value = line.partition(":")
        if separator:
            last = name.strip().lower()
            fields[last] = value.strip()
    return fields


def read_sources(path: str, text: str) -> list[Entry]:
    """Entries of a deb822 file; a key given inline in ``Signed-By`` reads as that text."""
    entries = []
    for number, lines in enumerate(_paragraphs(text)):
        fields = _fields(lines)
        enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "0", "off", "without", "disable")
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split() or [""]:
                entries.append(Entry(path, "sources", number, uri, suite, fields.get("signed-by", ""), enabled))
    return entries


def read_repo(path: str, text: str) -> list[Entry]:
    """Entries of a dnf ``.repo`` file: one for each section with a ``baseurl``."""
    entries, section = [], -1
    values: dict[str, str] = {}

    def close() -> None:
        for uri in values.get("baseurl", "").split():
            entries.append(Entry(path, "repo", section, uri, "", values.get("gpgkey", ""), values.get("enabled", "1") not in ("0", "no", "false")))

    for line in text.splitlines():
        if re.match(r"\s*\[[^\]]+\]", line):
            close()
            values = {}
            section += 1
        elif "=" in line and not line.lstrip().startswith(("#", ";")):
            key, value = line.split("=", 1)
            values[key.strip().lower()] = value.strip()
    close()
    return entries


READERS = {".list": read_list, ".sources": read_sources, ".repo": read_repo}


def read_entries(files: dict[str, str]) -> list[Entry]:
    """Entries of every file: ``{path: text}``; the ending of the name decides the format, as it does for apt."""
    entries: list[Entry] = []
    for path in sorted(files):
        for ending, reader in READERS.items():
            if path.endswith(ending):
                entries += reader(path, files[path])
    return entries


_NVIDIA_FOLDER = re.compile(r"/cuda/repos/(?P<distribution>[a-z]+[0-9.]*)/(?P<arch>[^/]+)$")


def relation(entry: Entry, url: str) -> str:
    """``same`` repository as url, ``foreign`` (another distribution's or machine's folder of NVIDIA's repositories), or empty."""
    mine, theirs = normal_uri(url), normal_uri(entry.uri)
    if mine == theirs:
        return "same"
    match, own = _NVIDIA_FOLDER.search(theirs), _NVIDIA_FOLDER.search(mine)
    if match is None or own is None:
        return ""
    return "foreign" if match.group("distribution") != own.group("distribution") else ""


def disable(style: str, text: str, places: list[int]) -> str:
    """The file's text with the entries at these places switched off, everything else byte for byte as it was."""
    if style == "list":
        lines = text.splitlines(keepends=True)
        for place in places:
            lines[place] = DISABLED_NOTE + "another entry names this repository: " + lines[place].lstrip()
        return "".join(lines)
    if style == "sources":
        blocks = re.split(r"(\n[ \t]*\n)", text)
        for place in places:
            lines = [line for line in blocks[place * 2].split("\n") if not line.lower().startswith("enabled:")]
            # The paragraph's own comments may come first; fields follow.
            first = next(index for index, line in enumerate(lines) if line.strip() and not line.startswith("#"))
            blocks[place * 2] = "\n".join([*lines[:first], DISABLED_NOTE + "another entry names this repository.", "Enabled: no", *lines[first:]])
        return "".join(blocks)
    lines, section, result = text.splitlines(keepends=True), -1, []
    for line in lines:
        if re.match(r"\s*\[[^\]]+\]", line):
            section += 1
            result.append(line)
            if section in places:
                result.append("enabled=0\n")
            continue
        if section in places and re.match(r"\s*enabled\s*=", line):
            continue
        result.append(line)
    return "".join(result)


@dataclass(frozen=True)
class SourcesPlan:
    """What to do with the package sources: ``write`` our own file or not, ``disable`` entries of others, ``adopted`` file that already does it."""

    write: bool
    disable: tuple[Entry, ...]
    adopted: str
    reasons: tuple[str, ...]


def plan_sources(entries: list[Entry], own_path: str, url: str, suite: str, keyrings: dict[str, list[str]], fingerprints: tuple[str, ...]) -> SourcesPlan:
    """Decide over the entries of all files.

    Args:
        entries: every entry of the host.
        own_path: the file that the role writes.
        url: the wanted repository.
        suite: its suite.
        keyrings: fingerprints in each keyring file that an entry names.
        fingerprints: what the wanted repository is signed with; empty: any.

    An entry that somebody else made (NVIDIA's keyring package, whichever version) is kept and adopted when it is the only one, is enabled and names a keyring
    that holds the wanted key. Otherwise ours is written and the others are switched off, since two entries with different ``Signed-By`` stop apt altogether.
    """
    active = [entry for entry in entries if entry.enabled and entry.path != own_path]
    same = [entry for entry in active if relation(entry, url) == "same" and normal_uri(entry.suite) == normal_uri(suite)]
    foreign = [entry for entry in active if relation(entry, url) == "foreign"]
    reasons = [f"{entry.path} names another distribution's repository ({entry.uri})" for entry in foreign]
    own = any(entry.path == own_path for entry in entries)
    good = [entry for entry in same if entry.signed_by in keyrings and key_fits(keyrings[entry.signed_by], fingerprints)]
    if not own and len(same) == 1 and good:
        return SourcesPlan(False, tuple(foreign), good[0].path, tuple(reasons))
    reasons += [f"{entry.path} names the same repository with Signed-By '{entry.signed_by or 'none'}'" for entry in same]
    return SourcesPlan(True, tuple(foreign + same), "", tuple(reasons))


def render_sources(repository: Repository, keyring: str) -> str:
    """Our deb822 file."""
    lines = ["# Managed by ironwheel.gpu.nvidia_repository; changes are overwritten.", "Types: deb", f"URIs: {repository.url}", f"Suites: {repository.suite}"]
    if repository.components:
        lines.append(f"Components: {repository.components}")
    lines.append(f"Signed-By: {keyring}")
    return "\n".join(lines) + "\n"


def render_repo(repository: Repository, keyring: str) -> str:
    """Our dnf file."""
    return (
        "# Managed by ironwheel.gpu.nvidia_repository; changes are overwritten.\n"
        f"[{repository.name}]\nname=NVIDIA packages (ironwheel.gpu)\nbaseurl={repository.url}\nenabled=1\ngpgcheck=1\n"
        f"gpgkey=file://{keyring}\n"
    )
