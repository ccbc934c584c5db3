-- Whether something is ready in some partitions; else when the next delayed one comes, and up to which number
-- the waiter has seen everything.
-- KEYS: as of a lease from those partitions.
-- ARGV: queue, partitions, now, those asked for
-- Invariant: changes nothing but that due messages take their place in line; 'more' asks for another call.
--#include common
--#include queue
--#include rows
--#include promote
--#include line

local now = tonumber(ARGV[3])
if known[4] == '1' then return { 'ok', 0, '', known[5] } end
local more, ready, wanted = promote(flag, now) == PROMOTE, 0, {}
for part in string.gmatch(ARGV[4], '%d+') do
  if part + 0 < known[2] + 0 then
    wanted[part] = true
    ready = ready + call('ZCARD', key('r' .. flag .. '.' .. part))
  end
end
for lane, parts in pairs(lanes_of(flag, known[3], wanted)) do
  for _, part in ipairs(parts) do
    local stream = lane_of(part, lane)
    local _, pending = progress(stream)
    ready = ready + call('XLEN', stream) - pending
  end
end
if more and ready == 0 then return { 'more' } end
local next = call('ZRANGEBYSCORE', key('z' .. flag), '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return { 'ok', ready > 0 and 1 or 0, next[2] or '', known[5] }
