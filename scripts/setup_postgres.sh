#!/usr/bin/env bash
# Install the PostgreSQL server that the tests start by hand (Debian and Ubuntu, as root). Quick where it is there.
# Nothing is left running: no cluster is made, and each test run makes and removes its own.
set -euo pipefail

if compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null || command -v postgres >/dev/null; then
  echo "setup: PostgreSQL is installed"
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: PostgreSQL is missing and can only be installed by root with apt-get; its tests will be skipped" >&2
  exit 0
fi
echo "setup: installing PostgreSQL"
mkdir -p /etc/postgresql-common
[ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
export DEBIAN_FRONTEND=noninteractive
apt-get install --quiet --yes --no-install-recommends postgresql >/dev/null ||
  { apt-get update --quiet >/dev/null && apt-get install --quiet --yes --no-install-recommends postgresql >/dev/null; }
