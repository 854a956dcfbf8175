// graphile-worker beside posthaste: its SQL function enqueues in the user's transaction, its own runner drains.
// It must never complete jobs itself; it only asks the table whether the runner has.

import { EventEmitter } from "node:events";
import { readFileSync } from "node:fs";
import { load, main, setting, untilFalse } from "../harness/node/peer.mjs";

const pg = load("pg");
const { Logger, makeWorkerUtils, run } = load("graphile-worker");

const sql = (name) => readFileSync(new URL(name, import.meta.url), "utf8");
const ENQUEUE = "select graphile_worker.add_job('bench', $1::json)";

/** Logs go to stderr, and only when something is wrong. */
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});

async function connect(url) {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  return client;
}

const runner = (url, worker, task) =>
  run({ preset: { worker: { connectionString: url, logger, ...worker } }, noHandleSignals: true, taskList: { bench: task } });

await main({
  about: {
    name: "graphile-worker",
    version: "0.18.0",
    configuration: "LISTEN/NOTIFY; local queue and batched completion for the drain; pg 8.23.1",
  },

  async setup(url) {
    const utils = await makeWorkerUtils({ connectionString: url, logger });
    await utils.migrate();
    await utils.release();
  },

  async client(url) {
    const client = await connect(url);
    return {
      async publish(note, payload) {
        await client.query("begin");
        await client.query({ name: "business", text: "insert into business (note) values ($1)", values: [note] });
        await client.query({ name: "enqueue", text: ENQUEUE, values: [JSON.stringify(payload)] });
        await client.query("commit");
      },
    };
  },

  async preload(url, count, text) {
    const utils = await makeWorkerUtils({ connectionString: url, logger });
    const batch = 5000;
    for (let sent = 0; sent < count; sent += batch) {
      const length = Math.min(batch, count - sent);
      await utils.addJobs(
        Array.from({ length }, (_, n) => ({ identifier: "bench", payload: { id: sent + n + 1, text } })),
      );
    }
    await utils.release();
    await (await connect(url)).query("vacuum analyze");
  },

  async drain(url, progress) {
    const size = setting("PEER_BATCH", 1000);
    const concurrency = setting("PEER_CONCURRENCY", 48);
    const delay = setting("PEER_DELAY", 1);
    const watcher = await connect(url);
    // Before its pool of workers exists, run() looks for migrations, which belongs to the start of a program.
    const events = new EventEmitter();
    let start;
    events.once("pool:create", () => (start = performance.now()));
    await runner(
      url,
      { concurrentJobs: concurrency, maxPoolSize: concurrency, localQueue: { size }, completeJobBatchDelay: delay, events },
      async () => progress.add(1),
    );
    await progress.allHandled();
    await untilFalse(watcher, sql("left.sql"));
    return {
      milliseconds: performance.now() - start,
      configuration: `concurrency ${concurrency}; local queue of ${size}; completions gathered for ${delay} ms; one process`,
    };
  },

  async attend(url, started) {
    await runner(url, { concurrentJobs: 4 }, async (payload) => started(payload));
  },
});
