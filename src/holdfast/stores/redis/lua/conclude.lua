-- The end of a move: what arrived is forgotten here, what was refused takes its place in line again.
-- KEYS: c m x e t, of the queue z w v and all r.
-- ARGV: now, partitions, queue, move, " id id " of those refused, ids of all
--#include common
--#include rows

local now, flag, move, refused = tonumber(ARGV[1]), ARGV[3], ARGV[4], ARGV[5]
if call('HEXISTS', key('t'), move) == 0 then return { 'ok' } end
local parts = call('HGET', KEYS[1], 'parts')
if parts ~= ARGV[2] then return { 'parts', parts } end
call('HLEN', key('m')); call('HLEN', key('e')); call('ZCARD', key('z' .. flag))
call('LLEN', key('w' .. flag)); call('XLEN', key('v' .. flag))
local ids, gone, back = {}, {}, {}
for i = 6, #ARGV do ids[i - 5] = ARGV[i] end
for i, state in ipairs(hmget('x', ids)) do
  local row = state and read(state, ids[i])
  if row and row.state == 'T' and row.entry == move then
    if string.find(refused, ' ' .. ids[i] .. ' ', 1, true) then
      call('ZCARD', key('r' .. flag .. '.' .. row.part))
      back[#back + 1] = { row, ids[i] }
    else
      gone[#gone + 1] = ids[i]
    end
  end
end

call('HDEL', key('t'), move) -- a server out of memory takes it, and then the rest
call('HINCRBY', KEYS[1], 'moving' .. flag, -(#gone + #back))
if #gone > 0 then
  call('HDEL', key('x'), unpack(gone))
  call('HDEL', key('e'), unpack(gone))
  call('HDEL', key('m'), unpack(gone))
end
for _, one in ipairs(back) do
  local row, id = unpack(one)
  row.state, row.entry = 'W', '-'
  call('HSET', key('x'), id, written(row))
  if tonumber(row.available) > now then
    call('ZADD', key('z' .. flag), row.available, row.seq .. id)
    call('HINCRBY', KEYS[1], 'late' .. flag .. '.' .. row.part, 1)
  else
    call('ZADD', key('r' .. flag .. '.' .. row.part), score(row.lane, row.place), id)
  end
end
if #back > 0 then
  --#include news
  wake(flag)
  news(flag)
end
return { 'ok' }
