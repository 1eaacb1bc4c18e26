// A round of every feature of the JavaScript SDK against one namespace.
//
// Usage: CONNECTION_STRING=… node round.mjs. One JSON line per feature: {"feature", "ok", "error"}.
// Nothing sleeps: what takes time is waited for by receiving.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import process from "node:process";

const require = createRequire(`${process.env.SDK_FOLDER ?? process.cwd()}/`);
const { ServiceBusClient, ServiceBusAdministrationClient, isServiceBusError } = require("@azure/service-bus");

const connectionString = process.env.CONNECTION_STRING;
const retryOptions = { maxRetries: 0, timeoutInMs: 20_000 };
const client = new ServiceBusClient(connectionString, { retryOptions });
const admin = new ServiceBusAdministrationClient(connectionString);
const WAIT = { maxWaitTimeInMs: 20_000 };

let number = 0;
async function newQueue(options = {}) {
  const name = `js-queue-${++number}`;
  await admin.createQueue(name, options);
  return name;
}
async function newTopic(options = {}) {
  const name = `js-topic-${++number}`;
  await admin.createTopic(name, options);
  return name;
}
async function receive(receiver, count) {
  const found = [];
  while (found.length < count) {
    const more = await receiver.receiveMessages(count - found.length, WAIT);
    if (more.length === 0) break;
    found.push(...more);
  }
  assert.equal(found.length, count, `expected ${count} messages, got ${found.length}`);
  return found;
}
const bodies = (messages) => messages.map((message) => message.body);
const fails = (promise, code) =>
  assert.rejects(promise, (error) => isServiceBusError(error) && error.code === code || assert.fail(`${error.code}: ${error}`));

const features = {
  async "send and complete"() {
    const queue = await newQueue();
    const sender = client.createSender(queue);
    const receiver = client.createReceiver(queue);
    await sender.sendMessages({
      body: { deep: [1, "two", null] }, messageId: "id", correlationId: "c", subject: "label", contentType: "application/json",
      to: "t", replyTo: "r", timeToLive: 3_600_000, applicationProperties: { text: "é", number: 7, yes: true, at: new Date(0) },
    });
    const [message] = await receive(receiver, 1);
    assert.deepEqual(message.body, { deep: [1, "two", null] });
    assert.equal(message.messageId, "id");
    assert.equal(message.subject, "label");
    assert.equal(message.timeToLive, 3_600_000);
    assert.equal(message.applicationProperties.number, 7);
    assert.equal(message.sequenceNumber.toNumber(), 1);
    assert.equal(message.deliveryCount, 0);
    await receiver.completeMessage(message);
    assert.equal((await admin.getQueueRuntimeProperties(queue)).totalMessageCount, 0);
  },

  async "batches and large messages"() {
    const queue = await newQueue();
    const sender = client.createSender(queue);
    const batch = await sender.createMessageBatch();
    for (let i = 0; i < 100; i++) assert.ok(batch.tryAddMessage({ body: i }));
    await sender.sendMessages(batch);
    await sender.sendMessages([{ body: "a" }, { body: "b" }]);
    const large = Buffer.alloc(240_000, 7);
    await sender.sendMessages({ body: large });
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    const messages = await receive(receiver, 103);
    assert.deepEqual(bodies(messages).slice(0, 102), [...Array(100).keys(), "a", "b"]);
    assert.ok(large.equals(messages[102].body));
    await fails(sender.sendMessages({ body: Buffer.alloc(300_000) }), "MessageSizeExceeded");
  },

  async "abandon with properties, delivery count, dead letters"() {
    const queue = await newQueue({ maxDeliveryCount: 2 });
    await client.createSender(queue).sendMessages([{ body: "poison" }, { body: "bad" }]);
    const receiver = client.createReceiver(queue);
    const [poison, bad] = await receive(receiver, 2);
    await receiver.deadLetterMessage(bad, { deadLetterReason: "why", deadLetterErrorDescription: "because", extra: "e" });
    await receiver.abandonMessage(poison, { seen: "once" });
    const [again] = await receive(receiver, 1);
    assert.equal(again.deliveryCount, 1);
    assert.equal(again.applicationProperties.seen, "once");
    await receiver.abandonMessage(again);
    const graves = client.createReceiver(queue, { subQueueType: "deadLetter" });
    const dead = Object.fromEntries((await receive(graves, 2)).map((message) => [message.body, message]));
    assert.equal(dead.bad.deadLetterReason, "why");
    assert.equal(dead.bad.deadLetterErrorDescription, "because");
    assert.equal(dead.bad.applicationProperties.extra, "e");
    assert.equal(dead.poison.deadLetterReason, "MaxDeliveryCountExceeded");
  },

  async "defer and receive by number"() {
    const queue = await newQueue();
    await client.createSender(queue).sendMessages({ body: "later" });
    const receiver = client.createReceiver(queue);
    const [message] = await receive(receiver, 1);
    await receiver.deferMessage(message, { why: "busy" });
    const [peeked] = await receiver.peekMessages(1);
    assert.equal(peeked.state, "deferred");
    const [back] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    assert.equal(back.applicationProperties.why, "busy");
    const until = await receiver.renewMessageLock(back);
    assert.ok(until > new Date());
    await receiver.completeMessage(back);
    await fails(receiver.receiveDeferredMessages(message.sequenceNumber), "MessageNotFound");
  },

  async "schedule, cancel and peek"() {
    const queue = await newQueue();
    const sender = client.createSender(queue);
    const receiver = client.createReceiver(queue);
    const far = new Date(Date.now() + 3_600_000);
    const numbers = await sender.scheduleMessages([{ body: "never" }, { body: "far" }], far);
    await sender.scheduleMessages({ body: "now" }, new Date(Date.now() - 1000));
    await sender.cancelScheduledMessages(numbers[0]);
    await fails(sender.cancelScheduledMessages(numbers[0]), "MessageNotFound");
    assert.deepEqual(bodies(await receive(receiver, 1)), ["now"]);
    const peeked = await client.createReceiver(queue).peekMessages(10);
    assert.deepEqual(peeked.map((message) => [message.body, message.state]), [["far", "scheduled"], ["now", "active"]]);
    await sender.scheduleMessages({ body: "soon" }, new Date(Date.now() + 1_500));
    assert.deepEqual(bodies(await receive(receiver, 1)), ["soon"]);
  },

  async "time to live and duplicates"() {
    const queue = await newQueue({ deadLetteringOnMessageExpiration: true, requiresDuplicateDetection: true });
    const sender = client.createSender(queue);
    for (const body of ["first", "again"]) await sender.sendMessages({ body, messageId: "same" });
    await sender.sendMessages({ body: "short", timeToLive: 300 });
    const [dead] = await receive(client.createReceiver(queue, { subQueueType: "deadLetter" }), 1);
    assert.equal(dead.body, "short");
    assert.equal(dead.deadLetterReason, "TTLExpiredException");
    assert.deepEqual(bodies(await client.createReceiver(queue).peekMessages(10)), ["first"]);
  },

  async "a lost lock and a lost link"() {
    const queue = await newQueue({ lockDuration: "PT5S" });
    await client.createSender(queue).sendMessages([{ body: "held" }, { body: "kept" }]);
    const receiver = client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
    const [held, kept] = await receive(receiver, 2);
    await receiver.close();
    const other = client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
    await other.peekMessages(1);
    const [again] = await receive(other, 1);
    assert.equal(again.body, "held");
    assert.equal(again.deliveryCount, 1);
    await assert.rejects(other.completeMessage(kept));
    assert.equal(held.deliveryCount, 0);
  },

  async "subscribe and iterate"() {
    const queue = await newQueue();
    await client.createSender(queue).sendMessages([...Array(20).keys()].map((body) => ({ body })));
    const seen = [];
    const receiver = client.createReceiver(queue);
    await new Promise((resolve, reject) => {
      receiver.subscribe({
        processMessage: async (message) => { seen.push(message.body); if (seen.length === 10) resolve(); },
        processError: async ({ error }) => reject(error),
      }, { maxConcurrentCalls: 1 });
    });
    await receiver.close();
    const iterating = client.createReceiver(queue);
    for await (const message of iterating.getMessageIterator()) {
      seen.push(message.body);
      await iterating.completeMessage(message);
      if ((await admin.getQueueRuntimeProperties(queue)).activeMessageCount === 0) break;
    }
    assert.ok(new Set(seen).size === 20, `${seen}`);
  },

  async "topics, filters and actions"() {
    const topic = await newTopic();
    await admin.createSubscription(topic, "all");
    await admin.createSubscription(topic, "red");
    await admin.deleteRule(topic, "red", "$Default");
    await admin.createRule(topic, "red", "is-red",
      { sqlExpression: "color = @c AND quantity > 5", sqlParameters: { "@c": "red" } },
      { sqlExpression: "SET seen = 'yes'; REMOVE secret" });
    await admin.createSubscription(topic, "correlated", {
      defaultRuleOptions: { name: "mine", filter: { correlationId: "c", applicationProperties: { color: "red" } } },
    });
    await client.createSender(topic).sendMessages([
      { body: 1, applicationProperties: { color: "red", quantity: 7, secret: "s" } },
      { body: 2, applicationProperties: { color: "red", quantity: 1 }, correlationId: "c" },
      { body: 3 },
    ]);
    const of = (name) => client.createReceiver(topic, name, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(of("all"), 3)), [1, 2, 3]);
    const [red] = await receive(of("red"), 1);
    assert.equal(red.body, 1);
    assert.equal(red.applicationProperties.seen, "yes");
    assert.equal(red.applicationProperties.secret, undefined);
    assert.deepEqual(bodies(await receive(of("correlated"), 1)), [2]);
  },

  async "rules over AMQP"() {
    const topic = await newTopic();
    await admin.createSubscription(topic, "s");
    const rules = client.createRuleManager(topic, "s");
    await rules.createRule("sql", { sqlExpression: "x > 3" }, { sqlExpression: "SET y = 1" });
    await rules.createRule("correlation", { subject: "l", applicationProperties: { a: "b" } });
    await rules.deleteRule("$Default");
    const listed = [];
    for await (const rule of rules.listRules()) listed.push(rule);
    assert.deepEqual(listed.map((rule) => rule.name).sort(), ["correlation", "sql"]);
    const sql = listed.find((rule) => rule.name === "sql");
    assert.equal(sql.filter.sqlExpression, "x > 3");
    assert.equal(sql.action.sqlExpression, "SET y = 1");
    await client.createSender(topic).sendMessages([
      { body: "sql", applicationProperties: { x: 4 } }, { body: "none" },
      { body: "correlation", subject: "l", applicationProperties: { a: "b" } },
    ]);
    assert.deepEqual(bodies(await client.createReceiver(topic, "s").peekMessages(9)), ["sql", "correlation"]);
    await assert.rejects(rules.createRule("sql", { sqlExpression: "1=1" }));
    await assert.rejects(rules.createRule("bad", { sqlExpression: "x >" }));
  },

  async "sessions, state and locks"() {
    const queue = await newQueue({ requiresSession: true });
    const sender = client.createSender(queue);
    await sender.sendMessages(["a", "b", "a", "b"].map((sessionId, body) => ({ body, sessionId })));
    const a = await client.acceptSession(queue, "a");
    assert.equal(a.sessionId, "a");
    await fails(client.acceptSession(queue, "a"), "SessionCannotBeLocked");
    assert.deepEqual(bodies(await receive(a, 2)), [0, 2]);
    assert.equal(await a.getSessionState(), null);
    await a.setSessionState({ at: 2 });
    assert.deepEqual(await a.getSessionState(), { at: 2 });
    assert.ok((await a.renewSessionLock()) > new Date());
    assert.ok(a.sessionLockedUntilUtc > new Date());
    const b = await client.acceptNextSession(queue);
    assert.equal(b.sessionId, "b");
    const [one, three] = await receive(b, 2);
    await b.deferMessage(one);
    await b.completeMessage(three);
    assert.deepEqual(bodies(await b.receiveDeferredMessages(one.sequenceNumber)), [1]);
    await Promise.all([a.close(), b.close()]);
    const again = await client.acceptSession(queue, "a");
    assert.deepEqual(await again.getSessionState(), { at: 2 });
    assert.deepEqual(bodies(await receive(again, 2)), [0, 2]);
    await again.close();
    await assert.rejects(sender.sendMessages({ body: "no session" }));
  },

  async "no session in time"() {
    const queue = await newQueue({ requiresSession: true });
    const impatient = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0, timeoutInMs: 1_000 } });
    try {
      await assert.rejects(impatient.acceptNextSession(queue));
    } finally {
      await impatient.close();
    }
  },

  async "forwarding"() {
    const last = await newQueue();
    const first = await newQueue({ forwardTo: last });
    const topic = await newTopic();
    await admin.createSubscription(topic, "s", { forwardTo: first });
    await client.createSender(topic).sendMessages({ body: "over two hops" });
    assert.deepEqual(bodies(await receive(client.createReceiver(last), 1)), ["over two hops"]);
    assert.match((await admin.getQueue(first)).forwardTo, new RegExp(`${last}$`));
  },

  async "administration of queues"() {
    const name = "js/with/slashes";
    const created = await admin.createQueue(name, {
      lockDuration: "PT45S", maxSizeInMegabytes: 2048, requiresSession: true, defaultMessageTimeToLive: "P2D",
      deadLetteringOnMessageExpiration: true, duplicateDetectionHistoryTimeWindow: "PT2M", maxDeliveryCount: 7,
      autoDeleteOnIdle: "PT1H", userMetadata: "<mine & yours>", enableBatchedOperations: false,
      authorizationRules: [{ claimType: "SharedAccessKey", accessRights: ["Send"], keyName: "k" }],
    });
    assert.equal(created.name, name);
    const got = await admin.getQueue(name);
    assert.equal(got.lockDuration, "PT45S");
    assert.equal(got.userMetadata, "<mine & yours>");
    assert.equal(got.requiresSession, true);
    assert.deepEqual(got.authorizationRules.map((rule) => [rule.keyName, rule.accessRights]), [["k", ["Send"]]]);
    got.maxDeliveryCount = 9;
    assert.equal((await admin.updateQueue(got)).maxDeliveryCount, 9);
    assert.equal(await admin.queueExists(name), true);
    const runtime = await admin.getQueueRuntimeProperties(name);
    assert.equal(runtime.totalMessageCount, 0);
    assert.ok(runtime.createdAt instanceof Date && !Number.isNaN(runtime.createdAt.getTime()));
    await assert.rejects(admin.createQueue(name), (error) => error.statusCode === 409 || assert.fail(error));
    await assert.rejects(admin.createQueue("js-bad", { lockDuration: "PT1H" }), (error) => error.statusCode === 400 || assert.fail(error));
    await admin.deleteQueue(name);
    assert.equal(await admin.queueExists(name), false);
    await assert.rejects(admin.getQueue(name), (error) => error.statusCode === 404 || assert.fail(error));
  },

  async "administration of topics and rules"() {
    const topic = await newTopic({ userMetadata: "m", requiresDuplicateDetection: true });
    assert.equal((await admin.getTopic(topic)).requiresDuplicateDetection, true);
    await admin.createSubscription(topic, "s", { maxDeliveryCount: 3 });
    const subscription = await admin.getSubscription(topic, "s");
    subscription.lockDuration = "PT30S";
    assert.equal((await admin.updateSubscription(subscription)).lockDuration, "PT30S");
    await admin.createRule(topic, "s", "r", { sqlExpression: "a = 1" }, { sqlExpression: "SET b = 2" });
    const rule = await admin.getRule(topic, "s", "r");
    assert.equal(rule.filter.sqlExpression, "a = 1");
    rule.filter = { correlationId: "c", applicationProperties: { n: 1, s: "t" } };
    const updated = await admin.updateRule(topic, "s", rule);
    assert.equal(updated.filter.correlationId, "c");
    assert.deepEqual(updated.filter.applicationProperties, { n: 1, s: "t" });
    const names = [];
    for await (const one of admin.listRules(topic, "s")) names.push(one.name);
    assert.deepEqual(names.sort(), ["$Default", "r"]);
    assert.equal((await admin.getTopicRuntimeProperties(topic)).subscriptionCount, 1);
    assert.equal((await admin.getSubscriptionRuntimeProperties(topic, "s")).activeMessageCount, 0);
    assert.equal(await admin.ruleExists(topic, "s", "r"), true);
    await admin.deleteRule(topic, "s", "r");
    await admin.deleteSubscription(topic, "s");
    await admin.deleteTopic(topic);
    assert.equal(await admin.topicExists(topic), false);
  },

  async "lists over pages"() {
    const names = [];
    for (let i = 0; i < 7; i++) names.push(await newQueue());
    const listed = [];
    for await (const page of admin.listQueues().byPage({ maxPageSize: 3 })) {
      assert.ok(page.length <= 3);
      listed.push(...page.map((queue) => queue.name));
    }
    for (const name of names) assert.ok(listed.includes(name), name);
    let counted = 0;
    for await (const queue of admin.listQueuesRuntimeProperties()) counted += queue.name ? 1 : 0;
    assert.equal(counted, listed.length);
    const namespace = await admin.getNamespaceProperties();
    assert.equal(namespace.messagingSku, "Standard");
    assert.equal(namespace.name, process.env.NAMESPACE);
  },

  async "what is not there, and wrong keys"() {
    await assert.rejects(client.createSender("js-nowhere").sendMessages({ body: 1 }),
      (error) => isServiceBusError(error) || assert.fail(error));
    const queue = await newQueue();
    const wrong = connectionString.replace(/SharedAccessKey=[^;]+/, "SharedAccessKey=d3Jvbmc=");
    const stranger = new ServiceBusClient(wrong, { retryOptions });
    try {
      await fails(stranger.createSender(queue).sendMessages({ body: 1 }), "UnauthorizedAccess");
    } finally {
      await stranger.close();
    }
    await assert.rejects(new ServiceBusAdministrationClient(wrong).getQueue(queue), (error) => error.statusCode === 401 || assert.fail(error));
  },
};

const wanted = process.argv.slice(2);
for (const [feature, run] of Object.entries(features)) {
  if (wanted.length > 0 && !wanted.includes(feature)) continue;
  let error = null;
  try {
    await run();
  } catch (caught) {
    error = caught?.stack ?? String(caught);
  }
  console.log(JSON.stringify({ feature, ok: error === null, error }));
}
await client.close();
process.exit(0);
