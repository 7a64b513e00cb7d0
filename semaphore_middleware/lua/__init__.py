"""One verb a file. `clock.lua` comes before each, `prelude.lua` before acquire, release, renew."""
