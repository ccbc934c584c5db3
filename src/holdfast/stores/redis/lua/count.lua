-- The counts of a queue, each from the length of a key; and for the oldest age the bodies of those
-- at the head of each lane. What is on its way to another home counts as leased here.
-- KEYS: c m x, of both queues d z a and all r; of the home all s.
-- ARGV: queue, partitions, now, heads wanted (1 or 0)
--#include common

local flag, now = ARGV[1], tonumber(ARGV[3])
local known = call('HMGET', KEYS[1], 'rev' .. flag, 'parts', 'lanes', 'paused' .. flag, 'done' .. flag,
  'moving' .. flag, 'moving1')
if not known[1] then return { 'gone' } end
if known[2] ~= ARGV[2] then return { 'parts', known[2] } end
local wanted = ARGV[4] == '1'
if wanted then
  --#include rows
  --#include promote
  promote(flag, now)
end
local parts = {}
for part = 0, known[2] - 1 do parts[#parts + 1] = num(part) end

local function waiting(of)
  local n = 0
  for _, part in ipairs(parts) do n = n + call('ZCARD', key('r' .. of .. '.' .. part)) end
  return n
end

local leased = call('ZCARD', key('d' .. flag))
local due = call('ZCOUNT', key('z' .. flag), '-inf', num(now))
local ready = waiting(flag) + due + call('XLEN', key('a' .. flag)) - leased
for name in string.gmatch(flag == '0' and known[3] or '', '%S+') do
  ready = ready + call('XLEN', key('s' .. name))
end
local delayed, dead = call('ZCARD', key('z' .. flag)) - due, 0
if flag == '0' then dead = waiting('1') + call('ZCARD', key('z1')) + call('ZCARD', key('d1')) + (known[7] or 0) end
local next = call('ZRANGEBYSCORE', key('z' .. flag), '(' .. num(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local heads = {}
if wanted and ready > 0 then
  --#include line
  local used = lanes_of(flag, known[3])
  for lane = 0, 9 do
    local streams = {}
    for _, part in ipairs(used[num(lane)] or {}) do streams[part] = { part } end
    for _, part in ipairs(parts) do
      local head = line(flag, num(lane), { part }, streams[part], -1, 1)[1]
      if head then heads[#heads + 1] = head[2] end
    end
  end
end
local blobs = {}
for _, body in ipairs(hmget('m', heads)) do
  blobs[#blobs + 1] = string.match(body or '', '^%d+%.%d+%.[%d.]*%d|')
end
return { 'ok', known[4] == '1' and 1 or 0, ready, delayed, leased + (known[6] or 0), dead, known[5] or '0',
  next[2] or '', blobs }
