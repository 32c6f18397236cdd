#!/bin/sh
# Regenerates replaysvc/v1 from replay.proto. Needs grpcio-tools==1.76.0: code made by it runs with protobuf >=6.31.1,<8.
# usage: protos/generate.sh [PYTHON [OUT]]   (PYTHON has grpcio-tools; OUT defaults to the repository root)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-python3}
out=${2:-$root}
"$python" -m grpc_tools.protoc -I "$root/protos" --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" replaysvc/v1/replay.proto
