"""The whole system in simulated time: real nodes, real scripts, and faults that a seed decides on.

    plan.py      what happens in a run: nodes, their requests, faults. Data, drawn from a seed.
    run.py       a plan's run: nodes with the real `FairSemaphore`, whose requests notify the judge
    judge.py     checks of the promises against what nodes really do
    memory.py    finds what nodes and the server still keep when they should keep nothing
    world.py     time, and the hosts: one event loop each, which is frozen by not running it
    network.py   a host's connections to the server, which lose and delay calls and replies
    server.py    the server: the real scripts in Lua 5.1 over a small Redis, `redis.lua`
    power.py     each rule of the protocol switched off: which seeds or tests fail
    changes.py   changes of a statement that switch its rule off
    __main__.py  `make sim`: runs seeds; shrinks a failure, and shows its timeline

Only redis-py's connection, the loop's clock and the source of randomness are replaced. A seed gives
the same run to the last digit.
"""
