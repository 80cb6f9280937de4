#!/usr/bin/env bash
# Install what a Kubernetes testbed takes from the system (Debian and Ubuntu, as root). Quick where it is there.
# Nothing is configured: every node of a testbed starts its own containerd, in namespaces of its own.
set -euo pipefail

PACKAGES=(containerd runc containernetworking-plugins busybox-static iproute2 util-linux)

missing=()
for package in "${PACKAGES[@]}"; do
  dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
done
if [ ${#missing[@]} = 0 ]; then
  echo "setup: everything a testbed needs is installed"
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: missing ${missing[*]}; only root can install them, with apt-get" >&2
  exit 1
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Somebody else may be installing something; a service that is already there is not restarted for us.
install=(apt-get install --quiet --yes --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}")
"${install[@]}" >/dev/null || { apt-get update --quiet -o DPkg::Lock::Timeout=300 >/dev/null && "${install[@]}" >/dev/null; }
