-- Drop the oldest entries of a log: how many.
-- KEYS: c, of the queue log and li
-- ARGV: queue, how many to look at, finished before (or 0), how many to keep (or -1)
--#include common

local flag, before, keep = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local log = key('log' .. flag)
call('HLEN', key('li' .. flag))
local over = keep >= 0 and call('XLEN', log) - keep or 0
local entries, ids = {}, {}
for i, entry in ipairs(call('XRANGE', log, '-', '+', 'COUNT', ARGV[2])) do
  if i > over and tonumber(string.match(entry[1], '^%d+')) >= before then break end
  entries[i], ids[i] = entry[1], entry[2][1]
end
if #entries > 0 then
  call('XDEL', log, unpack(entries))
  call('HDEL', key('li' .. flag), unpack(ids))
end
return #entries
