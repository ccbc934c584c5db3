-- Before a move from another home: would the messages be accepted by this queue?
-- KEYS: c m. ARGV: queue, a new name for it, ids
-- Answers: the queue's name, or "" if there is no such queue, and the ids that its home holds already.
-- Invariant: a queue keeps its name until it is deleted, and no queue gets it again. So a move that was
-- refused because its queue is gone stays refused.

local flag = ARGV[1]
if redis.call('HEXISTS', KEYS[1], 'rev' .. flag) == 0 then return { '', {} } end
redis.call('HSETNX', KEYS[1], 'born' .. flag, ARGV[2])
local held = {}
for i = 3, #ARGV do
  if redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1 then held[#held + 1] = ARGV[i] end
end
return { redis.call('HGET', KEYS[1], 'born' .. flag), held }
