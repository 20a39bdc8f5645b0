# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads the request from variables: types, choices, rules of values, and names that nobody knows. All faults at once, none half-read."""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.ironwheel.gpu.plugins.module_utils.defaults import FACTS_OF_ROLES, OPTIONS, PLAYBOOK_VARIABLES, PREFIXES, Option
from ansible_collections.ironwheel.gpu.plugins.module_utils.errors import IronwheelError
from ansible_collections.ironwheel.gpu.plugins.module_utils.packages import normalize

_VERSION = re.compile(r"\d+(\.\d+){0,5}((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[A-Za-z0-9]+([.][A-Za-z0-9]+)*)?")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_SPECIFIER = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+"
_TERM = r"\(*\s*[a-z_]+\s*(?:===|==|~=|!=|<=|>=|<|>|\bin\b|\bnot in\b)\s*(?:'[A-Za-z0-9_. -]*'|\"[A-Za-z0-9_. -]*\")\s*\)*"
_REQUIREMENT = re.compile(
    rf"({_NAME})(?:\s*\[\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\])?"  # name and extras
    rf"(?:\s*{_SPECIFIER}(?:\s*,\s*{_SPECIFIER})*|\s*@\s*(?:https|file)://[^\s;'\"`$\\]+)?"  # versions, or one file
    rf"(?:\s*;\s*{_TERM}(?:\s+(?:and|or)\s+{_TERM})*)?"  # environment marker
)
_HUB_NAME = re.compile(rf"{_NAME}(?:/{_NAME})?")
_PATH = re.compile(r"/[A-Za-z0-9 ._@+=,:/-]*")
_CAPABILITY = re.compile(r"\d{1,2}\.\d")
_TRUE = {"true", "yes", "on", "1", "y", "t"}
_FALSE = {"false", "no", "off", "0", "n", "f"}


@dataclass(frozen=True)
class Request:
    """What the user asks for on one host.

    ``values`` holds every option of ``defaults.py``, ``given`` the names that the user set to something else than the default, ``errors`` what was wrong
    (such options have their default).
    """

    values: dict[str, Any]
    given: frozenset[str] = frozenset()
    errors: tuple[IronwheelError, ...] = field(default=())

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def pinned(self, name: str) -> str | None:
        """The value of an option that can be ``auto``, None when the plan decides."""
        value = self.values[name]
        return None if value in ("auto", "", 0) else value


def requirement_name(requirement: str) -> str:
    """Normalised name of a requirement string: ``torch`` for ``torch==2.9.1 ; python_version > "3.9"``.

    Raises:
        IronwheelError: it is not a requirement.
    """
    match = _REQUIREMENT.fullmatch(requirement.strip())
    if match is None:
        raise IronwheelError(f"'{requirement}' is not a package requirement.", "InvalidRequirement", "Write it as in name==1.2.3 or name>=1,<2.")
    return normalize(match.group(1))


def known_variables(argument_specs: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Names that may be set: those of ``defaults.py``, of our roles' argument specs (one parsed ``argument_specs.yml`` each) and the facts our roles set."""
    names = {option.name for option in OPTIONS} | set(FACTS_OF_ROLES) | set(PLAYBOOK_VARIABLES)
    for document in argument_specs:
        for entry in (document.get("argument_specs") or {}).values():
            names.update((entry or {}).get("options") or {})
    return frozenset(names)


def unknown_variables(names: Iterable[str], known: frozenset[str], ignored: Iterable[str] = ()) -> list[IronwheelError]:
    """One error for each name with one of our prefixes that is neither known nor ignored, with the nearest known name."""
    strangers = sorted(name for name in set(names) - known - set(ignored) if name.startswith(PREFIXES))
    errors = []
    for name in strangers:
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
        hint = f"The nearest known name is {near[0]}. " if near else ""
        errors.append(
            IronwheelError(
                f"Variable {name} is unknown: names that begin with '{_prefix(name)}' belong to ironwheel.gpu.",
                "UnknownVariable",
                f"{hint}If it is a variable of your own, rename it or list it in preflight_ignore_variables.",
            )
        )
    return errors


def read_request(variables: Mapping[str, Any]) -> Request:
    """Read the options from a dictionary of (templated) variables. Unset, null and empty answers of a survey get the default."""
    values: dict[str, Any] = {}
    given: set[str] = set()
    errors: list[IronwheelError] = []
    for option in OPTIONS:
        default = list(option.default) if option.type == "list" else option.default
        values[option.name] = default
        raw = variables.get(option.name)
        if raw is None or (isinstance(raw, str) and not raw.strip()):
            continue
        try:
            values[option.name] = _read(option, raw)
        except IronwheelError as error:
            errors.append(error)
            continue
        if values[option.name] != default:
            given.add(option.name)
    _split_local_version(values, errors)
    return Request(values, frozenset(given), tuple(errors))


def _prefix(name: str) -> str:
    return next(prefix for prefix in PREFIXES if name.startswith(prefix))


def _split_local_version(values: dict[str, Any], errors: list[IronwheelError]) -> None:
    """``torch_version: 2.9.1+cu126`` says version and variant in one."""
    version, plus, local = values["torch_version"].partition("+")
    if not plus:
        return
    values["torch_version"] = version
    if not _is_variant(local):
        errors.append(_fault("torch_version", f"{version}+{local}", "the part after + must be cpu or CUDA as in cu130", "Name a release such as 2.14.0+cu130."))
    elif values["torch_variant"] not in ("auto", local):
        errors.append(
            _fault(
                "torch_version",
                f"{version}+{local}",
                f"torch_variant is {values['torch_variant']}: they contradict each other",
                "Name the variant in one place.",
            )
        )
    else:
        values["torch_variant"] = local


def _fault(name: str, value: Any, rule: str, remedy: str = "", error: str = "InvalidValue") -> IronwheelError:
    shown = value if isinstance(value, str) else repr(value)
    return IronwheelError(f"{name} is '{_shorten(shown)}', but {rule}.", error, remedy)


def _shorten(text: str) -> str:
    text = text.encode("unicode_escape", "replace").decode("ascii")
    return text if len(text) <= 120 else text[:117] + "..."


def _read(option: Option, raw: Any) -> Any:
    value = _convert(option, raw)
    if option.choices and value not in option.choices:
        raise _fault(option.name, value, f"must be one of {', '.join(option.choices)}", f"Use one of {', '.join(option.choices)}.")
    if option.rule:
        complaint = _RULES[option.rule](value)
        if complaint:
            raise _fault(option.name, value, complaint[0], complaint[1])
        if option.rule == "auto_or_bool":
            value = _auto_or_bool(value)
    return value


def _convert(option: Option, raw: Any) -> Any:
    kind = option.type
    if kind == "raw":
        return raw
    if kind == "bool":
        return _to_bool(option.name, raw)
    if kind in ("int", "float"):
        return _to_number(option, raw)
    if kind == "list":
        return _to_list(option, raw)
    return _to_text(option.name, raw)


def _to_bool(name: str, raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _fault(name, raw, "must be true or false", "Use true or false.")


def _to_number(option: Option, raw: Any) -> int | float:
    whole = option.type == "int"
    wanted = "a whole number" if whole else "a number"
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise _fault(option.name, raw, f"must be {wanted}")
    try:
        number = float(raw)
    except ValueError:
        raise _fault(option.name, raw, f"must be {wanted}") from None
    if not math.isfinite(number) or (whole and number != int(number)):
        raise _fault(option.name, raw, f"must be {wanted}")
    return int(number) if whole else number


def _to_text(name: str, raw: Any, one_digit_is_exact: bool = False) -> str:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise _fault(name, raw, "must be text", "Put the value in quotes.")
    if isinstance(raw, float) and not one_digit_is_exact and len(str(raw).rpartition(".")[2]) < 2:
        raise _fault(name, raw, "is a number for YAML, in which 2.10 and 2.1 are the same", "Put the value in quotes.")
    return str(raw).strip()


def _to_list(option: Option, raw: Any) -> list:
    """A list, or the answer of a survey: one item a line, or items with commas between them."""
    if isinstance(raw, str) and option.elements == "str":
        if "\n" in raw:
            raw = raw.splitlines()
        elif option.rule == "requirements" and _REQUIREMENT.fullmatch(raw.strip()):
            raw = [raw]
        else:
            raw = raw.split(",")
        raw = [item for item in raw if item.strip()]
    if isinstance(raw, (str, bytes, Mapping)) or not isinstance(raw, Iterable):
        raise _fault(option.name, raw, "must be a list", "Write it as a YAML list.")
    items = list(raw)
    if option.elements == "dict":
        for item in items:
            if not isinstance(item, Mapping):
                raise _fault(option.name, item, "must be a list of dictionaries")
        return [dict(item) for item in items]
    return [_to_text(option.name, item, one_digit_is_exact=option.rule in ("capabilities", "toolkits")) for item in items]


# The rules: each takes the converted value and returns None, or (what is wrong, remedy).


def _is_variant(text: str) -> bool:
    return text == "cpu" or re.fullmatch(r"cu\d{3}", text) is not None


def _rule_version(value):
    if not _VERSION.fullmatch(value):
        return "it is not a version", "Use a release number such as 2.9.1, without a leading v."
    return None


def _rule_version_or_auto(value):
    return None if value == "auto" else _rule_version(value)


def _rule_variant(value):
    if value == "auto" or _is_variant(value):
        return None
    return "must be auto, cpu or a CUDA variant", "Use a variant such as cu130."


def _rule_model(value):
    if value == "demo":
        return None
    if value.startswith("/"):
        if ".." in value.split("/") or not _PATH.fullmatch(value):
            return "a model path may hold letters, digits, spaces and ._@+=,:- only, and no '..'", "Name the folder of the model without detours."
        return None
    if ".." in value or "--" in value or not _HUB_NAME.fullmatch(value):
        return "must be demo, an absolute path, or a name on a model hub", "Use a value such as /models/llama or organisation/model."
    return None


def _rule_path(value):
    if value and (not _PATH.fullmatch(value) or ".." in value.split("/")):
        return "must be an absolute path of letters, digits, spaces and ._@+=,:-, without '..'", "Use a path such as /opt/ironwheel."
    return None


def _rule_not_negative(value):
    return ("must not be negative", "Use 0 to let the plan decide.") if value < 0 else None


def _rule_share(value):
    return None if 0 < value <= 1 else ("must be above 0 and at most 1", "Use a share such as 0.9.")


def _rule_port(value):
    return None if 1 <= value <= 65535 else ("must be from 1 to 65535", "Use a port such as 8000.")


def _rule_address(value):
    try:
        ipaddress.ip_address(value)
    except ValueError:
        labels = value.rstrip(".").split(".")
        if not all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", label) for label in labels) or all(label.isdigit() for label in labels):
            return "must be an IP address or a host name", "Use an address such as 127.0.0.1."
    return None


def _rule_arguments(value):
    for item in value:
        if any(ord(char) < 32 or ord(char) == 127 for char in item):
            return "an argument must not hold control characters", "Give each argument as one element on one line."
    return None


def _rule_requirements(value):
    for item in value:
        if not _REQUIREMENT.fullmatch(item):
            return f"'{_shorten(item)}' is not a package requirement", "Write it as in name==1.2.3; options of pip and version control URLs are not taken."
    return None


def _rule_capabilities(value):
    for item in value:
        if not _CAPABILITY.fullmatch(item):
            return f"'{_shorten(item)}' is not a compute capability", "Write it as in 9.0 or 12.0."
    return None


def _rule_toolkits(value):
    for item in value:
        if not re.fullmatch(r"\d{1,2}\.\d{1,2}", item):
            return f"'{_shorten(item)}' is not major.minor of a CUDA release", "Write it as in 12.8 or 13.0."
    return None


def _rule_prebuilt(value):
    for item in value:
        strangers = set(item) - {"url", "path", "sha256", "name"}
        if strangers or ("url" in item) == ("path" in item) or not re.fullmatch(r"[0-9a-f]{64}", str(item.get("sha256", ""))):
            return "each entry needs url or path, and a sha256 of 64 hexadecimal digits", "Write it as {url: https://…, sha256: …}."
        complaint = _rule_url(str(item["url"])) if "url" in item else None
        if complaint:
            return complaint
    return None


def _rule_extensions(value):
    for item in value:
        if not re.fullmatch(_NAME, str(item.get("name", ""))) or not _VERSION.fullmatch(str(item.get("version", ""))):
            return "each entry needs name and version", 'Write it as {name: causal-conv1d, version: "1.7.0"}.'
        if "sha256" in item and not re.fullmatch(r"[0-9a-f]{64}", str(item["sha256"])):
            return "sha256 must be 64 hexadecimal digits", "Take it from the package index."
        if "source_url" in item and ("sha256" not in item or _rule_place_or_empty(str(item["source_url"]))):
            return "source_url must be a path or a URL, with its sha256 beside it", "Give both, or leave source_url out."
    return None


def _rule_python(value):
    if value == "auto" or re.fullmatch(r"3\.\d{1,2}(\.\d{1,3})?", value):
        return None
    if value.startswith("/"):
        return _rule_path(value)
    return "must be auto, a version or an absolute path", "Use a value such as 3.12 or /usr/bin/python3.12."


def _rule_url(value):
    try:
        parts = urlsplit(value)
        host = parts.hostname
    except ValueError:
        parts, host = None, None
    if parts is None or re.search(r"[\s'\"`\\<>]", value) or not (parts.scheme == "file" or (parts.scheme in ("http", "https") and host)):
        return "it is not a URL", "Use a URL that begins with https:// or file://."
    return None


def _rule_url_or_empty(value):
    return _rule_url(value) if value else None


def _rule_url_without_secret(value):
    complaint = _rule_url(value)
    if complaint is None and urlsplit(value).password:
        return "a password must not stand in this URL, because it shows in plans and reports", "Put it into the netrc file of the user who installs."
    return complaint


def _rule_urls(value):
    return next((complaint for item in value if (complaint := _rule_url(item))), None)


def _rule_places(value):
    return next((complaint for item in value if (complaint := _rule_place_or_empty(item))), None)


def _rule_place_or_empty(value):
    if not value:
        return None
    return _rule_path(value) if value.startswith("/") else _rule_url(value)


def _rule_sha256_or_empty(value):
    return None if not value or re.fullmatch(r"[0-9a-f]{64}", value) else ("must be 64 hexadecimal digits", "Compute it with sha256sum.")


def _rule_not_empty(value):
    return None if value and not re.search(r"[\x00-\x1f]", value) else ("must name a folder", "Use a folder such as wheels.")


def _auto_or_bool(value):
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    return _to_bool("", value)


def _rule_auto_or_bool(value):
    try:
        _auto_or_bool(value)
    except IronwheelError:
        return "must be auto, true or false", "Use auto, true or false."
    return None


_RULES = {
    "version": _rule_version,
    "version_or_auto": _rule_version_or_auto,
    "variant": _rule_variant,
    "model": _rule_model,
    "path": _rule_path,
    "not_negative": _rule_not_negative,
    "share": _rule_share,
    "port": _rule_port,
    "address": _rule_address,
    "arguments": _rule_arguments,
    "requirements": _rule_requirements,
    "capabilities": _rule_capabilities,
    "toolkits": _rule_toolkits,
    "prebuilt": _rule_prebuilt,
    "extensions": _rule_extensions,
    "python": _rule_python,
    "url_or_empty": _rule_url_or_empty,
    "url_without_secret": _rule_url_without_secret,
    "urls": _rule_urls,
    "places": _rule_places,
    "place_or_empty": _rule_place_or_empty,
    "sha256_or_empty": _rule_sha256_or_empty,
    "not_empty": _rule_not_empty,
    "auto_or_bool": _rule_auto_or_bool,
}
