// Calls every function of the admin client of kafkajs once, and prints what each returned as a line of JSON: BOOTSTRAP NAME.
const { Kafka, logLevel, ConfigResourceTypes, AclResourceTypes, AclOperationTypes, AclPermissionTypes, ResourcePatternTypes } = require('kafkajs')

const kafka = new Kafka({
  clientId: 'admin',
  brokers: process.argv[2].split(','),
  logLevel: logLevel.NOTHING,
  retry: { retries: 3 },
})
const name = process.argv[3]
// Keys that Moldau alone has: its own, and those that are newer than the Apache Kafka of this test.
const OF_ONE = /^(errors|remote\.copy\.lag)\.|^max\.(message\.uncompressed|decompressed\.message)\.bytes$/
const byName = entries => [...entries].sort((a, b) => (a.configName < b.configName ? -1 : 1))
const replicas = Number(process.argv[4] || 3)

async function say(what, call) {
  try {
    const found = await call()
    console.log(JSON.stringify({ what, found: found === undefined ? null : found }, (_, value) => (Buffer.isBuffer(value) ? value.toString() : value)))
  } catch (error) {
    const errors = (error.errors || []).map(each => each.type || each.message)
    console.log(JSON.stringify({ what, error: error.name, type: error.type, message: error.message, errors }))
  }
}

async function consumeAll(group, count) {
  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6000 })
  await consumer.connect()
  await consumer.subscribe({ topic: name, fromBeginning: true })
  let found = 0
  await new Promise(resolve => consumer.run({ eachMessage: async () => { if (++found === count) resolve() } }))
  return consumer
}

async function main() {
  const admin = kafka.admin()
  await admin.connect()
  const topic = {
    topic: name,
    numPartitions: 2,
    replicationFactor: replicas,
    configEntries: [{ name: 'cleanup.policy', value: 'compact' }, { name: 'retention.ms', value: '86400000' }],
  }
  await say('createTopics', () => admin.createTopics({ topics: [topic], waitForLeaders: true }))
  await say('createTopics again', () => admin.createTopics({ topics: [topic] }))
  await say('createTopics validateOnly', () => admin.createTopics({ validateOnly: true, topics: [{ topic: `${name}-dry` }] }))
  await say('createTopics wrong', () => admin.createTopics({ topics: [{ topic: `${name}-wrong`, numPartitions: 1, replicationFactor: 9 }] }))
  await say('createTopics unknown key', () =>
    admin.createTopics({ topics: [{ topic: `${name}-key`, configEntries: [{ name: 'no.such.key', value: '1' }] }] }))
  await say('createTopics assignment', () =>
    admin.createTopics({ topics: [{ topic: `${name}-placed`, replicaAssignment: [{ partition: 0, replicas: [1] }] }] }))
  await say('createTopics defaults', () => admin.createTopics({ topics: [{ topic: `${name}-default` }] }))
  await say('listTopics', async () => (await admin.listTopics()).filter(each => each.startsWith(name)).sort())
  await say('createPartitions', () => admin.createPartitions({ topicPartitions: [{ topic: name, count: 3 }] }))
  await say('createPartitions fewer', () => admin.createPartitions({ topicPartitions: [{ topic: name, count: 1 }] }))
  await say('fetchTopicMetadata', async () => {
    const { topics } = await admin.fetchTopicMetadata({ topics: [name] })
    return topics.map(each => [each.name, each.partitions.map(one => [one.partitionId, one.partitionErrorCode, one.replicas.length, one.isr.length]).sort()])
  })
  await say('fetchTopicMetadata unknown', () => admin.fetchTopicMetadata({ topics: [`${name}-none`] }))
  await say('describeConfigs', async () => {
    const { resources } = await admin.describeConfigs({
      includeSynonyms: true,
      resources: [{ type: ConfigResourceTypes.TOPIC, name, configNames: ['cleanup.policy', 'retention.ms', 'segment.bytes'] }],
    })
    return resources.map(each => ({ ...each, configEntries: byName(each.configEntries) }))
  })
  await say('describeConfigs all names', async () => {
    const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name }] })
    return byName(resources[0].configEntries)
      .filter(each => !OF_ONE.test(each.configName))
      .map(each => [each.configName, each.readOnly, each.isDefault, each.isSensitive])
  })
  await say('describeConfigs broker', async () => {
    const { resources } = await admin.describeConfigs({
      includeSynonyms: false,
      resources: [{ type: ConfigResourceTypes.BROKER, name: '1', configNames: ['num.partitions', 'compression.type'] }],
    })
    return resources.map(each => [each.errorCode, byName(each.configEntries).map(one => [one.configName, one.configValue])])
  })
  await say('describeConfigs unknown topic', async () => {
    return (await admin.describeConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: `${name}-none` }] })).resources
  })
  await say('alterConfigs', async () => (await admin.alterConfigs({
    resources: [{ type: ConfigResourceTypes.TOPIC, name, configEntries: [{ name: 'cleanup.policy', value: 'delete' }] }],
  })).resources)
  await say('alterConfigs wrong', async () => (await admin.alterConfigs({
    resources: [{ type: ConfigResourceTypes.TOPIC, name, configEntries: [{ name: 'cleanup.policy', value: 'burn' }] }],
  })).resources)
  await say('describeConfigs altered', async () => {
    const { resources } = await admin.describeConfigs({
      resources: [{ type: ConfigResourceTypes.TOPIC, name, configNames: ['cleanup.policy', 'retention.ms'] }],
    })
    return byName(resources[0].configEntries).map(each => [each.configName, each.configValue, each.isDefault])
  })
  const producer = kafka.producer()
  await producer.connect()
  await say('send', async () => (await producer.send({
    topic: name,
    acks: -1,
    messages: [0, 1, 2, 3, 4, 5].map(value => ({ partition: value % 3, key: `${value}`, value: `v${value}`, headers: { h: 'x' }, timestamp: `${1700000000000 + value}` })),
  })).map(each => [each.partition, each.errorCode, each.baseOffset, each.logAppendTime, each.logStartOffset]).sort())
  await say('send to an unknown topic', async () => (await producer.send({ topic: `${name}-auto`, messages: [{ value: 'v' }] })).length)
  await say('send too large', async () => producer.send({ topic: name, messages: [{ partition: 0, value: Buffer.alloc(2 << 20) }] }))
  await producer.disconnect()
  await say('fetchTopicOffsets', async () => (await admin.fetchTopicOffsets(name)).sort((a, b) => a.partition - b.partition))
  await say('fetchTopicOffsetsByTimestamp', async () => (await admin.fetchTopicOffsetsByTimestamp(name, 1700000000003)).sort((a, b) => a.partition - b.partition))
  const consumer = await consumeAll(`${name}-group`, 6)
  await say('describeGroups', async () => {
    const { groups } = await admin.describeGroups([`${name}-group`, `${name}-absent`])
    return groups.map(each => [each.errorCode, each.groupId, each.protocol, each.protocolType, each.state, each.members.map(one => [one.clientId, one.clientHost.replace('/', ''), one.memberAssignment.length, one.memberMetadata.length])])
  })
  await say('listGroups', async () => (await admin.listGroups()).groups.filter(each => each.groupId.startsWith(name)))
  await say('deleteGroups with members', () => admin.deleteGroups([`${name}-group`]))
  await say('setOffsets with members', () => admin.setOffsets({ groupId: `${name}-group`, topic: name, partitions: [{ partition: 0, offset: '1' }] }))
  await consumer.disconnect()
  const sorted = found => found.map(each => ({ ...each, partitions: each.partitions.sort((a, b) => a.partition - b.partition) }))
  await say('fetchOffsets', async () => sorted(await admin.fetchOffsets({ groupId: `${name}-group`, topics: [name] })))
  await say('fetchOffsets all topics', async () => sorted(await admin.fetchOffsets({ groupId: `${name}-group` })))
  await say('setOffsets', () => admin.setOffsets({ groupId: `${name}-group`, topic: name, partitions: [{ partition: 0, offset: '1' }] }))
  await say('fetchOffsets after setOffsets', async () => sorted(await admin.fetchOffsets({ groupId: `${name}-group`, topics: [name], resolveOffsets: true })))
  await say('resetOffsets', () => admin.resetOffsets({ groupId: `${name}-group`, topic: name, earliest: true }))
  await say('fetchOffsets after resetOffsets', async () => sorted(await admin.fetchOffsets({ groupId: `${name}-group`, topics: [name] })))
  await say('fetchOffsets of an unknown group', async () => sorted(await admin.fetchOffsets({ groupId: `${name}-absent`, topics: [name] })))
  await say('deleteTopicRecords', () => admin.deleteTopicRecords({ topic: name, partitions: [{ partition: 0, offset: '1' }, { partition: 1, offset: '-1' }] }))
  await say('deleteTopicRecords beyond', () => admin.deleteTopicRecords({ topic: name, partitions: [{ partition: 2, offset: '99' }] }))
  await say('fetchTopicOffsets after deletion', async () => (await admin.fetchTopicOffsets(name)).sort((a, b) => a.partition - b.partition))
  await say('deleteGroups', () => admin.deleteGroups([`${name}-group`]))
  await say('deleteGroups again', () => admin.deleteGroups([`${name}-group`]))
  await say('describeCluster', async () => {
    const { brokers, controller, clusterId } = await admin.describeCluster()
    return [brokers.length, typeof controller, typeof clusterId]
  })
  const acl = {
    resourceType: AclResourceTypes.TOPIC,
    resourceName: name,
    resourcePatternType: ResourcePatternTypes.LITERAL,
    principal: 'User:bob',
    host: '*',
    operation: AclOperationTypes.READ,
    permissionType: AclPermissionTypes.ALLOW,
  }
  await say('createAcls', () => admin.createAcls({ acl: [acl] }))
  await say('describeAcls', async () => (await admin.describeAcls(acl)).resources)
  await say('deleteAcls', async () => (await admin.deleteAcls({ filters: [acl] })).filterResponses)
  await say('listPartitionReassignments', () => admin.listPartitionReassignments({ topics: [{ topic: name, partitions: [0] }] }))
  await say('alterPartitionReassignments', () =>
    admin.alterPartitionReassignments({ topics: [{ topic: `${name}-placed`, partitionAssignment: [{ partition: 0, replicas: [1] }] }] }))
  await say('deleteTopics', () => admin.deleteTopics({ topics: [name, `${name}-placed`] }))
  await say('deleteTopics again', () => admin.deleteTopics({ topics: [name] }))
  await admin.disconnect()
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1) })
