// The seed's own way to discover: SMEMBERS, then HGETALL of each, through ioredis.
import Fastify from "fastify";
import Redis from "ioredis";

const redis = new Redis({ port: Number(process.env.STORE_PORT), host: "127.0.0.1" });
const app = Fastify();

app.get("/sd/v1/instances", async (request) => {
  const { type, group } = request.query;
  const ids = await redis.smembers(`service:group:${type}:${group}`);
  const found = await Promise.all(ids.map((id) => redis.hgetall(`service:instance:${id}`)));
  return { instances: found.filter((one) => one.type) };
});

app.post("/sd/v1/instances/:id/heartbeat", async (request) => {
  const key = `service:instance:${request.params.id}`;
  await redis.hset(key, "lastHeartbeat", new Date().toISOString());
  await redis.expire(key, 30);
  return {};
});

app.post("/sd/v1/instances", async (request) => {
  const { instanceId, ...record } = request.body;
  const key = `service:instance:${instanceId}`;
  await redis.hset(key, { ...record, lastHeartbeat: new Date().toISOString() });
  await redis.expire(key, 30);
  await redis.sadd(`service:group:${record.type}:${record.group}`, instanceId);
  return { instanceId };
});

app.listen({ port: Number(process.env.PORT), host: "127.0.0.1" });
