// Sends a line on for each of its words with kafkajs, line by line in a transaction: BOOTSTRAP NAME.
//
// kafkajs commits offsets without the member's generation, so each partition has a producer of its own: its
// transactional id fences the former owner of the partition. That owner, or a handler of this process that kafkajs has
// left running when it restarted the consumer, may have committed after this member asked for its position. So each
// producer begins with the committed offset that it finds once the others are fenced.
//
// Each send goes to one partition, because kafkajs repeats what it has under way to other brokers if one of several
// fails.
const { Kafka, logLevel } = require('kafkajs')

async function main(bootstrap, name) {
  const kafka = new Kafka({
    clientId: 'relay',
    brokers: bootstrap.split(','),
    logLevel: logLevel.INFO,
    retry: { initialRetryTime: 100, retries: 20 },
  })
  const group = `${name}-relay`
  const consumer = kafka.consumer({
    groupId: group,
    sessionTimeout: 6000,
    heartbeatInterval: 500,
    rebalanceTimeout: 6000,
    readUncommitted: false,
  })
  const admin = kafka.admin()
  const producers = new Map()
  // Fences all others, and returns a producer and the offset that is committed for good.
  const begin = async (topic, partition) => {
    const producer = kafka.producer({
      transactionalId: `${group}-${partition}`,
      idempotent: true,
      maxInFlightRequests: 1,
      transactionTimeout: 10000,
    })
    try {
      await producer.connect()
      const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
      const { offset } = found.partitions.find(each => each.partition === partition)
      return { producer, committed: BigInt(offset) }
    } catch (error) {
      await producer.disconnect()
      throw error
    }
  }
  const end = partition => {
    const ended = producers.get(partition)
    producers.delete(partition)
    return ended.disconnect()
  }
  consumer.on(consumer.events.GROUP_JOIN, event => {
    console.log('joined', JSON.stringify(event.payload.memberAssignment))
    for (const partition of producers.keys()) end(partition)
  })
  await admin.connect()
  await consumer.connect()
  await consumer.subscribe({ topics: [`${name}-lines`], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => {
      if (!producers.has(partition)) {
        const { producer, committed } = await begin(topic, partition)
        producers.set(partition, producer)
        if (committed > BigInt(message.offset)) {
          console.log('done already', partition, message.offset, 'committed', committed.toString())
          consumer.seek({ topic, partition, offset: committed.toString() })
          return
        }
      }
      const producer = producers.get(partition)
      const transaction = await producer.transaction()
      try {
        const line = message.value.toString()
        for (const word of line.split(' ')) {
          await transaction.send({ topic: `${name}-counts`, messages: [{ key: word, value: line }] })
        }
        const offset = (BigInt(message.offset) + 1n).toString()
        await transaction.sendOffsets({
          consumerGroupId: group,
          topics: [{ topic, partitions: [{ partition, offset }] }],
        })
        await transaction.commit()
      } catch (error) {
        console.log('aborted', error.name, error.message)
        await transaction.abort().catch(() => {})
        if (producers.get(partition) === producer) await end(partition)
        throw error
      }
    },
  })
  process.once('SIGTERM', async () => {
    await consumer.disconnect()
    for (const partition of [...producers.keys()]) await end(partition)
    await admin.disconnect()
    process.exit(0)
  })
}

main(...process.argv.slice(2)).catch(error => {
  console.error(error)
  process.exit(1)
})
