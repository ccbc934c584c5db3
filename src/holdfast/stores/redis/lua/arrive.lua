-- Messages come from another home: each is stored if its id is not held. Which were refused is kept as a
-- receipt, so that whoever repeats it, and whenever, gets the same answer and changes nothing.
-- KEYS: c m x e, of the queue z w v and all r; rn rv.
-- ARGV: now, partitions, queue, its name (see expect.lua), receipt, then of each three values as in
--       enqueue.lua.
--#include common
--#include rows

local now, flag, receipt = tonumber(ARGV[1]), ARGV[3], ARGV[5]
local kept = call('HGET', key('rv'), receipt)
if kept then return { 'ok', (string.match(kept, '^%d+ %d+ (.*)$')) } end
local known = call('HMGET', KEYS[1], 'rev' .. flag, 'parts', 'born' .. flag)
-- Without a receipt and with nothing under way, it was refused before.
if not known[1] or known[3] ~= ARGV[4] or #ARGV == 5 then return { 'refused' } end
if known[2] ~= ARGV[2] then return { 'parts', known[2] } end
call('ZCARD', key('rn')); call('HLEN', key('x')); call('HLEN', key('e')); call('ZCARD', key('z' .. flag))
call('LLEN', key('w' .. flag)); call('XLEN', key('v' .. flag))
local refused, coming = {}, {}
for at = 6, #ARGV, 3 do
  local id, head, body = unpack(ARGV, at, at + 2)
  local row = { state = 'W', entry = '-', token = '-', verb = '-' }
  row.flag, row.part, row.lane, row.available, row.attempts, row.first, row.timeout, row.history =
    string.match(head, '^W (%d) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
  -- Where there is no such partition, nobody would ever look for it.
  if call('HEXISTS', key('m'), id) == 1 or row.part + 0 >= known[2] + 0 then
    refused[#refused + 1] = id
  else
    call('ZCARD', key('r' .. flag .. '.' .. row.part))
    coming[#coming + 1] = { row, id, body }
  end
end

local seq = call('HINCRBY', KEYS[1], 'seq', #coming) - #coming
refused = table.concat(refused, ' ')
call('HSET', key('rv'), receipt, '1 ' .. num(now) .. ' ' .. refused)
call('ZADD', key('rn'), 0, receipt)
for i, one in ipairs(coming) do
  local row, id, body = unpack(one)
  row.seq = num(seq + i)
  row.place = row.seq
  call('HSET', key('m'), id, body)
  call('HSET', key('x'), id, written(row))
  if row.history ~= '' then call('HSET', key('e'), id, row.history) end
  if tonumber(row.available) > now then
    call('ZADD', key('z' .. flag), row.available, row.seq .. id)
    call('HINCRBY', KEYS[1], 'late' .. flag .. '.' .. row.part, 1)
  else
    call('ZADD', key('r' .. flag .. '.' .. row.part), score(row.lane, row.place), id)
  end
end
if #coming > 0 then
  --#include news
  wake(flag)
  news(flag)
end
return { 'ok', refused }
