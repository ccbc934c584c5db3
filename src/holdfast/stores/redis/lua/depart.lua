-- Messages leave for a queue of another home: they stand in no line any more, x says "T" and the name of
-- the move, and t what is to become of them. An answer for each: "a" it left, "s" stale. Those that
-- are missing were too much for one move.
-- KEYS: c m x e k kn, of both queues d z b a w r v log li, t, and the lanes that the tokens name.
-- ARGV: partitions, queue, move, its plan, how many bytes, then of each: id, token, overdue, place
--#include common
--#include rows
--#include line
--#include letgo
--#include expected

local flag, move, most = ARGV[2], ARGV[3], tonumber(ARGV[5])
local known = call('HMGET', KEYS[1], 'spec' .. flag, 'lanes', 'parts')
if known[3] and known[3] ~= ARGV[1] then return { 'parts', known[3] } end
call('ZCARD', key('d' .. flag)); call('ZCARD', key('z' .. flag)); call('ZCARD', key('b' .. flag))
call('HLEN', key('k')); call('HLEN', key('kn')); call('HLEN', key('t'))
local answers, leaving, size = {}, {}, 0
for at = 6, #ARGV, 4 do
  local id, token, overdue, place = unpack(ARGV, at, at + 3)
  local row = known[1] and expected(known[2], id, token, flag, overdue, place)
  if row then
    if size > most then break end
    size = size + call('HSTRLEN', key('m'), id)
    if not row.available then
      row.available = string.match(call('HGET', key('m'), id), '^%d+%.%d+%.(%d+)')
    end
    leaving[#leaving + 1] = { row, id }
  end
  answers[#answers + 1] = row and 'a' or 's'
end
if #leaving == 0 then return answers end
call('HDEL', key('t'), move)
call('HSET', key('t'), move, ARGV[4])
call('HINCRBY', KEYS[1], 'moving' .. flag, #leaving)
for _, one in ipairs(leaving) do
  local row, id = unpack(one)
  leave(row, id)
  row.state, row.entry = 'T', move
  call('HSET', key('x'), id, written(row))
end
return answers
