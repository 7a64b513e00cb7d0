// One process of a contest (see benchmarks/harness/contest.py), as redis-semaphore's README has it.
// Told in JSON on the command line: place, clients, work_s; then, in a line on standard input: when
// to start, and when the counted time begins and ends, in seconds.
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import Redis from 'ioredis'
import { Semaphore } from 'redis-semaphore'

const told = JSON.parse(process.argv[2])
const { path, scope, limit, lease } = told.place
const redis = new Redis({ path })
await redis.ping()
console.log('ready')

const line = await new Promise(resolve => createInterface(process.stdin).once('line', resolve))
const [start, begin, end] = JSON.parse(line)
const now = () => Number(process.hrtime.bigint()) / 1e9 // Linux: CLOCK_MONOTONIC, as Python's
const until = moment => sleep(Math.max(0, 1000 * (moment - now())))
const processorSeconds = () => {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1e6
}
const visits = []

async function come_and_go() {
  const semaphore = new Semaphore(redis, scope, limit, { lockTimeout: 1000 * lease })
  while (now() < end) {
    await semaphore.acquire()
    const granted = now()
    await sleep(1000 * told.work_s)
    visits.push([granted, now()])
    await semaphore.release()
  }
}

await until(start)
const clients = Array.from({ length: told.clients }, come_and_go)
await until(begin)
const before = processorSeconds()
await until(end)
const used = processorSeconds() - before
await Promise.all(clients)
process.stdout.write(JSON.stringify([visits, used]), () => process.exit())
