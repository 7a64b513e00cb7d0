#!/bin/sh
# Stands before every command of the image: makes REDIS_URL of the password in a file. Environment
# variables set from outside show in `docker inspect`; this one does not.
set -eu
if [ -z "${REDIS_URL:-}" ] && [ -n "${REDIS_PASSWORD_FILE:-}" ]; then
    if ! password=$(cat "$REDIS_PASSWORD_FILE") || [ -z "$password" ]; then
        echo "REDIS_PASSWORD_FILE=$REDIS_PASSWORD_FILE: no password there; is the server up?" >&2
        exit 1
    fi
    export REDIS_URL="redis://:$password@${REDIS_HOST:-redis}:6379/0"
fi
exec "$@"
