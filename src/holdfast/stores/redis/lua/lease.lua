-- Lease, or hold, up to a number of messages: highest lane first, then by place.
-- KEYS: c m x e k kn, of the queue d z b a w and all r, and s; of a lease from some partitions only their
--       s, and o.
-- ARGV: queue, partitions, how many, now, call, time-out in ms ("" holds: no deadline), batch, owner, the
--       partitions asked for (" 0 2 ", with epochs " 0:7 2:1 ", or "" for all), NO_DEADLINE, how many bodies
--       to read at a time
-- Answers: tokens, as many bodies as fit, and of those that were leased before: number, x, e. Of messages
-- that are held: how many. 'more': the caller may ask for the rest of its limit.
-- Invariant: x, the deadlines, the batch and the call (k: when, batch, owner; kn: how many it still holds)
-- name the token of each message that is pending in a stream, and of no other.
--#include common
--#include queue

local limit, now = tonumber(ARGV[3]), tonumber(ARGV[4])
local caller, timeout, batch, owner = ARGV[5], tonumber(ARGV[6]), ARGV[7], ARGV[8]
if known[4] == '1' then return { 'ok', {}, {}, {} } end
call('ZCARD', key('d' .. flag)); call('HLEN', key('x')); call('HLEN', key('k'))
call('HLEN', key('kn')); call('LLEN', key('w' .. flag)); call('XLEN', key('a' .. flag))
call('HLEN', key('m')); call('HLEN', key('e'))
if batch ~= '' then call('ZCARD', key('b' .. flag)) end

local wanted, parts, fenced = nil, {}, false
if ARGV[9] == '' then
  for part = 0, known[2] - 1 do parts[#parts + 1] = num(part) end
else
  wanted = {}
  for part, epoch in string.gmatch(ARGV[9], '(%d+):?(%d*)') do
    local given = part + 0 < known[2] + 0 and not wanted[part]
    if epoch ~= '' then -- see claim.lua
      fenced = true
      local at, expires, by = string.match(
        call('HGET', key('o'), flag .. '#' .. part) or '', '^(%d+) (%d+) (.*)$')
      given = given and at == epoch and by == owner and tonumber(expires) > now
    end
    if given then wanted[part], parts[#parts + 1] = true, part end
  end
  if #parts == 0 then return { 'ok', {}, {}, {} } end
end
local returned = call('ZCOUNT', key('z' .. flag), '-inf', num(now))
for _, part in ipairs(parts) do returned = returned + call('ZCARD', key('r' .. flag .. '.' .. part)) end

local AGAIN, asked = 100, limit
local deadline = timeout and num(now + timeout) or ARGV[10]
local ids, tokens, due, states, extras = {}, {}, {}, {}, {}

local function take(seq, id, own, suffix)
  local at = #ids + 1
  local token = seq .. id .. suffix
  ids[at], tokens[at] = id, token
  due[2 * at - 1] = own and timeout and num(now + own) or deadline
  due[2 * at] = token
  states[2 * at - 1] = id
  states[2 * at] = token
end

if returned == 0 and #parts == 1 then
  -- The usual case: what waits lies in the lanes of one partition, in their order.
  for lane = 9, 0, -1 do
    local name = parts[1] .. '.' .. lane
    if #ids < limit and string.find(known[3] or '', ' ' .. name .. ' ', 1, true) and flag == '0' then
      local read = redis.pcall('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', limit - #ids, 'STREAMS', key('s' .. name), '>')
      if read and read.err then
        -- Once something was taken, a lane that is not ours ends the search; alone it is an error.
        if #ids == 0 then error(read.err, 0) end
        break
      end
      local suffix = '.' .. name .. '.' .. caller
      for _, entry in ipairs(read and read[1][2] or {}) do
        take(string.sub(entry[1], 1, 15), entry[2][2], entry[2][4], suffix)
      end
    end
  end
else
  -- Lanes and what came back are merged by place; only then is anything taken. It costs three times as
  -- much: the caller asks again for the rest.
  limit = math.min(limit, AGAIN)
  --#include rows
  --#include promote
  --#include line
  local again, chosen, some = {}, {}, {}
  -- The head of a fenced line is exact: the caller asks until all that is due has its place in it.
  if promote(flag, now) == PROMOTE and fenced then return { 'more', {}, {}, {} } end
  local used = lanes_of(flag, known[3], wanted)
  for rank = 0, 9 do
    local lane, left = num(9 - rank), limit - #ids
    local counts = {}
    for _, one in ipairs(left > 0 and line(flag, lane, parts, used[lane], -1, left) or {}) do
      if one[4] then
        take(one[4], one[2], one[5], '.' .. one[3] .. '.' .. lane .. '.' .. caller)
        counts[one[3]] = (counts[one[3]] or 0) + 1
      else
        local at = #ids + 1
        ids[at] = one[2]
        due[2 * at - 1], due[2 * at], states[2 * at - 1], states[2 * at] = '', '', '', ''
        again[#again + 1] = at
        some[#some + 1] = one[2]
      end
    end
    for part, n in pairs(counts) do chosen[#chosen + 1] = { lane_of(part, lane), n } end
  end
  local rows, past = hmget('x', some), hmget('e', some)
  for i = 1, #again do rows[i] = read(rows[i], some[i]) end
  for _, of in ipairs(chosen) do
    call('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', of[2], 'STREAMS', of[1], '>')
  end
  if #again > 0 then
    -- Those that come again are shown to operators in a stream of their own.
    for i, id in ipairs(some) do call('ZREM', key('r' .. flag .. '.' .. rows[i].part), id) end
    local entry = call('HINCRBY', KEYS[1], 'seq', #again) - #again
    for i, at in ipairs(again) do
      local id, row = some[i], rows[i]
      row.state, row.entry, row.verb = 'L', num(entry + i), '-'
      row.token = row.seq .. id .. '.' .. row.part .. '.' .. row.lane .. '.' .. caller
      row.attempts = num(row.attempts + 1)
      if row.first == '-' then row.first = num(now) end
      call('XADD', key('a' .. flag), row.entry .. '-0', 'i', id)
      tokens[at] = row.token
      due[2 * at - 1] = row.timeout ~= '-' and timeout and num(now + row.timeout) or deadline
      due[2 * at] = row.token
      states[2 * at - 1], states[2 * at] = id, written(row)
      extras[#extras + 1] = num(at - 1)
      extras[#extras + 1] = states[2 * at]
      extras[#extras + 1] = past[i] or ''
    end
    call('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', #again, 'STREAMS', key('a' .. flag), '>')
    local counts = {}
    for _, row in ipairs(rows) do counts[row.part] = (counts[row.part] or 0) + 1 end
    for part, n in pairs(counts) do call('HINCRBY', KEYS[1], 'again' .. flag .. '.' .. part, n) end
  end
end
if #ids == 0 then return { 'ok', {}, {}, {} } end

call('ZADD', key('d' .. flag), unpack(due))
call('HSET', key('x'), unpack(states))
call('HSET', key('k'), caller, num(now) .. ' ' .. batch .. ' ' .. owner)
call('HINCRBY', key('kn'), caller, #ids)
if batch ~= '' then
  local names = {}
  for i = 1, #ids do
    names[#names + 1] = 0
    names[#names + 1] = batch .. ' ' .. ids[i] .. ' ' .. tokens[i]
  end
  call('ZADD', key('b' .. flag), unpack(names))
end
if #ids == limit then wake(flag) end
local status = #ids == limit and limit < asked and 'more' or 'ok'
if not timeout then return { status, #ids } end
local step, blobs = tonumber(ARGV[11]), nil
if #ids <= step then
  blobs = hmget('m', ids)
else
  --#include bodies
  blobs = bodies(ids, step)
end
return { status, tokens, blobs, extras }
