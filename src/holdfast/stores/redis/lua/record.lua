-- Write or delete a small value, kept as "revision updated_at value".
-- KEYS: names (in order), values
-- ARGV: name, revision expected ("" for any), now, "1" to write or "0" to delete, value
-- Answers 1, or 0 and changes nothing if the stored revision (0 for none) is another one.
-- Invariant: a name is among the names if it has a value, and its revision goes up with every change.

local name, expected = ARGV[1], ARGV[2]
local stored = redis.call('HGET', KEYS[2], name)
local revision = stored and string.match(stored, '^(%d+)') or '0'
if expected ~= '' and expected ~= revision then return 0 end
redis.call('ZREM', KEYS[1], name) -- a server out of memory accepts it, and then the rest
if ARGV[4] == '0' then
  redis.call('HDEL', KEYS[2], name)
else
  redis.call('ZADD', KEYS[1], 0, name)
  redis.call('HSET', KEYS[2], name, string.format('%.0f %s ', revision + 1, ARGV[3]) .. ARGV[5])
end
return 1
