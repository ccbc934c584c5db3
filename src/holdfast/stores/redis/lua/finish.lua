-- Ack many at once that end alike: those of a list, or the next that a batch name holds.
-- KEYS: c m x e k kn, of the queue d b a log li, and the lanes that the tokens name (of a batch: all).
-- ARGV: queue, partitions, now, verb, status or "", how many bodies to read at a time, batch or "", then
--       either how many of the batch; or 1 or 2, and of each its token and, if it is 2, its result ("" for
--       none)
-- Answers: how many were acked, and for each as in settle.lua; those that are missing were too much for one
-- script.
-- Invariant: an acked message is in no line and no hash, and in the log if it has a status.
--#include common
--#include logging
--#include calls

local flag, now, verb, status = ARGV[1], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local batch, width = ARGV[7], tonumber(ARGV[8])
local ids, tokens, results = {}, {}, {}
if batch ~= '' then
  --#include queue
  local range = call('ZRANGEBYLEX', key('b' .. flag), '[' .. batch .. ' ', '(' .. batch .. '!', 'LIMIT', 0, width)
  for i, name in ipairs(range) do tokens[i] = string.match(name, '%S+$') end
else
  for i = 9, #ARGV, width do
    tokens[#tokens + 1] = ARGV[i]
    if width == 2 then results[#tokens] = ARGV[i + 1] end
  end
end
for i = 1, #tokens do ids[i] = string.sub(tokens[i], 16, 51) end
if #ids == 0 then return { 0, {} } end
call('ZCARD', key('d' .. flag)); call('XLEN', key('a' .. flag)); call('ZCARD', key('b' .. flag))
call('HLEN', key('kn')); call('HLEN', key('m')); call('HLEN', KEYS[1])

local blobs, logged = {}, {}
if status ~= '' then
  call('XLEN', key('log' .. flag))
  local step = tonumber(ARGV[6])
  if #ids <= step then
    blobs = hmget('m', ids)
  else
    --#include bodies
    blobs = bodies(ids, step)
    for i = #ids, #blobs + 1, -1 do ids[i] = nil end
  end
  logged = hmget('li' .. flag, ids)
end
local states = hmget('x', ids)
local past = call('HLEN', key('e')) > 0 and hmget('e', ids) or {}

-- What the tokens of one lease call have in common.
local groups = {}
local function group_of(rest)
  local part, lane, name = string.match(rest, '^%.(%d+)%.(%d+)%.(.*)$')
  local group = { call = name, n = 0, entries = {}, stream = name and lane_of(part, lane) }
  group.at, group.batch, group.owner = call_told(name)
  local line = log_line({ attempts = '1' }, status, verb, rest, group.at, group.owner)
  group.length, group.line = #line + 15, line
  groups[rest] = group
  return group
end

local parse
local answers, gone, deadlines, names, again, lines, parts = {}, {}, {}, {}, {}, {}, {}
for i = 1, #ids do
  local id, token, state = ids[i], tokens[i], states[i]
  local rest = string.sub(token, 52)
  local group = groups[rest] or group_of(rest)
  local seq, entry = string.sub(token, 1, 15), nil
  if state == token and flag == '0' then
    entry = group
    group.entries[#group.entries + 1] = seq
  elseif state then
    if not parse then
      --#include rows
      parse = read
    end
    local row = parse(state, id)
    if row.state == 'L' and row.flag == flag and row.token == token then
      again[#again + 1] = row.entry
      parts[row.part] = (parts[row.part] or 0) + 1
      local line = log_line(row, status, verb, rest, group.at, group.owner)
      entry = { length = #line + 15, line = line }
    end
  end
  if entry then
    answers[i], lines[i] = 'a', entry
    gone[#gone + 1] = id
    deadlines[#deadlines + 1] = token
    group.n = group.n + 1
    if group.batch ~= '' then names[#names + 1] = group.batch .. ' ' .. id .. ' ' .. token end
  else
    --#include rows
    --#include lost
    answers[i] = lost(flag, id, token, verb, state)
  end
end
if #gone == 0 then return { 0, answers } end
for _, group in pairs(groups) do
  if #group.entries > 0 then call('XINFO', 'GROUPS', group.stream) end
end

local function leave(stream, entries)
  if #entries == 0 then return end
  call('XACK', stream, GROUP, unpack(entries))
  -- A lane is leased in its order: when nothing before the last of these is still leased, all up to
  -- there is done with, and is cut off at once. It costs a third of deleting them one by one.
  local last, pending = entries[1], call('XPENDING', stream, GROUP)
  for i = 2, #entries do
    if entries[i] > last then last = entries[i] end
  end
  if pending[1] == 0 or string.sub(pending[2], 1, 15) > last then
    call('XTRIM', stream, 'MINID', num(last + 1))
  else
    call('XDEL', stream, unpack(entries))
  end
end

leave(key('a' .. flag), again)
for part, n in pairs(parts) do call('HINCRBY', KEYS[1], 'again' .. flag .. '.' .. part, -n) end
for _, group in pairs(groups) do
  leave(group.stream, group.entries)
  if group.n > 0 then released(group.call, group.n) end
end
call('ZREM', key('d' .. flag), unpack(deadlines))
call('HDEL', key('x'), unpack(gone))
call('HDEL', key('m'), unpack(gone))
if #past > 0 then call('HDEL', key('e'), unpack(gone)) end
if #names > 0 then call('ZREM', key('b' .. flag), unpack(names)) end
call('HINCRBY', KEYS[1], 'done' .. flag, #gone)
if status ~= '' then
  local ms, n = next_in_log(flag, now, #gone)
  local entry, found, places = ms .. '-' .. n + 1, {}, {}
  for i = 1, #ids do
    local line = lines[i]
    if line and blobs[i] then
      local id, result, history = ids[i], results[i] or '', past[i] or ''
      local at = #found + 1
      found[at], places[at], places[at + 1] = id, id, with_entry(flag, logged[i], entry)
      found[at + 1] = line.length .. ' ' .. #result .. ' ' .. #history .. ' '
        .. string.sub(tokens[i], 1, 15) .. line.line .. result .. history .. blobs[i]
    end
  end
  if #found > 0 then
    call('XADD', key('log' .. flag), entry, unpack(found))
    call('HSET', key('li' .. flag), unpack(places))
  end
end
return { #gone, answers }
