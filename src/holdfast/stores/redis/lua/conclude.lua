-- The end of a move: what arrived is forgotten here, what was refused takes its place in line again.
-- KEYS: all of the home, t included.
-- ARGV: queue, partitions, now, move, " id id " of those refused, ids of all
-- Invariant: only what is still on its way by this move is touched, and only once: t then forgets the move.
--#include common
--#include rows
--#include stand

local flag, now, move, refused = ARGV[1], tonumber(ARGV[3]), ARGV[4], ARGV[5]
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

call('HDEL', key('t'), move)
call('HINCRBY', KEYS[1], 'moving' .. flag, -(#gone + #back))
if #gone > 0 then
  for _, kind in ipairs({ 'x', 'e', 'm' }) do call('HDEL', key(kind), unpack(gone)) end
end
for _, one in ipairs(back) do
  local row, id = unpack(one)
  row.state, row.entry = 'W', '-'
  stand(row, id, now)
end
if #back > 0 then
  --#include news
  wake(flag)
  news(flag)
end
return { 'ok' }
