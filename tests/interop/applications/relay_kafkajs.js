// Sends a line on for each of its words with kafkajs, line by line in a transaction: BOOTSTRAP NAME.
//
// kafkajs commits offsets without the member's generation, so each partition has a producer of its own: its
// transactional id fences the former owner of the partition. Each send goes to one partition, because kafkajs repeats
// what it has under way to other brokers if one of several fails.
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
  const producers = new Map()
  const producerOf = async partition => {
    if (!producers.has(partition)) {
      const producer = kafka.producer({
        transactionalId: `${group}-${partition}`,
        idempotent: true,
        maxInFlightRequests: 1,
        transactionTimeout: 10000,
      })
      await producer.connect()
      producers.set(partition, producer)
    }
    return producers.get(partition)
  }
  consumer.on(consumer.events.GROUP_JOIN, event => console.log('joined', JSON.stringify(event.payload.memberAssignment)))
  await consumer.connect()
  await consumer.subscribe({ topics: [`${name}-lines`], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => {
      const producer = await producerOf(partition)
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
        producers.delete(partition)
        await transaction.abort().catch(() => {})
        await producer.disconnect()
        throw error
      }
    },
  })
  process.once('SIGTERM', async () => {
    await consumer.disconnect()
    for (const producer of producers.values()) await producer.disconnect()
    process.exit(0)
  })
}

main(...process.argv.slice(2)).catch(error => {
  console.error(error)
  process.exit(1)
})
