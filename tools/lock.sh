#!/bin/sh
# Turns requirements.in into requirements.txt; run after changing a pin, then review the difference.
set -eu
cd "$(dirname "$0")/.."
lock_environment=build/lock
python3 -m venv "$lock_environment"
unset PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL
"$lock_environment/bin/pip" install --quiet pip-tools==7.6.2
CUSTOM_COMPILE_COMMAND=tools/lock.sh "$lock_environment/bin/pip-compile" \
    --quiet --generate-hashes --strip-extras --allow-unsafe --no-header \
    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
    --output-file requirements.txt requirements.in
