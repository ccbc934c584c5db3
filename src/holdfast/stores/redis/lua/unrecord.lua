-- Delete values that were last changed before a time.
-- KEYS: names (in order), values
-- ARGV: from, to (bounds of names), before, limit, how many to look at
-- Answers how many, and the name up to which it looked; "" at the end.
-- Invariant: as in record.lua.

local names = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[5])
if #names == 0 then return { 0, '' } end
local values, n = redis.call('HMGET', KEYS[2], unpack(names)), 0
local limit, before = tonumber(ARGV[4]), tonumber(ARGV[3])
for i, name in ipairs(names) do
  if n >= limit then break end
  local at = string.match(values[i] or '0 0 ', '^%d+ (%d+)')
  if tonumber(at) < before then
    redis.call('ZREM', KEYS[1], name)
    redis.call('HDEL', KEYS[2], name)
    n = n + 1
  end
end
return { n, #names == tonumber(ARGV[5]) and names[#names] or '' }
