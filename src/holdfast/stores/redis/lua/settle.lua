-- Apply transitions one after the other, each whole or not at all; an answer for each:
-- "a" applied, "r" had been applied before, "s" stale.
-- KEYS: c m x e k kn, of both queues d z b a w r v log li, and the lanes that the tokens name.
-- ARGV: now, partitions, then 16 values for each: see WIDTH and `settle`.
--#include common
--#include rows
--#include line
--#include letgo
--#include logging
--#include lost

local WIDTH = 16
local now = tonumber(ARGV[1])
local specs = call('HMGET', KEYS[1], 'spec0', 'spec1', 'lanes', 'parts')
if specs[4] and specs[4] ~= ARGV[2] then return { 'parts', specs[4] } end
for flag = 0, 1 do
  call('ZCARD', key('d' .. flag)); call('ZCARD', key('z' .. flag)); call('LLEN', key('w' .. flag))
  call('XLEN', key('v' .. flag))
  call('XLEN', key('log' .. flag)); call('HLEN', key('li' .. flag)); call('ZCARD', key('b' .. flag))
end
call('HLEN', key('k')); call('HLEN', key('kn')); call('HLEN', key('e')); call('HLEN', key('m'))

-- A message that waits in its lane as it was enqueued, at this very place; else nil.
local function untouched(id, place)
  local body = call('HGET', key('m'), id)
  if not body then return nil end
  local part, lane = string.match(body, '^(%d+)%.(%d+)%.')
  local stream, entry = lane_of(part, lane), place .. '-0'
  if not string.find(specs[3] or '', ' ' .. part .. '.' .. lane .. ' ', 1, true) then return nil end
  local found = call('XRANGE', stream, entry, entry)[1]
  local last = string.match(progress(stream), '^%d+')
  if not found or found[2][2] ~= id or tonumber(last) >= tonumber(place) then return nil end
  return {
    state = 'S', flag = '0', part = part, lane = lane, seq = place, place = place,
    attempts = '0', first = '-', timeout = found[2][4] or '-', entry = place,
    available = string.match(body, '^%d+%.%d+%.(%d+)'),
  }
end

local function leave(row, id)
  if row.state == 'S' then
    call('XDEL', lane_of(row.part, row.lane), row.entry .. '-0')
  elseif row.state == 'W' then
    call('ZREM', key('r' .. row.flag .. '.' .. row.part), id)
    if call('ZREM', key('z' .. row.flag), row.seq .. id) == 1 then
      call('HINCRBY', KEYS[1], 'late' .. row.flag .. '.' .. row.part, -1)
    end
  else
    return let_go(row, id)
  end
  return '-', ''
end

local back = {}
local function settle(at)
  local id, token, flag, verb, target, overdue, place, to, tail, lane, available, deadline, attempts,
    history, status, result = unpack(ARGV, at, at + WIDTH - 1)
  local state, row = call('HGET', key('x'), id), nil
  if state then row = read(state) elseif token == '' then row = untouched(id, place) end
  local fits = row and row.flag == flag
  if fits and token == '' then
    fits = (row.state == 'W' or row.state == 'S') and row.place == place
  elseif fits then
    fits = (row.state == 'F' or row.state == 'L') and row.token == token
    if fits and overdue ~= '' then
      fits = tonumber(call('ZSCORE', key('d' .. flag), token)) <= tonumber(overdue)
    end
  end
  if not fits then return lost(flag, id, token, verb, state) end
  if target == 'L' then
    if call('ZREM', key('d' .. flag), token) == 1 then
      call('ZADD', key('d' .. flag), deadline, token)
    end
    return 'a'
  end
  if target == 'W' and not specs[to + 1] then return 's' end
  local body = target == 'D' and status ~= '' and call('HGET', key('m'), id)
  if row.state == 'F' then
    local entry = row.entry .. '-0'
    row.timeout = call('XRANGE', lane_of(row.part, row.lane), entry, entry)[1][2][4] or '-'
  end
  if target == 'W' then call('ZCARD', key('r' .. to .. '.' .. row.part)) end
  local leased, owner = leave(row, id)
  if target == 'W' then
    if tail == '1' then
      row.place = num(call('HINCRBY', KEYS[1], 'seq', 1))
    elseif to ~= flag then
      row.place = row.seq
    end
    row.first = row.first or leased
    row.state, row.flag, row.lane, row.attempts, row.available = 'W', to, lane, attempts, available
    row.entry, row.token, row.verb = '-', token == '' and '-' or token, verb
    call('HSET', key('x'), id, written(row))
    if history ~= '' then call('HSET', key('e'), id, history) end
    if tonumber(available) > now then
      call('ZADD', key('z' .. to), available, row.seq .. id)
      call('HINCRBY', KEYS[1], 'late' .. to .. '.' .. row.part, 1)
    else
      call('ZADD', key('r' .. to .. '.' .. row.part), score(lane, row.place), id)
    end
    back[to] = true
    return 'a'
  end
  local past = history ~= '' and history or call('HGET', key('e'), id)
  call('HDEL', key('m'), id); call('HDEL', key('x'), id); call('HDEL', key('e'), id)
  call('HINCRBY', KEYS[1], 'done' .. flag, 1)
  if body and call('HEXISTS', key('li' .. flag), id) == 0 then
    local ms, n = next_in_log(flag, now, 1)
    local entry = ms .. '-' .. num(n + 1)
    local line = row.seq .. log_line(row, status, verb, string.sub(token, 52), leased, owner)
    past = past or ''
    call('XADD', key('log' .. flag), entry, id,
      #line .. ' ' .. #result .. ' ' .. #past .. ' ' .. line .. result .. past .. body)
    call('HSET', key('li' .. flag), id, entry)
  end
  return 'a'
end

local answers = {}
for at = 3, #ARGV, WIDTH do answers[#answers + 1] = settle(at) end
for to in pairs(back) do
  --#include news
  wake(to)
  news(to)
end
return answers
