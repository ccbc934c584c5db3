-- What x says of an id is damaged: look for the place where it stands, and write that into x again. Looks
-- through whole lines, as it is seldom run.
-- KEYS: all of the home, t included.
-- ARGV: id, what e says of it, what it shall say of it
-- Answers which queue it is in, and what it was found as: W, L, F, T; "" if it stands in no line but perhaps
-- in its lane; "gone" without a body; "fine" if another process has mended it.
-- Invariant: a message with a body stays where it is. What only x knew is lost: how often a waiting message
-- was leased, and its own end of the line. An id without a body is removed wherever it stands.
--#include common
--#include rows

local id, was, past = ARGV[1], ARGV[2], ARGV[3]
local noted = call('HGET', key('x'), id)
if noted and read(noted, id, true) then return { '0', 'fine' } end
local parts, body = tonumber(call('HGET', KEYS[1], 'parts') or 1), call('HGET', key('m'), id)

-- The members of a sorted set that are of this id, with their scores.
local function members(name)
  local found, at, STEP = {}, 0, 1000
  repeat
    local some = call('ZRANGE', name, at, at + STEP - 1, 'WITHSCORES')
    for i = 1, #some, 2 do
      if string.sub(some[i], 16, 51) == id then found[#found + 1] = { some[i], some[i + 1] } end
    end
    at = at + STEP
  until #some < 2 * STEP
  return found
end

if not body then
  call('HDEL', key('x'), id)
  call('HDEL', key('e'), id)
  for flag = 0, 1 do
    for part = 0, parts - 1 do call('ZREM', key('r' .. flag .. '.' .. num(part)), id) end
    for _, kind in ipairs({ 'z', 'd' }) do
      for _, one in ipairs(members(key(kind .. flag))) do call('ZREM', key(kind .. flag), one[1]) end
    end
  end
  return { '0', 'gone' }
end

local head_part, head_lane, rest = string.match(body, '^(%d+)%.(%d)(%.[%d.]*)|')
if not head_part or #head_part > 5 or head_part + 0 >= parts then head_part = '0' end
local row = {
  part = head_part, lane = head_lane or '0', attempts = '0', available = '0', first = '-',
  timeout = string.match(rest or '', '^%.%d+%.(%d+)%.%d+$') or '-', entry = '-', token = '-', verb = '-',
}

local function found_at(flag)
  row.flag = num(flag)
  for part = 0, parts - 1 do
    local at = call('ZSCORE', key('r' .. flag .. '.' .. num(part)), id)
    if at then
      at = tonumber(at)
      local lane = math.max(0, math.min(9, 9 - math.floor(at / LANE)))
      row.state, row.part, row.lane, row.place = 'W', num(part), num(lane), num(at - (9 - lane) * LANE)
      row.seq = row.place
      return row
    end
  end
  local late = members(key('z' .. flag))[1]
  if late then
    row.state, row.seq, row.available = 'W', string.sub(late[1], 1, 15), num(tonumber(late[2]))
    row.place = row.seq
    return row
  end
  local held = members(key('d' .. flag))[1]
  if not held then return nil end
  local part, lane, name = string.match(held[1], '^%.(%d+)%.(%d)%.([^ ]+)$', 52)
  row.token, row.seq = held[1], string.sub(held[1], 1, 15)
  row.place, row.part, row.lane = row.seq, part or row.part, lane or row.lane
  if not name then -- no lease can be settled by this token
    call('ZREM', key('d' .. flag), held[1])
    call('ZADD', key('r' .. flag .. '.' .. row.part), score(row.lane, row.place), id)
    row.state, row.token = 'W', '-'
    return row
  end
  row.first = string.match(call('HGET', key('k'), name) or '', '^(%d+) ') or '-'
  row.state, row.attempts = 'F', '1'
  local last = '-'
  repeat
    local some = call('XRANGE', key('a' .. flag), last, '+', 'COUNT', 1000)
    for _, entry in ipairs(some) do
      if entry[2][2] == id then
        row.state, row.attempts, row.entry = 'L', '2', string.match(entry[1], '^%d+')
      end
      last = '(' .. entry[1]
    end
  until #some < 1000
  return row
end

local function moving()
  local plans = call('HGETALL', key('t'))
  for i = 1, #plans, 2 do
    local sound, plan = pcall(cmsgpack.unpack, plans[i + 1])
    for _, move in ipairs(sound and type(plan) == 'table' and plan.moves or {}) do
      if move.id == id then
        row.state, row.entry, row.flag = 'T', plans[i], string.find(move.queue, '%.dlq$') and '1' or '0'
        row.seq = string.sub(string.match(move.token or '', '^%d+') or num(move.place or 0), 1, 15)
        row.place = row.seq
        return row
      end
    end
  end
end

local there = found_at(0) or found_at(1) or moving()
call('HDEL', key('x'), id) -- a server out of memory accepts it, and then the rest
if was ~= past and (call('HGET', key('e'), id) or '') == was then call('HSET', key('e'), id, past) end
if not there then return { '0', '' } end
if #row.seq ~= 15 then row.seq = string.format('%015.0f', tonumber(row.seq) or 0) end
if #row.place ~= 15 then row.place = row.seq end
if row.state == 'F' and row.flag == '0' then
  call('HSET', key('x'), id, row.token)
else
  if row.state == 'F' then row.state, row.entry = 'L', '0' end -- of dead letters there are only these
  call('HSET', key('x'), id, written(row))
end
return { row.flag, row.state }
