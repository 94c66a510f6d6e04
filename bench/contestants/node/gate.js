// The gate's two cheap answers on Fastify and ioredis with auto-pipelining: somebody inside shows a signed cookie, and for a
// product whose queue is off the traffic is counted and compared, as seed 004 describes it (steps 1.b to 1.e).
import { createHmac, timingSafeEqual } from 'node:crypto';
import Fastify from 'fastify';
import Redis from 'ioredis';

const redis = new Redis(process.env.STORE_PORT, '127.0.0.1', { enableAutoPipelining: true });
const secret = process.env.COOKIE_SECRET;
const threshold = 1_000_000_000;
const windowSeconds = 10;
const app = Fastify();

function opened(header) {
  const found = /(?:^|; *)headgate=([^;]+)/.exec(header ?? '');
  if (!found) return null;
  const [payload, mac] = found[1].split('.');
  const wanted = createHmac('sha256', secret).update(payload).digest();
  const given = Buffer.from(mac ?? '', 'base64url');
  if (given.length !== wanted.length || !timingSafeEqual(given, wanted)) return null;
  const pass = JSON.parse(Buffer.from(payload, 'base64url'));
  return pass.expires > Date.now() / 1000 && pass.queue === 'sale' ? pass : null;
}

app.get('/', async () => ({}));

app.get('/gate/inside', async (request, reply) => {
  reply.header('cache-control', 'no-store');
  if (opened(request.headers.cookie)) return reply.code(200).send();
  return reply.code(401).send();
});

app.get('/gate/idle', async (request, reply) => {
  const resource = request.headers['x-original-uri'].split('/')[2];
  const key = `redcarpet:traffic:${resource}:${Math.floor(Date.now() / 1000 / windowSeconds)}`;
  const [count, , setting] = await Promise.all([
    redis.incr(key),
    redis.expire(key, 2 * windowSeconds),
    redis.hget('redcarpet:auto', `${resource}:view`),
  ]);
  reply.header('cache-control', 'no-store');
  return reply.code(setting === null && count < threshold ? 200 : 401).send();
});

await app.listen({ host: '127.0.0.1', port: Number(process.env.PORT) });
