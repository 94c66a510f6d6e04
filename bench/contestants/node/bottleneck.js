// One process of a contestant: Bottleneck, clustered on the store, sends its share of one user's requests.
import Bottleneck from "bottleneck";
import Redis from "ioredis";

const [store, upstream, requests, count, seconds] = process.argv.slice(2).map(Number);
const window = seconds * 1000;
const limiter = new Bottleneck({
  id: "bench",
  datastore: "ioredis",
  clearDatastore: false,
  clientOptions: { host: "127.0.0.1", port: store },
  Redis,
  reservoir: count,
  reservoirRefreshAmount: count,
  reservoirRefreshInterval: window,
});
const ask = () =>
  fetch(`http://127.0.0.1:${upstream}/x`, { headers: { "X-User-Id": "bench" } }).then((answer) => answer.text());
await limiter.ready();
await Promise.all(Array.from({ length: requests }, () => limiter.schedule(ask)));
await limiter.disconnect();
process.exit(0);
