-- Ack many at once that end alike: those of a list, or the next that a batch name holds.
-- KEYS: c m x e k kn, of the queue d b a log li, and the lanes that the tokens name (of a batch: all).
-- ARGV: queue, now, verb, status or "", batch or "", then either how many of the batch,
--       or id, token and result ("" for none) of each. Answers as in settle.lua; those that are
--       missing were too much for one script. "o": not by this script, one by one.

local flag, now, verb, status, batch = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local ids, tokens, results = {}, {}, {}
if batch ~= '' then
  local range = call('ZRANGEBYLEX', key('b' .. flag), '[' .. batch .. ' ', '(' .. batch .. '!', 'LIMIT', 0, ARGV[6])
  for i, name in ipairs(range) do
    ids[i], tokens[i] = string.match(name, '^%S+ (%S+) (%S+)$')
    results[i] = ''
  end
else
  for i = 6, #ARGV, 3 do
    local n = #ids + 1
    ids[n], tokens[n], results[n] = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  end
end
if #ids == 0 then return { 0, {} } end
call('ZCARD', key('d' .. flag)); call('XLEN', key('a' .. flag)); call('ZCARD', key('b' .. flag))

local states, blobs = hmget('x', ids), {}
if status ~= '' then
  blobs = bodies(ids)
  for i = #ids, #blobs + 1, -1 do ids[i] = nil end
end
local logged = status ~= '' and hmget('li' .. flag, ids) or {}
local past = call('HLEN', key('e')) > 0 and hmget('e', ids) or {}

local answers, gone, deadlines, names = {}, {}, {}, {}
local streams, calls, open, rows = {}, {}, {}, {}
for i = 1, #ids do
  local token, state = tokens[i], states[i]
  local row
  if state == 'F' .. token and flag == '0' then
    local part, lane, seq = string.match(token, '^(%d+)%.(%d+)%.(%d+)%.')
    row = { seq = seq, attempts = '1', entry = seq, stream = lane_of(part, lane) }
  elseif state then
    row = read(state)
    if row.state ~= 'L' or row.flag ~= flag or row.token ~= token then row = nil end
    if row then row.stream = key('a' .. flag) end
  end
  if row then
    rows[i], answers[i] = row, 'a'
    gone[#gone + 1] = ids[i]
    deadlines[#deadlines + 1] = row.seq .. ids[i]
    local of = streams[row.stream] or {}
    of[#of + 1] = row.entry .. '-0'
    streams[row.stream] = of
    local name = call_of(token)
    if not open[name] then
      calls[#calls + 1], open[name] = name, 0
    end
    open[name] = open[name] + 1
    row.call = name
  else
    answers[i] = lost(flag, ids[i], token, verb, state)
  end
end
if #gone == 0 then return { 0, answers } end

local told, leases = hmget('k', calls), {}
for i, name in ipairs(calls) do
  local at, held_as, owner = string.match(told[i] or '0  ', '^(%d+) (%S*) (.*)$')
  leases[name] = { at = at, batch = held_as, owner = owner }
end
for stream, entries in pairs(streams) do
  call('XACK', stream, GROUP, unpack(entries))
  call('XDEL', stream, unpack(entries))
end
call('ZREM', key('d' .. flag), unpack(deadlines))
call('HDEL', key('x'), unpack(gone))
call('HDEL', key('m'), unpack(gone))
if #past > 0 then call('HDEL', key('e'), unpack(gone)) end
for i = 1, #ids do
  local row = rows[i]
  local held_as = row and leases[row.call].batch
  if row and held_as ~= '' then
    names[#names + 1] = held_as .. ' ' .. ids[i] .. ' ' .. tokens[i]
  end
end
if #names > 0 then call('ZREM', key('b' .. flag), unpack(names)) end
for name, n in pairs(open) do
  if call('HINCRBY', key('kn'), name, -n) <= 0 then
    call('HDEL', key('k'), name)
    call('HDEL', key('kn'), name)
  end
end
call('HINCRBY', KEYS[1], 'done' .. flag, #gone)
if status ~= '' then
  local ms, n = next_in_log(flag, now, #gone)
  local log, found = key('log' .. flag), {}
  for i = 1, #ids do
    local row = rows[i]
    if row and not logged[i] and blobs[i] then
      n = n + 1
      local lease = leases[row.call]
      local entry = ms .. '-' .. num(n)
      local line = log_line(row, status, verb, tokens[i], lease.at, lease.owner)
      if results[i] == '' and not past[i] then
        call('XADD', log, entry, 'i', ids[i], 'b', blobs[i], 'l', line)
      else
        call('XADD', log, entry, 'i', ids[i], 'b', blobs[i], 'l', line, 'r', results[i], 'h', past[i] or '')
      end
      found[#found + 1] = ids[i]
      found[#found + 1] = entry
    end
  end
  if #found > 0 then call('HSET', key('li' .. flag), unpack(found)) end
end
return { #gone, answers }
