#!/bin/sh
# Installs a Node peer's packages, exactly as locked, into BENCH_INSTALL_DIR. It must never write into the repository.
set -eu
: "${BENCH_INSTALL_DIR:?is not set: give a folder for what is installed}"
mkdir -p "$BENCH_INSTALL_DIR"
cp package.json package-lock.json "$BENCH_INSTALL_DIR/"
npm ci --prefix "$BENCH_INSTALL_DIR" --no-audit --no-fund --loglevel error
