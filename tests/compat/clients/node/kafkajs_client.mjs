// Carries out the duties of the compatibility run with kafkajs. It reads in groups only.

import { createRequire } from 'node:module'
import kafkajs from 'kafkajs'
import snappy from 'kafkajs-snappy'
import lz4 from 'lz4js'
import { main } from './duties.mjs'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = kafkajs

// The library brings gzip; the others are plugged in as its documentation says.
CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(lz4.decompress(buffer))
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from((await zstd()).compress(encoder.buffer)),
  decompress: async buffer => Buffer.from((await zstd()).decompress(buffer))
})

async function zstd () {
  const library = createRequire(import.meta.url)('@bokuweb/zstd-wasm')
  await library.init()
  return library
}

const codecs = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD
}

class Member {
  constructor (kafka, groupId, topic) {
    this.topic = topic
    this.assigned = []
    this.read = []
    this.consumer = kafka.consumer({ groupId, heartbeatInterval: 500, allowAutoTopicCreation: true })
    const { GROUP_JOIN, REBALANCING } = this.consumer.events
    this.consumer.on(GROUP_JOIN, ({ payload }) => { this.assigned = payload.memberAssignment[topic] ?? [] })
    this.consumer.on(REBALANCING, () => { this.assigned = [] })
  }

  async run (options) {
    await this.consumer.connect()
    await this.consumer.subscribe({ topic: this.topic, fromBeginning: true })
    await this.consumer.run(options ?? {
      eachMessage: async ({ partition, message }) => { this.add(partition, message) }
    })
    return this
  }

  add (partition, message) {
    this.read.push({
      partition,
      key: message.key,
      value: message.value,
      headers: { ...message.headers },
      time: Number(message.timestamp)
    })
  }

  partitions () { return [...this.assigned].sort() }
  records () { return [...this.read] }
  close () { return this.consumer.disconnect() }
}

class Client {
  constructor (brokers) {
    this.kafka = new Kafka({ brokers: [brokers], logLevel: logLevel.WARN })
  }

  version () {
    return createRequire(import.meta.url)('kafkajs/package.json').version
  }

  async produce (topic, records, codec, idempotent = false) {
    const producer = this.kafka.producer({ idempotent, allowAutoTopicCreation: true, createPartitioner: () => ({ message }) => message.partition })
    await producer.connect()
    await producer.send({
      topic,
      acks: -1,
      compression: codecs[codec],
      messages: records.map(({ time, ...rest }) => ({ ...rest, timestamp: String(time) }))
    })
    await producer.disconnect()
  }

  async reader (topic, group, fromTime) {
    if (fromTime !== undefined) {
      const admin = this.kafka.admin()
      await admin.connect()
      const [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(topic, fromTime)
      await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset }] })
      await admin.disconnect()
    }
    return new Member(this.kafka, group, topic).run()
  }

  join (group, topic) {
    return new Member(this.kafka, group, topic).run()
  }

  async readAndCommit (group, topic, n, duties) {
    const member = new Member(this.kafka, group, topic)
    await member.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        if (member.read.length < n) {
          member.add(partition, message)
          member.next = (BigInt(message.offset) + 1n).toString()
        }
      }
    })
    await duties.wait('the records', () => member.records().length >= n)
    await member.consumer.commitOffsets([{ topic, partition: 0, offset: member.next }])
    await member.close()
    return member.records()
  }

  async admin () {
    const admin = this.kafka.admin()
    await admin.connect()
    return new Admin(admin)
  }
}

class Admin {
  constructor (admin) {
    this.client = admin
  }

  async createTopic (topic, numPartitions, configs) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    if (!await this.client.createTopics({ topics: [{ topic, numPartitions, configEntries }] })) {
      throw new Error('the topic exists')
    }
  }

  listTopics () { return this.client.listTopics() }

  async partitions (topic) {
    const { topics } = await this.client.fetchTopicMetadata({ topics: [topic] })
    return topics[0].partitions.length
  }

  deleteTopic (topic) { return this.client.deleteTopics({ topics: [topic] }) }

  async topicConfig (topic, name) {
    const { resources } = await this.client.describeConfigs({
      includeSynonyms: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: [name] }]
    })
    return resources[0].configEntries[0].configValue
  }

  setTopicConfig (topic, name, value) {
    return this.client.alterConfigs({
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name, value }] }]
    })
  }

  async listGroups () {
    return (await this.client.listGroups()).groups.map(g => g.groupId)
  }

  async describeGroup (group) {
    const { groups } = await this.client.describeGroups([group])
    return [groups[0].state, groups[0].members.length]
  }

  deleteGroup (group) { return this.client.deleteGroups([group]) }
  close () { return this.client.disconnect() }
}

main(Client)
