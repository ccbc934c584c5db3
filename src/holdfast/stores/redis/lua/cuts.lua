-- The members at so many equal steps of the leased or the delayed: two numbers for each.
-- KEYS: c, of the queue d and z
-- ARGV: queue, leased or delayed, parts, now
--#include common

local name, low = key((ARGV[2] == 'leased' and 'd' or 'z') .. ARGV[1]), 0
if ARGV[2] == 'delayed' then low = call('ZCOUNT', name, '-inf', ARGV[4]) end
local n = call('ZCARD', name) - low
local step, cuts = math.max(1, math.ceil(n / ARGV[3])), {}
for at = step - 1, n - 2, step do
  local member = call('ZRANGE', name, low + at, low + at, 'WITHSCORES')
  cuts[#cuts + 1] = member[2]
  cuts[#cuts + 1] = string.sub(member[1], 1, 15)
end
return cuts
