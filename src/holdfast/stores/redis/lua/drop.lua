-- Drop waiting messages of a queue, up to a number; or delete queues.
-- KEYS: all of the home.
-- ARGV: queue, partitions, what, limit, queues to delete (0, 1 or 01). What:
--       held         count what the queue holds
--       begin        from now on there is no such queue; begin-empty: if it holds nothing
--       go on        drop all that is left of a queue that is being deleted
--       purge        drop messages that wait
-- Answers how many; -1: a queue that should go holds messages.
-- Invariant: a queue is gone in one step, with `dropping` in its place until nothing of it is left; only then
-- can it be made again. With the last queue of a home all its keys go.
--#include common
--#include rows
--#include line

local flag, what, limit = ARGV[1], ARGV[3], tonumber(ARGV[4])
local known = call('HMGET', KEYS[1], 'parts', 'lanes')
if known[1] ~= ARGV[2] and known[1] then return { 'parts', known[1] } end
local parts = tonumber(known[1] or 0)
local used = lanes_of(flag, known[2])

local function held(of)
  local n = call('ZCARD', key('d' .. of)) + call('ZCARD', key('z' .. of))
    + (call('HGET', KEYS[1], 'moving' .. of) or 0)
  for part = 0, parts - 1 do n = n + call('ZCARD', key('r' .. of .. '.' .. num(part))) end
  for lane, some in pairs(lanes_of(of, known[2])) do
    for _, part in ipairs(some) do n = n + call('XLEN', lane_of(part, lane)) end
  end
  return n
end

if what == 'held' then return { 'ok', held(flag) } end
if what == 'begin' or what == 'begin-empty' then
  local going = {}
  for of in string.gmatch(ARGV[5], '%d') do
    if call('HEXISTS', KEYS[1], 'spec' .. of) == 1 then
      if what == 'begin-empty' and held(of) > 0 then return { 'ok', -1 } end
      going[#going + 1] = of
    end
  end
  for _, of in ipairs(going) do
    call('HDEL', KEYS[1], 'spec' .. of, 'paused' .. of, 'rev' .. of, 'done' .. of, 'born' .. of)
    call('HSET', KEYS[1], 'dropping' .. of, '1')
  end
  return { 'ok', 0 }
end

-- It may have been made again meanwhile, by another process that dropped the rest of it first.
if what == 'go on' and call('HEXISTS', KEYS[1], 'dropping' .. flag) == 0 then return { 'ok', 0 } end
local purging, n = what == 'purge', 0
--#include calls

local function forget(ids)
  n = n + #ids
  if #ids == 0 then return end
  for i, state in ipairs(purging and {} or hmget('x', ids)) do
    local row = state and read(state, ids[i], true)
    local name = row and row.state ~= 'W' and call_of(row.token)
    if name then released(name, 1) end
  end
  for _, kind in ipairs({ 'm', 'x', 'e' }) do call('HDEL', key(kind), unpack(ids)) end
end

-- The entries of a stream from one on.
local function forget_entries(stream, from)
  local found = n < limit and call('XRANGE', stream, from, '+', 'COUNT', limit - n) or {}
  local entries, ids = {}, {}
  for i, entry in ipairs(found) do entries[i], ids[i] = entry[1], entry[2][2] end
  if #entries > 0 then
    if not purging then call('XACK', stream, GROUP, unpack(entries)) end
    call('XDEL', stream, unpack(entries))
  end
  forget(ids)
end

for part = 0, parts - 1 do
  local name = key('r' .. flag .. '.' .. num(part))
  local ids = n < limit and call('ZRANGE', name, 0, limit - n - 1) or {}
  if #ids > 0 then call('ZREM', name, unpack(ids)) end
  forget(ids)
end
local late = n < limit and call('ZRANGE', key('z' .. flag), 0, limit - n - 1) or {}
if #late > 0 then
  local ids = {}
  for i, member in ipairs(late) do ids[i] = string.sub(member, 16) end
  local states = hmget('x', ids)
  call('ZREM', key('z' .. flag), unpack(late))
  for _, state in ipairs(states) do
    local part = string.match(state or '', '^W %d (%d+) ')
    if part then call('HINCRBY', KEYS[1], 'late' .. flag .. '.' .. part, -1) end
  end
  forget(ids)
end
for lane, of in pairs(used) do
  for _, part in ipairs(of) do
    local stream = lane_of(part, lane)
    forget_entries(stream, purging and '(' .. progress(stream) or '-')
  end
end
if not purging then forget_entries(key('a' .. flag), '-') end -- leased again
if purging or n >= limit then return { 'ok', n } end
for _, kind in ipairs({ 'd', 'b', 'w', 'v', 'log', 'li' }) do call('UNLINK', key(kind .. flag)) end
for part = 0, parts - 1 do
  local of = flag .. '.' .. num(part)
  call('HDEL', KEYS[1], 'late' .. of, 'again' .. of)
end
call('HDEL', KEYS[1], 'dropping' .. flag, 'moving' .. flag, 'more' .. flag)
local left = call('HMGET', KEYS[1], 'spec0', 'spec1', 'dropping0', 'dropping1')
if not (left[1] or left[2] or left[3] or left[4]) then call('UNLINK', unpack(KEYS)) end
return { 'ok', n }
