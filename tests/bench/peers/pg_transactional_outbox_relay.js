/*
 * pg-transactional-outbox as a relay to Kafka, polling:
 * `pg_transactional_outbox_relay.js DATABASE-URL TABLE BROKERS TOPIC`.
 *
 * Its own helper makes table, function and indexes; the protections that its pages advise against for an outbox are off,
 * and as many rows are in work as there are connections.
 */
'use strict';

const { Kafka } = require('kafkajs');
const { Client } = require('pg');
const { DatabaseSetup, getDisabledLogger, initializePollingMessageListener } = require('pg-transactional-outbox');

const WORKERS = 32;
const FUNCTION = 'next_outbox_messages';

async function prepare(url, table) {
  const setup = { outboxOrInbox: 'outbox', schema: 'public', table, nextMessagesName: FUNCTION };
  const client = new Client({ connectionString: url });
  await client.connect();
  // In one transaction: nobody may write rows while an index is missing.
  await client.query(
    `BEGIN; ${DatabaseSetup.dropAndCreateTable(setup)} ${DatabaseSetup.createPollingFunction(setup)}
     ${DatabaseSetup.setupPollingIndexes(setup)} COMMIT;`,
  );
  await client.end();
}

async function main(url, table, brokers, topic) {
  const producer = new Kafka({ brokers: brokers.split(',') }).producer({ idempotent: true });
  await producer.connect();
  await prepare(url, table);
  const handle = (row) => {
    const headers = { id: row.id, ...row.metadata };
    const message = { key: row.aggregateId, value: JSON.stringify(row.payload), headers };
    return producer.send({ topic, acks: -1, messages: [message] });
  };
  initializePollingMessageListener(
    {
      outboxOrInbox: 'outbox',
      dbListenerConfig: { connectionString: url, max: WORKERS },
      settings: {
        dbSchema: 'public',
        dbTable: table,
        enableMaxAttemptsProtection: false,
        enablePoisonousMessageProtection: false,
        nextMessagesBatchSize: WORKERS,
        nextMessagesFunctionName: FUNCTION,
        nextMessagesPollingIntervalInMs: 50,
      },
    },
    { handle },
    getDisabledLogger(),
  );
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
