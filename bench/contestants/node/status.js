// Fastify and ioredis with auto-pipelining: the rank of a user in a sorted set, and one field of the user's hash.
import Fastify from 'fastify';
import Redis from 'ioredis';

const redis = new Redis(process.env.STORE_PORT, '127.0.0.1', { enableAutoPipelining: true });
const app = Fastify();
const answer = {
  200: {
    type: 'object',
    properties: { status: { type: 'string' }, rank: { type: 'integer' }, ticketId: { type: 'string', nullable: true } },
  },
};

app.get('/', async () => ({}));

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
    const [rank, ticketId] = await Promise.all([
      redis.zrank('queue:waiting', userId),
      redis.hget(`queue:waiting:user:${userId}`, 'ticketId'),
    ]);
    if (rank === null && ticketId === null) return reply.code(404).send({ status: 'UNKNOWN', rank: 0 });
    if (ticketId) return { status: 'PROMOTED', rank: 0, ticketId };
    return { status: 'WAITING', rank: rank + 1, ticketId: null };
  },
);

await app.listen({ host: '127.0.0.1', port: Number(process.env.PORT) });
