#!/bin/sh
# Makes a virtual environment with exactly the listed packages. It must never write into the repository.
set -eu
: "${BENCH_INSTALL_DIR:?is not set: give a folder for what is installed}"
python3 -m venv "$BENCH_INSTALL_DIR"
"$BENCH_INSTALL_DIR/bin/pip" install --quiet --disable-pip-version-check --no-deps -r requirements.txt
