"""The whole system in simulated time: real nodes, real scripts, and faults that a seed decides on.

    plan.py      what happens in a run: nodes, their requests, faults. Data, drawn from a seed.
    run.py       a plan's run: nodes with the real `FairSemaphore`, whose requests tell the judge
    judge.py     what was promised, by the nodes' own truth
    memory.py    what nodes and the server still remember when there is nothing to remember
    world.py     time, and the hosts: one event loop each, which is frozen by not running it
    network.py   a host's connections to the server, and what becomes of calls and replies
    server.py    the server: the real scripts in Lua 5.1 over a small Redis, `redis.lua`
    power.py     each rule of the protocol switched off: which seeds or tests see it
    changes.py   what becomes of a statement when its rule is switched off
    __main__.py  `make sim`: runs seeds; makes a failure small, and shows it as a timeline

Nothing of the package is replaced but redis-py's connection, the loop's clock and the source of
randomness. A seed gives the same run to the last digit.
"""
