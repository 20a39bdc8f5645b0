#!/bin/sh
# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Remove the test hosts (containers named ironwheel-*) and their images.
set -eu

command -v podman >/dev/null 2>&1 || exit 0
containers=$(podman ps --all --quiet --filter label=ironwheel.test)
images=$(podman images --quiet --filter reference='localhost/ironwheel-test-*')
# shellcheck disable=SC2086 # lists of ids
[ -z "$containers" ] || podman rm --force --volumes $containers
# shellcheck disable=SC2086
[ -z "$images" ] || podman rmi --force $images
