// A game server in Node that registers itself, beats and discovers its neighbours, with nothing but fetch.
//
//   HEADGATE_URL=http://127.0.0.1:8080 HEADGATE_TOKEN=… node register.mjs
//
// It prints one line of JSON for each step and leaves the registry on SIGTERM.

import os from "node:os";

const url = process.env.HEADGATE_URL ?? "http://127.0.0.1:8080";
const headers = { "X-API-Token": process.env.HEADGATE_TOKEN ?? "", "Content-Type": "application/json" };
const place = { type: "game", group: process.env.GROUP ?? "kr-1" };
const everyMs = Number(process.env.HEARTBEAT_MS ?? 10_000);

const say = (step, facts) => console.log(JSON.stringify({ step, ...facts }));
const query = (values) => new URLSearchParams(values).toString();

async function call(method, path, body) {
  const answer = await fetch(url + path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(5_000),
  });
  const text = await answer.text();
  const json = text ? JSON.parse(text) : null;
  if (!answer.ok) throw Object.assign(new Error(json?.detail ?? answer.statusText), { code: json?.code });
  return json;
}

function record(instanceId) {
  return {
    ...place,
    ...(instanceId ? { instanceId } : {}),
    hostname: os.hostname(),
    port: 7000,
    systemInfo: { cpu: os.cpus().length, memory: os.totalmem(), os: os.platform() },
    metadata: { version: "1.0.0" },
    ttlSeconds: Math.max(1, (everyMs * 3) / 1000),
  };
}

let { instanceId } = await call("POST", "/sd/v1/instances", record());
say("registered", { instanceId });

async function beat() {
  try {
    await call("POST", `/sd/v1/instances/${instanceId}/heartbeat`, { ...place, performance: { load: os.loadavg()[0] } });
    say("beat", {});
  } catch (error) {
    if (error.code !== "unknown_instance") return say("late", { error: error.message });
    // The registry has lost us: come back, at a moment of our own.
    await new Promise((resolve) => setTimeout(resolve, (Math.random() * everyMs) / 2));
    await call("POST", "/sd/v1/instances", record(instanceId));
    say("registered", { instanceId, again: true });
  }
}

const timer = setInterval(beat, everyMs);

const { instances, revision } = await call("GET", `/sd/v1/instances?${query({ ...place, healthy: "true" })}`);
say("discovered", { count: instances.length, revision });

process.on("SIGTERM", async () => {
  clearInterval(timer);
  await call("DELETE", `/sd/v1/instances/${instanceId}?${query(place)}`);
  say("removed", { instanceId });
  process.exit(0);
});
