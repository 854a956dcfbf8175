// pg-boss beside posthaste: send() with the user's connection enqueues, its own workers drain.
// It must never complete jobs itself; it only asks the table whether the workers have.

import { readFileSync } from "node:fs";
import { load, main, setting, untilFalse } from "../harness/node/peer.mjs";

const pg = load("pg");
const { PgBoss } = load("pg-boss");

const QUEUE = "bench";
const sql = (name) => readFileSync(new URL(name, import.meta.url), "utf8");

async function connect(url) {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  return client;
}

/** An instance without timers of its own, unless they are asked for. */
async function bossOf(url, options = {}) {
  const boss = new PgBoss({ connectionString: url, supervise: false, schedule: false, migrate: false, ...options });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  return boss;
}

await main({
  about: {
    name: "pg-boss",
    version: "12.35.0",
    configuration: "standard queue; send() in the user's transaction; LISTEN/NOTIFY for the latency; pg 8.23.1",
  },

  async setup(url) {
    const boss = await bossOf(url, { migrate: true });
    await boss.createQueue(QUEUE);
  },

  async client(url) {
    const client = await connect(url);
    const boss = await bossOf(url, { max: 1 });
    const db = { executeSql: (text, values) => client.query(text, values) };
    return {
      async publish(note, payload) {
        await client.query("begin");
        await client.query({ name: "business", text: "insert into business (note) values ($1)", values: [note] });
        await boss.send(QUEUE, payload, { db });
        await client.query("commit");
      },
    };
  },

  async preload(url, count, text) {
    const boss = await bossOf(url);
    const batch = 5000;
    for (let sent = 0; sent < count; sent += batch) {
      const length = Math.min(batch, count - sent);
      await boss.insert(QUEUE, Array.from({ length }, (_, n) => ({ data: { id: sent + n + 1, text } })));
    }
    await (await connect(url)).query("vacuum analyze");
  },

  async drain(url, progress) {
    const batchSize = setting("PEER_BATCH", 1000);
    const localConcurrency = setting("PEER_WORKERS", 8);
    const watcher = await connect(url);
    const boss = await bossOf(url, { max: 10 });
    const start = performance.now();
    await boss.work(
      QUEUE,
      { batchSize, localConcurrency, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true },
      async (jobs) => progress.add(jobs.length),
    );
    await progress.allHandled();
    await untilFalse(watcher, sql("left.sql"));
    return {
      milliseconds: performance.now() - start,
      configuration: `${localConcurrency} workers; batch ${batchSize}, fetched again while full; one process`,
    };
  },

  async attend(url, started) {
    const boss = await bossOf(url, { useListenNotify: true });
    await boss.updateQueue(QUEUE, { notify: true });
    await boss.work(
      QUEUE,
      { batchSize: 10, pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 },
      async (jobs) => jobs.forEach((job) => started(job.data)),
    );
  },
});
