-- Drop the oldest rows of a log.
-- KEYS: c, of the queue log and li
-- ARGV: queue, how many at most, finished before (or 0), how many to keep (or -1)
-- Answers how many.
-- Invariant: rows go in the order in which the log is read; an entry goes with its last row.
--#include common

local flag, limit, before, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local log, li = key('log' .. flag), key('li' .. flag)
local more = 'more' .. flag -- see logging.lua
local over = keep >= 0 and call('HLEN', li) + tonumber(call('HGET', KEYS[1], more) or 0) - keep or 0
local dropped = 0
while dropped < limit do
  local first = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  local ms = first and string.match(first[1], '^%d+')
  local old = ms and tonumber(ms) < before
  if not ms or not (old or dropped < over) then break end
  -- All of one millisecond, by seq.
  local rows, left = {}, {}
  for _, entry in ipairs(call('XRANGE', log, ms, ms)) do
    local ids = {}
    for i = 1, #entry[2], 2 do ids[#ids + 1] = entry[2][i] end
    left[entry[1]] = 0
    for i, where in ipairs(hmget('li' .. flag, ids)) do
      if string.find(' ' .. (where or '') .. ' ', ' ' .. entry[1] .. ' ', 1, true) then
        left[entry[1]] = left[entry[1]] + 1
        local seq = string.match(entry[2][2 * i], '^%d+ %d+ %d+ (%d+)') or ''
        rows[#rows + 1] = { seq, ids[i], entry[1] }
      end
    end
  end
  table.sort(rows, function(a, b) return a[1] < b[1] end)
  local n = math.min(#rows, limit - dropped, old and #rows or over - dropped)
  for i = 1, n do
    local _, id, entry = unpack(rows[i])
    local others = {}
    for other in string.gmatch(call('HGET', li, id), '%S+') do
      if other ~= entry then others[#others + 1] = other end
    end
    if #others == 0 then
      call('HDEL', li, id)
    else
      call('HSET', li, id, table.concat(others, ' '))
      call('HINCRBY', KEYS[1], more, -1)
    end
    left[entry] = left[entry] - 1
  end
  for entry, rest in pairs(left) do
    if rest == 0 then call('XDEL', log, entry) end
  end
  dropped = dropped + n
  if n < #rows then break end
end
return dropped
