#!/usr/bin/env bash
# Install the JDK and Maven that the tests build the Kotlin client with (Debian and Ubuntu, as root). Quick where they
# are there. What Maven fetches is kept in the cache folder of the user who runs the tests.
set -euo pipefail

if command -v javac >/dev/null && command -v mvn >/dev/null; then
  echo "setup: a JDK and Maven are installed"
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: a JDK and Maven are missing and can only be installed by root with apt-get; their test will be skipped" >&2
  exit 0
fi
echo "setup: installing a JDK and Maven"
export DEBIAN_FRONTEND=noninteractive
packages=(default-jdk-headless maven)
apt-get install --quiet --yes --no-install-recommends "${packages[@]}" >/dev/null ||
  { apt-get update --quiet >/dev/null && apt-get install --quiet --yes --no-install-recommends "${packages[@]}" >/dev/null; }
