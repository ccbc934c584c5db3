-- Whether messages may come to a queue from another home: the name of this queue, as long as it is not
-- deleted, and which of them its home holds already.
-- KEYS: c m. ARGV: queue, a new name for it, ids
-- What is deleted never comes again under that name: who was refused once stays refused.

local flag = ARGV[1]
if redis.call('HEXISTS', KEYS[1], 'rev' .. flag) == 0 then return { '', {} } end
redis.call('HSETNX', KEYS[1], 'born' .. flag, ARGV[2])
local held = {}
for i = 3, #ARGV do
  if redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1 then held[#held + 1] = ARGV[i] end
end
return { redis.call('HGET', KEYS[1], 'born' .. flag), held }
