#!/bin/sh
# Runs before every command of the image: builds REDIS_URL with the password from a file. Environment
# variables set from outside are shown by `docker inspect`; this one is not.
set -eu
if [ -z "${REDIS_URL:-}" ] && [ -n "${REDIS_PASSWORD_FILE:-}" ]; then
    if ! password=$(cat "$REDIS_PASSWORD_FILE") || [ -z "$password" ]; then
        echo "REDIS_PASSWORD_FILE=$REDIS_PASSWORD_FILE: no password there; is the server up?" >&2
        exit 1
    fi
    export REDIS_URL="redis://:$password@${REDIS_HOST:-redis}:6379/0"
fi
exec "$@"
