#!/usr/bin/env bash
# Measures everything in an environment of its own: the peers are no dependencies of the package.
#   benchmarks/run.sh                      every group, into benchmarks/results/
#   benchmarks/run.sh attention --quick    one group, tiny, only printed
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-bench
python=$venv/bin/python
stamp=$venv/.ready
test -x "$python" || "${PYTHON:-python3}" -m venv "$venv"
if [ ! -e "$stamp" ] || [ benchmarks/requirements.txt -nt "$stamp" ] \
    || [ constraints.txt -nt "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    echo "setting up $venv" >&2
    "$python" -m pip install --quiet --constraint constraints.txt \
        --requirement benchmarks/requirements.txt --editable '.[app]'
    touch "$stamp"
fi
exec "$python" -m benchmarks "$@"
