// Seed 003's queue-api on Fastify and ioredis with auto-pipelining: sections 4.1 and 4.2 as they are written.
import { randomUUID } from 'node:crypto';
import Fastify from 'fastify';
import Redis from 'ioredis';

const redis = new Redis(process.env.STORE_PORT, '127.0.0.1', { enableAutoPipelining: true });
const app = Fastify();
const answer = {
  200: {
    type: 'object',
    properties: {
      status: { type: 'string' },
      rank: { type: 'integer' },
      userId: { type: 'string' },
      ticketId: { type: 'string' },
    },
  },
};

app.get('/', async () => ({}));

app.post(
  '/api/queue/entry',
  {
    schema: {
      body: {
        type: 'object',
        required: ['nickname'],
        additionalProperties: false,
        properties: { nickname: { type: 'string', minLength: 1, maxLength: 64 } },
      },
      response: answer,
    },
  },
  async (request) => {
    const userId = randomUUID();
    const key = `queue:waiting:user:${userId}`;
    const [, , , rank] = await Promise.all([
      redis.zadd('queue:waiting', 'NX', Date.now(), userId),
      redis.hset(key, { userId, nickname: request.body.nickname, ticketId: '' }),
      redis.expire(key, 600),
      redis.zrank('queue:waiting', userId),
    ]);
    return { status: 'WAITING', rank: rank + 1, userId };
  },
);

app.get(
  '/api/queue/status',
  {
    schema: {
      querystring: { type: 'object', required: ['userId'], properties: { userId: { type: 'string', maxLength: 64 } } },
      response: answer,
    },
  },
  async (request, reply) => {
    const { userId } = request.query;
    const [ticketId, rank] = await Promise.all([
      redis.hget(`queue:waiting:user:${userId}`, 'ticketId'),
      redis.zrank('queue:waiting', userId),
    ]);
    if (ticketId) return { status: 'PROMOTED', rank: 0, ticketId };
    if (rank === null) return reply.code(404).send({ status: 'UNKNOWN' });
    return { status: 'WAITING', rank: rank + 1, userId };
  },
);

await app.listen({ host: '127.0.0.1', port: Number(process.env.PORT) });
