-- Messages leave their line for a queue of another home; or what left with this move is read again.
-- KEYS: all of the home, t included.
-- ARGV: queue, partitions, move, its plan ("" only reads), how many bytes, then of each: id, token, overdue,
--       place
-- Answers: for each of the first ones, as many as fit into one move, "a" it left, "s" stale; and of those
-- that are on their way by this move: ids, x, e, bodies.
-- Invariant: who leaves stands in no line; its x says "T" and the move, and t says what is to become of it.
--#include common
--#include rows
--#include line
--#include calls
--#include expected

local flag, move, plan, most, WIDTH = ARGV[1], ARGV[3], ARGV[4], tonumber(ARGV[5]), 4
local known = call('HMGET', KEYS[1], 'spec' .. flag, 'lanes', 'parts')
if known[3] and known[3] ~= ARGV[2] then return { 'parts', known[3] } end
call('ZCARD', key('d' .. flag)); call('ZCARD', key('z' .. flag)); call('ZCARD', key('b' .. flag))
call('HLEN', key('k')); call('HLEN', key('kn')); call('HLEN', key('t'))
local answers, ids, leaving, size = {}, {}, {}, 0
for at = 6, #ARGV, WIDTH do
  local id, token, overdue, place = unpack(ARGV, at, at + WIDTH - 1)
  ids[#ids + 1] = id
  if plan ~= '' then
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
end
if #leaving > 0 then
  call('HDEL', key('t'), move)
  call('HSET', key('t'), move, plan)
  call('HINCRBY', KEYS[1], 'moving' .. flag, #leaving)
end
for _, one in ipairs(leaving) do
  local row, id = unpack(one)
  leave(row, id)
  row.state, row.entry = 'T', move
  call('HSET', key('x'), id, written(row))
end
local found, of = {}, {}
for i, state in ipairs(hmget('x', ids)) do
  local row = state and read(state, ids[i])
  if row and row.state == 'T' and row.entry == move then
    found[#found + 1], of[#of + 1] = ids[i], state
  end
end
return { answers, found, of, hmget('e', found), hmget('m', found) }
