#!/usr/bin/env bash
# Install VDK's own programs, vdkcli and vdk, at their locked versions into an environment of their own, and print the
# folder they are in. Quick where they are there. The environment is kept in the cache folder; root's is kept where other
# users can run it too, because jobs run as users of their own.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
requirements=("$root/requirements/vdk-build.txt" "$root/requirements/vdk.txt")

# For root: whether everybody can pass all folders above.
usable='
import ensurepip, os, pathlib, sys, venv
folders = [pathlib.Path(sys.base_prefix), *pathlib.Path(sys.base_prefix).parents]
sys.exit(sys.version_info < (3, 11) or (os.geteuid() == 0 and not all(one.stat().st_mode & 1 for one in folders)))
'
python=
for name in ${PYTHON:-python3 /usr/bin/python3 /usr/local/bin/python3}; do
  if "$name" -c "$usable" >/dev/null 2>&1; then
    python=$name
    break
  fi
done
if [ -z "$python" ]; then
  echo "setup: no Python 3.11 or newer with its venv module here that jobs of other users can run" >&2
  exit 1
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpuyard
if [ "$(id -u)" = 0 ]; then
  cache=/var/cache/gpuyard
fi
key=$( (cat "${requirements[@]}"; "$python" -c 'import sys; print(sys.version, sys.base_prefix)') | sha256sum | cut -c 1-16)
folder=$cache/vdk-$key
mkdir -p "$cache"
exec 9>"$folder.lock"
flock 9
if [ ! -e "$folder/ready" ]; then
  echo "setup: installing vdkcli and vdk" >&2
  "$python" -m venv --clear "$folder"
  for file in "${requirements[@]}"; do
    # What is only there as source is built with the locked setuptools, not with the newest.
    "$folder/bin/python" -m pip --quiet --disable-pip-version-check install --require-hashes --no-build-isolation \
      -r "$file" >&2
  done
  chmod -R a+rX "$folder"
  touch "$folder/ready"
fi
echo "$folder/bin"
