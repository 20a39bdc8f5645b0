#!/bin/sh
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Bring the commands that a test step needs on Debian or Ubuntu: need.sh COMMAND...
# Nothing happens when all are there. Otherwise their packages are installed as root or with sudo; where that is not possible,
# the missing packages are named and the exit status is 1. Pseudo-commands: "containers" (podman and what it needs for published
# ports), "images" (what builds the hosts' images), "venv" (python3 with venv and pip).
set -eu

missing=""
optional=""

have() {
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]
}

want() { # COMMAND PACKAGE
    have "$1" || missing="$missing $2"
}

for item in "$@"; do
    case $item in
    containers)
        want podman podman
        want runc runc
        want iptables iptables
        want ssh openssh-client
        # A podman that came without its recommended packages has no network. Older releases use CNI instead and lack these packages.
        have podman || optional="netavark aardvark-dns"
        ;;
    images)
        want mmdebstrap mmdebstrap
        [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing="$missing debian-archive-keyring"
        ;;
    venv)
        python=${PYTHON:-python3}
        if ! have "$python"; then
            missing="$missing python3 python3-venv"
        elif ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
            missing="$missing python3-venv"
        fi
        ;;
    ssh | ssh-keygen) want "$item" openssh-client ;;
    *) want "$item" "$item" ;;
    esac
done

[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo -n"
    if ! command -v sudo >/dev/null 2>&1 || ! sudo -n true 2>/dev/null; then
        echo "Missing packages:$missing. Remedy: apt-get install$missing, or run as root or with passwordless sudo." >&2
        exit 1
    fi
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing packages (Debian names):$missing. This machine has no apt-get; install their counterparts and run again." >&2
    exit 1
fi

echo "Installing with apt:$missing"
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
for package in $optional; do
    if apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [0-9]'; then
        missing="$missing $package"
    fi
done
# shellcheck disable=SC2086 # a list of package names
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
