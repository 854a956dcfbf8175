// The protocol of `bench/peers`, once for all Node peers: verbs, clients, the even rate, the clock.
// It measures and prints; it must never retry for a peer, or know which peer it runs.

import { createRequire } from "node:module";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const SILENCE_MS = 60_000;
const WARM_UP = 20;

const installed = process.env.BENCH_INSTALL_DIR;
if (!installed) {
  console.error("set BENCH_INSTALL_DIR to the folder that the install command has filled");
  process.exit(1);
}

/** Loads a package from where the install command has put it. */
export const load = createRequire(join(installed, "package.json"));

/** A setting of a drain to try. */
export const setting = (name, otherwise) => Number(process.env[name] ?? otherwise);

/** Runs one short statement, again and again, until its only value is false. */
export async function untilFalse(client, sql) {
  const deadline = Date.now() + SILENCE_MS;
  for (;;) {
    const { rows } = await client.query({ text: sql, rowMode: "array" });
    if (!rows[0][0]) return;
    if (Date.now() > deadline) throw new Error("stuck: handled, but not settled after a minute");
    await sleep(1);
  }
}

/** How many messages the handlers of a drain have seen. */
class Progress {
  handled = 0;
  #done;
  #all = new Promise((resolve) => (this.#done = resolve));

  constructor(expected) {
    this.expected = expected;
  }

  add(messages) {
    this.handled += messages;
    if (this.handled >= this.expected) this.#done();
  }

  /** Waits until all were handled, or says that the peer is stuck. */
  async allHandled() {
    let last = -1;
    let timer;
    const stuck = new Promise((_, reject) => {
      timer = setInterval(() => {
        if (this.handled === last) reject(new Error(`stuck: ${last} of ${this.expected} handled, none for a minute`));
        last = this.handled;
      }, SILENCE_MS);
    });
    await Promise.race([this.#all, stuck]);
    clearInterval(timer);
  }
}

function flagsOf(words) {
  const flags = {};
  for (let at = 0; at < words.length; at += 2) {
    const value = Number(words[at + 1]);
    if (!words[at].startsWith("--") || !Number.isFinite(value)) {
      throw new Error(`${words[at]} ${words[at + 1] ?? ""}: write --name number`);
    }
    flags[words[at].slice(2)] = value;
  }
  return flags;
}

/** The text that makes {"id":…,"text":"…"} as long as asked for, whatever the id. */
const fillerOf = (bytes) => "x".repeat(Math.max(0, bytes - '{"id": 00000000, "text": ""}'.length));

async function enqueue(peer, url, { clients = 8, seconds }, text) {
  const connected = [];
  for (let n = 0; n < clients; n++) connected.push(await peer.client(url));
  const start = performance.now();
  const counts = await Promise.all(
    connected.map(async (client) => {
      let transactions = 0;
      while (performance.now() - start < seconds * 1000) {
        await client.publish(text, { id: 0, text });
        transactions++;
      }
      return transactions;
    }),
  );
  return { transactions: counts.reduce((sum, count) => sum + count, 0), seconds: (performance.now() - start) / 1000 };
}

async function drain(peer, url, { count }) {
  const progress = new Progress(count);
  const { milliseconds, configuration } = await peer.drain(url, progress);
  return { messages: progress.handled, seconds: milliseconds / 1000, configuration };
}

/** Publisher and worker in one process, so that one clock serves both. */
async function latency(peer, url, { rate = 100, seconds }, text) {
  const started = new Map();
  await peer.attend(url, (payload) => {
    const now = performance.now();
    if (!started.has(payload.id)) started.set(payload.id, now);
  });
  const client = await peer.client(url);
  const arrived = async (count) => {
    let last = { size: -1, at: 0 };
    while (started.size < count) {
      if (started.size > last.size) last = { size: started.size, at: Date.now() };
      if (Date.now() - last.at > SILENCE_MS) throw new Error(`${started.size} of ${count} arrived, none for a minute`);
      await sleep(5);
    }
  };
  for (let id = 0; id < WARM_UP; id++) await client.publish(text, { id, text });
  await arrived(WARM_UP);

  const last = WARM_UP + Math.floor(rate * seconds);
  const committed = new Map();
  const start = performance.now();
  for (let id = WARM_UP; id < last; id++) {
    const pause = start + ((id - WARM_UP) * 1000) / rate - performance.now();
    if (pause > 0) await sleep(pause);
    await client.publish(text, { id, text });
    committed.set(id, performance.now());
  }
  await arrived(last);
  // A handler may start before the publisher has read the server's answer to its commit: that is zero.
  const samples = [...committed].map(([id, at]) => Math.max(0, started.get(id) - at));
  return { samples_ms: samples };
}

/** The whole program of a Node peer: runs the verb of the command line and prints its answer. */
export async function main(peer) {
  const [verb, ...words] = process.argv.slice(2);
  try {
    const flags = flagsOf(words);
    const url = process.env.BENCH_URL;
    if (verb !== "about" && !url) throw new Error("set BENCH_URL to the URL of a PostgreSQL database");
    const text = fillerOf(flags["payload-bytes"] ?? 256);
    const verbs = {
      about: () => peer.about,
      setup: async () => (await peer.setup(url), {}),
      preload: async () => (await peer.preload(url, flags.count, text), {}),
      enqueue: () => enqueue(peer, url, flags, text),
      drain: () => drain(peer, url, flags),
      latency: () => latency(peer, url, flags, text),
    };
    if (!verbs[verb]) throw new Error(`${verb} is no verb: ${Object.keys(verbs).join(", ")}`);
    const answer = JSON.stringify(await verbs[verb]());
    // Workers of a peer may go on for ever; the answer is known.
    process.stdout.write(`${answer}\n`, () => process.exit(0));
  } catch (error) {
    process.stderr.write(`${verb}: ${error.message}\n`, () => process.exit(1));
  }
}
