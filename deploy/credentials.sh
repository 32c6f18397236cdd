#!/bin/sh
# Makes what a secured service and those who call it need, in a new directory: a CA for this service alone, a certificate for its
# host names, and a token for each program. README.md in this folder says who gets which file.
#
#   deploy/credentials.sh DIRECTORY HOSTNAME...
#
# Needs openssl, and the command `replaysvc` (or RUN_REPLAYSVC, which may be a longer one that runs it).
set -eu

if [ $# -lt 2 ]; then
  echo "usage: $0 DIRECTORY HOSTNAME..." >&2
  exit 2
fi
directory=$1
shift
if [ -e "$directory" ]; then
  echo "$0: expected a directory to be made, found $directory; remove it, or choose another" >&2
  exit 2
fi
names=DNS:localhost,IP:127.0.0.1
for name in "$@"; do names="$names,DNS:$name"; done

umask 077
mkdir -p "$directory"
cd "$directory"
new="openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
$new -days 3650 -subj /CN=replaysvc-ca -keyout ca.key -out ca.pem 2>/dev/null
$new -days 365 -subj "/CN=$1" -CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE \
  -addext "subjectAltName=$names" -keyout server.key -out server.pem 2>/dev/null

while read -r name role; do
  ${RUN_REPLAYSVC:-replaysvc} token "$name" --role "$role" --file tokens.toml > "$name.token" </dev/null
done <<END
actor-0 writer
actor-1 writer
learner learner
evaluator learner
prometheus viewer
ops admin
END
openssl rand -hex 24 > grafana-admin.password

# Compose shows a file to a container with the owner and mode that it has here, and the containers' users are not this one. So
# those that are shown are readable, and the directory around them is closed to everyone else. ca.key and ops.token stay as they are.
chmod 644 ca.pem server.pem server.key tokens.toml grafana-admin.password \
  actor-0.token actor-1.token learner.token evaluator.token prometheus.token
echo "made $directory for $names"
