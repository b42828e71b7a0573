// Carries out the duties of the compatibility run with @platformatic/kafka. It reads in groups only.

import { Admin as KafkaAdmin, Consumer, Producer, compressionsAlgorithms } from '@platformatic/kafka'
import { readFileSync } from 'node:fs'
import { NotApplicable, main } from './duties.mjs'

const topicResource = 2
const setOperation = 0
const maxWaitTime = 200

class Member {
  constructor (brokers, groupId, topic, { limit, autocommit = true } = {}) {
    this.topic = topic
    this.limit = limit ?? Infinity
    this.read = []
    this.consumer = new Consumer({
      clientId: 'compat',
      bootstrapBrokers: [brokers],
      groupId,
      heartbeatInterval: 500,
      sessionTimeout: 10_000,
      maxWaitTime,
      autocommit,
      autocreateTopics: true
    })
    this.consumer.on('consumer:group:join', () => { this.joined = Date.now() })
  }

  async run (options = { mode: 'committed', fallbackMode: 'earliest' }) {
    this.messages = await this.consumer.consume({ topics: [this.topic], ...options })
    this.messages.on('error', error => { this.error = error })
    this.messages.on('data', message => {
      if (this.read.length < this.limit) {
        this.read.push({
          partition: message.partition,
          key: message.key ?? null,
          value: message.value,
          headers: Object.fromEntries([...message.headers].map(([name, value]) => [name.toString(), value])),
          time: Number(message.timestamp)
        })
        this.next = message.offset + 1n
      }
    })
    return this
  }

  check () {
    if (this.error) {
      throw this.error
    }
  }

  // A fetch that waits for records when the member joins again is for the partitions that it had before. They are its
  // own no longer, but it would read them once more.
  partitions () {
    this.check()
    if (!(Date.now() - this.joined > 2 * maxWaitTime)) {
      return []
    }
    return (this.consumer.assignments ?? []).filter(a => a.topic === this.topic).flatMap(a => a.partitions).sort()
  }

  records () {
    this.check()
    return [...this.read]
  }

  async close () {
    await this.messages.close()
    await this.consumer.close(true)
  }
}

class Client {
  constructor (brokers) {
    this.brokers = brokers
  }

  version () {
    return JSON.parse(readFileSync(new URL('node_modules/@platformatic/kafka/package.json', import.meta.url))).version
  }

  async produce (topic, records, codec, idempotent = false) {
    if (!compressionsAlgorithms[codec].available) {
      throw new NotApplicable(`it has no ${codec} under Node.js ${process.versions.node.split('.')[0]}`)
    }
    const producer = new Producer({
      clientId: 'compat',
      bootstrapBrokers: [this.brokers],
      autocreateTopics: true,
      idempotent,
      compression: codec
    })
    await producer.send({
      acks: -1,
      messages: records.map(r => ({
        topic,
        partition: r.partition,
        key: r.key ?? undefined,
        value: r.value,
        headers: new Map(Object.entries(r.headers).map(([name, value]) => [Buffer.from(name), value])),
        timestamp: BigInt(r.time)
      }))
    })
    await producer.close()
  }

  async reader (topic, group, fromTime) {
    const member = new Member(this.brokers, group, topic)
    if (fromTime === undefined) {
      return member.run({ mode: 'earliest' })
    }
    const found = await member.consumer.listOffsetsWithTimestamps({ topics: [topic], timestamp: BigInt(fromTime) })
    return member.run({ mode: 'manual', offsets: [{ topic, partition: 0, offset: found.get(topic).get(0).offset }] })
  }

  join (group, topic) {
    return new Member(this.brokers, group, topic).run()
  }

  async readAndCommit (group, topic, n, duties) {
    const member = await new Member(this.brokers, group, topic, { limit: n, autocommit: false }).run()
    await duties.wait('the records', () => member.records().length >= n)
    await member.consumer.commit({ offsets: [{ topic, partition: 0, offset: member.next, leaderEpoch: -1 }] })
    await member.close()
    return member.records()
  }

  async admin () {
    return new Admin(new KafkaAdmin({ clientId: 'compat', bootstrapBrokers: [this.brokers] }))
  }
}

class Admin {
  constructor (admin) {
    this.client = admin
  }

  createTopic (topic, partitions, configs) {
    return this.client.createTopics({
      topics: [topic],
      partitions,
      replicas: 1,
      configs: Object.entries(configs).map(([name, value]) => ({ name, value }))
    })
  }

  listTopics () { return this.client.listTopics() }

  async partitions (topic) {
    const metadata = await this.client.metadata({ topics: [topic], forceUpdate: true })
    return metadata.topics.get(topic).partitionsCount
  }

  deleteTopic (topic) { return this.client.deleteTopics({ topics: [topic] }) }

  async topicConfig (topic, name) {
    const resources = await this.client.describeConfigs({
      resources: [{ resourceType: topicResource, resourceName: topic, configurationKeys: [name] }],
      includeSynonyms: false,
      includeDocumentation: false
    })
    return resources[0].configs[0].value
  }

  setTopicConfig (topic, name, value) {
    return this.client.incrementalAlterConfigs({
      resources: [{ resourceType: topicResource, resourceName: topic, configs: [{ name, value, configOperation: setOperation }] }],
      validateOnly: false
    })
  }

  async listGroups () {
    return [...(await this.client.listGroups()).keys()]
  }

  async describeGroup (group) {
    const found = (await this.client.describeGroups({ groups: [group] })).get(group)
    const state = found.state.toLowerCase()
    return [state[0].toUpperCase() + state.slice(1), found.members.size]
  }

  deleteGroup (group) { return this.client.deleteGroups({ groups: [group] }) }
  close () { return this.client.close() }
}

main(Client)
