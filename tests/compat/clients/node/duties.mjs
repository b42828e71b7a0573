// What the client programs in JavaScript have in common: command line, records, and the duties themselves.
//
// It is the Go package duty in another language; see there for the command line and for what each duty checks. A client
// program defines a class with the methods that the duties call here, and passes it to main.

import { isDeepStrictEqual, parseArgs } from 'node:util'

const timeLimit = 80_000 // milliseconds
const epoch = 1_700_000_000_000
const partitions = 4

export class NotApplicable extends Error {}

// Key and value are Buffers, a null key is null; headers are an object of Buffers.
function records (first, end, spread = 1) {
  const all = []
  for (let i = first; i < end; i++) {
    all.push({
      partition: (i - first) % spread,
      key: i % 3 === 0 ? null : Buffer.from(`key-${i}`),
      value: Buffer.from(`välue-${i}-${'x'.repeat(i % 50)}`),
      headers: { n: Buffer.from(`${i}`) },
      time: epoch + 1000 * i
    })
  }
  return all
}

function sleep (milliseconds) {
  return new Promise(resolve => setTimeout(resolve, milliseconds))
}

function text (record) {
  return JSON.stringify({ ...record, key: record?.key?.toString(), value: record?.value?.toString() })
}

function compare (got, want) {
  for (let i = 0; i < Math.min(got.length, want.length); i++) {
    if (!isDeepStrictEqual(got[i], want[i])) {
      throw new Error(`record ${i} is ${text(got[i])}, want ${text(want[i])}`)
    }
  }
  if (got.length !== want.length) {
    throw new Error(`read ${got.length} records, want ${want.length}`)
  }
}

function compareSets (got, want) {
  const values = list => list.map(r => r.value.toString()).sort()
  if (!isDeepStrictEqual(values(got), values(want))) {
    throw new Error(`read ${JSON.stringify(values(got))}, want ${JSON.stringify(values(want))}`)
  }
}

class Duties {
  constructor (client, name, prefix) {
    this.client = client
    this.topic = this.groupId = prefix + name
    this.deadline = Date.now() + timeLimit
  }

  async wait (what, condition) {
    while (!(await condition())) {
      if (Date.now() > this.deadline) {
        throw new Error(`time is up: waiting for ${what}`)
      }
      await sleep(20)
    }
  }

  async roundTrip (codec, idempotent = false) {
    const want = records(0, 300)
    await this.client.produce(this.topic, want, codec, idempotent)
    compare(await this.read(want.length), want)
  }

  // read reads from the start, or from the first record at or after a time.
  async read (n, fromTime) {
    const reader = await this.client.reader(this.topic, this.groupId + '-reader', fromTime)
    await this.wait('the records', () => reader.records().length >= n)
    await reader.close()
    return reader.records()
  }

  roundtrip () { return this.roundTrip('none') }
  gzip () { return this.roundTrip('gzip') }
  snappy () { return this.roundTrip('snappy') }
  lz4 () { return this.roundTrip('lz4') }
  zstd () { return this.roundTrip('zstd') }
  idempotent () { return this.roundTrip('none', true) }
  stream () { return this.roundTrip('none') }

  async 'seek-time' () {
    const want = records(0, 100)
    await this.client.produce(this.topic, want, 'none')
    compare(await this.read(60, want[40].time - 500), want.slice(40))
  }

  async group () {
    const first = await this.client.join(this.groupId, this.topic)
    await this.wait('the first member to have all partitions', () => first.partitions().length === partitions)
    const second = await this.client.join(this.groupId, this.topic)
    await this.wait('the partitions to be split', () =>
      first.partitions().length === partitions / 2 &&
      isDeepStrictEqual([...first.partitions(), ...second.partitions()].sort(), [0, 1, 2, 3]))
    let batch = records(0, 40, partitions)
    await this.client.produce(this.topic, batch, 'none')
    const both = () => [...first.records(), ...second.records()]
    await this.wait('two members to read all records', () => both().length >= batch.length)
    if (first.records().length === 0 || second.records().length === 0) {
      throw new Error('one member has read all records')
    }
    compareSets(both(), batch)
    const seen = first.records().length
    await second.close()
    await this.wait('the partitions to return', () => first.partitions().length === partitions)
    batch = records(40, 80, partitions)
    await this.client.produce(this.topic, batch, 'none')
    await this.wait('the remaining member to read all records', () => first.records().length >= seen + batch.length)
    compareSets(first.records().slice(seen), batch)
    await first.close()
  }

  async resume () {
    const want = records(0, 100)
    await this.client.produce(this.topic, want, 'none')
    const got = await this.client.readAndCommit(this.groupId, this.topic, 40, this)
    got.push(...await this.client.readAndCommit(this.groupId, this.topic, 60, this))
    compare(got, want)
  }

  async topics () {
    const admin = await this.client.admin()
    await admin.createTopic(this.topic, 3, {})
    await this.wait('the topic to be listed', async () => (await admin.listTopics()).includes(this.topic))
    const n = await admin.partitions(this.topic)
    if (n !== 3) {
      throw new Error(`the new topic has ${n} partitions, want 3`)
    }
    await admin.deleteTopic(this.topic)
    await this.wait('the topic to be gone from the list', async () => !(await admin.listTopics()).includes(this.topic))
    await admin.close()
  }

  async configs () {
    const admin = await this.client.admin()
    await admin.createTopic(this.topic, 1, { 'retention.ms': '3600000' })
    for (const want of ['3600000', '7200000']) {
      const value = await admin.topicConfig(this.topic, 'retention.ms')
      if (value !== want) {
        throw new Error(`retention.ms is ${value}, want ${want}`)
      }
      await admin.setTopicConfig(this.topic, 'retention.ms', '7200000')
    }
    await admin.close()
  }

  async groups () {
    const admin = await this.client.admin()
    await this.client.produce(this.topic, records(0, 10), 'none')
    const member = await this.client.join(this.groupId, this.topic)
    await this.wait('the member to read', () => member.records().length === 10)
    await this.described(admin, ['Stable', 1])
    await this.wait('the group to be listed', async () => (await admin.listGroups()).includes(this.groupId))
    await member.close()
    await this.described(admin, ['Empty', 0])
    await admin.deleteGroup(this.groupId)
    await this.wait('the group to be gone from the list', async () => !(await admin.listGroups()).includes(this.groupId))
    await admin.close()
  }

  async described (admin, want) {
    const got = await admin.describeGroup(this.groupId)
    if (!isDeepStrictEqual(got, want)) {
      throw new Error(`the group is ${got}, want ${want}`)
    }
  }
}

export async function main (Client) {
  const { values } = parseArgs({
    options: { brokers: { type: 'string' }, duty: { type: 'string' }, 'topic-prefix': { type: 'string' } }
  })
  const client = new Client(values.brokers)
  let result = 'ok'
  let detail = ''
  try {
    if (values.duty === 'version') {
      detail = client.version()
    } else {
      const duties = new Duties(client, values.duty, values['topic-prefix'])
      await duties[values.duty]()
    }
  } catch (error) {
    result = error instanceof NotApplicable ? 'n/a' : 'fail'
    detail = error.message
    console.error(error)
  }
  process.stdout.write(JSON.stringify({ duty: values.duty, result, detail }) + '\n', () => {
    process.exit(result === 'fail' ? 1 : 0) // whatever a failed duty has left running
  })
}
