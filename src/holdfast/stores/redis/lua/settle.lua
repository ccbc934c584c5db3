-- Apply transitions one after the other.
-- KEYS: c m x e k kn, of both queues d z b a w r v log li, and the lanes that the tokens name.
-- ARGV: queue (of no meaning: each transition names its own), partitions, now, then 18 values for each: see
--       `settle`. The last two are for a message that is changed: the SHA-1 of the body that was read, and
--       the new body.
-- Answers for each of the first ones: "a" applied, "r" had been applied before, "s" stale.
-- Invariant: each is applied whole, from the place where it expects its message to the place it names, or
-- changes nothing; a stale one does not stop the others.
--#include common
--#include rows
--#include line
--#include calls
--#include expected
--#include stand
--#include logging
--#include lost

local WIDTH = 18
local now = tonumber(ARGV[3])
local specs = call('HMGET', KEYS[1], 'spec0', 'spec1', 'lanes', 'parts')
if specs[4] and specs[4] ~= ARGV[2] then return { 'parts', specs[4] } end
for flag = 0, 1 do
  call('ZCARD', key('d' .. flag)); call('ZCARD', key('z' .. flag)); call('LLEN', key('w' .. flag))
  call('XLEN', key('v' .. flag))
  call('XLEN', key('log' .. flag)); call('HLEN', key('li' .. flag)); call('ZCARD', key('b' .. flag))
end
call('HLEN', key('k')); call('HLEN', key('kn')); call('HLEN', key('e')); call('HLEN', key('m'))

local back = {}
local function settle(at)
  local id, token, flag, verb, target, overdue, place, to, tail, lane, available, deadline, attempts,
    history, status, result, was, new = unpack(ARGV, at, at + WIDTH - 1)
  local row, state = expected(specs[3], id, token, flag, overdue, place)
  if not row then return lost(flag, id, token, verb, state) end
  if target == 'L' then
    if call('ZREM', key('d' .. flag), token) == 1 then
      call('ZADD', key('d' .. flag), deadline, token)
    end
    return 'a'
  end
  if target == 'W' and not specs[to + 1] then return 's' end
  local body = target == 'D' and status ~= '' and call('HGET', key('m'), id)
  local part = row.part
  if was ~= '' then
    -- Somebody else changed it meanwhile.
    if redis.sha1hex(call('HGET', key('m'), id) or '') ~= was then return 's' end
    part = string.match(new, '^%d+')
    if part + 0 >= specs[4] + 0 then return 's' end -- nobody would ever look for it there
  end
  if target == 'W' then call('ZCARD', key('r' .. to .. '.' .. part)) end
  local leased, owner = leave(row, id)
  if target == 'W' then
    if tail == '1' then
      row.place = num(call('HINCRBY', KEYS[1], 'seq', 1))
    elseif to ~= flag then
      row.place = row.seq
    end
    row.state, row.flag, row.part, row.lane, row.attempts, row.available =
      'W', to, part, lane, attempts, available
    row.entry, row.token, row.verb = '-', token == '' and '-' or token, verb
    stand(row, id, now)
    if was ~= '' then call('HSET', key('m'), id, new) end
    if history ~= '' then call('HSET', key('e'), id, history) end
    back[to] = true
    return 'a'
  end
  local past = history ~= '' and history or call('HGET', key('e'), id)
  call('HDEL', key('m'), id); call('HDEL', key('x'), id); call('HDEL', key('e'), id)
  call('HINCRBY', KEYS[1], 'done' .. flag, 1)
  if body then
    local ms, n = next_in_log(flag, now, 1)
    local entry = ms .. '-' .. num(n + 1)
    local line = row.seq .. log_line(row, status, verb, string.sub(token, 52), leased, owner)
    past = past or ''
    call('XADD', key('log' .. flag), entry, id,
      #line .. ' ' .. #result .. ' ' .. #past .. ' ' .. line .. result .. past .. body)
    call('HSET', key('li' .. flag), id, with_entry(flag, call('HGET', key('li' .. flag), id), entry))
  end
  return 'a'
end

local answers = {}
for at = 4, #ARGV, WIDTH do
  local fine, answer = pcall(settle, at)
  if not fine then
    -- Answers what has been written; the caller asks again for the rest, and is then told.
    local said = type(answer) == 'table' and answer.err or answer
    if #answers == 0 or not string.find(said, 'MISPLACED', 1, true) then error(answer, 0) end
    break
  end
  answers[#answers + 1] = answer
end
for to in pairs(back) do
  --#include news
  wake(to)
  news(to)
end
return answers
